"""Tasks that workers take and give back: SDKs do when they have no such function, for example.

Everybody else in the group is asked first. When all have given it back they are asked again, after
a pause: told at once, a lone worker would do nothing else, hundreds of times a second.
"""

from typing import Final, TypeVar

from msgspec import Struct, field

FIRST_PAUSE: Final = 0.01
LONGEST_PAUSE: Final = 1.0
MOST_DOUBLINGS: Final = 10
REMEMBERED: Final = 10_000

T = TypeVar("T")


class TaskHandBacks(Struct):
    """Of one task."""

    version: int
    rounds: int = 0
    tried: set[str] = field(default_factory=set)
    """Who has given it back in this round."""


class HandBacks:
    """The oldest are forgotten: then somebody is asked once too often, or too soon."""

    def __init__(self) -> None:
        self._takers: dict[str, str] = {}
        self._by_task: dict[str, TaskHandBacks] = {}

    def note_taken(self, task_id: str, worker: str) -> None:
        _remember(self._takers, task_id, worker)

    def note(self, task_id: str, version: int) -> None:
        """In a row when it was taken only once since, so that it cannot have waited meanwhile."""
        hand_backs = self._by_task.get(task_id)
        if hand_backs is None or hand_backs.version not in (version, version - 1):
            hand_backs = TaskHandBacks(version)
        hand_backs.version = version
        hand_backs.tried.add(self._takers.pop(task_id, ""))
        _remember(self._by_task, task_id, hand_backs)

    def tried(self, task_id: str, version: int) -> set[str]:
        """Who need not be asked; empty when it was not given back at this version."""
        hand_backs = self._by_task.get(task_id)
        return set() if hand_backs is None or hand_backs.version != version else hand_backs.tried

    def next_round(self, task_id: str) -> float:
        """Everybody may be asked again, after so many seconds."""
        hand_backs = self._by_task[task_id]
        hand_backs.tried.clear()
        doublings = min(hand_backs.rounds, MOST_DOUBLINGS)
        hand_backs.rounds += 1
        return min(FIRST_PAUSE * 2**doublings, LONGEST_PAUSE)


def _remember(known: dict[str, T], task_id: str, what: T) -> None:
    known.pop(task_id, None)
    known[task_id] = what
    if len(known) > REMEMBERED:
        del known[next(iter(known))]
