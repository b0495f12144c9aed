"""How FileExists is asked: one look at the file system, inside the allowed folders.

Where the system tells what happens in folders, the next look comes at once.
"""

import asyncio
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from layby.clock import virtual_clock
from layby.errors import LaybyError
from layby.trigger_manager.access_checks import AccessChecks
from layby.trigger_manager.folder_watch import FolderWatch, can_watch
from layby.triggers.built_in import FileExists
from layby.worker.wheel import Poll

SHORTEST_S: Final = 0.05
"""One that is written all the time is not looked at all the time."""

file_time = time.time
"""The file system's clock, whatever time the loop is told."""


class TooYoung(LaybyError):
    """The file is there, and has to stay as it is for so many seconds more."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"changed a moment ago: {seconds:g} s more")
        self.seconds = max(SHORTEST_S, seconds)


class FilePolls:
    """`ask_now` makes a poll look again at once."""

    def __init__(self, checks: AccessChecks, ask_now: Callable[[Poll], None]) -> None:
        self._checks = checks
        self._ask_now = ask_now
        self._polls: dict[str, list[Poll]] = {}
        self._folders: FolderWatch | None = None

    def ask(self, trigger: FileExists) -> dict[str, Any] | None:
        """Blocks: a file system may be remote, and not answer. Raises `TooYoung`."""
        real = self._checks.check_folder(trigger.path)
        try:
            found = Path(real).lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if stat.S_ISLNK(found.st_mode):
            return None  # it became a link since it was followed: the next look follows it again
        if found.st_size < trigger.min_size:
            return None
        young_for = trigger.settled_for - (file_time() - found.st_mtime)
        if trigger.settled_for and young_for > 0:
            raise TooYoung(young_for)
        modified_at = round(found.st_mtime * 1000)
        return {"path": trigger.path, "size": found.st_size, "modified_at": modified_at}

    def begin(self, trigger: FileExists, poll: Poll) -> None:
        """Before the first look. Under virtual time nothing happens beside the loop."""
        if virtual_clock.get() is not None or not can_watch():
            return
        if self._folders is None:
            loop = asyncio.get_running_loop()
            self._folders = FolderWatch(self._checks.check_folder, partial(self._told, loop))
        path = _absolute(trigger)
        self._polls.setdefault(path, []).append(poll)
        self._folders.add(path)

    def end(self, trigger: FileExists, poll: Poll) -> None:
        path = _absolute(trigger)
        polls = self._polls.get(path, [])
        if self._folders is None or poll not in polls:
            return
        polls.remove(poll)
        if not polls:
            del self._polls[path]
        self._folders.remove(path)

    def close(self) -> None:
        if self._folders is not None:
            self._folders.close()

    def _told(self, loop: asyncio.AbstractEventLoop, paths: set[str]) -> None:
        """In the thread that watches."""
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self._look_now, paths)

    def _look_now(self, paths: set[str]) -> None:
        for poll in [each for path in paths for each in self._polls.get(path, ())]:
            self._ask_now(poll)


def _absolute(trigger: FileExists) -> str:
    """As it is written: links are followed where that may block."""
    return os.path.normpath(Path(trigger.path).absolute())
