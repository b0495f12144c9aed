"""The managers of a process: when they start, and a trigger that blocks the loop of the others."""

import asyncio
import logging
import sqlite3
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest

from layby import Runner, triggers
from layby.core.commands import GetTask
from layby.core.replies import TaskData
from layby.errors import UsageError
from layby.runner import trigger_host, trigger_thread
from layby.runner.trigger_host import TriggerHost
from layby.runner.trigger_thread import TriggerThread
from layby.trigger_manager.trigger_access import TriggerAccess
from layby.triggers.built_in import BUILT_IN
from layby.triggers.registry import TriggerRegistry
from layby.worker.worker import WorkerConfig
from tests.helpers.push_receivers import on_loop
from tests.helpers.triggers import TriggerWorld, trigger_world
from tests.helpers.workers import until

asked = TriggerThread.silent_for
"""As it is: tests that are not about it replace it."""


class Blocks(triggers.Trigger, frozen=True):
    """Keeps its loop busy until the test lets it go on."""

    released: ClassVar[threading.Event]
    threads: ClassVar[set[int]] = set()
    """Those whose loops are blocked: that is known here, and not by how long it takes."""

    async def run(self) -> Any:
        self.threads.add(threading.get_ident())
        self.released.wait(60)
        return True


class BlockingPoll(triggers.PolledTrigger, frozen=True):
    """The same in `poll`, itself or in a Task of its own."""

    is_beside: bool = False
    armed: ClassVar[threading.Event]

    async def poll(self) -> Any:
        if not self.armed.is_set():
            return None
        if self.is_beside:
            await asyncio.create_task(self.block())
        await self.block()
        return True

    async def block(self) -> None:
        Blocks.threads.add(threading.get_ident())
        Blocks.released.wait(60)


class BlocksBeside(Blocks, frozen=True):
    """In a callback of its loop: no Task runs meanwhile."""

    async def run(self) -> Any:
        asyncio.get_running_loop().call_soon(self.block)
        return await asyncio.get_running_loop().create_future()

    def block(self) -> None:
        self.threads.add(threading.get_ident())
        self.released.wait(60)


class BlockingCleanup(Blocks, frozen=True):
    async def run(self) -> Any:
        return "found"

    async def cleanup(self) -> None:
        self.threads.add(threading.get_ident())
        self.released.wait(60)


class Exits(triggers.Trigger, frozen=True):
    """Wants to end everything: with or without the help of a Task, or of a callback."""

    how: str

    async def run(self) -> Any:
        if self.how == "interrupt":
            raise KeyboardInterrupt
        if self.how == "callback":
            asyncio.get_running_loop().call_soon(self.leave)
            await asyncio.sleep(0.02)
            return "goes on"
        await asyncio.create_task(self.leave_in_task())
        return None

    def leave(self) -> None:
        raise SystemExit(2)

    async def leave_in_task(self) -> None:
        self.leave()

    async def cleanup(self) -> None:
        raise KeyboardInterrupt


class ExitingPoll(triggers.PolledTrigger, frozen=True):
    how: str

    async def poll(self) -> Any:
        if self.how == "interrupt":
            raise KeyboardInterrupt
        if self.how == "task":
            await asyncio.create_task(Exits("task").leave_in_task())
        raise SystemExit(2)


class StopsLoop(triggers.Trigger, frozen=True):
    async def run(self) -> Any:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0)
        return "goes on"


class CancelsAll(triggers.Trigger, frozen=True):
    """Every Task of its loop: its own, those of layby, and those of all other triggers."""

    async def run(self) -> Any:
        for each in asyncio.all_tasks():
            each.cancel()
        await asyncio.sleep(60)


class Waits(triggers.Trigger, frozen=True):
    began: ClassVar[list[int]] = []
    fired: ClassVar[threading.Event]

    async def run(self) -> Any:
        self.began.append(threading.get_ident())
        while not self.fired.is_set():  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0.01)
        return {"thread": threading.get_ident() != self.began[0]}


@pytest.fixture(autouse=True)
def _reset(caplog, monkeypatch):
    caplog.set_level(logging.CRITICAL)
    Waits.began.clear()
    Waits.fired, Blocks.released = threading.Event(), threading.Event()
    BlockingPoll.armed = threading.Event()
    Blocks.threads.clear()
    monkeypatch.setattr(trigger_host, "LOOK_S", 0.05)
    monkeypatch.setattr(TriggerThread, "silent_for", silent_for)


def silent_for(thread: TriggerThread) -> float:
    """On a busy machine a loop may be silent for as long as you like, and not be blocked."""
    return trigger_host.BLOCKED_S + 1 if thread._thread.ident in Blocks.threads else 0.0


@asynccontextmanager
async def hosted(
    world: TriggerWorld, *classes: type[triggers.Trigger], access: TriggerAccess | None = None
) -> AsyncGenerator[tuple[TriggerHost, TriggerRegistry]]:
    registry = TriggerRegistry([*BUILT_IN, *classes])
    config = WorkerConfig(pid="p", incarnation="i")
    host = TriggerHost(world.runner._link, config, access, registry)
    await host.open()
    try:
        yield host, registry
    finally:
        await host.close()


@on_loop
async def test_one_that_blocks_its_loop_fails_and_others_go_on():
    """Tasks are not held up, the error names the place, and nothing of the others is lost."""
    async with trigger_world() as world, hosted(world, Blocks, Waits):
        for number in range(3):
            await world.put(f"w{number}", Waits())
        await until(lambda: len(Waits.began) == 3)
        await world.put("b", Blocks())
        state, why = await world.outcome("b")
        assert state == "rejected"
        assert "Blocks has blocked the event loop of triggers, in run (test_trigger_host" in why
        await until(lambda: len(Waits.began) == 6)
        Waits.fired.set()
        for number in range(3):
            assert await world.outcome(f"w{number}") == ("resolved", {"thread": True})
        Blocks.released.set()  # the old thread ends by itself
        await until(lambda: sum(t.name == "layby-triggers" for t in threading.enumerate()) == 1)


@on_loop
@pytest.mark.parametrize("is_beside", [False, True])
async def test_a_poll_that_blocks_the_loop_fails_for_all_who_share_it(is_beside):
    """Also in a Task of its own. Nobody else is blamed."""
    async with trigger_world() as world, hosted(world, BlockingPoll, Waits) as (host, _):
        await world.put("w", Waits())
        await until(lambda: len(Waits.began) == 1)
        for name in ("a", "b"):
            await world.put(name, BlockingPoll(is_beside=is_beside, every=0.02))
        await until(lambda: host.polling("a") is not None and host.polling("b") is not None)
        BlockingPoll.armed.set()
        for name in ("a", "b"):
            state, why = await world.outcome(name)
            assert state == "rejected"
            assert len(Waits.began) <= 2  # they have failed together
            assert "BlockingPoll has blocked the event loop of triggers, in block (test_" in why
        await until(lambda: len(Waits.began) == 2)
        Waits.fired.set()
        assert await world.outcome("w") == ("resolved", {"thread": True})
        Blocks.released.set()


@on_loop
async def test_a_callback_that_blocks_the_loop_is_known_by_its_context():
    async with trigger_world() as world, hosted(world, BlocksBeside, Waits):
        await world.put("b", BlocksBeside())
        state, why = await world.outcome("b")
        assert state == "rejected"
        assert "BlocksBeside has blocked the event loop of triggers, in block" in why
        Blocks.released.set()


@on_loop
async def test_what_was_found_counts_though_cleanup_blocks_the_loop():
    async with trigger_world() as world, hosted(world, BlockingCleanup):
        await world.put("b", BlockingCleanup())
        assert await world.outcome("b") == ("resolved", "found")
        Blocks.released.set()


@on_loop
async def test_without_a_culprit_all_that_are_new_are_suspects(monkeypatch):
    """As when a process dies: the new thread takes the place of the old one, which is lost."""
    monkeypatch.setattr(trigger_thread.TriggerThread, "blocked_by", lambda _: [])
    async with trigger_world() as world, hosted(world, Blocks):
        await world.put("b", Blocks())
        state, why = await world.outcome("b")
        assert state == "rejected"
        assert "5 times" in why
        Blocks.released.set()


@on_loop
@pytest.mark.parametrize("kind", [Exits, ExitingPoll])
@pytest.mark.parametrize("how", ["interrupt", "task", "exit"])
async def test_one_that_exits_ends_only_itself(kind, how, caplog):
    """The loop goes on: nobody else even begins again."""
    caplog.set_level(logging.WARNING)
    async with trigger_world() as world, hosted(world, Exits, ExitingPoll, Waits) as (host, _):
        before = host.managers
        await world.put("w", Waits())
        await until(lambda: len(Waits.began) == 1)
        await world.put("e", Exits(how) if kind is Exits else ExitingPoll(how, max_errors=0))
        state, why = await world.outcome("e")
        assert state == "rejected"
        assert ("KeyboardInterrupt" if how == "interrupt" else "SystemExit: 2") in why
        Waits.fired.set()
        assert await world.outcome("w") == ("resolved", {"thread": False})
        assert host.managers == before
    assert "the event loop ended" not in caplog.text


@on_loop
async def test_a_callback_that_exits_is_named(caplog):
    """Nobody awaits it, so it is logged, like any error of a callback; cleanup loses no event."""
    caplog.set_level(logging.WARNING)
    async with trigger_world() as world, hosted(world, Exits):
        await world.put("e", Exits("callback"))
        assert await world.outcome("e") == ("resolved", "goes on")
    assert "e raised SystemExit: 2 in a Task or callback of its own" in caplog.text
    assert "cleanup of e (Exits) raised KeyboardInterrupt" in caplog.text


@on_loop
async def test_one_that_stops_the_loop_stops_nothing(caplog):
    """It goes on where it was: nobody even begins again."""
    async with trigger_world() as world, hosted(world, StopsLoop, Waits) as (host, _):
        before = host.managers
        await world.put("w", Waits())
        await until(lambda: len(Waits.began) == 1)
        caplog.set_level(logging.ERROR)
        await world.put("s", StopsLoop())
        assert await world.outcome("s") == ("resolved", "goes on")
        Waits.fired.set()
        assert await world.outcome("w") == ("resolved", {"thread": False})
        assert host.managers == before
    assert "a trigger has stopped the event loop of triggers" in caplog.text


@on_loop
async def test_one_that_cancels_all_tasks_of_the_loop_is_found_by_trying(caplog):
    """As if it had killed its process: others begin again, at once, and none of them fails."""
    caplog.set_level(logging.ERROR)
    async with trigger_world() as world, hosted(world, CancelsAll, Waits):
        await world.put("c", CancelsAll())
        for name in ("v", "w"):
            await world.put(name, Waits())
        state, why = await world.outcome("c")
        assert (state, "5 times" in why) == ("rejected", True)
        for name in ("v", "w"):
            reply = await world.runner.client.send(GetTask(id=name))
            assert isinstance(reply.data, TaskData)
            assert reply.data.task.crashes < 5
        Waits.fired.set()
        for name in ("v", "w"):
            assert (await world.outcome(name))[0] == "resolved"
    assert "a trigger has cancelled all Tasks of the event loop of triggers" in caplog.text


@on_loop
async def test_a_loop_that_answers_at_once_is_not_silent(monkeypatch):
    """Its thread may note its life before the question has ended: whoever watches goes on."""

    async def never() -> Any: ...

    thread = TriggerThread(never)
    monkeypatch.setattr(trigger_thread, "monotonic", lambda: 3.0)
    monkeypatch.setattr(thread, "_call", lambda function: function())
    assert asked(thread) == 0
    assert asked(thread) == 0


@on_loop
async def test_a_loop_that_does_not_answer_is_silent_since_it_was_asked_first(monkeypatch):
    async def never() -> Any: ...

    thread, times = TriggerThread(never), iter([3.0, 3.0, 9.5])
    monkeypatch.setattr(trigger_thread, "monotonic", lambda: next(times))
    monkeypatch.setattr(thread, "_call", lambda _: None)
    assert [asked(thread), asked(thread)] == [0, 6.5]


@on_loop
async def test_whatever_happens_triggers_are_watched(monkeypatch, caplog):
    """A watch that ends without a word is not missed until something blocks."""
    failures = [ZeroDivisionError("a bug of ours")]

    def silent_for(self: TriggerThread) -> float:
        if failures:
            raise failures.pop()
        return found(self)

    found = TriggerThread.silent_for
    monkeypatch.setattr(TriggerThread, "silent_for", silent_for)
    caplog.set_level(logging.ERROR)
    async with trigger_world() as world, hosted(world, Blocks):
        await until(lambda: not failures)
        await world.put("blocks", Blocks())
        assert (await world.outcome("blocks"))[0] == "rejected"
        Blocks.released.set()
    assert "a bug of ours" in caplog.text


@on_loop
async def test_a_loop_that_is_busy_for_a_moment_is_left_alone(monkeypatch):
    """Only what lasts is a fault."""

    def not_for_long(thread: TriggerThread) -> float:
        if thread._thread.ident in Blocks.threads:
            Blocks.released.set()
        return trigger_host.BLOCKED_S

    monkeypatch.setattr(TriggerThread, "silent_for", not_for_long)
    async with trigger_world() as world, hosted(world, Blocks, Waits) as (host, _):
        before = host.managers
        await world.put("b", Blocks())
        assert await world.outcome("b") == ("resolved", True)
        assert host.managers == before


@pytest.mark.files_only("it looks into the store from another thread")
@on_loop
async def test_nothing_is_started_where_nothing_may_run():
    """On a shared store without access, and without classes of users: not even a holder."""
    async with trigger_world() as world, hosted(world, access=TriggerAccess()) as (host, registry):
        assert host.managers == []
        assert world.runner.engine._store.dump().holders == {}
        await world.put("w", Waits())
        registry.add(Waits)
        await until(lambda: len(Waits.began) == 1)


@pytest.mark.files_only("a Runner that has its store to itself may poll anything")
@on_loop
async def test_what_a_runner_may_poll(tmp_path):
    """Its own file: anything. The tasks' own loop is used, since nothing there can block it."""
    report = tmp_path / "report.csv"
    async with Runner(f"sqlite:{tmp_path / 'a.db'}") as runner:
        world = TriggerWorld(runner)
        await world.put("f", triggers.FileExists(str(report), min_size=3, every=0.02))
        await until(lambda: runner.polling("f") is not None)
        report.write_text("abc")
        state, payload = await world.outcome("f")
    assert (state, payload["size"]) == ("resolved", 3)
    async with Runner(f"sqlite:{tmp_path / 'a.db'}", trigger_access=TriggerAccess()) as runner:
        world = TriggerWorld(runner)
        await world.put("g", triggers.FileExists(str(report), every=0.02))
        await asyncio.sleep(0.1)
        assert (await world.look("g")).is_pending


@pytest.mark.files_only("a Runner that has its store to itself is alone")
@on_loop
async def test_a_runner_says_which_connection_it_does_not_have(tmp_path, caplog):
    """Nobody else would: the task waits, and is taken up by a Runner that has it."""
    caplog.set_level(logging.WARNING)
    poll = triggers.SqlPoll("shop", "SELECT 1 AS one", every=0.02)
    async with Runner(f"sqlite:{tmp_path / 'a.db'}") as runner:
        world = TriggerWorld(runner)
        await world.put("s", poll)
        while "there is no connection named 'shop'" not in caplog.text:  # noqa: ASYNC110 - a log
            await asyncio.sleep(0.01)
        assert "trigger_access" in caplog.text
        assert (await world.look("s")).is_pending
    sqlite3.connect(tmp_path / "shop.db").close()
    access = TriggerAccess(connections={"shop": f"sqlite:{tmp_path / 'shop.db'}"})
    async with Runner(f"sqlite:{tmp_path / 'a.db'}", trigger_access=access) as runner:
        assert await TriggerWorld(runner).outcome("s") == ("resolved", {"one": 1})


def test_the_group_of_trigger_managers_is_theirs():
    """A worker in it would be handed triggers, and decline them for ever."""
    with pytest.raises(UsageError, match="group of trigger managers"):
        Runner("memory:", group="triggers")
