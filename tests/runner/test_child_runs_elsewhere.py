"""Child runs with processes that die, with servers in between, and on PostgreSQL."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from layby import RunCancelled, Runner, Workflow, task
from layby.core import commands as c
from layby.errors import LaybyError
from tests.helpers.places import address_of
from tests.helpers.postgres import cluster
from tests.helpers.troubled_server import soon
from tests.runner.test_remote import Place, at_a_place

SCRIPT = Path(__file__).with_name("family_child.py")
PATIENCE_S = 60
"""Only a test that hangs needs it."""


def test_a_process_that_is_killed_between_start_and_result(tmp_path: Path):
    """The next one finds the child, whose code it has not registered, and repeats none of it."""
    command = [sys.executable, str(SCRIPT), address_of(tmp_path / "family.db")]
    said: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        for line in first.stdout:
            said.append(line.strip())
            if said[-1] == "wait":
                first.kill()
    assert said == ["call", "new True", "work", "wait"]
    second = subprocess.run(
        [*command, "go"], stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=True
    )
    lines = second.stdout.splitlines()
    assert sorted(lines[:-1]) == ["call", "new False", "wait"]
    assert lines[-1] == "['by', 'went', 'worked']"


def test_a_process_that_is_killed_again_and_again(tmp_path: Path):
    """No child is started twice, and none whose result was there is run again."""
    command = [sys.executable, str(SCRIPT), address_of(tmp_path / "many.db"), "many"]
    said: list[str] = []
    for last in ("count 2", "done 5", "count 9", "done 14", ""):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                said.append(line.strip())
                if said[-1] == last:
                    process.kill()
    assert said[-1] == "20 children"
    for n in range(20):
        done = said.index(f"done {n}")
        assert f"count {n}" in said[:done]
        assert f"count {n}" not in said[done:]


class Family:
    """A parent whose task waits for a child, which waits for the promise `go`."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.ended: list[type[BaseException] | None] = []

        @task
        async def wait(context, handle):
            self.began.append("wait")
            context["went"] = await handle.wait_for("go")

        self.child = Workflow("child", tasks=[wait])

        @task
        async def call(context, handle):
            self.began.append("call")
            await self.goes_on.wait()
            try:
                child = await handle.start(self.child, {})
                context["went"] = (await child.result())["went"]
            except BaseException as error:
                self.ended.append(type(error))
                raise

        self.flow = Workflow("parent", tasks=[call])

    async def parked(self, runner: Runner) -> Any:
        run = await runner.start(self.flow, {}, run_id="p")
        await soon(lambda: "wait" in self.began)
        return run


def test_over_http_it_is_the_same():
    """Started, shown, awaited and cancelled."""
    family = Family()

    async def scene(place: Place) -> None:
        async with place.runner(slots=1) as runner:
            run = await family.parked(runner)
            status = await run.status()
            assert [each.run_id for each in status.children] == ["p~call~1"]
            await run.cancel()
            with pytest.raises(RunCancelled):
                await (await runner.get("p~call~1")).result()
            await run.rerun()
            await runner.resolve("go", 7)
            assert (await run.result())["went"] == 7

    at_a_place(scene)


def test_an_answer_that_is_lost_does_not_make_two_children():
    """The command is sent again, and answered with the child that it has started."""
    family = Family()

    async def scene(place: Place) -> None:
        async with place.runner(lease=3) as runner:  # it hears of lost claims sooner
            family.goes_on.clear()
            run = await runner.start(family.flow, {}, run_id="p")
            await soon(lambda: "call" in family.began)
            place.meddler.trouble("layby.run.start", "lose")
            family.goes_on.set()
            await soon(lambda: "wait" in family.began)
            await runner.resolve("go", 7)
            assert (await run.result())["went"] == 7
            assert {each.id for each in await runner.list()} == {"p", "p~call~1"}

    at_a_place(scene)


def test_a_zombie_starts_nothing():
    """A worker that lost its lease meanwhile is refused, and its body ends."""
    began, goes_on, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
    tries: list[int] = []

    @task
    async def work(context): ...

    child = Workflow("child", tasks=[work])

    @task
    async def call(context, handle):
        tries.append(handle.try_number)
        if len(tries) > 1:
            return
        began.set()
        await goes_on.wait()
        try:
            await handle.start(child, {}, run_id="ghost")
        finally:
            ended.set()

    flow = Workflow("parent", tasks=[call])

    async def scene(place: Place) -> None:
        async with place.runner() as runner:
            run = await runner.start(flow, {}, run_id="p")
            await began.wait()
            held = (await place.ok(c.GetTask(id="run/p:call"))).task
            # As if the server had given it to another worker, and nobody has told this one yet.
            released = c.Released("run/p:call", held.version)
            await place.ok(c.ReleaseTasks(pid=held.pid, incarnation=held.holder, tasks=(released,)))
            goes_on.set()
            await ended.wait()
            await run.result()
            with pytest.raises(LaybyError, match="ghost"):
                await runner.get("ghost")

    at_a_place(scene)


@pytest.mark.postgres
def test_on_postgresql_another_process_cancels_parent_and_child():
    """Runners that share a database: one works, the other steers."""
    family = Family()
    url = cluster().url(cluster().new_database())

    async def main() -> None:
        async with Runner(url, slots=1) as runner, Runner(url, slots=0) as client:
            await family.parked(runner)
            run = await client.get("p")
            assert [each.flow for each in (await run.status()).children] == ["child"]
            await run.cancel()
            with pytest.raises(RunCancelled, match="run/p has ended"):
                await (await client.get("p~call~1")).result()
            await soon(lambda: bool(family.ended))
            await run.rerun()
            await client.resolve("go", 7)
            assert (await run.result())["went"] == 7

    asyncio.run(main())


@pytest.mark.postgres
def test_on_postgresql_many_children_end_at_once():
    """Their ends touch the same parent, on two workers; none is lost."""

    @task
    async def work(context):
        context["n"] += 1

    child = Workflow("child", tasks=[work])

    @task
    async def call(context, handle):
        children = [await handle.start(child, {"n": n}, key=str(n)) for n in range(30)]
        context["sum"] = sum([(await each.result())["n"] for each in children])

    flow = Workflow("parent", tasks=[call])
    url = cluster().url(cluster().new_database())

    async def main() -> None:
        async with Runner(url, slots=2) as one, Runner(url, slots=2) as other:
            other.register(flow)
            other.register(child)
            run = await one.start(flow, {})
            assert (await run.result(timeout=PATIENCE_S))["sum"] == sum(range(1, 31))

    asyncio.run(main())
