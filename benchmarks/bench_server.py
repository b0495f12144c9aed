"""The bars of part 4: a real `layby serve` process on SQLite FULL, and clients of it.

Load comes from processes that cost little themselves: raw keep-alive sockets for the protocol,
a Runner of its own process for layby's worker.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import reference
from bars import Bench, Result, percentile
from bench_worker import IN_FLIGHT, ONE, commits
from children import numbers_from

from layby import Runner, Workflow, task
from layby.client.http import HttpClient
from layby.core.commands import HeartbeatWorker, StartRun, Take
from layby.core.replies import HeartbeatData

# ruff: noqa: ASYNC110, PLW0603, RUF001 - bodies take a context; a load generator looks
# again and again; one moment is told through a global, and results show the sign of times

FAR_AWAY = 4_000_000_000_000
ECHO = Path(__file__).with_name("echo_server.py")


@contextmanager
def server(folder: Path) -> Iterator[int]:
    """The port of a server that has answered."""
    with server_on(f"sqlite:{folder / 'layby.db'}") as port:
        yield port


@contextmanager
def server_on(db: str) -> Iterator[int]:
    """No message is sent again while it is measured."""
    command = [sys.executable, "-m", "layby.cli", "serve", "--db", db]
    command += ["--tasks-retry-timeout", "1h"]
    with listening([*command, "--log-level", "warning"]) as port:
        yield port


@contextmanager
def listening(command: list[str]) -> Iterator[int]:
    port = free_port()
    process = subprocess.Popen([*command, "--port", str(port)], stderr=subprocess.DEVNULL)
    try:
        while not answers(port):
            assert process.poll() is None, "the server has ended"
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(20)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


# --- raw requests ----------------------------------------------------------------------------


def envelope(kind: str, data: object) -> bytes:
    head = {"corrId": "c", "version": "2026-04-01"}
    body = json.dumps({"kind": kind, "head": head, "data": data}).encode()
    return b"POST / HTTP/1.1\r\nHost: l\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def create(promise_id: str, **tags: str) -> bytes:
    param = {"headers": {}, "data": "aGVsbG8gd29ybGQ="}
    data = {"id": promise_id, "timeoutAt": FAR_AWAY, "param": param, "tags": tags}
    return envelope("promise.create", data)


def settle(promise_id: str) -> bytes:
    return envelope("promise.settle", {"id": promise_id, "state": "resolved", "value": {}})


class Wire:
    """A keep-alive connection that blocks."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: bytes) -> bytes:
        self.send(request)
        return self.read()

    def send(self, request: bytes) -> None:
        self._socket.sendall(request)

    def read(self) -> bytes:
        answer = b""
        while True:
            piece = self._socket.recv(65_536)
            assert piece, "the server hung up"
            answer += piece
            head, _, body = answer.partition(b"\r\n\r\n")
            if _ and len(body) >= int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]):
                assert head.startswith(b"HTTP/1.1 200"), answer
                return body

    def close(self) -> None:
        self._socket.close()


# --- acknowledged writes ---------------------------------------------------------------------

CONNECTIONS = 64
LOAD_S = 5.0


class LoadConnection(asyncio.Protocol):
    """Asks again as soon as it is answered; half creates, half settles of what it created."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0
        self._rest = b""
        self.done = 0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._rest += data
        head, end, body = self._rest.partition(b"\r\n\r\n")
        if not end or not body.endswith(b"}}}"):
            return
        assert head.startswith(b"HTTP/1.1 200"), self._rest
        self._rest = b""
        self.done += 1
        self._ask()

    def _ask(self) -> None:
        number, is_settle = divmod(self._count, 2)
        self._count += 1
        promise_id = f"{self._name}-{number}"
        self._transport.write(settle(promise_id) if is_settle else create(promise_id))


async def load(port: int, name: str) -> float:
    loop = asyncio.get_running_loop()
    connections = [
        (await loop.create_connection(lambda n=n: LoadConnection(f"{name}-{n}"), "127.0.0.1", port))
        for n in range(CONNECTIONS)
    ]
    await asyncio.sleep(0.5)
    before, began = sum(p.done for _, p in connections), time.perf_counter()
    await asyncio.sleep(LOAD_S)
    rate = (sum(p.done for _, p in connections) - before) / (time.perf_counter() - began)
    for transport, _ in connections:
        transport.abort()
    return rate


def writes() -> Iterator[Result]:
    with reference.folder() as folder, server(folder) as port:
        found = [numbers_from(__file__, "load", port, part)[0] for part in range(3)]
    yield Result(
        f"acknowledged writes over HTTP, {CONNECTIONS} keep-alive connections",
        f"{max(found):,.0f}/s (of {', '.join(f'{each:,.0f}' for each in found)})",
        "≥ 6,000/s",
        max(found) >= 6_000,
        commits(),
    )


# --- a lone client ---------------------------------------------------------------------------


def seconds_each(act: Callable[[int], object], count: int) -> list[float]:
    found: list[float] = []
    for number in range(count):
        began = time.perf_counter()
        act(number)
        found.append(time.perf_counter() - began)
    return found


def lone_client() -> Iterator[Result]:
    with reference.folder() as folder, server(folder) as port:
        wire = Wire(port)
        seconds_each(lambda n: wire.ask(create(f"warm-{n}")), 200)
        found = percentile(seconds_each(lambda n: wire.ask(create(f"p-{n}")), 2_000), 0.5) * 1000
        wire.close()
    with listening([sys.executable, str(ECHO)]) as port:
        wire, request = Wire(port), create("echo")
        seconds_each(lambda _: wire.ask(request), 200)
        echo = percentile(seconds_each(lambda _: wire.ask(request), 2_000), 0.5) * 1000
        wire.close()
    commit = reference.commit_p50_ms()
    ratio = found / (commit + echo)
    yield Result(
        "lone client: a create over HTTP",
        f"p50 {found:.3f} ms = {ratio:.2f} × (commit + echo)",
        "≤ 2 × (one bare commit + one bare HTTP echo)",
        ratio <= 2,
        f"bare FULL commit p50 {commit:.3f} ms, bare echo (uvicorn) p50 {echo:.3f} ms; "
        f"load {os.getloadavg()[0]:.1f}",
    )


# --- settle → execute ------------------------------------------------------------------------


def stream(port: int, path: str) -> Iterator[dict]:
    """The messages of a stream, as they come."""
    poll = socket.create_connection(("127.0.0.1", port), 30)
    poll.sendall(f"GET {path} HTTP/1.1\r\nHost: l\r\n\r\n".encode())
    for line in poll.makefile("rb"):
        if line.startswith(b"data: "):
            yield json.loads(line[6:])


REST_S = 0.02
"""Processors that have rested so long wake slowly: it costs each wake-up a millisecond or more."""


def settle_to_execute_ms(port: int, settling_port: int, rest_s: float = 0) -> list[float]:
    """An SDK's worker suspended on a promise; another client settles it, after a rest."""
    found: list[float] = []
    messages = stream(port, "/poll/default/w1")
    wire, settler = Wire(port), Wire(settling_port)
    for number in range(300):
        task_id, awaited = f"t-{number}", f"a-{number}"
        wire.ask(create(awaited))
        wire.ask(create(task_id, **{"resonate:target": "poll://any@default"}))
        version = expect(messages, task_id)
        claim = {"id": task_id, "version": version, "pid": "w1", "ttl": 60_000}
        wire.ask(envelope("task.acquire", claim))
        wait = {"kind": "x", "head": {}, "data": {"awaiter": task_id, "awaited": awaited}}
        data = {"id": task_id, "version": version + 1, "actions": [wait]}
        wire.ask(envelope("task.suspend", data))
        time.sleep(rest_s)
        began = time.perf_counter()
        settler.send(settle(awaited))
        expect(messages, task_id)
        found.append((time.perf_counter() - began) * 1000)
        settler.read()
    return found[20:]


def settle_to_execute() -> Iterator[Result]:
    with reference.folder() as folder, server(folder) as port:
        found = settle_to_execute_ms(port, port)
    p50, p99 = percentile(found, 0.5), percentile(found, 0.99)
    yield Result(
        "settle → execute received by a waiting SDK worker (SSE, idle)",
        f"p50 {p50:.2f} ms, p99 {p99:.2f} ms",
        "p50 ≤ 3 ms, p99 ≤ 15 ms",
        p50 <= 3 and p99 <= 15,
        commits(),
    )


def expect(messages: Iterator[dict], task_id: str) -> int:
    message = next(messages)
    assert message["data"]["task"]["id"] == task_id, message
    return message["data"]["task"]["version"]


# --- a remote layby worker -------------------------------------------------------------------

woken_at = 0.0


@task
async def waits(context, handle):
    global woken_at
    await handle.wait_for(context["event"])
    woken_at = time.perf_counter()


WAITS = Workflow("waits", tasks=[waits])


async def settle_to_code_ms(
    url: str, settling_url: str | None = None, rest_s: float = REST_S
) -> list[float]:
    found: list[float] = []
    async with Runner(url, slots=4) as runner, Runner(settling_url or url) as other:
        for number in range(220):
            event = f"event-{number}"
            run = await runner.start(WAITS, {"event": event})
            while (await run.status()).tasks["waits"].sub_status != "Deferred":
                await asyncio.sleep(0.005)
            ended = asyncio.create_task(run.result(10))  # not while the wake-up is under way
            await asyncio.sleep(rest_s)
            began = time.perf_counter()
            await other.resolve(event)
            await ended
            found.append((woken_at - began) * 1000)
    return found[20:]


def settle_to_code() -> Iterator[Result]:
    with reference.folder() as folder, server(folder) as port:
        found = asyncio.run(settle_to_code_ms(f"http://127.0.0.1:{port}"))
    p50, p99 = percentile(found, 0.5), percentile(found, 0.99)
    yield Result(
        "settle → code after wait_for in a remote layby worker",
        f"p50 {p50:.2f} ms, p99 {p99:.2f} ms",
        "p50 ≤ 4 ms, p99 ≤ 20 ms",
        p50 <= 4 and p99 <= 20,
        commits(),
    )


async def remote_runs_per_s(url: str, slots: int, count: int) -> float:
    async def caller(number: int, part: str) -> None:
        for index in range(count // IN_FLIGHT):
            await runner.execute(ONE, {"n": index}, run_id=f"{part}-{number}-{index}")

    async def many(part: str) -> float:
        began = time.perf_counter()
        await asyncio.gather(*(caller(number, part) for number in range(IN_FLIGHT)))
        return count / (time.perf_counter() - began)

    async with Runner(url, slots=slots) as runner:
        await many("warm")
        return max([await many(f"hot{part}") for part in range(3)])


def remote_runs() -> Iterator[Result]:
    found = {}
    for slots in (4, IN_FLIGHT):
        with reference.folder() as folder, server(folder) as port:
            url = f"http://127.0.0.1:{port}"
            found[slots] = asyncio.run(remote_runs_per_s(url, slots, 1_920))
    told = ", ".join(f"{rate:,.0f} runs/s on {slots} slots" for slots, rate in found.items())
    yield Result(
        "one-task runs through server + remote worker, 64 in flight",
        told,
        "≥ 900 runs/s",
        max(found.values()) >= 900,
        commits(),
    )


# --- heartbeats ------------------------------------------------------------------------------


async def heartbeats_ms(url: str, held: int) -> list[float]:
    """One worker that holds so many tasks; what one of its heartbeats costs."""
    client = HttpClient(url)
    take = Take(pid="w", incarnation="1", group="default", names=("one/one",), free=1_000)
    for start in range(0, held, 1_000):
        await asyncio.gather(*(client.send(_run(n)) for n in range(start, start + 1_000)))
        await client.send(take)
    found: list[float] = []
    for _ in range(400):
        began = time.perf_counter()
        reply = await client.send(HeartbeatWorker(pid="w", incarnation="1", held=held))
        found.append((time.perf_counter() - began) * 1000)
        assert isinstance(reply.data, HeartbeatData), reply
        assert reply.data.agrees
    await client.close()
    return found[50:]


def _run(number: int) -> StartRun:
    from layby.workflow.plan import plan  # noqa: PLC0415 - only this bench writes plans itself

    return plan(ONE, f"held-{number}", {}, "default", FAR_AWAY)


HELD = 100_000


def heartbeats() -> Iterator[Result]:
    found = {}
    for held in (1_000, HELD):
        with reference.folder() as folder, server(folder) as port:
            found[held] = asyncio.run(heartbeats_ms(f"http://127.0.0.1:{port}", held))
    few, many = (percentile(each, 0.5) for each in found.values())
    yield Result(
        f"heartbeat of a remote worker that holds {HELD:,} tasks",
        f"p50 {many:.2f} ms against {few:.2f} ms with 1,000 tasks ({many / few:.2f} ×)",
        "independent of their number (≤ 1.5 ×)",
        many / few <= 1.5,
        commits(),
    )


BENCHES: tuple[Bench, ...] = (
    writes,
    lone_client,
    settle_to_execute,
    settle_to_code,
    remote_runs,
    heartbeats,
)

if __name__ == "__main__":
    import uvloop

    assert sys.argv[1] == "load"
    print(uvloop.run(load(int(sys.argv[2]), sys.argv[3])))
