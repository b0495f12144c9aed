"""Retention of a Runner: what is pruned by itself, and what is left of it."""

import asyncio
import sqlite3
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from layby import (
    NotFound,
    ResultExpired,
    Retention,
    Runner,
    TaskHandle,
    UsageError,
    Workflow,
    task,
)
from layby.core.commands import Prune
from layby.core.replies import PruneData
from layby.runner.retention import policy_of
from layby.testing import virtual_test


@task
async def ship(context):
    context["shipped"] = True


FLOW = Workflow("orders", [ship])


async def pass_time(minutes: float) -> None:
    """And retention has its turn: after a tenth of the shortest time, here."""
    await asyncio.sleep(minutes * 60 + 10)


@virtual_test
async def test_a_run_expires_and_its_id_answers():
    """It is not new, its result is gone, and it cannot be run again."""
    retention = Retention(completed=timedelta(minutes=1), failed=600, ids=1_800)
    async with Runner("memory:", retention=retention) as runner:
        run = await runner.start(FLOW, {"n": 1}, run_id="o")
        assert (await run.result())["shipped"]
        await pass_time(0.5)
        assert (await run.result())["shipped"]
        await pass_time(1)
        again = await runner.start(FLOW, {"n": 2}, run_id="o")
        assert not again.is_new
        for asked in (again.result(), again.status(), again.context(), again.cleaned_up()):
            with pytest.raises(ResultExpired, match="run 'o' has ended"):
                await asked
        with pytest.raises(NotFound):
            await again.rerun()
        assert await runner.list() == []
        assert not await again.cancel()
        await pass_time(35)
        assert (await runner.start(FLOW, {"n": 3}, run_id="o")).is_new


@virtual_test
async def test_everything_is_kept_unless_said_otherwise():
    """For ever is the default, and each of the three may be for ever."""
    async with Runner("memory:") as runner:
        run = await runner.start(FLOW, {"n": 1}, run_id="o")
        await run.result()
        await pass_time(100)
        assert (await run.result())["shipped"]


@virtual_test
async def test_dead_workers_go_though_every_run_is_kept(tmp_path):
    """A program that is started every minute leaves a row each time; no run needs them."""
    address = f"sqlite:{tmp_path}/layby.db"
    for _ in range(20):  # more than one batch
        async with Runner(address) as runner:
            await runner.start(FLOW, {"n": 1}, run_id="o")
    async with Runner(address) as runner:
        await asyncio.sleep(23 * 3600)
        assert len(holders_in(tmp_path)) > 20
        await asyncio.sleep(2 * 3600)
        assert all(standing == "alive" for standing in holders_in(tmp_path))
        assert [run.id for run in await runner.list()] == ["o"]


def holders_in(folder: Path) -> list[str]:
    with closing(sqlite3.connect(folder / "layby.db")) as connection:
        return [standing for (standing,) in connection.execute("SELECT standing FROM holders")]


@virtual_test
async def test_a_task_that_asks_for_an_expired_result():
    """Inside a task it is the same error."""

    @task
    async def look(context):
        run = await runner.get("o")
        try:
            await run.result()
        except ResultExpired as error:
            context["told"] = error.state

    async with Runner("memory:", retention=Retention(completed=1)) as runner:
        await (await runner.start(FLOW, {"n": 1}, run_id="o")).result()
        await pass_time(1)
        assert (await runner.execute(Workflow("look", [look]), {}))["told"] == "resolved"


def test_what_a_retention_may_be():
    """Durations like all others; a server has its own."""
    assert policy_of(Retention(completed=float("inf"))).completed_ms is None
    wrong: tuple[dict[str, Any], ...] = ({"completed": -1}, {"failed": "7d"}, {"ids": True})
    for bad in wrong:
        with pytest.raises(UsageError, match="of a Retention"):
            Retention(**bad)
    with pytest.raises(UsageError, match="must be a Retention"):
        Runner("memory:", retention=7)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="a server has its own"):
        Runner("http://127.0.0.1:8001", retention=Retention(completed=1))


async def prune_foreign(runner: Runner) -> None:
    cursor: str | None = ""
    while cursor is not None:
        prune = Prune(completed=0, failed=0, ids=0, foreign=True, cursor=cursor)
        done = (await runner.send(prune)).data
        assert isinstance(done, PruneData)
        cursor = done.cursor


# --- runs that go on ---------------------------------------------------------------------


@pytest.mark.parametrize("ids", [None, 60], ids=["ids answer", "ids go"])
@virtual_test
async def test_a_body_that_is_replayed_finds_what_it_awaited(tmp_path, ids):
    """The run that it started, and a promise of nobody's run, for as long as it is not over."""
    begun: list[str] = []
    used: list[Runner] = []

    @task
    async def child(context):
        begun.append("child")
        context["v"] = 42

    @task
    async def parent(context, handle):
        begun.append("parent")
        run = await used[-1].start(kid, run_id="kid")
        result = await run.result()
        paid = await handle.wait_for("payment-7")
        await handle.sleep(7_200)
        context["got"] = (result["v"], paid)

    kid, flow = Workflow("kid", [child]), Workflow("parent", [parent])
    address, retention = f"sqlite:{tmp_path}/layby.db", Retention(completed=60, failed=60, ids=ids)
    async with Runner(address, retention=retention) as runner:
        used.append(runner)
        runner.register(kid)
        await runner.start(flow, run_id="p")
        await runner.resolve("payment-7", 7)
        await pass_time(10)
        assert {run.id for run in await runner.list()} == {"kid", "p"}
    async with Runner(address, retention=retention) as runner:
        used.append(runner)
        runner.register(kid)
        runner.register(flow)
        await prune_foreign(runner)
        assert (await (await runner.get("p")).result())["got"] == [42, 7]
        assert begun == ["parent", "child", "parent"]
        await pass_time(3)
        assert await runner.list() == []


@virtual_test
async def test_a_body_that_is_tried_again_finds_what_it_awaited():
    tries: list[int] = []

    @task(retries=1)
    async def parent(context):
        tries.append(len(tries))
        run = await runner.start(FLOW, run_id="kid")
        context["got"] = (await run.result())["shipped"]
        await asyncio.sleep(600)
        if tries == [0]:
            raise ValueError("once")

    async with Runner("memory:", retention=Retention(completed=60, failed=60)) as runner:
        run = await runner.start(Workflow("parent", [parent]), run_id="p")
        assert (await run.result())["got"] is True
        assert tries == [0, 1]


async def by_run(runner: Runner, handle: TaskHandle) -> Any:
    return await (await runner.get("o")).result()


async def by_started_run(runner: Runner, handle: TaskHandle) -> Any:
    return await (await runner.start(FLOW, run_id="o")).result()


async def by_cleaned_up(runner: Runner, handle: TaskHandle) -> Any:
    return await (await runner.get("o")).cleaned_up()


async def by_child(runner: Runner, handle: TaskHandle) -> Any:
    return await (await handle.start(FLOW, run_id="o")).result()


async def by_promise(runner: Runner, handle: TaskHandle) -> Any:
    return await handle.wait_for("run/o")


WAYS = (by_run, by_started_run, by_cleaned_up, by_child, by_promise)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("pruned", [False, True], ids=["it is there", "it was pruned"])
@virtual_test
async def test_what_a_body_awaited_stays_until_it_has_ended(pruned, way):
    """A run that had ended before the body asked, or only its id: else, in a replay, to start it
    would start it a second time.
    """
    retention = Retention(completed=60, failed=60, ids=60)
    async with Runner("memory:", retention=retention) as runner:

        @task
        async def body(context, handle):
            with suppress(ResultExpired):
                await way(runner, handle)
            await handle.sleep(3_600)

        await runner.execute(FLOW, {"n": 1}, run_id="o")
        if pruned:
            await asyncio.sleep(90)
        await runner.start(Workflow("body", [body]), run_id="b")
        await pass_time(30)
        assert not (await runner.start(FLOW, run_id="o")).is_new
        await pass_time(60)
        assert (await runner.start(FLOW, run_id="o")).is_new


def test_who_means_longer_than_a_century_means_for_ever():
    with pytest.raises(UsageError, match="at most 36500d"):
        Retention(completed=timedelta(days=36_501))
    assert policy_of(Retention(completed=0)).completed_ms == 0
