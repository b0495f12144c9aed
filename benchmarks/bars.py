"""A bar, what was measured against it, and the table that is printed at the end."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    what: str
    measured: str
    bar: str
    met: bool
    reference: str

    @property
    def line(self) -> str:
        verdict = "PASS" if self.met else "MISS"
        measured = f"measured {self.measured}   bar {self.bar}"
        return f"{verdict}  {self.what}\n      {measured}\n      {self.reference}"


Bench = Callable[[], Iterable[Result]]


def run(benches: Iterable[Bench]) -> bool:
    """Print each result as it comes; True when every bar is met."""
    met = True
    for bench in benches:
        for result in bench():
            print(result.line, flush=True)
            met = met and result.met
    return met


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
