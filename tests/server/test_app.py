"""The HTTP surface: every path and method, bodies, streams, probes, web pages, and its end."""

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

import pytest

from layby.core.commands import CreatePromise
from layby.core.model import NEVER
from layby.errors import StoreUnavailable
from layby.server import app
from layby.server.app import GONE, HttpSettings
from layby.server.auth_config import ApiKey, AuthConfig
from layby.server.cross_origin import ORIGIN_REFUSED
from layby.server.server_config import KEYS
from layby.store.api import Store
from tests.helpers.listeners import LOOPS, FrontPlace, fronting
from tests.helpers.raw_http import HttpAnswer, Line, envelope, get, post

MAX_BODY = 100_000
PATIENCE_S = 30
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")


@pytest.fixture(scope="module")
def here() -> Generator[FrontPlace]:
    with fronting(settings=HttpSettings(max_body=MAX_BODY, max_polls=3)) as here:
        yield here


@pytest.fixture
def line(here: FrontPlace) -> Generator[Line]:
    with Line(here.port) as line:
        yield line


def asked(line: Line, method: str, path: str, *headers: str) -> HttpAnswer:
    body = "content-length: 0" if method in ("POST", "PUT", "PATCH") else "x: y"
    return line.send(get(path, body, *headers, method=method)).answer(has_body=method != "HEAD")


# --- paths -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/x", "/api/v1/promises", "/poll.txt", "//", "/../", "/Health"])
def test_there_is_nothing_anywhere_else(line: Line, path: str) -> None:
    for method in METHODS:
        answer = asked(line, method, path)
        assert (answer.status, answer.headers["content-type"]) == (404, "application/json")
        assert method == "HEAD" or answer.json == {"error": f"There is nothing at {path}"}


@pytest.mark.parametrize(
    "path", ["/poll", "/poll/", "/poll/g", "/poll/g/", "/poll//w", "/poll//", "/poll%2Fg%2Fw"]
)
def test_a_stream_has_a_group_and_an_id(line: Line, path: str) -> None:
    """What is encoded is part of a name, and no boundary between names."""
    for method in ("GET", "POST"):
        assert asked(line, method, path).status == 404
    assert asked(line, "GET", "/poll/g%2Fw").status == 404


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/", "POST"),
        ("/health", "GET, HEAD"),
        ("/ready", "GET, HEAD"),
        ("/metrics", "GET, HEAD"),
        ("/poll/g/w", "GET"),
    ],
)
def test_other_methods_are_refused_and_the_right_ones_named(
    line: Line, path: str, allowed: str
) -> None:
    for method in METHODS:
        if method in allowed.split(", "):
            continue
        answer = asked(line, method, path)
        assert (answer.status, answer.headers["allow"]) == (405, allowed), (method, answer)
        assert answer.headers["content-type"] == "application/json"
        assert method == "HEAD" or answer.json == {"error": f"{path} does not accept {method}"}


@pytest.mark.parametrize(
    "path", ["/promises", "/promises/", "/promises/a/b", "/schedules/x", "/tasks?x=y", "/tasks%2F"]
)
def test_the_old_paths_are_gone(line: Line, path: str) -> None:
    for method in METHODS:
        answer = asked(line, method, path)
        assert answer.status == 410
        assert method == "HEAD" or answer.json == {"error": GONE}


def test_probes_are_answered_with_nothing(line: Line) -> None:
    for path in ("/health", "/ready", "/health?why=not"):
        assert asked(line, "GET", path)[::2] == (200, b"")
        assert asked(line, "HEAD", path).status == 200


def test_metrics_are_there_when_somebody_counts(line: Line) -> None:
    assert asked(line, "GET", "/metrics").status == 404

    async def scrape() -> bytes:
        return b"one 1\n"

    with fronting(metrics=scrape) as counted, Line(counted.port) as other:
        answer = asked(other, "GET", "/metrics")
        assert answer[::2] == (200, b"one 1\n")
        assert answer.headers["content-type"].startswith("text/plain")


# --- bodies ----------------------------------------------------------------------------------

GOOD = envelope("promise.get", {"id": "nobody"})


def large_chunks(size: int) -> bytes:
    head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"%x\r\n%b\r\n" % (1_000, b"x" * 1_000) * (size // 1_000) + b"0\r\n\r\n"


@pytest.mark.parametrize("size", [MAX_BODY + 1, 10_000_000])
@pytest.mark.parametrize("how", [lambda size: post(b"x" * size), large_chunks])
def test_too_large_a_body_is_refused(line: Line, size: int, how: Any) -> None:
    """Who sends it hears so, even after all of it was sent; then the connection is as before."""
    if size == MAX_BODY + 1 and how is large_chunks:
        size = MAX_BODY + 1_000
    answer = line.send(how(size)).answer()
    assert answer.status == 413
    assert answer.json["data"].startswith(f"Request body is larger than {MAX_BODY} bytes: ")
    assert answer.json["data"].rpartition("raise ")[2] in KEYS, "a setting that there is"
    assert (answer.json["kind"], answer.json["head"]["corrId"]) == ("unknown", "0")
    assert line.post(GOOD).status == 404


@pytest.mark.parametrize("line_of", ["HTTP/1.1\r\nconnection: close", "HTTP/1.0"])
@pytest.mark.parametrize("size", [MAX_BODY + 1_000, 10_000_000])
@pytest.mark.parametrize("how", [lambda size: post(b"x" * size), large_chunks])
def test_who_closes_after_one_answer_hears_that_a_body_is_too_large(
    line: Line, how: Any, size: int, line_of: str
) -> None:
    """Closing while it still sends would take the answer away with the connection."""
    request = how(size).replace(b"HTTP/1.1", line_of.encode(), 1)
    answer = line.send(request).answer()
    assert (answer.status, answer.headers["connection"]) == (413, "close")
    assert line.ends()


def test_too_large_a_body_is_refused_before_it_comes(line: Line) -> None:
    """By its length alone; who waits to be asked for it is not asked."""
    head = f"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {2**62}\r\n"
    assert line.send(f"{head}\r\n".encode()).answer().status == 413
    with Line(line.socket.getpeername()[1]) as other:
        answer = other.send(f"{head}expect: 100-continue\r\n\r\n".encode()).answer()
        assert (answer.status, answer.headers["connection"]) == (413, "close")
        assert other.ends()


def test_a_body_that_ends_early_is_no_request(here: FrontPlace) -> None:
    """Nothing is done for a request that is not whole, whatever is there of it."""
    body = envelope("promise.create", {"id": "early", "timeoutAt": 9})
    for leave in (Line.vanish, lambda line: line.socket.close()):
        line = Line(here.port)
        line.send(post(body + b" ")[:-1])
        leave(line)
    with Line(here.port) as line:
        assert line.ask("promise.get", {"id": "early"}).status == 404


def test_a_body_that_goes_on_is_a_request_and_no_other(line: Line) -> None:
    """The length says where it ends, not the JSON."""
    line.send(post(GOOD) + b"more of it\r\n\r\n")
    assert line.answer().status == 404
    assert line.ends()


# --- streams ---------------------------------------------------------------------------------


def opened(port: int, path: str, *headers: str) -> Line:
    line = Line(port)
    status, told = line.send(get(path, *headers)).head()
    assert (status, told["content-type"]) == (200, "text/event-stream")
    assert told["cache-control"] == "no-cache"
    return line


@pytest.mark.parametrize(
    ("path", "receiver"),
    [
        ("/poll/g/w", "w"),
        ("/poll/g/a%20b%2Fc%C3%A9", "a b/cé"),
        ("/poll/g/a/b", "a/b"),
        ("//poll/g/w", "w"),
        ("/poll/g/%25", "%"),
        ("/poll/g/w%00?x=y", "w\0"),
        ("/p%6fll/%67/x", None),
    ],
)
def test_group_and_id_are_decoded(path: str, receiver: str | None) -> None:
    with fronting() as here:
        if receiver is None:
            with Line(here.port) as line:
                assert asked(line, "GET", path).status == 404
            return
        with opened(here.port, path) as line, Line(here.port) as other:
            assert [poll.id for poll in here.front.app.polls] == [receiver]
            create(other, "t", f"poll://any@g/{receiver}".replace("\0", "w"))
            assert next(iter(line.events()))["data"]["task"] == {"id": "t", "version": 0}


def create(line: Line, promise_id: str, target: str) -> None:
    data = {"id": promise_id, "timeoutAt": NEVER, "tags": {"resonate:target": target}}
    assert line.ask("promise.create", data).status == 200


def test_there_are_only_so_many_streams(here: FrontPlace) -> None:
    """Whoever goes makes room for another."""
    streams = [opened(here.port, "/poll/g/w") for _ in range(3)]
    with Line(here.port) as line:
        answer = asked(line, "GET", "/poll/g/w")
        assert answer[::2] == (503, b"Poll registration at capacity")
    for stream in streams:
        stream.socket.close()
    while True:  # until their end has been noticed
        with Line(here.port) as line:
            if line.send(get("/poll/g/w")).head()[0] == 200:
                break


def test_our_groups_are_for_registered_holders(line: Line, here: FrontPlace) -> None:
    """Others would hear what is not for them, and take it away."""
    take = {"pid": "w", "incarnation": "sesame", "group": "g", "names": [], "free": 0}
    sesame, other = "layby-incarnation: sesame", "layby-incarnation: other"
    assert asked(line, "GET", "/poll/layby%2Eg/w", sesame).status == 409
    assert line.ask("layby.worker.take", take).status == 200
    for path, *headers in (
        ("/poll/layby.g/w",),
        ("/poll/layby.g/w", "layby-incarnation:"),
        ("/poll/layby.g/w", other),
        ("/poll/layby.g/w", other, sesame),
        ("/poll/layby.h/w", sesame),
        ("/poll/layby.g/v", sesame),
    ):
        answer = asked(line, "GET", path, *headers)
        assert answer.status in (400, 409), (path, headers)
        assert answer.headers["content-type"].startswith("text/plain")
    opened(here.port, "/poll/layby.g/w", sesame).socket.close()
    left = {"pid": "w", "incarnation": "sesame"}
    assert line.ask("layby.worker.leave", left).status == 200
    assert asked(line, "GET", "/poll/layby.g/w", sesame).status == 409


def test_the_key_to_a_stream_does_not_count_in_the_url(line: Line) -> None:
    """Proxies write URLs to their logs: who reads those must not open the streams of others."""
    take = {"pid": "u", "incarnation": "sesame", "group": "g", "names": [], "free": 0}
    assert line.ask("layby.worker.take", take).status == 200
    assert asked(line, "GET", "/poll/layby.g/u?incarnation=sesame").status in (400, 409)


# --- requests that wait ----------------------------------------------------------------------

TAKE = {"pid": "w", "incarnation": "i", "group": "g", "names": ["f"], "free": 1, "waitMs": 60_000}
TASK = {"resonate:target": "poll://any@layby.g", "layby:name": "f"}


def waits(here: FrontPlace, count: int) -> None:
    """Until so many takes wait in the engine."""
    _until(lambda: here.world.engine.free_slots, count)


def watches(here: FrontPlace, count: int) -> None:
    """Until so many watches do."""
    _until(lambda: len(here.world.engine._watches), count)


def _until(counted: Callable[[], int], count: int) -> None:
    pause = threading.Event()
    until = time.monotonic() + 20
    while counted() < count and time.monotonic() < until:
        pause.wait(0.005)
    assert counted() == count


def test_a_take_whose_caller_hung_up_leaves_its_task_to_others() -> None:
    """The next one gets it at once, not when a lease ends."""
    with fronting() as here, Line(here.port) as other:
        gone = Line(here.port)
        gone.send(post(envelope("layby.worker.take", TAKE)))
        waits(here, 1)
        gone.vanish()
        other.send(post(envelope("layby.worker.take", TAKE | {"pid": "v"})))
        waits(here, 2)
        here.world.ok(CreatePromise(id="t", timeout_at=NEVER, tags=TASK))
        [claim] = other.answer().json["data"]["claims"]
        assert claim["task"]["pid"] == "v"


def test_a_request_behind_one_that_waits_is_answered_after_it() -> None:
    with fronting() as here, Line(here.port) as line:
        line.send(post(envelope("layby.worker.take", TAKE)) + post(GOOD))
        waits(here, 1)
        here.world.ok(CreatePromise(id="t", timeout_at=NEVER, tags=TASK))
        assert line.answer().json["kind"] == "layby.worker.take"
        assert line.answer().json["kind"] == "promise.get"


# --- the end ---------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", LOOPS)
def test_the_end_is_told_to_who_waits(loop: str) -> None:
    """Takes and watches are answered 503 at once, streams end as they should, nobody new comes."""
    with (
        fronting(loop) as here,
        Line(here.port) as take,
        Line(here.port) as watch,
        opened(here.port, "/poll/g/w") as stream,
    ):
        take.send(post(envelope("layby.worker.take", TAKE)))
        assert watch.ask("layby.promise.ensure", {"id": "p"}).status == 200
        watch.send(post(envelope("layby.promise.watch", {"id": "p"})))
        waits(here, 1)
        watches(here, 1)
        ending = time.monotonic()
        here.run(here.front.close(20))
        assert time.monotonic() - ending < 10  # of 20 that it may take
        for line in (take, watch):
            answer = line.answer()
            assert (answer.status, answer.headers["connection"]) == (503, "close")
            assert "shutting down" in answer.json["data"]
            assert line.ends()
        assert list(stream.events()) == []
        assert stream.ends()
        with pytest.raises(ConnectionError):
            Line(here.port)


def test_near_the_end_it_is_not_ready(here: FrontPlace) -> None:
    with fronting() as ending, Line(ending.port) as line:
        assert asked(line, "GET", "/ready").status == 200
        here.soon(ending.front.app._draining.set)
        while asked(line, "GET", "/ready").status == 200:
            pass
        assert asked(line, "GET", "/ready")[::2] == (503, b"")
        assert asked(line, "GET", "/health").status == 200
        assert asked(line, "GET", "/poll/g/w")[::2] == (503, b"The server is shutting down")
        assert line.post(GOOD).status == 404  # who is there is still answered


# --- a store that fails ----------------------------------------------------------------------


class Sick:
    """A store that fails whenever it is told to."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.is_sick = False

    def __getattr__(self, name: str) -> Any:
        if self.is_sick and name in ("load", "transaction", "messages", "open_reader"):
            raise StoreUnavailable("the disk is gone: look for it")
        return getattr(self._store, name)


def test_a_store_that_fails_is_told_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """503 for all who ask, until it is well again, and a line in the log; nothing else is wrong."""
    with fronting(wrap=Sick) as here, Line(here.port) as line:
        store: Any = here.world.store
        create(line, "before", "poll://any@g")
        store.is_sick = True
        for kind, data in (
            ("promise.get", {"id": "before"}),
            ("promise.create", {"id": "during", "timeoutAt": NEVER}),
            ("promise.search", {}),
        ):
            answer = line.ask(kind, data)
            assert (answer.status, answer.json["kind"]) == (503, kind)
            assert answer.json["data"] == "the disk is gone: look for it"
        told = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
        assert told == ["requests are refused: the disk is gone: look for it"]
        assert asked(line, "GET", "/ready")[::2] == (503, b"")
        assert asked(line, "GET", "/health").status == 200
        answer = asked(line, "GET", "/poll/layby.g/w", "layby-incarnation: i")
        assert answer[::2] == (503, b"the disk is gone: look for it")
        store.is_sick = False
        assert asked(line, "GET", "/ready").status == 200
        assert line.ask("promise.get", {"id": "during"}).status == 404
        assert line.ask("promise.get", {"id": "before"}).status == 200


class Locked:
    """A store that somebody else locks: it answers when they are done."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.free = threading.Event()
        self.free.set()

    def __getattr__(self, name: str) -> Any:
        if name in ("load", "transaction"):
            self.free.wait(PATIENCE_S)
        return getattr(self._store, name)


def test_a_probe_does_not_wait_for_a_locked_store(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Red on b972d63e: it was answered when the lock was gone, and nobody asks that long."""
    with fronting(wrap=Locked) as here, Line(here.port) as line:
        store: Any = here.world.store
        assert asked(line, "GET", "/ready").status == 200
        monkeypatch.setattr(app, "READY_S", 0.05)
        store.free.clear()
        try:
            for _ in range(3):
                assert asked(line, "GET", "/ready")[::2] == (503, b"")
            assert asked(line, "GET", "/health").status == 200
            reads = [each for each in here.run(others()) if "_can_read" in repr(each)]
            assert len(reads) == 1, "probes share what waits for the store"
        finally:
            store.free.set()
        while asked(line, "GET", "/ready").status == 503:
            pass
    told = {each.getMessage() for each in caplog.records if each.levelname == "WARNING"}
    assert told == {"not ready: the store has not answered for 0.05 s"}


async def others() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks()


def test_a_stream_opened_while_the_store_fails_hears_when_it_is_well() -> None:
    """The engine offers what is there now and then, and so it must not take it for told."""
    with fronting(wrap=Sick) as here, Line(here.port) as line:
        store: Any = here.world.store
        create(line, "t", "poll://any@g")
        store.is_sick = True
        stream = opened(here.port, "/poll/g/w")
        assert line.ask("promise.get", {"id": "t"}).status == 503
        store.is_sick = False
        here.world.clock.advance(60_000)
        here.world.engine.submit([])  # so that it looks at the clock
        assert next(iter(stream.events()))["data"]["task"]["id"] == "t"
        stream.socket.close()


# --- web pages -------------------------------------------------------------------------------

ORIGIN = "origin: https://app.example.org"
PREFLIGHT = (
    "access-control-request-method: POST",
    "access-control-request-headers: content-type, authorization",
)


def test_web_pages_from_elsewhere_are_not_served_by_default(line: Line) -> None:
    answer = line.send(post(GOOD, ORIGIN)).answer()
    assert not any(name.startswith("access-control") for name in answer.headers)
    answer = line.send(get("/", ORIGIN, *PREFLIGHT, method="OPTIONS")).answer()
    assert answer.status == 405
    assert not any(name.startswith("access-control") for name in answer.headers)


FOREIGN = (
    (ORIGIN,),
    ("origin: null",),
    ("sec-fetch-site: cross-site",),
    ("sec-fetch-site: same-site",),
)


@pytest.mark.parametrize("headers", FOREIGN)
def test_a_page_from_elsewhere_has_nothing_done(
    line: Line, here: FrontPlace, headers: tuple[str, ...]
) -> None:
    """Whether it may see the answer is for the browser to say, and too late."""
    body = envelope("promise.create", {"id": "forged", "timeoutAt": NEVER})
    answer = line.send(post(body, "content-type: text/plain", *headers)).answer()
    assert (answer.status, answer.json["data"]) == (403, ORIGIN_REFUSED)
    assert asked(line, "GET", "/poll/g/w", *headers)[::2] == (403, ORIGIN_REFUSED.encode())
    assert line.ask("promise.get", {"id": "forged"}).status == 404
    opened(here.port, "/poll/g/w", "sec-fetch-site: none").socket.close()


def test_where_tokens_are_asked_for_a_page_needs_nothing_else() -> None:
    """It has none unless it was given one."""
    key = "layby_0123456789abcdef0123"
    auth = AuthConfig(api_keys=(ApiKey("a", key=key, role="admin"),))
    with fronting(auth=auth) as here, Line(here.port) as line:
        assert line.send(post(GOOD, ORIGIN)).answer().status == 401
        assert line.send(post(GOOD, ORIGIN, f"authorization: Bearer {key}")).answer().status == 404


def test_named_origins_are_served() -> None:
    settings = HttpSettings(origins=("https://app.example.org", "https://other.example.org"))
    with fronting(settings=settings) as here, Line(here.port) as line:
        answer = line.send(get("/", ORIGIN, *PREFLIGHT, method="OPTIONS")).answer()
        assert answer.status == 200
        assert answer.headers["access-control-allow-origin"] == "https://app.example.org"
        assert "POST" in answer.headers["access-control-allow-methods"]
        for header in ("Authorization", "Layby-Incarnation"):
            assert header in answer.headers["access-control-allow-headers"]
        answer = line.send(post(GOOD, ORIGIN, "sec-fetch-site: cross-site")).answer()
        assert answer.status == 404
        assert answer.headers["access-control-allow-origin"] == "https://app.example.org"
        refused_origin = "origin: https://evil.example.org"
        answer = line.send(get("/", refused_origin, *PREFLIGHT, method="OPTIONS")).answer()
        assert answer.status == 400
        assert "access-control-allow-origin" not in answer.headers
        answer = line.send(post(GOOD, refused_origin)).answer()
        assert answer.status == 403
        assert "access-control-allow-origin" not in answer.headers


def test_any_origin_may_be_served() -> None:
    with fronting(settings=HttpSettings(origins=("*",))) as here, Line(here.port) as line:
        headers = (
            ORIGIN,
            "access-control-request-method: POST",
            "access-control-request-headers: x",
        )
        answer = line.send(get("/", *headers, method="OPTIONS")).answer()
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "*")
        answer = line.send(post(GOOD, ORIGIN)).answer()
        assert answer.headers["access-control-allow-origin"] == "*"
        with opened(here.port, "/poll/g/w", ORIGIN):
            pass
