"""A Runner whose engine is behind a server: the same verbs, and a network in between."""

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from layby import (
    Conflict,
    DeferTimeout,
    Run,
    RunCancelled,
    RunFailed,
    Runner,
    Workflow,
    task,
    triggers,
)
from layby.client import first_answer
from layby.client.http import HttpClient
from layby.core import commands as c
from layby.core import queries as q
from layby.core.meant_waits import FindWait
from layby.core.replies import WaitData
from layby.errors import NotAllowed, StoreUnavailable, Unavailable, UsageError
from layby.runner import remote
from layby.server.server import Server
from tests.helpers.postgres import cluster
from tests.helpers.troubled_server import Meddler, play, served, soon


@task
async def double(context):
    context["n"] *= 2


@task(dependencies=[double])
async def ask(context, handle):
    context["answer"] = await handle.wait_for(f"event-{context['n']}")


@task
async def fails(context):
    raise ValueError("no")


@task
async def waits(context, handle):
    await handle.defer_until(lambda: False, poll_interval=3600)
    await handle.sleep(3600)
    try:
        await handle.wait_for("never", timeout=3600)
    except DeferTimeout:
        context["times"] = 3


@task(rpc="patience")
async def serves(context, handle):
    await handle.defer_until(lambda: False, poll_interval=3600)
    try:
        await handle.defer_until(lambda: False, poll_interval=3600, timeout=3600)
    except DeferTimeout:
        return "late"


@task
async def calls(context, handle):
    context["answer"] = await handle.rpc("patience", target="poll://any@serving")


CALLING = Workflow("calling", tasks=[calls])
FLOW = Workflow("asking", tasks=[double, ask])
PATIENT = Workflow("patient", tasks=[waits])
FAILING = Workflow("failing", tasks=[fails])


class Place:
    """A server, trouble in front of it, and Runners that go through that."""

    def __init__(self, server: Server, meddler: Meddler) -> None:
        self.server = server
        self.meddler = meddler

    def runner(self, **options: Any) -> Runner:
        return Runner(self.meddler.url, **options)

    async def ok(self, request: c.Command | q.Query) -> Any:
        reply = await self.server.client.send(request)
        assert reply.is_ok, reply
        return reply.data


def at_a_place(
    scene: Callable[[Place], Awaitable[None]], flags: dict[str, object] | None = None
) -> None:
    async def run() -> None:
        async with served(flags) as server, Meddler(server.port) as meddler:
            await scene(Place(server, meddler))
        assert [each.name for each in threading.enumerate() if "heart" in each.name] == []

    play(run)


# --- the same verbs --------------------------------------------------------------------------


def test_runs_are_started_watched_and_steered_as_in_one_process():
    """Only where the engine runs is different."""

    async def scene(place: Place) -> None:
        async with place.runner(slots=2) as runner:
            run = await runner.start(FLOW, {"n": 2}, run_id="a")
            while (status := await run.status()).tasks["ask"].sub_status != "Deferred":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert (status.tasks["double"].status, status.tasks["ask"].sub_status) == (
                "Completed",
                "Deferred",
            )
            await runner.halt("a", "ask")
            assert (await run.status()).tasks["ask"].status == "Halted"
            await runner.continue_("a", "ask")
            await runner.resolve("event-4", "yes")
            assert (await run.result()).to_dict() == {"n": 4, "answer": "yes"}
            assert (await (await runner.get("a")).result())["answer"] == "yes"
            assert [each.id for each in await runner.list(state="Completed")] == ["a"]

    at_a_place(scene)


def test_people_end_and_prolong_the_waits_of_bodies():
    """The server tells the process that has the body; that of a worker which is away, when it is
    back.
    """

    async def scene(place: Place) -> None:
        async with place.runner() as runner, place.runner(slots=0) as person:
            await steered(runner, person)
            run = await runner.start(PATIENT, run_id="b")
            await waits_as(run, "condition")
            place.meddler.refuses_streams = True
            place.meddler.end_streams()
            await person.wake("b", "waits")
            assert (await run.status()).tasks["waits"].sub_status == "Deferred"
            place.meddler.refuses_streams = False
            await waits_as(run, "sleep")

    at_a_place(scene)


def test_people_end_and_prolong_the_waits_of_who_serves_a_call():
    """By the id of the call: whoever serves it is told, though it has nothing but calls to do."""

    async def scene(place: Place) -> None:
        serving = place.runner(group="serving")
        async with place.runner() as runner, serving, place.runner(slots=0) as person:
            await call_steered(runner, serving, person)

    at_a_place(scene)


@pytest.mark.postgres
def test_on_postgresql_people_do_that_from_another_process():
    """Of tasks, and of who serves a call."""
    url = cluster().url(cluster().new_database())

    async def main() -> None:
        serving = Runner(url, group="serving")
        async with Runner(url) as runner, serving, Runner(url, slots=0) as person:
            await steered(runner, person)
            await call_steered(runner, serving, person)

    asyncio.run(main())


async def call_steered(runner: Runner, serving: Runner, person: Runner) -> None:
    serving.register(serves)
    run = await runner.start(CALLING, run_id="c")
    call = "calls.x.rpc-1"
    first, second = (f"run/c:{call}.w0.defer_until-{n}" for n in (1, 2))
    await call_waits_in(person, f"run/c:{call}", first)
    await person.wake("c", call, by="ann")
    await call_waits_in(person, f"run/c:{call}", second)
    with pytest.raises(Conflict, match="ended by ann"):
        await person.wake("c", call, wait=first)
    await person.extend("c", call, 0.05, wait=second, by="ann")
    assert (await run.result())["answer"] == "late"


async def call_waits_in(person: Runner, call_id: str, wait: str) -> None:
    while True:
        if (await person.send(FindWait(id=call_id))).data == WaitData(call_id, wait):
            return
        await asyncio.sleep(0.01)


async def steered(runner: Runner, person: Runner) -> None:
    run = await runner.start(PATIENT, run_id="a")
    for expected in ("condition", "sleep"):
        await waits_as(run, expected)
        await person.wake("a", "waits", by="ann")
    await waits_as(run, "promise")
    with pytest.raises(Conflict, match="'never'"):
        await person.wake("a", "waits")
    await person.extend("a", "waits", 0.05, by="ann")
    assert (await run.result())["times"] == 3


async def waits_as(run: Run, kind: str) -> None:
    while True:
        waiting = (await run.status()).tasks["waits"].waiting_on
        if waiting is not None and waiting.kind == kind:
            return
        await asyncio.sleep(0.01)


def test_what_goes_wrong_goes_wrong_in_the_same_way():
    """Failed, cancelled, rejected, unknown, refused."""

    async def scene(place: Place) -> None:
        async with place.runner() as runner:
            with pytest.raises(RunFailed, match="ValueError: no"):
                await runner.execute(FAILING)
            run = await runner.start(FLOW, {"n": 1}, run_id="a")
            await runner.cancel("a", by="ada")
            with pytest.raises(RunCancelled, match="by ada"):
                await run.result()
            run = await runner.start(FLOW, {"n": 3}, run_id="b")
            await runner.reject("event-6", "never")
            with pytest.raises(RunFailed, match="never"):
                await run.result()
            with pytest.raises(UsageError, match="run 'none'"):
                await runner.get("none")
            with pytest.raises(UsageError, match="another run id"):
                await runner.start(FAILING, run_id="a")
            with pytest.raises(UsageError, match="runs in another process"):
                _ = runner.engine

    at_a_place(scene)


def test_many_wait_for_one_event_in_two_processes_worth_of_workers():
    """Each is woken once, wherever it is parked."""

    @task
    async def waits(context, handle):
        context["answer"] = await handle.wait_for("event")

    flow = Workflow("waiting", tasks=[waits])

    async def scene(place: Place) -> None:
        async with place.runner(slots=2) as one, place.runner(slots=2) as other:
            other.register(flow)
            runs = [await one.start(flow, run_id=f"r{number}") for number in range(200)]
            await soon(lambda: len(one.worker.attempts) + len(other.worker.attempts) == 200)
            await other.resolve("event", 7)
            assert {(await run.result())["answer"] for run in runs} == {7}
            listeners = [data for kind, data in place.meddler.came if "listener" in kind]
            shared = [each for each in listeners if each["awaited"] == "event"]
            assert len(shared) <= 4  # one for each process, and once more when a stream opens

    at_a_place(scene)


def test_a_large_context_travels():
    """Up to what a context may hold."""

    async def scene(place: Place) -> None:
        async with place.runner() as runner:
            large = "x" * 900_000
            run = await runner.start(FLOW, {"n": 1, "large": large})
            await runner.resolve("event-2", "y" * 900_000)
            with pytest.raises(RunFailed, match="large"):
                await run.result()  # both together are too much: the keys are named
            run = await runner.start(FLOW, {"n": 2, "large": large})
            await runner.resolve("event-4", "small")
            assert (await run.result())["large"] == large

    at_a_place(scene)


# --- a network in between --------------------------------------------------------------------


def test_a_body_that_ends_while_no_server_is_there_is_reported_later(
    monkeypatch: pytest.MonkeyPatch,
):
    """However long that is: a worker is more patient than whoever waits for an answer."""
    monkeypatch.setattr(remote, "HttpClient", functools.partial(HttpClient, patience=0.1))
    begun, gate = asyncio.Event(), asyncio.Event()

    @task
    async def works(context, handle):
        begun.set()
        await gate.wait()
        context["try"] = handle.try_number

    async def scene(place: Place) -> None:
        async with place.runner() as runner:
            flow = Workflow("w", tasks=[works])
            run = await answered(lambda: runner.start(flow, run_id="a"))
            await begun.wait()
            await place.meddler.down()
            gate.set()
            await asyncio.sleep(0.5)
            with pytest.raises(StoreUnavailable, match="is it running"):
                await runner.resolve("event")
            await place.meddler.up()
            assert (await answered(run.result))["try"] == 1

    at_a_place(scene)


async def answered(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Ask until there is an answer, for a client that has little patience itself."""
    while True:
        with suppress(StoreUnavailable):
            return await ask()


def test_starting_a_run_whose_answer_is_lost_starts_it_once():
    """The second copy finds it there; its tasks run, all of them once."""

    async def scene(place: Place) -> None:
        async with place.runner(lease=0.6) as runner:
            place.meddler.trouble("layby.run.start", "lose")
            run = await runner.start(FLOW, {"n": 5}, run_id="a")
            await runner.resolve("event-10", 1)
            assert (await run.result())["n"] == 10

    at_a_place(scene)


def test_a_worker_registers_with_the_lease_it_was_given():
    """After that long without a sign of life others take over."""

    async def scene(place: Place) -> None:
        async with place.runner(lease=7, group="g"):
            kinds = [(kind, data) for kind, data in place.meddler.came if "take" in kind]
            assert kinds[0][1]["ttl"] == 7_000
            assert kinds[0][1]["group"] == "g"

    at_a_place(scene)


# --- opening and closing ---------------------------------------------------------------------


def test_a_server_that_is_not_there_is_named():
    """After a while, with its address; nothing is left open."""

    async def scene() -> None:
        with pytest.raises(StoreUnavailable, match=r"http://127\.0\.0\.1:1 .*is it running"):
            async with Runner("http://127.0.0.1:1", connect_timeout=0.1):
                pass

    play(scene)


def test_a_server_that_says_nothing_is_given_up(caplog: pytest.LogCaptureFixture):
    """It accepts the connection, and that is all; whoever opens the Runner is told meanwhile."""

    async def scene(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(first_answer, "TELL_AFTER_S", 0.01)
        over = asyncio.Event()

        async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await over.wait()
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(Unavailable, match="no answer in time"):
            await Runner(url, connect_timeout=0.2).__aenter__()
        assert caplog.messages == [f"waiting for {url}: no answer yet; gives up after 0.2 s"]
        over.set()
        server.close()
        await server.wait_closed()

    with pytest.MonkeyPatch.context() as monkeypatch:
        play(functools.partial(scene, monkeypatch))


def test_who_wants_to_wait_for_a_server_may(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """However long it takes; and once the server was there, it may be away for as long."""
    monkeypatch.setattr(first_answer, "TELL_AFTER_S", 0.01)

    async def scene(place: Place) -> None:
        await place.meddler.down()
        opening = asyncio.create_task(place.runner(connect_timeout=None).__aenter__())
        await soon(lambda: caplog.messages)
        assert caplog.messages[0].startswith(f"waiting for {place.meddler.url}: ")
        await place.meddler.up()
        runner = await opening
        run = await runner.start(FLOW, {"n": 2}, run_id="a")
        await soon(lambda: runner.worker.attempts)
        await place.meddler.down()
        asked = asyncio.create_task(runner.resolve("event-4", "yes"))
        await asyncio.sleep(0)
        await place.meddler.up()
        await asked
        assert (await run.result())["answer"] == "yes"
        await runner.close()

    at_a_place(scene)


def test_a_token_that_does_not_fit_is_told_at_once():
    """Nobody tries again with it."""

    async def scene(place: Place) -> None:
        with pytest.raises(NotAllowed, match="refused this worker: Unauthorized"):
            async with place.runner(token="nonsense"):
                pass
        assert len(place.meddler.came) == 1

    at_a_place(scene, {"auth.public_key": "none"})


def test_whoever_gives_up_while_it_opens_leaves_nothing():
    """Cancelled at any moment of it."""

    async def scene(place: Place) -> None:
        for turns in range(0, 60, 3):
            opening = asyncio.ensure_future(place.runner().__aenter__())
            for _ in range(turns):
                await asyncio.sleep(0)
            opening.cancel()
            [end] = await asyncio.gather(opening, return_exceptions=True)
            if isinstance(end, Runner):
                await end.close()

    at_a_place(scene)


def test_closing_in_the_middle_of_everything_leaves_nothing():
    """Bodies that run, that are parked, that are being loaded; callers that wait for results."""
    started = asyncio.Event()

    @task
    async def holds(context):
        started.set()
        await asyncio.sleep(60)

    async def scene(place: Place) -> None:
        runner = place.runner(slots=3)
        await runner.__aenter__()
        runs = [await runner.start(FLOW, {"n": number}) for number in range(30)]
        runs.append(await runner.start(Workflow("h", tasks=[holds])))
        waiting = [asyncio.ensure_future(run.result()) for run in runs]
        starting = [asyncio.ensure_future(runner.start(FLOW, {"n": 0})) for _ in range(30)]
        await started.wait()
        await runner.close()
        ends = await asyncio.gather(*waiting, *starting, return_exceptions=True)
        assert all(not isinstance(end, TimeoutError) for end in ends)
        held = await place.ok(q.SearchTasks(state="acquired"))
        assert held.tasks == []

    at_a_place(scene)


async def adds(context, handle, event, by: int) -> None:
    context["n"] += event + by
    if context["n"] < 10:
        await handle.defer(triggers.Delay(0.001), resume=ends)


async def ends(context, handle, event) -> None:
    context["ended"] = handle.try_number


@task
async def defers(context, handle):
    context["n"] = 1
    await handle.defer(triggers.Event("added"), resume=adds, kwargs={"by": 2}, timeout=60)


def test_tasks_defer_over_a_network():
    """The payload, the context and the function come with the claim, on whichever worker it is."""

    async def scene(place: Place) -> None:
        async with place.runner() as runner:
            run = await runner.start(Workflow("deferring", tasks=[defers]))
            while (await run.status()).tasks["defers"].parked_in != "store":  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        async with place.runner() as runner:
            runner.register(Workflow("deferring", tasks=[defers]))
            await runner.resolve("added", 3)
            again = await runner.get(run.id)
            assert await again.result(timeout=30) == {"n": 6, "ended": 3}

    at_a_place(scene)
