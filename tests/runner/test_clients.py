"""A Runner without slots: it asks for everything and runs nothing."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from layby import (
    BlockingRunner,
    NotAllowed,
    NotFound,
    RunFailed,
    Runner,
    Unavailable,
    UsageError,
    Workflow,
    task,
)
from layby.client import outage
from layby.core.replies import Reply
from layby.core.stats import GetStats, StatsData
from layby.runner import flow_directory
from layby.server.auth import FORBIDDEN, UNAUTHORIZED, Gate
from layby.server.server import Server
from tests.helpers.troubled_server import Meddler, play, served, soon


@task
async def pack(context):
    context["packed"] = context["order"]


@task(dependencies=[pack])
async def approve(context, handle):
    context["answer"] = await handle.wait_for(f"approval-{context['order']}")


@task
async def fails(context):
    raise ValueError("no")


ORDER = Workflow("order", tasks=[pack, approve])
FAILING = Workflow("failing", tasks=[fails])


class Desk:
    """A place with a client; workers come when they are asked for."""

    def __init__(self, address: str, came: Any) -> None:
        self.address = address
        self.came = came

    def client(self, **options: Any) -> Runner:
        return Runner(self.address, slots=0, **options)

    @asynccontextmanager
    async def worker(self, *flows: Workflow, **options: Any) -> AsyncIterator[Runner]:
        async with Runner(self.address, slots=2, **options) as runner:
            for flow in flows:
                runner.register(flow)
            yield runner


@asynccontextmanager
async def _file(folder: Path) -> AsyncIterator[Desk]:
    yield Desk(f"sqlite:{folder / 'layby.db'}", None)


@asynccontextmanager
async def _http(_: Path) -> AsyncIterator[Desk]:
    async with served() as server, Meddler(server.port) as meddler:
        yield Desk(meddler.url, meddler.came)


@asynccontextmanager
async def _shared(folder: Path) -> AsyncIterator[Desk]:
    """Somebody else owns the file: a server that works for nobody."""
    async with served({"db": f"sqlite:{folder / 'layby.db'}"}) as server:
        yield Desk(_socket_of(server), None)


def _socket_of(server: Server) -> str:
    return f"unix:{server.config.db.removeprefix('sqlite:')}.sock"


SHARED = pytest.param(_shared, id="socket", marks=pytest.mark.files_only("a socket beside a file"))
REMOTE = pytest.mark.parametrize("place", [pytest.param(_http, id="http"), SHARED])


def at(
    place: Callable[[Path], Any], folder: Path, scene: Callable[[Desk], Awaitable[None]]
) -> None:
    async def run() -> None:
        async with place(folder) as desk:
            await scene(desk)

    play(run)


@REMOTE
def test_a_client_starts_reads_settles_and_schedules(place: Any, tmp_path: Path):
    """Everything but the work, which somebody else does."""

    async def scene(desk: Desk) -> None:
        async with desk.worker(ORDER, FAILING), desk.client() as client:
            run = await client.start(ORDER, {"order": 7}, run_id="r")
            await client.resolve("approval-7", "yes")
            assert (await run.result()).to_dict() == {"order": 7, "packed": 7, "answer": "yes"}
            assert (await run.status()).state == "Completed"
            with pytest.raises(RunFailed, match="ValueError: no"):
                await client.execute(FAILING)
            waiting = await client.start(ORDER, {"order": 8})
            await waiting.cancel(by="ada")
            assert (await waiting.status()).state == "Cancelled"
            await client.schedule(ORDER, "0 9 * * *", id="s")
            assert [each.id for each in await client.schedules()] == ["s"]
            assert len(await client.list()) == 3

    at(place, tmp_path, scene)


def test_a_client_takes_nothing_and_is_no_holder(tmp_path: Path):
    """Not a take, roots included, nor a heartbeat: the store does not know of it."""

    async def scene(desk: Desk) -> None:
        async with desk.client() as client:
            run = await client.start(ORDER, {"order": 7})
            await client.resolve("approval-7", "yes")
            assert (await run.status()).state == "Pending"
        kinds = {kind for kind, _ in desk.came}
        assert not {kind for kind in kinds if kind.startswith("layby.worker")}, kinds
        started = [data for kind, data in desk.came if kind == "layby.run.start"]
        assert [data.get("take") for data in started] == [None]

    at(_http, tmp_path, scene)


def test_an_embedded_client_starts_runs_that_wait(tmp_path: Path):
    """On a file that nobody works on; later somebody does, and the client's runs are there."""

    async def scene(desk: Desk) -> None:
        async with desk.client(socket=False) as client:
            await client.start(ORDER, {"order": 7}, run_id="r")
            assert (await client.page(GetStats(), StatsData)).holders == 0
            await client.resolve("approval-7", "yes")
            status = (await (await client.get("r")).status()).tasks
            assert [each.status for each in status.values()] == ["Ready", "Pending"]
        async with desk.worker(ORDER, socket=False) as worker:
            assert (await (await worker.get("r")).result())["answer"] == "yes"

    at(_file, tmp_path, scene)


def test_a_client_in_memory():
    """It runs nothing; it says so to whoever registers code."""

    async def scene() -> None:
        async with Runner("memory:", slots=0) as client:
            await client.start(ORDER, {"order": 1}, run_id="r")
            with pytest.raises(UsageError, match="has no slots: it starts runs, and runs none"):
                client.register(ORDER)
            with pytest.raises(UsageError, match="it has no worker"):
                _ = client.worker

    play(scene)


@REMOTE
def test_a_run_is_started_by_name(place: Any, tmp_path: Path):
    """Without its code, as the worker has published it, also while no worker lives."""

    async def scene(desk: Desk) -> None:
        async with desk.worker(ORDER), desk.client() as client:
            await _published(client, "order")
            run = await client.start("order", {"order": 7}, run_id="r")
            await client.resolve("approval-7", "yes")
            assert (await run.result())["answer"] == "yes"
            assert (await client.execute("order", {"order": 7}))["packed"] == 7
        async with desk.client() as client:
            await client.schedule("order", "0 9 * * *")
            assert (await client.schedules())[0].flow == "order"
            later = await client.start("order", {"order": 7})
            async with desk.worker(ORDER):
                assert (await later.result())["answer"] == "yes"

    at(place, tmp_path, scene)


async def _published(client: Runner, name: str) -> None:
    """A worker publishes in the background."""
    async with asyncio.timeout(30):
        while True:
            try:
                await client.directory.find(name)
            except NotFound:
                await asyncio.sleep(0.01)
            else:
                return


@REMOTE
def test_an_unknown_name_is_not_found(place: Any, tmp_path: Path):
    """With what it may have meant, or what to do."""

    async def scene(desk: Desk) -> None:
        async with desk.client() as client:
            with pytest.raises(NotFound, match=r"'order': start one with its code \(layby worker"):
                await client.start("order")
            async with desk.worker(ORDER):
                await _published(client, "order")
                with pytest.raises(NotFound, match="'ordr'; did you mean 'order'"):
                    await client.execute("ordr", {"order": 1})
            async with desk.client(group="gpu") as other:
                with pytest.raises(NotFound, match="one of group 'default' has"):
                    await other.start("order")
            with pytest.raises(UsageError, match="is not a Workflow"):
                await client.start(7)  # pyright: ignore[reportArgumentType] - on purpose

    at(place, tmp_path, scene)


def test_the_newest_registration_wins(tmp_path: Path):
    """Two workers with different shapes under one name: whoever came last says what it is."""
    other = Workflow("order", tasks=[pack])

    async def scene(desk: Desk) -> None:
        async with desk.client() as client, desk.worker(ORDER):
            await _published(client, "order")
            async with desk.worker(other):
                await _has_tasks(client, 1)
            async with desk.worker(ORDER):
                await _has_tasks(client, 2)

    at(_http, tmp_path, scene)


async def _has_tasks(client: Runner, count: int) -> None:
    async with asyncio.timeout(30):
        while len((await client.directory.find("order")).nodes) != count:  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.01)


def test_a_runner_knows_its_own_workflows_by_name():
    """Whether or not they were published; in memory nobody else could read it."""

    async def scene() -> None:
        async with Runner("memory:") as runner:
            runner.register(FAILING)
            with pytest.raises(RunFailed, match="ValueError: no"):
                await runner.execute("failing")

    play(scene)


@REMOTE
def test_a_run_that_nobody_can_run_is_told_of_once(
    place: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """Once for each workflow, with what to start; not when a worker lives."""
    caplog.set_level(logging.WARNING, flow_directory.__name__)

    async def scene(desk: Desk) -> None:
        async with desk.worker(FAILING) as worker, desk.client(group="default") as client:
            await soon(lambda: "failing" in worker._program.flows)
            await _published(client, "failing")
            await _has_worker(client, "failing")
            await client.start(FAILING)
            assert _told(caplog) == []
            for _ in range(3):
                await client.start(ORDER, {"order": 7})
            told = (
                "workflow 'order': no living worker of group 'default' has its code, so its runs "
                f"wait until one is started: layby worker MODULE --url {desk.address}"
            )
            assert _told(caplog) == [told]

    at(place, tmp_path, scene)


@task(group="gpu")
async def trains(context): ...


TRAINING = Workflow("training", tasks=[trains])


@REMOTE
def test_tasks_of_a_group_that_nobody_serves_are_told_of_once(
    place: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """The Runner has the code, but not for that group; with a worker of the group it is quiet."""
    caplog.set_level(logging.WARNING, flow_directory.__name__)

    async def scene(desk: Desk) -> None:
        async with desk.worker(ORDER) as runner:
            for _ in range(2):
                await runner.start(TRAINING)
        told = (
            "workflow 'training': no living worker of group 'gpu' has its code, so its tasks of "
            "that group wait until one is started: layby worker MODULE "
            f"--url {desk.address} --group gpu"
        )
        assert _told(caplog) == [told]

    at(place, tmp_path, scene)


def test_in_memory_nobody_else_can_serve_a_group(caplog: pytest.LogCaptureFixture):
    """So the remedy is the group of the Runner itself."""
    caplog.set_level(logging.WARNING, flow_directory.__name__)

    async def main() -> None:
        async with Runner("memory:") as runner:
            await runner.start(TRAINING)

    asyncio.run(main())
    (told,) = _told(caplog)
    assert told.endswith("memory: has no other workers, so give this Runner group='gpu'")


def test_a_life_that_nobody_can_run_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Whoever runs a run again may not be there for its tasks."""
    caplog.set_level(logging.WARNING, flow_directory.__name__)

    async def scene(desk: Desk) -> None:
        async with desk.client() as client:
            async with desk.worker(FAILING):
                run = await client.start(FAILING, run_id="r")
                with pytest.raises(RunFailed):
                    await run.result()
            caplog.clear()
            async with desk.client() as other:
                await (await other.get("r")).rerun()
            assert [each.partition(",")[0] for each in _told(caplog)] == [
                "workflow 'failing': no living worker of group 'default' has its code"
            ]

    at(_http, tmp_path, scene)


def test_a_server_that_is_gone_is_told_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """In the log after a moment, and to whoever stops waiting: nobody knows whether it runs."""
    monkeypatch.setattr(outage, "OUTAGE_TOLD_AFTER_S", 3600.0)  # slow answers are not meant
    caplog.set_level(logging.WARNING, outage.__name__)

    def told() -> list[str]:
        return [each.message for each in caplog.records if each.name == outage.__name__]

    async def scene() -> None:
        async with (
            served() as server,
            Meddler(server.port) as meddler,
            Runner(meddler.url, slots=0) as client,
        ):
            run = await client.start(ORDER, {"order": 7}, run_id="r")
            await meddler.down()
            monkeypatch.setattr(outage, "OUTAGE_TOLD_AFTER_S", 0.05)
            waiting = asyncio.create_task(run.result())
            await soon(told)
            monkeypatch.setattr(outage, "OUTAGE_TOLD_AFTER_S", 3600.0)
            with pytest.raises(TimeoutError) as raised:
                await run.result(timeout=0.3)
            assert str(raised.value) == (
                "run 'r' has no result after 0.3 s, and whether it is still running is not "
                f"known: {meddler.url} does not answer. Wait again: runs go on without this "
                "process"
            )
            assert len(told()) == 1
            assert f"the server at {meddler.url} does not answer (" in told()[0]
            asked = asyncio.create_task(run.status())
            await meddler.up()
            await asked
            waiting.cancel()
            assert told()[1:] == [f"the server at {meddler.url} answers again"]

    play(scene)


def test_a_client_that_loses_patience_is_advised_what_it_can_do(tmp_path: Path):
    """It cannot register code; a worker can."""

    async def scene(desk: Desk) -> None:
        async with desk.client() as client:
            run = await client.start(ORDER, {"order": 7}, run_id="r")
            with pytest.raises(TimeoutError, match="is still running: task 'pack'") as raised:
                await run.result(timeout=0.1)
            assert "register" not in str(raised.value)
            assert f"layby worker MODULE --url {desk.address}" in str(raised.value)

    at(_http, tmp_path, scene)


def _told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.message for each in caplog.records if each.name == flow_directory.__name__]


async def _has_worker(client: Runner, name: str) -> None:
    """Its take has arrived, which says what it has code for."""
    query = flow_directory.FindFlow(group="default", name=name)
    async with asyncio.timeout(30):
        while (await client.page(query, flow_directory.FlowData)).able_workers == 0:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)


@pytest.mark.files_only("the socket beside a file")
def test_a_blocking_client(tmp_path: Path):
    """For code without an event loop: the same."""
    address = f"sqlite:{tmp_path / 'layby.db'}"
    with BlockingRunner(address) as worker:
        worker.register(FAILING)
        with BlockingRunner(address.replace("sqlite:", "unix:") + ".sock", slots=0) as client:
            client.wait(_published(client._runner, "failing"))
            with pytest.raises(RunFailed, match="ValueError: no"):
                client.execute("failing")


@pytest.mark.parametrize("refusal", [UNAUTHORIZED, FORBIDDEN], ids=["401", "403"])
def test_a_client_whose_token_does_not_do(refusal: Reply, monkeypatch: pytest.MonkeyPatch):
    """Not allowed, when it is opened."""
    asked = "identify" if refusal is UNAUTHORIZED else "permit"
    monkeypatch.setattr(Gate, asked, lambda *_: refusal)

    async def scene() -> None:
        async with served() as server:
            with pytest.raises(NotAllowed, match="give a token that the server accepts"):
                await Runner(server.url, slots=0).__aenter__()

    play(scene)


@pytest.mark.parametrize("slots", [-1, True, "2", 1.5])
def test_slots_are_a_whole_number(slots: Any):
    """From 0 on."""
    with pytest.raises(UsageError, match="slots must be a whole number of at least 0"):
        Runner("memory:", slots=slots)


def test_who_waits_for_a_result_outwaits_the_server():
    """However long it is away, whether somebody waited before or begins to; `timeout=` ends it."""

    async def scene() -> None:
        async with served() as server, Meddler(server.port) as meddler:
            desk = Desk(meddler.url, meddler.came)
            async with desk.worker(ORDER) as worker, desk.client() as client:
                await outwait(meddler, worker, client)

    async def outwait(meddler: Meddler, worker: Runner, client: Runner) -> None:
        run = await client.start(ORDER, {"order": 7}, run_id="r")
        vars(client.client)["_patience"] = 0.01
        before = asyncio.ensure_future(run.result())
        await soon(lambda: "layby.run.watch" in {kind for kind, _ in meddler.came})
        await meddler.down()
        with pytest.raises(Unavailable, match="does not answer"):
            await run.status()
        with pytest.raises(TimeoutError, match=r"is not known: .* does not answer"):
            await run.result(timeout=0.5)
        meanwhile = asyncio.ensure_future(run.result())
        await asyncio.sleep(0.5)
        assert not before.done()
        assert not meanwhile.done()
        await meddler.up()
        await worker.resolve("approval-7", "yes")
        for each in await asyncio.gather(before, meanwhile):
            assert each["answer"] == "yes"

    play(scene)
