"""Clients that ask for much and do not read it, or hang up, and others beside them."""

import re
import select
import threading
from collections.abc import Generator
from contextlib import ExitStack
from typing import Any

import pytest

from layby.core.model import NEVER
from layby.wire.decode import VERSION
from tests.helpers.quiet_server import served
from tests.helpers.raw_http import PATIENCE_S, Line, envelope, get, post
from tests.helpers.server_process import ServerProcess

LARGE = 2 * 2**20
COUNT = 100
MORE = {"promise.get": {}, "promise.settle": {"state": "rejected"}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    """With 200 MB of promises, of which it never has more than a few in memory."""
    with served(tmp_path_factory.mktemp("served"), "--write-timeout", "2s") as server:
        with Line(server.port) as line:
            for number in range(COUNT):
                data = {"id": f"large-{number}", "timeoutAt": NEVER, "param": {"data": "x" * LARGE}}
                assert line.ask("promise.create", data).status == 200
        yield server


def ask(kind: str, data: Any) -> Any:
    return {"kind": kind, "head": {"corrId": "c", "version": VERSION}, "data": data}


def batch(*requests: Any) -> bytes:
    return post(envelope("layby.batch", {"requests": requests}))


def reads(count: int = 1_000) -> bytes:
    return batch(*(ask("promise.get", {"id": f"large-{n % COUNT}"}) for n in range(count)))


def settle(number: int) -> Any:
    return ask("promise.settle", {"id": f"large-{number}", "state": "resolved"})


def answered(server: ServerProcess, kind: str) -> int:
    """How many requests of a kind the server has served."""
    with Line(server.port) as line:
        told = line.send(get("/metrics")).answer().body.decode()
    found = re.findall(rf'resonate_request_total{{kind="{kind}",status="200"}} (\S+)', told)
    return sum(map(int, map(float, found)))


def is_served(server: ServerProcess) -> None:
    with Line(server.port) as line:
        assert line.ask("promise.get", {"id": "nobody"}).status == 404


def test_who_hangs_up_is_not_worked_for(server: ServerProcess) -> None:
    """Six batches ask for two gigabytes each, and nobody is there to read them."""
    before = answered(server, "promise.get")
    for _ in range(6):
        with Line(server.port) as rude:
            rude.send(reads())
    is_served(server)
    assert answered(server, "promise.get") - before < 100


@pytest.mark.parametrize("kind", MORE)
def test_nor_with_single_requests(server: ServerProcess, kind: str) -> None:
    """A few begin before the server hears that nobody is there."""
    before = answered(server, kind)
    for number in range(200):
        data = {"id": f"large-{60 + number % 40}", **MORE[kind]}
        with Line(server.port) as rude:
            rude.send(post(envelope(kind, data)))
    is_served(server)
    assert answered(server, kind) - before < 50


def test_nor_with_searches(server: ServerProcess) -> None:
    before = answered(server, "promise.search")
    for _ in range(100):
        with Line(server.port) as rude:
            rude.send(post(envelope("promise.search", {"limit": 100})))
    with Line(server.port) as line:
        assert line.ask("promise.search", {"limit": 1}).status == 200
    assert answered(server, "promise.search") - before < 50


def test_small_requests_overtake_large_ones(server: ServerProcess) -> None:
    """Sixty single reads of two megabytes are under way, and nobody reads them."""
    before = answered(server, "promise.get")
    with ExitStack() as all_:
        for number in range(60):
            rude = all_.enter_context(Line(server.port, receive_buffer=4_096))
            rude.send(post(envelope("promise.get", {"id": f"large-{number}"})))
        is_served(server)
        assert answered(server, "promise.get") - before < 60


def test_who_does_not_read_takes_no_memory(server: ServerProcess) -> None:
    """`served` looks at the most memory it ever had."""
    with ExitStack() as all_:
        for _ in range(8):
            rude = all_.enter_context(Line(server.port, receive_buffer=4_096))
            rude.send(reads())
        is_served(server)
        assert rude.head()[0] == 200
        is_served(server)


def test_who_takes_nothing_for_long_is_disconnected(server: ServerProcess) -> None:
    """Even though its answer has begun; what was sent before can still be read."""
    with Line(server.port, receive_buffer=4_096) as rude:
        rude.send(reads())
        assert rude.head()[0] == 200
        reset = select.poll()
        reset.register(rude.socket, 0)  # errors alone: nothing is read
        assert reset.poll(PATIENCE_S * 1000)
        with pytest.raises((ConnectionError, EOFError)):
            list(rude.chunks())


def test_who_reads_slowly_gets_everything(server: ServerProcess) -> None:
    """Longer than the timeout in all, but never that long without taking something."""
    with Line(server.port, receive_buffer=4_096) as slow:
        slow.send(reads(3))
        status, _ = slow.head()
        size = 0
        for chunk in slow.chunks():
            size += len(chunk)
            threading.Event().wait(0.03)
        assert (status, size > 3 * LARGE) == (200, True)


def test_what_has_not_begun_is_not_done_for_who_is_gone(server: ServerProcess) -> None:
    """Of forty settlements whose answers have two megabytes each, a few; and in order."""
    with Line(server.port, receive_buffer=4_096) as rude:
        rude.send(batch(*map(settle, range(40))))
        assert rude.head()[0] == 200
        is_served(server)
    is_served(server)
    with Line(server.port) as line:
        states = [
            line.ask("promise.get", {"id": f"large-{n}"}).json["data"]["promise"]["state"]
            for n in range(40)
        ]
    done = states.count("resolved")
    assert states == ["resolved"] * done + ["pending"] * (40 - done)
    assert 1 <= done < 20


def test_writes_get_their_own_answers_and_reads_beyond_the_bound_are_asked_again(
    server: ServerProcess,
) -> None:
    requests = [ask("promise.get", {"id": f"large-{n}"}) for n in range(10)]
    requests[8] = settle(50)
    requests += [ask("promise.create", {"id": "small", "timeoutAt": NEVER}), settle(51)]
    with Line(server.port) as line:
        replies = line.send(batch(*requests)).answer().json["data"]["replies"]
        told = [each["head"]["status"] for each in replies]
        assert told[:3] == [200, 200, 200]
        assert [told[8], told[10], told[11]] == [200, 200, 200]
        assert len(replies[8]["data"]["promise"]["param"]["data"]) == LARGE
        assert told[9] == 429
        assert "ask for it again alone" in replies[9]["data"]
        assert line.ask("promise.get", {"id": "large-9"}).status == 200


def test_a_large_batch_does_not_keep_others_waiting(server: ServerProcess) -> None:
    """A small request sent after it is answered before it: large ones are done in slices."""
    many = [ask("promise.create", {"id": f"many/{n}", "timeoutAt": NEVER}) for n in range(1_000)]
    with Line(server.port) as large, Line(server.port) as small:
        large.send(batch(*many))
        assert small.ask("promise.get", {"id": "many/999"}).status == 404
        replies = large.answer().json["data"]["replies"]
        assert [each["head"]["status"] for each in replies] == [200] * 1_000
