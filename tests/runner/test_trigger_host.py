"""The managers of a process: when they start, and a trigger that blocks the loop of the others."""

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest

from layby import Runner, triggers
from layby.errors import UsageError
from layby.runner import trigger_host
from layby.runner.trigger_host import TriggerHost
from layby.trigger_manager.trigger_access import TriggerAccess
from layby.triggers.built_in import BUILT_IN
from layby.triggers.registry import TriggerRegistry
from layby.worker.worker import WorkerConfig
from tests.helpers.push_receivers import on_loop
from tests.helpers.triggers import TriggerWorld, trigger_world
from tests.helpers.workers import until


class Blocks(triggers.Trigger, frozen=True):
    """Keeps its loop busy until the test lets it go on."""

    released: ClassVar[threading.Event]

    async def run(self) -> Any:
        self.released.wait(60)
        return True


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
    monkeypatch.setattr(trigger_host, "LOOK_S", 0.05)
    monkeypatch.setattr(trigger_host, "BLOCKED_S", 0.3)


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
        assert "busy" in why or "blocked" in why
        await until(lambda: len(Waits.began) == 6)
        Waits.fired.set()
        for number in range(3):
            assert await world.outcome(f"w{number}") == ("resolved", {"thread": True})
        Blocks.released.set()  # the old thread ends by itself
        await until(lambda: sum(t.name == "layby-triggers" for t in threading.enumerate()) == 1)


@on_loop
async def test_a_loop_that_is_busy_for_a_moment_is_left_alone():
    """Only what lasts is a fault."""
    async with trigger_world() as world, hosted(world, Blocks, Waits) as (host, _):
        before = host.managers
        threading.Timer(0.1, Blocks.released.set).start()
        await world.put("b", Blocks())
        assert await world.outcome("b") == ("resolved", True)
        assert host.managers == before


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


def test_the_group_of_trigger_managers_is_theirs():
    """A worker in it would be handed triggers, and decline them for ever."""
    with pytest.raises(UsageError, match="group of trigger managers"):
        Runner("memory:", group="triggers")
