"""Tells when something happens beside files that are waited for: a hint that it is time to look.

One thread, and one watcher of the operating system, for all of them. Files are polled all the same:
a network file system tells nothing, and there are more folders than can be watched. So whatever
goes wrong here costs time, and nothing else. It needs `watchfiles`, which layby can do without.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any, Final

from layby.errors import LaybyError

logger = logging.getLogger(__name__)

MAX_FOLDERS: Final = 1_000
"""Watched at most; the files in all others are only polled."""
REFRESH_S: Final = 60.0
"""How often folders are looked up anew: one may have come, or another taken its place."""
PAUSE_S: Final = 1.0
"""Between two beginnings: those that come together are watched together."""
STEP_MS: Final = 50
TURN_MS: Final = 1_000

Changes = Iterator[set[tuple[Any, str]]]


def can_watch() -> bool:
    return find_spec("watchfiles") is not None


class FolderWatch:
    """`real_folder` follows links, and raises for what may not be looked into; it may block.

    `changed` is called in the thread, with paths as they were added.
    """

    def __init__(
        self, real_folder: Callable[[str], str], changed: Callable[[set[str]], None]
    ) -> None:
        self._real_folder = real_folder
        self._changed = changed
        self._lock = threading.Lock()
        self._wanted: Counter[str] = Counter()
        self._watched: dict[str, list[str]] = {}
        """Real folders, and how they were written."""
        self._written: frozenset[str] = frozenset()
        self._closed = threading.Event()
        self._rebuild = threading.Event()
        self._thread: threading.Thread | None = None
        self._has_failed = False

    def add(self, path: str) -> None:
        """Before its first poll: what happens from then on is told."""
        with self._lock:
            self._wanted[path] += 1
            if _folder_of(path) not in self._written:
                self._rebuild.set()
            if self._thread is None:
                name = "layby-folder-watch"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    def remove(self, path: str) -> None:
        with self._lock:
            self._wanted[path] -= 1
            if self._wanted[path] <= 0:
                del self._wanted[path]

    def close(self) -> None:
        """Does not wait for the thread, which ends by itself."""
        self._closed.set()
        self._rebuild.set()

    @property
    def folders(self) -> tuple[str, ...]:
        """Those that are watched now."""
        return tuple(self._watched)

    # --- in the thread -------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed.is_set():
            self._rebuild.clear()
            try:
                self._watch(self._look_up())
                self._has_failed = False
            except Exception as failure:  # noqa: BLE001 - polls go on, whatever it is
                self._failed(failure)
            self._closed.wait(PAUSE_S)

    def _look_up(self) -> dict[str, list[str]]:
        """The real folders of all files that are wanted, as far as they are there."""
        with self._lock:
            parents = sorted({_folder_of(path) for path in self._wanted})
        found: dict[str, list[str]] = {}
        for parent in parents:
            try:
                real = self._real_folder(parent)
            except (LaybyError, OSError):
                continue
            if Path(real).is_dir() and (real in found or len(found) < MAX_FOLDERS):
                found.setdefault(real, []).append(parent)
        return found

    def _watch(self, folders: dict[str, list[str]]) -> None:
        """Until others are wanted, or it is time to look them up anew."""
        self._set_watched(folders)
        until, is_first = monotonic() + REFRESH_S, True
        if self._closed.is_set():  # looked at after `_rebuild` was cleared, which met a `close`
            return
        if not folders:
            self._rebuild.wait(REFRESH_S)
            return
        for changes in changes_in(tuple(folders), self._rebuild):
            told = self._told_by(changes)
            if is_first:  # what happened before it began was not told
                told |= self._beside()
                is_first = False
            if told and not self._closed.is_set():
                self._changed(told)
            if monotonic() >= until:
                return

    def _told_by(self, changes: set[tuple[Any, str]]) -> set[str]:
        with self._lock:
            return {
                path
                for _, real in changes
                for parent in self._watched.get(_folder_of(real), ())
                if (path := str(Path(parent, Path(real).name))) in self._wanted
            }

    def _beside(self) -> set[str]:
        with self._lock:
            return {path for path in self._wanted if _folder_of(path) in self._written}

    def _set_watched(self, folders: dict[str, list[str]]) -> None:
        with self._lock:
            self._watched = folders
            self._written = frozenset(each for found in folders.values() for each in found)

    def _failed(self, failure: Exception) -> None:
        self._set_watched({})
        if not self._has_failed:
            told = "folders cannot be watched, so their files are only polled: %s"
            logger.warning(told, str(failure) or type(failure).__name__)
        self._has_failed = True
        self._closed.wait(REFRESH_S)


def _folder_of(path: str) -> str:
    return str(Path(path).parent)


def changes_in(folders: tuple[str, ...], stop: threading.Event) -> Changes:
    """What happens in these folders, and not below; nothing each time a turn is over."""
    watch: Any = import_module("watchfiles").watch  # an extra: it may not be there
    return watch(
        *folders,
        watch_filter=None,
        debounce=STEP_MS,
        step=STEP_MS,
        stop_event=stop,
        rust_timeout=TURN_MS,
        yield_on_timeout=True,
        raise_interrupt=False,
        recursive=False,
        ignore_permission_denied=True,
    )
