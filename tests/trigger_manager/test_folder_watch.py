"""Hints that a file may have come: what is watched, what is told, and what happens without them."""

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any, Self

import pytest

from layby import Context, Runner, TaskHandle, task, triggers
from layby.errors import UsageError
from layby.trigger_manager import folder_watch
from layby.trigger_manager.folder_watch import FolderWatch, can_watch
from tests.helpers.push_receivers import on_loop
from tests.helpers.workers import flow_of, until


class System:
    """What the operating system would tell."""

    def __init__(self) -> None:
        self.begun: Queue[tuple[str, ...]] = Queue()
        self.changes: Queue[set[tuple[Any, str]] | Exception] = Queue()
        self.stopped: threading.Event | None = None

    def changes_in(
        self, folders: tuple[str, ...], stop: threading.Event
    ) -> Iterator[set[tuple[Any, str]]]:
        self.begun.put(folders)
        yield set()
        while not stop.is_set():
            if self.changes.empty():
                stop.wait(0.005)
            elif isinstance(told := self.changes.get(), Exception):
                raise told
            else:
                yield told


@pytest.fixture(name="system")
def _system(monkeypatch: pytest.MonkeyPatch) -> System:
    system = System()
    monkeypatch.setattr(folder_watch, "changes_in", system.changes_in)
    monkeypatch.setattr(folder_watch, "PAUSE_S", 0.01)
    return system


class Watched:
    def __init__(self, real_folder: Any = os.path.realpath) -> None:
        self.told: Queue[set[str]] = Queue()
        self.watch = FolderWatch(real_folder, self.told.put)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.watch.close()

    def hear(self) -> set[str]:
        return self.told.get(timeout=30)


def test_what_happens_beside_a_file_is_told_as_its_path_was_written(
    system: System, tmp_path: Path
) -> None:
    """The folder is watched through a link; a neighbour that nobody waits for is not told."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    path = str(tmp_path / "link" / "a.csv")
    with Watched() as watched:
        watched.watch.add(path)
        assert system.begun.get(timeout=30) == (str(tmp_path / "real"),)
        assert watched.hear() == {path}, "what came before the watch began was not told"
        system.changes.put({(1, str(tmp_path / "real" / "b.csv"))})
        system.changes.put({(1, str(tmp_path / "real" / "a.csv"))})
        assert watched.hear() == {path}


def test_another_folder_is_watched_with_the_first_by_one_watcher(
    system: System, tmp_path: Path
) -> None:
    """And another file in the same folder needs nothing."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with Watched() as watched:
        watched.watch.add(str(tmp_path / "a" / "x"))
        system.begun.get(timeout=30)
        watched.hear()
        watched.watch.add(str(tmp_path / "a" / "y"))
        system.changes.put({(1, str(tmp_path / "a" / "y"))})
        assert watched.hear() == {str(tmp_path / "a" / "y")}
        watched.watch.add(str(tmp_path / "b" / "z"))
        assert system.begun.get(timeout=30) == (str(tmp_path / "a"), str(tmp_path / "b"))


def test_there_is_a_bound_and_what_is_missing_or_forbidden_is_left_out(
    system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_watch, "MAX_FOLDERS", 2)

    def real_folder(path: str) -> str:
        if path.endswith("b"):
            raise UsageError("not there")
        return path

    for name in ("a", "b", "d", "e"):
        (tmp_path / name).mkdir()
    with Watched(real_folder) as watched:
        for name in ("a", "b", "c", "d", "e"):
            watched.watch._wanted[str(tmp_path / name / "x")] += 1
        assert sorted(watched.watch._look_up()) == [str(tmp_path / name) for name in ("a", "d")]


def test_what_cannot_be_watched_is_said_once(
    system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Files are polled all the same; it is tried again."""
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(folder_watch, "REFRESH_S", 0.01)
    with Watched() as watched:
        watched.watch.add(str(tmp_path / "x"))
        for _ in range(3):
            system.begun.get(timeout=30)
            system.changes.put(OSError("no space left for watches"))
        system.begun.get(timeout=30)
    assert caplog.text.count("folders cannot be watched") == 1


def test_it_ends_when_it_is_closed(system: System, tmp_path: Path) -> None:
    with Watched() as watched:
        watched.watch.add(str(tmp_path / "x"))
        system.begun.get(timeout=30)
        thread = watched.watch._thread
    assert thread is not None
    thread.join(30)
    assert not thread.is_alive()


def test_a_close_is_heard_by_a_thread_that_begins_anew(tmp_path: Path, system: System) -> None:
    class ClosedMeanwhile(threading.Event):
        def clear(self) -> None:
            watch.close()
            super().clear()

    watch = FolderWatch(os.path.realpath, lambda _: None)
    watch._rebuild = ClosedMeanwhile()
    watch.add(str(tmp_path / "x"))
    assert watch._thread is not None
    watch._thread.join(30)
    assert not watch._thread.is_alive()


@on_loop
async def test_a_file_is_found_long_before_its_next_poll(tmp_path: Path) -> None:
    """Where folders can be watched; elsewhere by polls alone."""
    every = 3600 if can_watch() else 0.05
    wanted = triggers.FileExists(str(tmp_path / "a.csv"), min_size=3, every=every)

    @task
    async def waits(context: Context, handle: TaskHandle) -> None:
        context["size"] = (await handle.defer(wanted))["size"]

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(waits))
        await until(lambda: is_polled(runner))
        (tmp_path / "a.csv").write_text("abc")
        assert (await run.result())["size"] == 3


def is_polled(runner: Runner) -> bool:
    host = runner._triggers
    managers = [] if host is None else host.managers
    return any(poll.polls for each in managers for poll in each._polls._wheel)
