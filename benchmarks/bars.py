"""A bar, what was measured against it, and what is printed of it."""

import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import reference

_NUMBER = re.compile(r"([\d,]*\.?\d+)\s*(%|[^\s,;:)]+)?")
_SECONDS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}


@dataclass(frozen=True)
class Result:
    what: str
    measured: str
    """The number that counts comes first in it, unless `value` says another."""
    bar: str
    met: bool
    reference: str
    value: float | None = None
    unit: str = ""

    @property
    def line(self) -> str:
        verdict = "PASS" if self.met else "MISS"
        measured = f"measured {self.measured}   bar {self.bar}"
        return f"{verdict}  {self.what}\n      {measured}\n      {self.reference}"

    @property
    def number(self) -> tuple[float, str] | None:
        """What was measured and its unit, to be compared between runs."""
        if self.value is not None:
            return self.value, self.unit
        text = re.sub(r"^.*?p50 ", "", self.measured)
        found = _NUMBER.search(text)
        return None if found is None else (float(found[1].replace(",", "")), found[2] or "")


Bench = Callable[[], Iterable[Result]]


class Processor:
    """How fast this processor was, before and after what was measured."""

    def __init__(self) -> None:
        self._before = reference.turns_per_s()
        self.turns_per_s = self._before

    def look_again(self) -> None:
        self.turns_per_s = (self._before + reference.turns_per_s()) / 2

    def told(self, result: Result) -> str:
        """The reference, and the ratio to it where what was measured is a rate or a length."""
        base = f"processor: {self.turns_per_s:,.0f} reference turns/s"
        ratio = self.ratio(result)
        return base if ratio is None else f"{base}; {ratio[1]} {_short(ratio[0])}"

    def ratio(self, result: Result) -> tuple[float, str] | None:
        number, unit = result.number or (0.0, "")
        if unit.endswith("/s"):
            return number / self.turns_per_s * 1000, f"{unit.removesuffix('/s')} per 1,000 turns:"
        if unit in _SECONDS:
            return number * _SECONDS[unit] * self.turns_per_s, "as long as so many turns:"
        return None


def run(benches: Iterable[Bench], repeat: int = 1) -> bool:
    """Print each result as it comes; True when every bar is met (by the median of the runs)."""
    benches = list(benches)
    found: dict[str, list[Result]] = {}
    ratios: dict[str, list[float]] = {}
    for number in range(repeat):
        if repeat > 1:
            print(f"--- run {number + 1} of {repeat}", flush=True)
        for bench in benches:
            processor = Processor()
            results = list(bench())
            processor.look_again()
            for result in results:
                print(f"{result.line}\n      {processor.told(result)}", flush=True)
                found.setdefault(result.what, []).append(result)
                if (ratio := processor.ratio(result)) is not None:
                    ratios.setdefault(result.what, []).append(ratio[0])
    if repeat > 1:
        print(f"\n--- median and spread of {repeat} runs")
        for what, results in found.items():
            print(summary(results, ratios.get(what, [])), flush=True)
    return all(middle(results).met for results in found.values())


def middle(results: Sequence[Result]) -> Result:
    """The run in the middle, by what was measured."""
    ordered = sorted(results, key=lambda each: (each.number or (0.0, ""))[0])
    return ordered[len(ordered) // 2]


def summary(results: Sequence[Result], ratios: Sequence[float]) -> str:
    one = middle(results)
    met = sum(each.met for each in results)
    head = (
        f"{'PASS' if one.met else 'MISS'}  {one.what}   bar {one.bar}   met {met} of {len(results)}"
    )
    numbers = [each.number for each in results]
    values = [each[0] for each in numbers if each is not None]
    if len(values) < len(results):
        return head
    unit = (numbers[0] or (0.0, ""))[1]
    told = f"{head}\n      median {_spread(values)} {unit}"
    return f"{told}\n      in reference turns: median {_spread(ratios)}" if ratios else told


def _spread(values: Sequence[float]) -> str:
    median = statistics.median(values)
    low, high = min(values), max(values)
    apart = "" if not median else f", {(high - low) / median:.0%} apart"
    return f"{_short(median)} ({_short(low)} to {_short(high)}{apart})"


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
