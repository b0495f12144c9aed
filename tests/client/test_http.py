"""The client of a server, and a network that loses, cuts and repeats."""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from layby.client import http, outage, transport
from layby.client.http import HttpClient
from layby.client.outage import rounded, trying_again
from layby.client.transport import Unreachable
from layby.core import commands as c
from layby.core import queries as q
from layby.core.model import NEVER
from layby.errors import EngineStopped, LaybyError, StoreBusy, StoreUnavailable, UsageError
from tests.helpers import requests as r
from tests.helpers.seeds import seeds
from tests.helpers.troubled_server import Stage, Trouble, play, served, soon, staged

Scene = Callable[[Stage], Awaitable[None]]
VALUE = c.Value(data="InZhbHVlIg==")
EARLY: tuple[Trouble, ...] = ("refuse", "html", "busy")
"""The server has not heard of the request."""
LATE: tuple[Trouble, ...] = ("lose", "cut", "json", "unsure")
"""The server has done it."""


def on_stage(scene: Scene, flags: dict[str, object] | None = None, **options: Any) -> None:
    async def run() -> None:
        async with staged(flags, **options) as stage:
            await scene(stage)

    play(run)


async def take_one(stage: Stage, run_id: str = "run/a", **after: Any) -> None:
    """A run whose first node is held by `p`."""
    await stage.ok(r.run(run_id, **after or {"a": ""}))
    assert (await stage.task(f"{run_id}:a")).state == "pending"
    await stage.ok(r.take(1))


# --- the same answers ------------------------------------------------------------------------


def test_answers_and_refusals_are_replies():
    """An exception would mean that the connection failed."""

    async def scene(stage: Stage) -> None:
        send = stage.client.send
        assert (await send(r.promise("x"))).status == 200
        assert (await send(c.GetPromise(id="none"))).status == 404
        assert (await send(r.promise(""))).status == 400
        assert (await send(q.SearchPromises())).status == 200

    on_stage(scene)


def test_a_socket_in_the_file_system_is_as_good(tmp_path):
    """Only the way there differs; proxies of the environment are none of its business."""
    path = tmp_path / "a.sock"

    async def run() -> None:
        async with served() as server:
            await server.front.listener.listen_on_path(path)
            client = HttpClient(f"unix:{path}")
            assert (await client.send(r.promise("x"))).status == 200
            await client.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("http_proxy", "http://127.0.0.1:1")
        play(run)


def test_a_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch):
    """As other clients do: and a host that is exempt is reached without it."""

    async def scene() -> None:
        async with served() as server:
            monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
            client = HttpClient(server.url, patience=0)
            with pytest.raises(StoreUnavailable):
                await client.send(r.promise("x"))
            await client.close()
            monkeypatch.setenv("no_proxy", "127.0.0.1")
            client = HttpClient(server.url, patience=0)
            assert (await client.send(r.promise("x"))).status == 200
            await client.close()

    play(scene)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host:8001",
        "ftp://host",
        "http://",
        "unix:",
        "sqlite:a.db",
        "http://h:99999",
        "http://h:x",
    ],
)
def test_what_is_no_address_of_a_server_is_told(url: str):
    """At once, with an example."""
    with pytest.raises(UsageError, match="http://host:8001"):
        transport.check_url(url)


def test_plain_text_where_https_was_asked_for_is_told():
    """What OpenSSL says of it helps nobody."""

    async def scene() -> None:
        async with served() as server:
            client = HttpClient(f"https://127.0.0.1:{server.port}", patience=0)
            with pytest.raises(StoreUnavailable, match="it does not speak https; is it http://"):
                await client.send(r.promise("x"))
            await client.close()

    play(scene)


# --- order -----------------------------------------------------------------------------------


def test_commands_apply_in_the_order_in_which_they_were_sent():
    """Whatever happens on the way: of two that settle the same promise the first one wins."""

    async def scene(stage: Stage) -> None:
        stage.meddler.trouble("promise.create", "lose", "busy", "cut")
        sends: list[Awaitable[Any]] = []
        for number in range(300):
            sends.append(stage.client.send(r.promise(f"x{number}")))
            sends.append(stage.client.send(r.settle(f"x{number}")))
            sends.append(stage.client.send(r.settle(f"x{number}", "rejected")))
        replies = await asyncio.gather(*sends)
        assert {reply.status for reply in replies} == {200}
        states = {reply.data.promise.state for reply in replies[2::3]}
        assert states == {"resolved"}

    on_stage(scene)


def test_a_crowd_shares_requests():
    """What is sent while a batch is under way goes with the next one."""

    async def scene(stage: Stage) -> None:
        sends = [stage.client.send(r.promise(f"x{number}")) for number in range(1_200)]
        replies: list[Any] = await asyncio.gather(*sends)
        assert [each.data.promise.id for each in replies] == [f"x{n}" for n in range(1_200)]
        assert sum(stage.meddler.batches) == 1_200
        assert max(stage.meddler.batches) == http.BATCH
        assert len(stage.meddler.batches) <= 5

    on_stage(scene)


def test_large_values_do_not_travel_together():
    """A batch is bounded in bytes; one value of 4 MiB goes alone and comes back whole."""
    large = c.Value(data="x" * (4 * 1024 * 1024))
    middle = c.Value(data="y" * 400_000)

    async def scene(stage: Stage) -> None:
        values = [large, *[middle] * 8, large]
        sends = [
            stage.client.send(c.CreatePromise(id=f"x{n}", timeout_at=NEVER, param=value))
            for n, value in enumerate(values)
        ]
        replies: list[Any] = await asyncio.gather(*sends)
        assert {reply.status for reply in replies} == {200}
        assert len(replies[0].data.promise.param) > 4 * 1024 * 1024
        alone = [size for size in stage.meddler.sizes if size > http.BATCH_BYTES * 1.1]
        assert len(alone) == 2
        assert sum(stage.meddler.batches) == len(values)

    on_stage(scene)


def test_a_batch_too_large_for_the_server_is_taken_apart():
    """Each of them would be served alone; only what is too large by itself is refused."""

    async def scene(stage: Stage) -> None:
        value = c.Value(data="x" * 30_000)
        sends = [
            stage.client.send(c.CreatePromise(id=f"x{n}", timeout_at=NEVER, param=value))
            for n in range(20)
        ]
        huge = c.CreatePromise(id="huge", timeout_at=NEVER, param=c.Value(data="x" * 200_000))
        *replies, refused = await asyncio.gather(*sends, stage.client.send(huge))
        assert {reply.status for reply in replies} == {200}
        assert refused.status == 413
        assert "larger" in str(refused.data)

    on_stage(scene, {"server.max_body": 100_000})


def test_reads_that_an_answer_has_no_room_for_are_asked_again():
    """In a batch of what is left, until all are read; nobody hears of it."""
    value = c.Value(data="x" * 3_000_000)

    async def scene(stage: Stage) -> None:
        for n in range(8):
            await stage.client.send(c.CreatePromise(id=f"x{n}", timeout_at=NEVER, param=value))
        stage.meddler.batches.clear()
        sends = [stage.client.send(c.GetPromise(id=f"x{n}")) for n in range(8)]
        replies: list[Any] = await asyncio.gather(*sends, stage.client.send(r.settle("x0")))
        assert [each.data.promise.id for each in replies] == [*(f"x{n}" for n in range(8)), "x0"]
        assert stage.meddler.batches[0] == 9
        assert 2 <= len(stage.meddler.batches) <= 4

    on_stage(scene)


def test_one_refusal_of_a_batch_does_not_touch_its_neighbours():
    """Each gets its own answer."""

    async def scene(stage: Stage) -> None:
        requests = [r.promise("x"), c.GetPromise(id="none"), r.promise(""), r.promise("y")]
        replies = await asyncio.gather(*map(stage.client.send, requests))
        assert [reply.status for reply in replies] == [200, 404, 400, 200]

    on_stage(scene)


# --- sent again ------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", [*EARLY, *LATE])
def test_a_request_sent_again_is_done_once(trouble: Trouble):
    """The answer is the one that was lost; a task is claimed, counted and settled once."""

    async def scene(stage: Stage) -> None:
        for name, (prepare, request, check) in once(stage).items():
            await prepare(stage, f"run/{name}")
            stage.meddler.trouble(request.kind, trouble)
            reply = await stage.client.send(request)
            assert reply.status == 200, (name, reply)
            check(reply.data, await stage.task(f"run/{name}:a"))

    on_stage(scene)


def test_a_request_that_the_network_repeats_is_done_once():
    """Nobody can tell the copy from the request, so it may be refused; it does no harm."""

    async def scene(stage: Stage) -> None:
        for name, (prepare, request, _) in once(stage).items():
            await prepare(stage, f"run/{name}")
            stage.meddler.trouble(request.kind, "twice")
            assert (await stage.client.send(request)).status in (200, 409)
            task = await stage.task(f"run/{name}:a")
            assert task.failures == (name in ("fail", "backoff"))
            assert task.version == (name != "run")

    on_stage(scene)


def once(stage: Stage) -> dict[str, tuple[Any, c.Command, Callable[[Any, Any], None]]]:
    """Requests whose second copy is refused: what must be there, and what must come of it."""
    later = stage.server.engine.clock.now() + 60_000

    def finished(data: Any, task: Any) -> None:
        assert data.promise.state == "resolved"
        assert (task.state, task.version) == ("fulfilled", 1)

    def failed(data: Any, task: Any) -> None:
        assert data.promise.state == "rejected"
        assert (task.state, task.failures) == ("fulfilled", 1)

    def backs_off(data: Any, task: Any) -> None:
        assert data.promise.is_pending
        assert (task.state, task.failures, task.version) == ("suspended", 1, 1)

    def acquired(data: Any, task: Any) -> None:
        assert (data.task.version, data.task.pid) == (1, "p")
        assert (task.version, task.pid) == (1, "p")

    def released(_: Any, task: Any) -> None:
        assert (task.state, task.version) == ("pending", 1)

    def started(data: Any, task: Any) -> None:
        assert data.promise.id == "run/run"
        assert (task.state, task.version) == ("pending", 0)

    return {
        "finish": (take_one, r.finish("run/finish:a"), finished),
        "fail": (take_one, r.fail("run/fail:a"), failed),
        "backoff": (take_one, r.fail("run/backoff:a", retry_in=later), backs_off),
        "release": (take_one, c.ReleaseTask(id="run/release:a", version=1), released),
        "acquire": (offer_one, r.acquire("run/acquire:a", 0), acquired),
        "run": (offer_none, r.run("run/run", a=""), started),
    }


async def offer_one(stage: Stage, run_id: str) -> None:
    await stage.ok(r.run(run_id, a=""))


async def offer_none(_stage: Stage, _run_id: str) -> None:
    """The run itself is what is asked for."""


def test_reads_are_repeated_too():
    """They stand in no line, and wait for no other."""

    async def scene(stage: Stage) -> None:
        await stage.ok(r.promise("x"))
        stage.meddler.trouble("promise.search", "cut", "busy", "html")
        page: Any = (await stage.client.send(q.SearchPromises())).data
        assert [promise.id for promise in page.promises] == ["x"]

    on_stage(scene)


def test_a_server_that_is_away_for_a_moment_is_waited_for():
    """Requests of that time are served when it is back, in order."""

    async def scene(stage: Stage) -> None:
        await stage.client.send(r.promise("before"))
        await stage.meddler.down()
        sends = [stage.client.send(r.promise("x")), stage.client.send(r.settle("x"))]
        waiting = asyncio.gather(*sends, stage.client.send(q.SearchPromises()))
        await asyncio.sleep(0.15)
        assert not waiting.done()
        await stage.meddler.up()
        created, settled, found = await waiting
        assert (created.status, settled.status, found.status) == (200, 200, 200)

    on_stage(scene)


def test_whoever_waits_too_long_hears_where_nobody_answers():
    """With the address, and as something that may be tried again."""

    async def scene(stage: Stage) -> None:
        await stage.meddler.down()
        for request in (r.promise("x"), q.SearchPromises()):
            with pytest.raises(StoreUnavailable, match=f"{stage.meddler.url}.*is it running"):
                await stage.client.send(request)
        await stage.meddler.up()

    on_stage(scene, patience=0.1)


def test_what_was_answered_counts_though_its_neighbour_was_not_served():
    """Of a batch that the store could serve in part each request gets what became of it."""

    async def scene(stage: Stage) -> None:
        refuse_to_serve(stage, "bad")
        requests = [r.promise("bad"), r.promise("x"), r.promise("y")]
        results = await asyncio.gather(*map(stage.client.send, requests), return_exceptions=True)
        bad, x, y = results
        assert isinstance(bad, StoreUnavailable)
        assert (getattr(x, "status", x), getattr(y, "status", y)) == (200, 200)

    on_stage(scene, patience=0)


def refuse_to_serve(
    stage: Stage, promise_id: str, state: str = "", times: float = math.inf
) -> None:
    """The store fails so often when it is to write this promise, in this state."""
    store: Any = stage.server.engine._store
    inner = store.save
    left = times

    def save(changes: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal left
        promise = changes.promises.get(promise_id)
        if promise is not None and state in ("", promise.state) and left > 0:
            left -= 1
            raise StoreUnavailable("the disk is full")
        return inner(changes, *args, **kwargs)

    store.save = save


@pytest.mark.parametrize("count", [2, 200])
def test_what_could_not_be_served_is_served_before_what_was_sent_after_it(count: int):
    """Of two that settle the same promise the first one wins, though it had to be sent again."""

    async def scene(stage: Stage) -> None:
        await stage.ok(r.promise("x"))
        refuse_to_serve(stage, "x", "resolved", times=2)  # with its neighbours, and then alone
        others = [r.promise(f"y{n}") for n in range(count - 2)]
        requests = [r.settle("x"), r.settle("x", "rejected"), *others]
        replies = await asyncio.gather(*map(stage.client.send, requests))
        assert {reply.status for reply in replies} == {200}
        assert (await stage.promise("x")).state == "resolved"
        settled: list[Any] = [reply.data for reply in replies[:2]]
        assert [data.promise.state for data in settled] == ["resolved", "resolved"]
        assert stage.kinds()[:2] == ["promise.settle"] * 2

    on_stage(scene)


@pytest.mark.parametrize("seed", seeds(1, slow=20))
def test_nothing_is_overtaken_whatever_fails_on_the_way(seed: int):
    """Neither by what the store refuses for a moment, nor by what the network does to it."""
    chance = random.Random(seed)

    async def ordered(stage: Stage, promise_id: str) -> None:
        value = c.Value(data="v" * chance.choice([0, 10, 3_000, 60_000]))
        settle = c.SettlePromise(id=promise_id, state="resolved", value=value)
        asked = [r.promise(promise_id), settle, r.settle(promise_id, "rejected")]
        asked.append(c.GetPromise(id=promise_id))
        replies = await asyncio.gather(*map(stage.client.send, asked))
        assert [reply.status for reply in replies] == [200] * len(asked)
        told: list[Any] = [reply.data for reply in replies[1:]]
        assert [data.promise.state for data in told] == ["resolved"] * 3

    async def scene(stage: Stage) -> None:
        store: Any = stage.server.engine._store
        save = store.save

        def failing(*args: Any, **options: Any) -> Any:
            if chance.random() < 0.15:
                raise chance.choice([StoreUnavailable, StoreBusy])("not now")
            return save(*args, **options)

        store.save = failing
        troubles: list[Trouble] = ["pass", "twice", *EARLY, *LATE]
        stage.meddler.trouble("promise.settle", *chance.choices(troubles, k=6))
        asked = list[asyncio.Task[None]]()
        for number in range(100):
            asked.append(asyncio.ensure_future(ordered(stage, f"x{number}")))
            if chance.random() < 0.05:
                await asyncio.sleep(chance.uniform(0, 0.02))
        await asyncio.gather(*asked)

    on_stage(scene, patience=60)


def test_what_cannot_be_served_does_not_fail_what_was_sent_after_it():
    """When patience with one is at its end, it is the turn of the next: each has its own answer."""

    async def scene(stage: Stage) -> None:
        refuse_to_serve(stage, "bad")
        refuse_to_serve(stage, "worse")
        ids = ["x", "bad", "y", "worse", "z"]
        results = await asyncio.gather(
            *(stage.client.send(r.promise(each)) for each in ids), return_exceptions=True
        )
        told = [getattr(each, "status", type(each)) for each in results]
        assert told == [200, StoreUnavailable, 200, StoreUnavailable, 200]

    on_stage(scene, patience=0.1)


def test_a_token_that_does_not_fit_is_a_refusal():
    """Also of a whole batch: nobody tries it again."""

    async def scene(stage: Stage) -> None:
        replies = await asyncio.gather(*(stage.client.send(r.promise(f"x{n}")) for n in range(3)))
        assert [reply.status for reply in replies] == [401, 401, 401]
        assert len(stage.meddler.came) == 3

    on_stage(scene, {"auth.public_key": "none"}, token="nonsense")


def test_something_that_is_no_layby_server_is_told_at_once():
    """A page that is no failure of a gateway will not become a server by asking again."""

    async def run() -> None:
        async def page(_: Any, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 404 No\r\ncontent-type: application/json\r\n")
            writer.write(b"content-length: 2\r\n\r\n{}")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(page, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = HttpClient(f"http://127.0.0.1:{port}")
        with pytest.raises(LaybyError, match="not an answer from a layby server"):
            await asyncio.wait_for(client.send(r.promise("x")), 5)
        await client.close()
        server.close()

    play(run)


# --- cancelled callers -----------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["before it left", "under way", "just answered"])
def test_claims_of_a_cancelled_caller_are_handed_back(moment: str):
    """Whatever claimed them, and whenever: released, never forgotten."""

    async def scene(stage: Stage) -> None:
        await take_one(stage, "run/c", a="", b="a")
        await take_one(stage, "run/d", a="", b="a")
        await stage.ok(r.target("t"))
        await stage.ok(r.run("run/e", a=""))
        requests: dict[str, c.Command] = {
            "run/e:a": r.take(1),
            "run/b:a": r.run("run/b", with_take=r.take(1), a=""),
            "run/c:b": r.finish("run/c:a", with_take=r.take(1)),
            "run/d:b": c.FailTask(id="run/d:a", version=1, take=r.take(1)),
            "t": r.acquire("t", 0),
            "new": r.claimed("new"),
        }
        for claimed, request in requests.items():
            await cancelled(stage, request, moment)
            await soon_free(stage, claimed)
            await stage.ok(c.CancelPromise(id=claimed))  # and nobody else takes it in the next turn

    on_stage(scene)


async def cancelled(stage: Stage, request: c.Command, moment: str) -> None:
    before = len(stage.meddler.came)
    sending = asyncio.ensure_future(stage.client.send(request))
    if moment == "before it left":
        await asyncio.sleep(0)
    elif moment == "under way":
        await stage.meddler.came.until(lambda came: len(came) > before)
    else:
        await soon_done(sending)
    sending.cancel()
    [end] = await asyncio.gather(sending, return_exceptions=True)
    await stage.client.send(c.GetPromise(id="x"))  # stands behind it in the line
    assert isinstance(end, asyncio.CancelledError)


async def soon_done(task: "asyncio.Task[Any]") -> None:
    """Until what it waits for is there, and it has not gone on yet."""
    waited: Any = task
    while waited._fut_waiter is None or not waited._fut_waiter.done():  # noqa: ASYNC110
        await asyncio.sleep(0)


async def soon_free(stage: Stage, task_id: str) -> None:
    async with asyncio.timeout(20):
        while True:
            task = await stage.task(task_id)
            if task.state == "pending":
                return
            await asyncio.sleep(0.005)


def test_a_waiting_take_whose_caller_was_cancelled_keeps_nothing():
    """The server sees that nobody is there, and what it would have got goes to another."""

    async def scene(stage: Stage) -> None:
        gone = asyncio.ensure_future(stage.client.send(r.take(1, wait_ms=60_000)))
        await stage.meddler.came.until(len)
        await soon(lambda: stage.server.engine.free_slots == 1)
        gone.cancel()
        # What is under way by then, the Reconciler finds.
        await soon(lambda: waiting_pids(stage) == set())
        waits = asyncio.ensure_future(stage.client.send(r.take(1, pid="q", wait_ms=60_000)))
        await soon(lambda: "q" in waiting_pids(stage))
        await stage.ok(r.run("run/a", a=""))
        reply: Any = await waits
        assert [claim.task.pid for claim in reply.data.claims] == ["q"]

    on_stage(scene)


def waiting_pids(stage: Stage) -> set[str]:
    waiting: Any = list(stage.server.engine._takes._until)
    return {item.request.pid for item in waiting if not item.is_abandoned}


# --- requests that wait ----------------------------------------------------------------------


def test_a_take_that_waits_stops_nobody():
    """It has a connection of its own, and is asked again when that is lost."""

    async def scene(stage: Stage) -> None:
        waiting = asyncio.ensure_future(stage.client.send(r.take(1, wait_ms=60_000)))
        await soon(lambda: stage.server.engine.free_slots == 1)
        assert (await stage.client.send(r.promise("x"))).status == 200
        await stage.meddler.down()
        await stage.meddler.up()
        await stage.meddler.came.until(lambda came: len(came) >= 3)
        await stage.ok(r.run("run/a", a=""))
        reply: Any = await waiting
        assert [claim.task.id for claim in reply.data.claims] == ["run/a:a"]

    on_stage(scene)


def test_a_watch_without_an_inbox_waits_at_the_server():
    """And survives a connection that ends."""

    async def scene(stage: Stage) -> None:
        await stage.ok(r.promise("x"))
        watching = asyncio.ensure_future(stage.client.send(c.WatchPromise(id="x")))
        await stage.meddler.came.until(len)
        await stage.meddler.down()
        await stage.meddler.up()
        await stage.meddler.came.until(lambda came: len(came) >= 2)
        await stage.ok(r.settle("x"))
        reply: Any = await watching
        assert reply.data.promise.state == "resolved"

    on_stage(scene)


def test_an_answer_that_does_not_come_is_asked_for_again():
    """A server that hangs is given up after a time, not for ever."""

    async def scene(stage: Stage) -> None:
        stage.meddler.trouble("promise.create", "hang")
        assert (await stage.client.send(r.promise("x"))).status == 200
        assert stage.kinds() == ["promise.create"] * 2

    on_stage(scene, answer_within=1)


def test_a_server_that_hangs_is_told_of_before_it_is_given_up(monkeypatch, caplog):
    """As soon as one that refuses connections; nobody waits for the end of the first try."""
    monkeypatch.setattr(outage, "OUTAGE_TOLD_AFTER_S", 0.05)

    async def scene(stage: Stage) -> None:
        await stage.ok(r.promise("x"))
        stage.meddler.trouble("promise.create", "hang")
        asked = asyncio.ensure_future(stage.client.send(r.promise("y")))
        while not caplog.messages:  # noqa: ASYNC110 - a log has no event
            await asyncio.sleep(0.01)
        assert not asked.done()
        assert stage.kinds() == ["promise.create"]
        assert caplog.messages == [
            f"the server at {stage.meddler.url} has not answered for 0.05 s; waiting"
        ]
        asked.cancel()

    with caplog.at_level("WARNING", "layby.client.outage"):
        on_stage(scene)


def test_messages_of_an_outage_are_sentences():
    """What ends with a question is not continued, and nobody reads microseconds."""
    asked = trying_again(Unreachable("http://x", "refused", may_have_arrived=False))
    assert asked == "the server at http://x does not answer (refused): is it running? Trying again"
    assert trying_again(OSError("away")) == "away; trying again"
    assert [rounded(each) for each in (0.05, 1.37158, 3.27962)] == ["0.05", "1", "3"]


def test_a_request_that_waits_at_the_server_is_not_an_outage(monkeypatch, caplog):
    monkeypatch.setattr(outage, "OUTAGE_TOLD_AFTER_S", 0.01)

    async def scene(stage: Stage) -> None:
        await stage.ok(r.promise("x"))
        watching = asyncio.ensure_future(stage.client.send(c.WatchPromise(id="x")))
        await asyncio.sleep(0.1)
        monkeypatch.undo()
        await stage.ok(r.settle("x"))
        await watching

    with caplog.at_level("WARNING", "layby.client.outage"):
        on_stage(scene)
    assert caplog.messages == []


def test_a_busy_server_is_not_one_that_is_away():
    """Patience is for a server that is not there; an answer may take longer than that."""

    async def scene(stage: Stage) -> None:
        stage.meddler.trouble("promise.create", "slow")
        assert (await stage.client.send(r.promise("x"))).status == 200
        assert stage.kinds() == ["promise.create"]

    on_stage(scene, patience=0.1)


def test_a_server_that_never_answers_is_asked_twice():
    """The first connection may have died unnoticed; then patience is at its end."""

    async def scene(stage: Stage) -> None:
        stage.meddler.trouble("promise.create", "hang", "hang", "hang", "hang")
        with pytest.raises(StoreUnavailable, match="does not answer"):
            await stage.client.send(r.promise("x"))
        assert stage.kinds() == ["promise.create"] * 2

    on_stage(scene, answer_within=2, patience=2)


# --- the end ---------------------------------------------------------------------------------


def test_closing_answers_everybody():
    """In line, under way, waiting at the server, trying again: all hear that it is over."""

    async def scene(stage: Stage) -> None:
        await stage.ok(r.promise("x"))
        stage.meddler.trouble("promise.settle", "hang")
        asked = [
            stage.client.send(c.WatchPromise(id="x")),
            stage.client.send(r.take(1, wait_ms=60_000)),
            stage.client.send(r.settle("x")),
        ]
        waiting = [asyncio.ensure_future(each) for each in asked]
        await stage.meddler.came.until(lambda came: len(came) == 3)
        waiting.append(asyncio.ensure_future(stage.client.send(r.promise("y"))))
        await asyncio.sleep(0)
        await stage.client.close()
        async with asyncio.timeout(20):
            ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(end) for end in ends[1:]} == {EngineStopped}
        with pytest.raises(EngineStopped):
            await stage.client.send(r.promise("z"))

    on_stage(scene)


def test_closing_lets_go_of_a_server_that_is_away():
    """Nothing is tried again after the end, and no connection is opened any more."""

    async def scene(stage: Stage) -> None:
        await stage.meddler.down()
        waiting = [
            asyncio.ensure_future(stage.client.send(each))
            for each in (r.promise("x"), q.SearchPromises(), r.take(1, wait_ms=60_000))
        ]
        await asyncio.sleep(0.05)
        async with asyncio.timeout(20):
            await stage.client.close()
            ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(end) for end in ends} == {EngineStopped}
        assert stage.client.transport._session is None
        await stage.meddler.up()

    on_stage(scene)


def test_what_was_sent_leaves_before_the_end():
    """Closing waits for a line that moves."""

    async def scene(stage: Stage) -> None:
        sends = [asyncio.ensure_future(stage.client.send(r.promise(f"x{n}"))) for n in range(1_500)]
        await asyncio.sleep(0)
        await stage.client.close()
        replies: list[Any] = await asyncio.gather(*sends)
        assert {reply.status for reply in replies} == {200}

    on_stage(scene)


def test_closing_twice_or_unused_is_harmless():
    """Also before anything was sent."""

    async def scene() -> None:
        client = HttpClient("http://127.0.0.1:1")
        await client.close()
        await client.close()

    play(scene)
