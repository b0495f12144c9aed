"""Tasks that workers take and give back: SDKs do when they have no such function, for example.

Everybody else in the group is asked first. When all have given it back they are asked again, after
a pause: told at once, a lone worker would do nothing else, hundreds of times a second.
"""

from typing import Final, TypeVar

from msgspec import Struct, field

from layby.core.pauses import Pauses

PAUSES: Final = Pauses(0.01, longest=1.0)
REMEMBERED: Final = 10_000

T = TypeVar("T")


class Returns(Struct):
    """Of one task."""

    version: int
    rounds: int = 0
    tried: set[str] = field(default_factory=set)
    """Who has given it back in this round."""


class GivenBack:
    """The oldest are forgotten: then somebody is asked once too often, or too soon."""

    def __init__(self) -> None:
        self._takers: dict[str, str] = {}
        self._returns: dict[str, Returns] = {}

    def took(self, task_id: str, worker: str) -> None:
        _remember(self._takers, task_id, worker)

    def note(self, task_id: str, version: int) -> None:
        """In a row when it was taken only once since, so that it cannot have waited meanwhile."""
        returns = self._returns.get(task_id)
        if returns is None or returns.version not in (version, version - 1):
            returns = Returns(version)
        returns.version = version
        returns.tried.add(self._takers.pop(task_id, ""))
        _remember(self._returns, task_id, returns)

    def tried(self, task_id: str, version: int) -> set[str]:
        """Who need not be asked; empty when it was not given back at this version."""
        returns = self._returns.get(task_id)
        return set() if returns is None or returns.version != version else returns.tried

    def next_round(self, task_id: str) -> float:
        """Everybody may be asked again, after so many seconds."""
        returns = self._returns[task_id]
        returns.tried.clear()
        returns.rounds += 1
        return PAUSES.after(returns.rounds)


def _remember(known: dict[str, T], task_id: str, what: T) -> None:
    known.pop(task_id, None)
    known[task_id] = what
    if len(known) > REMEMBERED:
        del known[next(iter(known))]
