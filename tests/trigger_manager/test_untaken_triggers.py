"""Triggers that no process may run are told of by themselves: once, by name, and with a remedy."""

import asyncio
from typing import Any

import pytest

from layby import Runner, triggers
from layby.core.commands import CreatePromise
from layby.core.model import NEVER
from layby.core.queries import ExplainPromise
from layby.errors import StoreAway
from layby.testing import virtual_test
from layby.trigger_manager import untaken_triggers
from layby.trigger_manager.trigger_access import TriggerAccess
from layby.trigger_manager.untaken_triggers import UntakenTriggers
from layby.wire import json_values
from tests.helpers.postgres import cluster
from tests.helpers.push_receivers import on_loop
from tests.helpers.triggers import TARGET, TriggerWorld, trigger_world

SHOP = triggers.SqlPoll("shop", "SELECT 1")


def watching(world: TriggerWorld) -> UntakenTriggers:
    return UntakenTriggers(world.runner.client.send, world.runner.now)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [each.getMessage() for each in caplog.records if "untaken" in each.name]
    caplog.clear()
    return found


@virtual_test
async def test_what_waits_for_a_setting_is_told_once_for_all_that_ask_the_same(caplog):
    """With an id, what it asks, and the setting."""
    async with trigger_world() as world:
        watched = watching(world)
        for name, trigger in {
            "a": SHOP,
            "b": SHOP,
            "c": triggers.SqlPoll("crm", "SELECT 1"),
            "d": triggers.HttpPoll("https://api.example.org/x?pass=7"),
            "e": triggers.FileExists("/srv/in/report.csv"),
        }.items():
            await world.put(name, trigger)
        await watched.look()
        assert told(caplog) == []  # a process that may run it may be starting
        await asyncio.sleep(11)
        await watched.look()
        found = sorted(told(caplog))
        await world.put("f", SHOP)
        await asyncio.sleep(11)
        await watched.look()
        assert told(caplog) == []
    assert len(found) == 4
    for text, (asked, setting) in zip(
        found,
        [
            ("SqlPoll on the connection 'shop'", "triggers.connections"),
            ("SqlPoll on the connection 'crm'", "triggers.connections"),
            ("HttpPoll of 'api.example.org'", "triggers.hosts"),
            ("FileExists of '/srv/in/report.csv'", "triggers.folders"),
        ],
        strict=True,
    ):
        assert f"{asked} is off in every process" in text
        assert setting in text
    assert "a, which may not be run" in found[0]
    assert not any("pass" in each for each in found)


@virtual_test
async def test_what_somebody_may_run_is_not_told_of(caplog):
    """It waits for room, or is refused with a sentence of its own."""
    access = TriggerAccess(connections={"shop": "sqlite:/nowhere.db"})
    async with trigger_world() as world, world.manager((), access, capacity=1):
        await world.put("a", triggers.SqlPoll("crm", "SELECT 1"))
        await world.put("b", SHOP)
        await world.put("c", SHOP)
        await asyncio.sleep(11)
        caplog.clear()
        await watching(world).look()
        assert told(caplog) == []


@virtual_test
async def test_more_than_one_look_sees(caplog):
    """Each look goes on behind the last one, and begins again at the end."""
    async with trigger_world() as world:
        watched = watching(world)
        for number in range(50):
            await world.put(f"t{number:02}", triggers.SqlPoll(f"c{number // 25}", "SELECT 1"))
        await asyncio.sleep(11)
        for _ in range(3):
            await watched.look()
        assert len(told(caplog)) == 2
        await world.put("a", triggers.SqlPoll("late", "SELECT 1"))
        await asyncio.sleep(11)
        await watched.look()
        assert len(told(caplog)) == 1


@virtual_test
async def test_what_is_new_does_not_wait_for_a_look_at_all_that_is_known(caplog):
    """It is told of in the first look after its ten seconds, behind whatever others it stands."""
    async with trigger_world() as world:
        watched = watching(world)
        for number in range(100):
            await world.put(f"t{number:02}", SHOP)
        await asyncio.sleep(11)
        for _ in range(6):
            await watched.look()
        assert len(told(caplog)) == 1
        await world.put("z", triggers.SqlPoll("late", "SELECT 1"))
        await asyncio.sleep(11)
        await watched.look()
        assert len(told(caplog)) == 1


@virtual_test
async def test_whoever_has_much_to_look_at_looks_less_often():
    """Beside very many triggers that run, looking takes no part of the processor worth naming."""
    looks: list[float] = []
    now = asyncio.get_running_loop().time

    async def slow(_: object) -> Any:
        if not looks or now() > looks[-1] + 5:
            looks.append(now())
            await asyncio.sleep(0.5)
        raise StoreAway("away")

    watch = asyncio.ensure_future(UntakenTriggers(slow, lambda: 0).watch())
    await asyncio.sleep(1_000)
    watch.cancel()
    assert len(looks) == 10


@virtual_test
async def test_it_goes_on_looking_when_the_store_was_away(caplog):
    """Others say that; and it may be away for long before a trigger is left."""
    asked: list[Any] = []

    async with trigger_world() as world:

        async def send(request: Any) -> Any:
            asked.append(request)
            if len(asked) == 1:
                raise StoreAway("the database does not answer")
            return await world.runner.client.send(request)

        await world.put("a", SHOP)
        watch = asyncio.create_task(UntakenTriggers(send, world.runner.now).watch())
        await asyncio.sleep(60)
        watch.cancel()
        found = told(caplog)
    assert len(found) == 1
    assert "SqlPoll on the connection 'shop'" in found[0]


@virtual_test
async def test_a_bug_about_one_trigger_ends_no_look(caplog, monkeypatch):
    """A server looks at its start, and nobody would notice that it does not look any more."""
    explained: list[str] = []

    async with trigger_world() as world:

        async def send(request: Any) -> Any:
            if isinstance(request, ExplainPromise):
                explained.append(request.id)
                if len(explained) == 1:
                    raise RuntimeError("a bug")
            return await world.runner.client.send(request)

        await world.put("a", SHOP)
        await world.put("b", SHOP)
        await asyncio.sleep(11)
        watched = UntakenTriggers(send, world.runner.now)
        for _ in range(2):
            await watched.look()
        bug, other = told(caplog)
    assert bug == "a bug: why trigger a waits could not be told"
    assert "trigger b, which may not be run" in other
    assert explained == ["a", "b"]


@virtual_test
async def test_whatever_somebody_has_put_among_the_triggers_is_told_of(caplog):
    """With arguments of any form: nothing of them is believed."""

    async def put_all(world: TriggerWorld) -> None:
        for number, args in enumerate(([], 7, {"connection": 7}, {}, {"connection": "a\nb"})):
            await world.put(f"t{number}", ("SqlPoll", args))
        await world.put("u", ("HttpPoll", {"url": "http://[x"}))

    async with trigger_world() as world:
        await put_all(world)
        await asyncio.sleep(11)
        await watching(world).look()
        found: Any = told(caplog)
    assert len(found) == 3
    assert not any("\n" in each for each in found)


@virtual_test
async def test_arguments_that_are_too_deep_to_be_read_end_no_look(caplog):
    """A server looks before it serves anybody: whoever may create a task would keep it from it."""
    param = json_values.wrap(b"[" * 20_000 + b"]" * 20_000)
    tags = {"resonate:target": TARGET, "layby:name": "SqlPoll"}
    async with trigger_world() as world:
        deep = CreatePromise(id="deep", timeout_at=NEVER, param=param, tags=tags)
        assert (await world.runner.client.send(deep)).is_ok
        await world.put("t", SHOP)
        await asyncio.sleep(11)
        await watching(world).look()
        found = sorted(told(caplog))
    assert len(found) == 2
    assert "trigger deep, which may not be run: SqlPoll is off in every process" in found[0]


@pytest.mark.files_only("it brings its own database")
@on_loop
async def test_a_runner_on_a_database_of_many_says_it_where_there_may_be_no_server(
    caplog, monkeypatch
):
    """Each process that has an engine there, in its own log."""
    monkeypatch.setattr(untaken_triggers, "LOOK_S", 0.02)
    monkeypatch.setattr(untaken_triggers, "PATIENCE_MS", 0)
    async with Runner(cluster().url(cluster().new_database())) as runner:
        await TriggerWorld(runner).put("a", SHOP)
        while not (found := told(caplog)):  # noqa: ASYNC110 - a log
            await asyncio.sleep(0.01)
    assert "SqlPoll on the connection 'shop' is off in every process" in found[0]
