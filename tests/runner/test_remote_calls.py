"""Workers behind a real server call each other, and some of them are killed."""

import asyncio
import sys
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

import pytest

from layby import PromiseCancelled, PromiseRejected, RetryPolicy, Runner, task
from layby.core.commands import CancelPromise
from tests.helpers.callers import answer_to, call, task_of
from tests.helpers.push_receivers import on_loop
from tests.helpers.server_process import ServerProcess
from tests.helpers.workers import flow_of, until
from tests.runner import call_child

SHORT_S = 1.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def url(server: ServerProcess) -> str:
    return f"http://127.0.0.1:{server.port}"


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    """Nobody else's: tests share a server."""
    return request.node.name.replace("[", "-").removesuffix("]")


@asynccontextmanager
async def child(url: str, mode: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A process that is killed, here or by the test."""
    script = Path(call_child.__file__)
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(script), url, mode, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def hear(process: asyncio.subprocess.Process, said: str) -> None:
    assert process.stdout is not None
    assert (await process.stdout.readline()).decode().strip() == said


@on_loop
async def test_two_runners_call_each_other(url: str, group: str):
    """There and back with one slot each: who waits holds none."""
    here, there = f"{group}-here", f"{group}-there"

    @task(rpc="ping")
    async def ping(context, handle):
        if context["n"] == 0:
            return "end"
        place = f"poll://any@{context['next'][0]}"
        following = {"n": context["n"] - 1, "next": context["next"][::-1]}
        return [context["n"], await handle.rpc("ping", following, target=place)]

    @task
    async def begins(context, handle):
        first = {"n": 3, "next": [here, there]}
        context["got"] = await handle.rpc("ping", first, target=f"poll://any@{there}")

    async with Runner(url, group=here, slots=1) as one, Runner(url, group=there, slots=1) as two:
        one.register(ping)
        two.register(ping)
        got = await one.execute(flow_of(begins, name=group), run_id=group)
        assert got["got"] == [3, [2, [1, "end"]]]


@on_loop
async def test_failures_are_counted_over_the_wire(url: str, group: str):
    """By the server: whoever takes the call next knows how many there were."""
    tries: list[int] = []

    @task(rpc="fails", retry=RetryPolicy(max_attempts=3, delay=0.01))
    async def fails(context, handle):
        tries.append(await handle.checkpoint("once", lambda: len(tries)))
        raise ValueError("always")

    async with Runner(url, group=group) as runner:
        runner.register(fails)
        await call(runner, group, "fails", group=group)
        with pytest.raises(PromiseRejected, match="ValueError: always"):
            await answer_to(runner, group)
    assert tries == [0, 0, 0]


@on_loop
async def test_a_long_call_keeps_its_lease(url: str, group: str):
    """The heart beats for it by name, in its own thread, whatever the loop does."""

    @task(rpc="works")
    def works(context, handle):
        threading.Event().wait(1.5 * SHORT_S)
        handle.sleep(1.5 * SHORT_S)
        return handle.try_number

    async with Runner(url, group=group, lease=SHORT_S) as runner:
        runner.register(works)
        await call(runner, group, "works", group=group)
        assert await answer_to(runner, group) == 1


@on_loop
async def test_a_cancelled_call_ends_at_once(url: str, group: str):
    """Long before the lease would."""
    ended = asyncio.Event()
    begun = asyncio.Event()

    @task(rpc="works")
    async def works(context):
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async with Runner(url, group=group) as runner:
        runner.register(works)
        await call(runner, group, "works", group=group)
        await begun.wait()
        await runner.client.send(CancelPromise(id=group))
        async with asyncio.timeout(20):
            await ended.wait()
        with pytest.raises(PromiseCancelled):
            await answer_to(runner, group)


@on_loop
async def test_a_stop_hands_calls_over_at_once(url: str, group: str):
    """Another worker has them long before the lease is over."""

    @task(rpc="works")
    async def works(context, handle):
        if handle.try_number == 1:
            await asyncio.sleep(60)
        return handle.try_number

    async with Runner(url, group=group) as other:
        async with Runner(url, group=group, lease=60) as runner:
            runner.register(works)
            await call(runner, group, "works", group=group)
            await until(lambda: runner.worker.running)
            other.register(works)
            begin = asyncio.get_running_loop().time()
        assert await answer_to(other, group) == 2
        assert asyncio.get_running_loop().time() - begin < 20


@on_loop
async def test_a_group_whose_workers_have_different_functions(url: str, group: str):
    """Each call finds its way, without a retry in between."""

    def serving(name: str):
        @task(rpc=name)
        async def serves(context):
            return name

        return serves

    async with Runner(url, group=group) as one, Runner(url, group=group) as two:
        one.register(serving("one"))
        two.register(serving("two"))
        for number in range(20):
            await call(one, f"{group}-{number}", ("one", "two")[number % 2], group=group)
        for number in range(20):
            assert await answer_to(one, f"{group}-{number}") == ("one", "two")[number % 2]


@on_loop
async def test_a_call_does_not_wait_behind_a_busy_worker(url: str, group: str):
    """While another one of its group is idle."""
    gate = asyncio.Event()

    @task(rpc="works")
    async def works(context):
        await gate.wait()

    @task(rpc="works")
    async def quick(context): ...

    async with Runner(url, group=group, slots=1) as busy:
        busy.register(works)
        await call(busy, f"{group}-slow", "works", group=group)
        await until(lambda: busy.worker.running)
        async with Runner(url, group=group, slots=1) as idle:
            idle.register(quick)
            for number in range(10):
                await call(busy, f"{group}-{number}", "works", group=group)
            for number in range(10):
                await answer_to(idle, f"{group}-{number}")
        gate.set()
        await answer_to(busy, f"{group}-slow")


@on_loop
async def test_a_killed_caller_makes_no_second_call(url: str):
    """Who goes on with its run waits for the call that it finds."""
    bodies: list[str] = []
    gate = asyncio.Event()

    @task(rpc="work")
    async def works(context, handle):
        bodies.append(handle.task_execution_id)
        await gate.wait()
        return context["n"] + 1

    async with Runner(url, group="callees") as callee:
        callee.register(works)
        async with child(url, "calls") as caller:
            await hear(caller, "calls")
            await until(lambda: bodies)
            caller.kill()
            await caller.wait()
        gate.set()
        async with Runner(url, group="callers") as heir:
            run = await heir.start(call_child.FLOW, run_id="r")
            assert (await run.result()) == {"answer": 2}
            assert (await task_of(heir, "run/r:calls")).version == 2
    assert bodies == ["run/r:calls.x.rpc-1"]


@on_loop
async def test_a_killed_callee_leaves_its_call_to_another(url: str):
    """After its lease; what it had recorded is not repeated."""
    begun: list[str] = []

    @task(rpc="work")
    async def works(context, handle):
        await handle.checkpoint("begin", begun.append, "once")
        return handle.try_number

    async with Runner(url, group="callers") as caller:
        async with child(url, "serves") as callee:
            await hear(callee, "serves")
            await call(caller, "killed-callee", "work", group="callees")
            await hear(callee, "recorded")
            callee.kill()
            await callee.wait()
        async with Runner(url, group="callees") as heir:
            heir.register(works)
            assert await answer_to(caller, "killed-callee") == 2
    assert begun == []


@on_loop
async def test_a_server_killed_under_a_call(server: ServerProcess, url: str, group: str):
    """Both ends come back by themselves, and the call is answered once."""
    bodies: list[int] = []
    gate = asyncio.Event()

    @task(rpc="works")
    async def works(context, handle):
        bodies.append(handle.try_number)
        await gate.wait()
        return "done"

    @task
    async def begins(context, handle):
        context["got"] = await handle.rpc("works", target=f"poll://any@{group}-there")

    async with Runner(url, group=group) as one, Runner(url, group=f"{group}-there") as two:
        two.register(works)
        run = await one.start(flow_of(begins, name=group), run_id=group)
        await until(lambda: bodies)
        await asyncio.to_thread(server.kill)
        gate.set()
        await asyncio.to_thread(server.start)
        assert (await run.result()) == {"got": "done"}
    assert bodies == [1]


KEY = "secret-of-ci"
CONFIG = f"""
[[auth.api_keys]]
name = "ci"
key_sha256 = "{sha256(KEY.encode()).hexdigest()}"
prefix = "run/ci-"
groups = ["ci"]
"""


def test_a_token_with_a_prefix_is_enough_for_a_worker(tmp_path: Path):
    """To call, to serve, and to go on with what failed: nothing outside of its prefix is read."""
    (tmp_path / "layby.toml").write_text(CONFIG)
    steps: list[str] = []

    @task(rpc="work", retry=RetryPolicy(max_attempts=2, delay=0.01))
    async def works(context, handle):
        await handle.checkpoint("step", steps.append, "served")
        if handle.try_number == 1:
            raise ValueError("once")
        return "done"

    @task(retry=RetryPolicy(max_attempts=2, delay=0.01))
    async def begins(context, handle):
        await handle.checkpoint("step", steps.append, "begun")
        context["got"] = await handle.rpc("work", target="poll://any@ci")
        if handle.try_number == 1:
            raise ValueError("once")

    @on_loop
    async def main(url: str) -> None:
        async with Runner(url, group="ci", token=KEY) as runner:
            runner.register(works)
            run = await runner.start(flow_of(begins), run_id="ci-1")
            assert await run.result() == {"got": "done"}

    with ServerProcess(tmp_path) as server:
        main(f"http://127.0.0.1:{server.port}")
    assert steps == ["begun", "served"]
