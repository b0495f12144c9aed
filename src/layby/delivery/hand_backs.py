"""Tasks that workers take and hand back, as SDKs do when they do not have the function.

The other workers of the group are asked first. Once all of them have handed the task back they are
asked again, after a pause: without one, a single worker would be asked hundreds of times a second.
"""

from typing import Final, TypeVar

from msgspec import Struct, field

from layby.core.pauses import Pauses

PAUSES: Final = Pauses(0.01, longest=1.0)
REMEMBERED: Final = 10_000

T = TypeVar("T")


class TaskHandBacks(Struct):
    """The hand-backs of one task."""

    version: int
    rounds: int = 0
    tried: set[str] = field(default_factory=set)
    """The workers that have handed it back in this round."""


class HandBacks:
    """Forgets the oldest entries: then a worker is asked once too often, or too soon."""

    def __init__(self) -> None:
        self._takers: dict[str, str] = {}
        self._by_task: dict[str, TaskHandBacks] = {}

    def note_taken(self, task_id: str, worker: str) -> None:
        _remember(self._takers, task_id, worker)

    def note(self, task_id: str, version: int) -> None:
        """Continues a series if the task was taken only once since, so it cannot have waited."""
        hand_backs = self._by_task.get(task_id)
        if hand_backs is None or hand_backs.version not in (version, version - 1):
            hand_backs = TaskHandBacks(version)
        hand_backs.version = version
        hand_backs.tried.add(self._takers.pop(task_id, ""))
        _remember(self._by_task, task_id, hand_backs)

    def tried(self, task_id: str, version: int) -> set[str]:
        """The workers not to ask; empty if the task was not handed back at this version."""
        hand_backs = self._by_task.get(task_id)
        return set() if hand_backs is None or hand_backs.version != version else hand_backs.tried

    def next_round(self, task_id: str) -> float:
        """Start a new round; returns the seconds to wait before it."""
        hand_backs = self._by_task[task_id]
        hand_backs.tried.clear()
        hand_backs.rounds += 1
        return PAUSES.after(hand_backs.rounds)


def _remember(known: dict[str, T], task_id: str, value: T) -> None:
    known.pop(task_id, None)
    known[task_id] = value
    if len(known) > REMEMBERED:
        del known[next(iter(known))]
