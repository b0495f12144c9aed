"""Notices that code keeps the event loop busy, while it does, and says which.

From a thread of its own, since nothing on the loop can: it asks the loop for a sign of life, and
looks at the loop's stack when none comes. Without tasks here it asks for nothing.
"""

import asyncio
import logging
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any, Final

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.5
BLOCKED_S: Final = 1.0
_OURS: Final = str(Path(__file__).parents[1])
_LIBRARIES: Final = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


class LoopWatch:
    """`task_of` names the task whose body an asyncio Task runs, `running` all that could be it."""

    def __init__(
        self,
        is_needed: Callable[[], bool],
        task_of: Callable[["asyncio.Task[Any] | None"], str | None],
        running: Callable[[], list[str]],
        tell: Callable[[str], None],
    ) -> None:
        self._is_needed = is_needed
        self._task_of = task_of
        self._running = running
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._asked_at: float | None = None
        """When the sign of life that has not come was asked for."""
        self._blocked_by: str | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="layby-loop-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Does not wait for the thread, which ends by itself."""
        self._stopped.set()

    @property
    def blocked_by(self) -> str | None:
        """What blocks the loop now, in words. May be read in any thread."""
        return self._blocked_by

    def _watch(self) -> None:
        while not self._stopped.wait(LOOK_S):
            try:
                self.look()
            except Exception:
                logger.exception("the event loop cannot be watched")
                return

    def look(self) -> None:
        asked_at = self._asked_at
        if asked_at is not None and monotonic() - asked_at >= BLOCKED_S:
            self._report(monotonic() - asked_at)
        elif asked_at is None and self._is_needed():
            self._asked_at = monotonic()
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._note_life)

    def _note_life(self) -> None:
        asked_at, self._asked_at = self._asked_at, None
        culprit, self._blocked_by = self._blocked_by, None
        if culprit is not None and asked_at is not None:
            logger.warning("the event loop goes on after %.1f s", monotonic() - asked_at)

    def _report(self, seconds: float) -> None:
        if self._blocked_by is not None:
            return  # told before
        told = (
            f"the event loop has been blocked for {seconds:.1f} s {self._culprit()}: no other task "
            "goes on meanwhile, and no handle or Runner answers. Await something there, call it "
            "with asyncio.to_thread, or make the task a plain `def`"
        )
        if self._asked_at is None:
            return  # it goes on
        self._blocked_by = told
        logger.warning(told)
        self._tell(told)

    def _culprit(self) -> str:
        task_id = self._task_of(asyncio.current_task(self._loop))
        names = self._running()
        if task_id is not None:
            who = f"by the body of {task_id}"
        elif names:
            who = f"by code beside the bodies of {', '.join(names[:5])}"
        else:
            who = "by code that is not a task's"
        frame = innermost_frame(self._loop_thread)
        where = None if frame is None else user_frame(frame)
        return who if where is None else f"{who}, in {shown_place(where)}"


def innermost_frame(thread_id: int) -> FrameType | None:
    """Where a thread is now."""
    stacks = sys._current_frames()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - documented
    return stacks.get(thread_id)


def user_frame(innermost: FrameType) -> FrameType:
    """The innermost frame of code that is neither ours nor a library's; else the innermost."""
    return next((each for each in frames_from(innermost) if is_users(each)), innermost)


def frames_from(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_users(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return not file.startswith((_OURS, "<frozen", *_LIBRARIES))


def shown_place(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_name} ({Path(code.co_filename).name}:{frame.f_lineno})"
