"""Tasks claimed ahead of their slots, while bodies are short.

Between the end of one body and the beginning of the next lies a commit: a worker with few slots
and short bodies would spend its time there. So it may hold, beyond its slots, what will begin
within `LINE_S` at the pace of its last bodies. Long bodies make that nothing. Whatever stands in
line for longer all the same, because a body is slow all of a sudden, goes back to the store.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from layby.worker.attempt import Attempt

SAMPLE: Final = 32
"""So many bodies make a pace."""
LINE_S: Final = 0.02
PATIENCE_S: Final = 0.1
LOOK_S: Final = 0.05


class Ahead:
    def __init__(
        self,
        is_full: Callable[[], bool],
        give_back: Callable[[Sequence[Attempt]], None],
        changed: Callable[[], None],
    ) -> None:
        """`is_full`: whether every slot is held. `changed` hears that `tasks` has sunk, maybe."""
        self._is_full = is_full
        self._give_back = give_back
        self._changed = changed
        self._now = asyncio.get_running_loop().time
        self._ends: deque[float] = deque(maxlen=SAMPLE)
        self._line: dict[Attempt, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def tasks(self) -> int:
        """How many may be claimed beyond the slots now."""
        if len(self._ends) < SAMPLE:
            return 0
        took = max(self._now() - self._ends[0], LINE_S / 2)
        return int(SAMPLE * LINE_S / took)

    def ended(self) -> None:
        """A body has come to its end."""
        self._ends.append(self._now())
        self._watch()

    def stand(self, attempt: Attempt) -> None:
        """It waits for a slot, if only until the loop turns."""
        self._line[attempt] = self._now()
        self._watch()

    def leave(self, attempt: Attempt) -> None:
        """It has its slot, or is over."""
        self._line.pop(attempt, None)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._has_stood_too_long():
            self._ends.clear()
            line, self._line = list(self._line), {}
            self._give_back(line)
        if self._ends:
            self._changed()
        self._drop_old_ends()
        if self._ends or self._line:
            self._watch()

    def _drop_old_ends(self) -> None:
        """A pace that includes them would be too slow for a single task."""
        while self._ends and self._now() - self._ends[0] > SAMPLE * LINE_S:
            self._ends.popleft()

    def _has_stood_too_long(self) -> bool:
        oldest = next(iter(self._line.values()), None)
        return oldest is not None and self._now() - oldest >= PATIENCE_S and self._is_full()
