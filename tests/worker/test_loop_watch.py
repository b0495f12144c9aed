"""Code that blocks the event loop is named while it blocks it."""

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from layby import BlockingRunner, Workflow, task
from layby.worker import loop_watch
from layby.worker.loop_watch import LoopWatch
from tests.helpers.troubled_server import PATIENCE_S, play, served


class Blocker:
    """A task that blocks its loop until the test lets it go on."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.may_end = threading.Event()

        @task
        async def blocks(context):
            self.has_begun.set()
            assert self.may_end.wait(PATIENCE_S)

        @task
        async def blocks_beside(context):
            async def crunch() -> None:
                self.has_begun.set()
                assert self.may_end.wait(PATIENCE_S)

            await asyncio.gather(crunch())

        self.flow = Workflow("blocking", tasks=[blocks])
        self.beside = Workflow("beside", tasks=[blocks_beside])


def watched(runner: BlockingRunner, blocker: Blocker, flow: Workflow) -> str:
    """What is told while the flow blocks; even `start` cannot answer meanwhile."""
    work = threading.Thread(target=lambda: runner.start(flow, run_id="r").result(PATIENCE_S))
    work.start()
    try:
        return until_blocked(runner)
    finally:
        blocker.may_end.set()
        work.join()


def until_blocked(runner: BlockingRunner) -> str:
    """Asked from a thread that is not the loop's."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        if (told := runner.blocked_by) is not None:
            return told
        pause.wait(0.01)
    raise AssertionError("nobody has noticed")


def test_the_task_is_named_while_it_blocks(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """In the log, as a health event and by `blocked_by`: which task, and which line of it."""
    blocker = Blocker()
    with BlockingRunner(f"sqlite:{tmp_path / 'layby.db'}") as runner:
        assert runner.blocked_by is None
        told = watched(runner, blocker, blocker.flow)
        assert "by the body of run/r:blocks, in blocks (test_loop_watch.py:" in told
        assert "make the task a plain `def`" in told
        assert runner.blocked_by is None
        events = [e for e in runner._runner.worker.health.snapshot() if e.kind == "loop_blocked"]
        assert [event.reason for event in events] == [told]
    logged = [each.getMessage() for each in caplog.records if each.name == loop_watch.__name__]
    assert logged[0] == told
    assert len(logged) == 2
    assert logged[1].startswith("the event loop goes on after")


def test_a_strand_of_a_body_is_named_by_its_line():
    """Which body it belongs to is not known, but which could be it."""
    blocker = Blocker()
    with BlockingRunner("memory:") as runner:
        told = watched(runner, blocker, blocker.beside)
        assert "run/r:blocks_beside" in told
        assert "in crunch (test_loop_watch.py:" in told


def test_a_remote_worker_says_it_too():
    """Its own loop is blocked, not the server's."""
    blocker = Blocker()
    seen: list[str] = []

    async def scene() -> None:
        async with served() as server:
            await asyncio.to_thread(work, f"http://127.0.0.1:{server.port}")

    def work(url: str) -> None:
        with BlockingRunner(url) as runner:
            seen.append(watched(runner, blocker, blocker.flow))

    play(scene)
    assert "run/r:blocks" in seen[0]


def test_a_loop_that_answers_is_not_blocked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Each look asks for one sign of life, and none without tasks."""
    caplog.set_level(logging.INFO)
    told: list[str] = []
    needed = [False]

    async def scene() -> None:
        watch = LoopWatch(lambda: needed[0], lambda _: None, list, told.append)
        watch.look()
        assert watch._asked_at is None
        needed[0] = True
        for _ in range(5):
            watch.look()
            assert watch._asked_at is not None
            await asyncio.sleep(0)
            assert watch._asked_at is None
        monkeypatch.setattr(loop_watch, "BLOCKED_S", 0.0)
        watch.look()
        watch.look()
        assert len(told) == 1
        assert "by code that is not a task's, in scene (test_loop_watch.py:" in told[0]
        watch.look()
        assert len(told) == 1
        await asyncio.sleep(0)
        assert watch.blocked_by is None

    asyncio.run(scene())
