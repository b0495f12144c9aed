"""Auth over real HTTP: every kind and every path, with every sort of token."""

import itertools
import re
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from layby.core.model import NEVER
from layby.wire.decode import VERSION
from tests.helpers.keys import public_pem, signed
from tests.helpers.raw_http import Line, envelope, get, post
from tests.helpers.sample_requests import GROUP, SAMPLES
from tests.helpers.visitors import (
    ADMIN_KEY,
    BOUNDED,
    DIGEST,
    KNOWN,
    NAMES,
    POLLING,
    REFUSED,
    expected,
    tokens,
)

TOKENS = tokens(int(time.time()) + 3_000)
TOKENS["expired"] = tokens(int(time.time()) - 1)["expired"]
numbers = itertools.count()


TOML = f"""
db = "sqlite:guarded.db"
durability = "normal"
debug = true
[server]
port = 0
[log]
level = "debug"
[auth]
public_key = "tokens.pem"
[[auth.api_keys]]
name = "ci"
key_sha256 = "{DIGEST}"
prefix = "mine/"
groups = ["{GROUP}"]
[[auth.api_keys]]
name = "ops"
key = "{ADMIN_KEY}"
role = "admin"
"""


class Answer(NamedTuple):
    status: int
    kind: str
    corr_id: str
    data: Any


class Server:
    """A peer on one connection that is kept alive."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._connection = HTTPConnection("127.0.0.1", port, timeout=20)

    def close(self) -> None:
        self._connection.close()

    def post(
        self, kind: str, data: Any, token: str | None = None, header: str | None = None, **head: Any
    ) -> Answer:
        head = {"corrId": f"c{next(numbers)}", "version": VERSION} | head
        if token is not None:
            head["auth"] = token
        body = msgspec.json.encode({"kind": kind, "head": head, "data": data})
        self._connection.request("POST", "/", body, _authorization(header))
        response = self._connection.getresponse()
        answer = msgspec.json.decode(response.read())
        assert response.headers["content-type"] == "application/json"
        assert answer["head"]["status"] == response.status
        assert answer["head"]["corrId"] == head["corrId"]
        return Answer(response.status, answer["kind"], answer["head"]["corrId"], answer["data"])

    def get(
        self, path: str, header: str | None = None, method: str = "GET", **headers: str
    ) -> tuple[int, str]:
        """The status, and the body unless it is a stream."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, headers=_authorization(header) | headers)
            response = connection.getresponse()
            if response.headers["content-type"] == "text/event-stream":
                return response.status, "a stream"
            return response.status, response.read().decode()
        finally:
            connection.close()


def _authorization(header: str | None) -> dict[str, str]:
    return {} if header is None else {"Authorization": header}


class Process:
    """`layby serve` as its users start it, told by a file; what it says is kept."""

    def __init__(self, folder: Path) -> None:
        (folder / "tokens.pem").write_text(public_pem())
        (folder / "layby.toml").write_text(TOML)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "layby.cli", "serve"],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.said = ""
        self._has_said = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        try:
            self.await_words("layby serves")
        except BaseException:
            self.stop()
            raise

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._has_said:
                self.said += line
                self._has_said.notify_all()

    def await_words(self, words: str) -> None:
        with self._has_said:
            assert self._has_said.wait_for(lambda: words in self.said, 20), self.said

    @property
    def port(self) -> int:
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.said)
        assert found is not None, self.said
        return int(found[1])

    def stop(self) -> int:
        self._process.terminate()
        status = self._process.wait(20)
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        return status


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Generator[Process]:
    """Whatever was asked of it, it never repeats a token."""
    process = Process(tmp_path_factory.mktemp("guarded"))
    yield process
    assert process.stop() == 0, process.said
    assert [name for name in NAMES if is_told(name, process.said)] == []


def is_told(name: str, text: str) -> bool:
    """Whether the secret of this visitor stands in the text."""
    secret = TOKENS[name]
    return bool(secret) and secret in text


@pytest.fixture
def port(process: Process) -> int:
    return process.port


@pytest.fixture
def server(port: int) -> Generator[Server]:
    server = Server(port)
    yield server
    server.close()


def fresh(kind: str, prefix: str = "mine/") -> Any:
    """Ids nobody used before: nothing here waits for, or runs into, another test."""
    return SAMPLES[kind](f"{prefix}{next(numbers)}/")


# --- every kind ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_with_every_token(server: Server, name: str) -> None:
    """401 for whom nobody knows, 403 for who may not, and an answer of the engine for the rest."""
    for kind in sorted(SAMPLES):
        answer = server.post(kind, fresh(kind), TOKENS[name])
        assert answer.kind == kind
        if name in REFUSED:
            assert (kind, answer.status, answer.data) == (kind, 401, "Unauthorized")
        elif expected(name, kind) is not None:
            assert (kind, answer.status, answer.data) == (kind, 403, "Forbidden")
        else:
            assert answer.status in (200, 404, 409), kind


@pytest.mark.parametrize("name", NAMES)
def test_checks_come_in_the_protocols_order(server: Server, name: str) -> None:
    """Envelope, then who, then what they may, then whether there is such a thing."""
    token = TOKENS[name]
    assert server.post("promise.get", {"id": "mine/x"}, token, version="old").status == 400
    assert server.post("promise.get", [], token).status == 400
    unknown = server.post("no.such", {}, token)
    unread = server.post("promise.create", {"id": 7}, token)
    if name in REFUSED:
        assert (unknown.status, unread.status) == (401, 401)
    elif name in BOUNDED or name.startswith("another prefix"):
        assert (unknown.status, unread.status) == (403, 400)
    elif name in POLLING:
        assert (unknown.status, unread.status) == (400, 400)
    else:
        assert (unknown.status, unread.status) == (403, 403)


def test_what_was_refused_was_not_done(server: Server) -> None:
    """Neither created, nor settled, nor told."""
    admin, mine = TOKENS["an admin"], TOKENS["a prefix and its group"]
    promise = SAMPLES["promise.create"](f"other/{next(numbers)}/")
    secret = {"data": "aHVzaA=="}
    for token in (None, TOKENS["expired"], mine):
        assert "hush" not in str(server.post("promise.create", promise, token))
    assert server.post("promise.get", {"id": promise["id"]}, admin).status == 404
    server.post("promise.create", promise | {"param": secret}, admin)
    settle = {"id": promise["id"], "state": "resolved"}
    for token in (None, TOKENS["expired"], mine):
        for kind, data in (("promise.settle", settle), ("promise.create", promise)):
            assert "aHVzaA==" not in str(server.post(kind, data, token))
    assert server.post("promise.get", {"id": promise["id"]}, admin).data["promise"]["state"] == (
        "pending"
    )


def test_a_task_of_ones_own_opens_no_other_promise(server: Server) -> None:
    """Through a fence, a callback, or a branch."""
    admin, mine = TOKENS["an admin"], TOKENS["a prefix"]
    other, own = f"other/{next(numbers)}", f"mine/{next(numbers)}"
    tags = {"resonate:target": "poll://any@default"}
    hidden = {"id": other, "timeoutAt": 2**53 - 2, "tags": tags | {"resonate:branch": other}}
    assert server.post("promise.create", hidden, admin).status == 200

    def created(branch: str) -> Answer:
        data = {"id": own, "timeoutAt": 2**53 - 2, "tags": tags | {"resonate:branch": branch}}
        action = {"kind": "promise.create", "head": {}, "data": data}
        return server.post("task.create", {"pid": "w", "ttl": 60_000, "action": action}, mine)

    assert created(branch=other).status == 403
    assert created(branch=own).status == 200
    inner = {"kind": "promise.settle", "head": {}, "data": {"id": other, "state": "resolved"}}
    fence = {"id": own, "version": 1, "action": inner}
    assert server.post("task.fence", fence, mine).status == 403
    callback = {"awaited": own, "awaiter": other}
    assert server.post("promise.register_callback", callback, mine).status == 403
    assert server.post("promise.get", {"id": other}, admin).data["promise"]["state"] == "pending"


# --- takes -----------------------------------------------------------------------------------


def ready(server: Server, prefix: str, group: str = GROUP, name: str = "f") -> str:
    """A task that waits to be taken."""
    task_id = f"{prefix}{next(numbers)}"
    tags = {"resonate:target": f"poll://any@layby.{group}", "layby:name": name}
    data = {"id": task_id, "timeoutAt": 2**53 - 2, "tags": tags}
    assert server.post("promise.create", data, TOKENS["an admin"]).status == 200
    return task_id


def take(name: str, free: int = 100) -> dict[str, Any]:
    pid = f"w{next(numbers)}"
    return {"pid": pid, "incarnation": pid, "group": GROUP, "names": [name], "free": free}


def taken(answer: Answer) -> list[str]:
    assert answer.status == 200, answer
    return sorted(claim["promise"]["id"] for claim in answer.data["claims"])


def test_a_prefix_token_is_handed_only_its_own_tasks(server: Server) -> None:
    """Older ones of others stand before them in the queue and stay there."""
    name = f"f{next(numbers)}"
    others = [ready(server, "other/", name=name) for _ in range(3)]
    own = ready(server, "mine/", name=name)
    widened = take(name) | {"prefix": "other/"}
    assert taken(server.post("layby.worker.take", widened, TOKENS["an api key"])) == [own]
    assert taken(server.post("layby.worker.take", take(name), TOKENS["an api key"])) == []
    assert taken(server.post("layby.worker.take", take(name), TOKENS["an admin"])) == sorted(others)


def test_a_take_that_rides_is_bounded_too(server: Server) -> None:
    """On the end of a task and on the start of a run."""
    mine, name = TOKENS["a prefix and its group"], f"f{next(numbers)}"
    for _ in range(3):
        ready(server, "other/", name=name)
    first, second = ready(server, "mine/a", name=name), ready(server, "mine/b", name=name)
    worker = take(name, free=1)
    assert taken(server.post("layby.worker.take", worker, mine)) == [first]
    finish = {"id": first, "version": 1, "take": worker}
    assert taken(server.post("layby.task.finish", finish, mine)) == [second]
    failed = {"id": second, "version": 1, "take": worker}
    assert taken(server.post("layby.task.fail", failed, mine)) == []
    run = fresh("layby.run.start") | {"take": worker}
    run["nodes"] = [{"id": "n", "name": name}]
    assert taken(server.post("layby.run.start", run, mine)) == [f"{run['id']}:n"]


def test_a_prefix_token_does_not_end_the_worker_of_another(server: Server) -> None:
    """By taking its name; not by a take that rides on another request either."""
    admin, mine = TOKENS["an admin"], TOKENS["an api key"]
    theirs = take("f") | {"pid": "theirs", "incarnation": "secret"}
    assert server.post("layby.worker.take", theirs, admin).status == 200
    forged = theirs | {"incarnation": "made up"}
    assert server.post("layby.worker.take", forged, mine).status == 409
    run = {"id": "mine/forging", "name": "f", "group": GROUP, "timeoutAt": NEVER, "take": forged}
    server.post("layby.run.start", run | {"nodes": [{"id": "a", "name": "f"}]}, mine)
    alive = {"pid": "theirs", "incarnation": "secret"}
    assert server.post("layby.worker.heartbeat", alive, admin).status == 200
    assert server.post("layby.worker.leave", alive, admin).status == 200


def test_what_the_end_of_a_task_wakes_is_not_handed_to_a_stranger(server: Server) -> None:
    """A rider prefers what its own step made ready: not when that belongs to another prefix."""
    admin, mine, name = TOKENS["an admin"], TOKENS["an api key"], f"f{next(numbers)}"
    other = ready(server, "other/", name=name)
    assert taken(server.post("layby.worker.take", take(name), admin)) == [other]
    own = ready(server, "mine/", name=name)
    wait = {"awaiter": other, "awaited": own}
    actions = [{"kind": "promise.register_callback", "head": {}, "data": wait}]
    suspend = {"id": other, "version": 1, "actions": actions}
    assert server.post("task.suspend", suspend, admin).status == 200
    worker = take(name)
    assert taken(server.post("layby.worker.take", worker, mine)) == [own]
    finish = {"id": own, "version": 1, "take": worker}
    assert taken(server.post("layby.task.finish", finish, mine)) == []
    assert taken(server.post("layby.worker.take", take(name), admin)) == [other]


def test_a_waiting_take_is_woken_only_by_what_it_may_have(server: Server, port: int) -> None:
    """A task of another prefix neither wakes it nor is lost for others."""
    name, waiting = f"f{next(numbers)}", Server(port)
    found: list[Answer] = []
    asked = take(name) | {"waitMs": 20_000}
    thread = threading.Thread(
        target=lambda: found.append(waiting.post("layby.worker.take", asked, TOKENS["an api key"]))
    )
    thread.start()
    other, own = ready(server, "other/", name=name), ready(server, "mine/", name=name)
    thread.join()
    waiting.close()
    assert taken(found[0]) == [own]
    assert taken(server.post("layby.worker.take", take(name), TOKENS["an admin"])) == [other]


# --- batches ---------------------------------------------------------------------------------


def enveloped(kind: str, data: Any, **head: Any) -> dict[str, Any]:
    return {"kind": kind, "head": {"corrId": kind, "version": VERSION} | head, "data": data}


@pytest.mark.parametrize("name", NAMES)
def test_each_request_of_a_batch_is_judged_by_itself(server: Server, name: str) -> None:
    """By the token of the whole."""
    kinds = [kind for kind in sorted(SAMPLES) if kind != "layby.promise.watch"]
    requests = [enveloped(kind, fresh(kind)) for kind in kinds]
    answer = server.post("layby.batch", {"requests": requests}, TOKENS[name])
    if name in REFUSED:
        assert (answer.status, answer.data) == (401, "Unauthorized")
        return
    statuses = {each["kind"]: each["head"]["status"] for each in answer.data["replies"]}
    forbidden = {kind for kind, status in statuses.items() if status == 403}
    assert forbidden == {kind for kind in kinds if expected(name, kind) is not None}
    assert set(statuses) == set(kinds)


def test_a_request_in_a_batch_brings_no_token_of_its_own(server: Server) -> None:
    """Neither better nor worse than that of the whole."""
    search = enveloped("promise.search", {}, auth=TOKENS["an admin"])
    answer = server.post("layby.batch", {"requests": [search]}, TOKENS["a prefix"])
    assert answer.data["replies"][0]["head"]["status"] == 403


def test_a_batch_that_cannot_be_read_is_refused_for_what_is_wrong(server: Server) -> None:
    """Whoever may send a batch may also hear what is wrong with it."""
    answer = server.post("layby.batch", {"requests": 7}, TOKENS["a prefix"])
    assert (answer.status, str(answer.data)[:15]) == (400, "Invalid request")


# --- paths -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_group_is_polled_by_who_was_granted_it(server: Server, name: str) -> None:
    """By the token in the header."""
    header = None if TOKENS[name] is None else f"Bearer {TOKENS[name]}"
    if name in REFUSED:
        polled = (401, "Unauthorized")
    else:
        polled = (200, "a stream") if name in POLLING else (403, "Forbidden")
    assert server.get(f"/poll/{GROUP}/w", header) == polled


def test_the_header_must_name_its_scheme(server: Server) -> None:
    """A bare token, or one in the address, is none."""
    token = TOKENS["an admin"]
    assert server.get("/poll/g/w", token) == (401, "Unauthorized")
    assert server.get("/poll/g/w", f"Basic {token}") == (401, "Unauthorized")
    assert server.get(f"/poll/g/w?auth={token}&token={token}") == (401, "Unauthorized")
    assert server.get("/poll/g/w", f"bearer {token}") == (200, "a stream")


@pytest.mark.parametrize("path", ["/poll/h/w", "/poll/g%2Fh/w", "/poll/layby.h/w", "/poll/G/w"])
def test_other_groups_are_not_polled(server: Server, path: str) -> None:
    """However they are written."""
    assert server.get(path, f"Bearer {TOKENS['an api key']}") == (403, "Forbidden")


def test_our_groups_are_polled_by_their_registered_holders(server: Server) -> None:
    """A grant is needed, and the incarnation."""
    worker = take("f") | {"incarnation": "sesame"}
    assert server.post("layby.worker.take", worker, TOKENS["an api key"]).status == 200
    place = f"/poll/layby.{GROUP}/{worker['pid']}"
    for name in KNOWN:
        header = f"Bearer {TOKENS[name]}"
        polled = (200, "a stream") if name in POLLING else (403, "Forbidden")
        assert server.get(place, header, **{"Layby-Incarnation": "sesame"}) == polled
        for wrong in ({}, {"Layby-Incarnation": ""}, {"Layby-Incarnation": "open"}):
            refusals = (400, 409) if name in POLLING else (403,)
            assert server.get(place, header, **wrong)[0] in refusals
    assert server.get(place, **{"Layby-Incarnation": "sesame"}) == (401, "Unauthorized")


def test_what_waits_ends_when_its_token_expires(server: Server) -> None:
    """A stolen token would be good for as long as nobody hangs up."""
    assert server.post("layby.promise.ensure", {"id": "never"}, TOKENS["an admin"]).status == 200
    with ExitStack() as lines:
        stream, watch, worker = (lines.enter_context(Line(server.port)) for _ in range(3))
        soon = signed({"exp": time.time() + 2, "role": "admin"})
        assert stream.send(get("/poll/g/w", f"authorization: Bearer {soon}")).head()[0] == 200
        watch.send(post(envelope("layby.promise.watch", {"id": "never"}, auth=soon)))
        waiting = take("nobody's") | {"waitMs": 3_600_000}
        worker.send(post(envelope("layby.worker.take", waiting, auth=soon)))
        assert list(stream.events()) == []
        for each in (watch, worker):
            assert each.answer().status == 401
    lasting = f"Bearer {TOKENS['an admin']}"
    assert server.get("/poll/g/w", lasting) == (200, "a stream")


@pytest.mark.parametrize("name", ["no token", "nonsense", "expired", "a prefix", "an admin"])
def test_probes_ask_nobody_who_they_are(server: Server, name: str) -> None:
    """And old paths say so to everybody."""
    header = None if TOKENS[name] is None else f"Bearer {TOKENS[name]}"
    assert server.get("/health", header) == (200, "")
    assert server.get("/ready", header) == (200, "")
    assert server.get("/metrics", header)[0] == 200
    for path in ("/promises", "/promises/x", "/schedules/x", "/tasks"):
        assert server.get(path, header)[0] == 410
        assert server.get(path, header, "POST")[0] == 410
    for path in ("/api/v1/promises", "/admin", "/../", "/poll.txt"):
        assert server.get(path, header)[0] == 404
    for method, path in (("GET", "/"), ("POST", "/health"), ("POST", f"/poll/{GROUP}/w")):
        assert server.get(path, header, method)[0] == 405


def test_a_request_may_bring_its_token_in_the_header(server: Server) -> None:
    """What stands in the envelope counts more."""
    good, search = f"Bearer {TOKENS['an admin']}", ("promise.search", {})
    assert server.post(*search, header=good).status == 200
    assert server.post(*search, header="Bearer sesame").status == 401
    assert server.post(*search, token="sesame", header=good).status == 401
    assert server.post(*search, token=TOKENS["a prefix"], header=good).status == 403
    assert server.post(*search, token=TOKENS["an admin"], header="Bearer sesame").status == 200


def test_the_server_says_nothing_of_tokens_it_was_shown(server: Server, process: Process) -> None:
    """Not even when it says everything; and metrics name no id and nobody."""
    for name in NAMES:
        server.post("promise.get", {"id": "mine/hush"}, TOKENS[name], f"Bearer {TOKENS[name]}")
    process.await_words("refused a token: InvalidSignatureError")
    metrics = server.get("/metrics")[1]
    assert [name for name in NAMES if is_told(name, process.said + metrics)] == []
    assert "mine/" not in metrics
