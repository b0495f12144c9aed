"""The bars of part 12: small commands beside rude clients, and the memory of their server.

Of each kind of rudeness there are eight clients. They live in a process of their own, so that they
cost the server nothing but what it does for them.
"""

import argparse
import asyncio
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from statistics import median

import reference
from bars import Bench, Result, percentile
from bench_server import FAR_AWAY, Wire, answers, create, envelope, free_port
from bench_worker import commits
from children import numbers_from

# ruff: noqa: RUF001 - clients look again and again; results show the sign of times

EACH = 8
LARGE = 4 * 2**20
LARGES = 24
TURNS = 8
TURN_S = 5.0
"""With them and without them in turns, so that a busy machine is the same for both."""
RUDE_S = float(os.environ.get("RUDE_S", "600"))
"""How long they are there while memory is watched; `--memory-seconds` of this script sets it."""
IN_STEP = "IN_STEP" in os.environ
"""All clients of a kind at the same moment: they share one loop, and would keep in step for ever.
By default each has moments of its own, as clients of different machines have, just as often.
"""
ARRIVING_S = 1.0
"""Until all of them are connected, or gone: what is measured then does not count."""
SETTLED_S = 20.0
"""After this the memory of the server counts: until then it grows to what it needs."""
FLAT_MB = 20
WINDOW_S = 30.0
"""Memory is looked at every quarter of a second: what counts is the median of each window, since at
any moment a few answers of 4 MB are being made, or not.
"""


# --- rude clients --------------------------------------------------------------------------------


def ask(kind: str, data: object) -> dict[str, object]:
    return {"kind": kind, "head": {"corrId": "c", "version": "2026-04-01"}, "data": data}


@cache
def reads(count: int = 1_000) -> bytes:
    """About 99 KB that ask for 4 GB."""
    gets = [ask("promise.get", {"id": f"large-{n % LARGES}"}) for n in range(count)]
    return envelope("layby.batch", {"requests": gets})


async def connect(port: int, receive_buffer: int = 0) -> socket.socket:
    connection = socket.socket()
    connection.setblocking(False)  # noqa: FBT003 - the socket's own
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    return connection


async def send(connection: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(connection, data)


async def until_disconnected(connection: socket.socket, seconds: float = 3600) -> None:
    """Without reading: only whether the server has reset it."""
    over = time.monotonic() + seconds
    while time.monotonic() < over:
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            return
        await asyncio.sleep(0.5)


async def hangs_up(port: int, _: int, after_s: float = 0.0) -> None:
    """On a batch, at once, ten times a second."""
    connection = await connect(port)
    await send(connection, reads())
    await asyncio.sleep(after_s)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    await asyncio.sleep(0.1)


async def hangs_up_later(port: int, number: int) -> None:
    """When the server is at work on it."""
    await hangs_up(port, number, 0.05)


async def does_not_read(port: int, _: int) -> None:
    connection = await connect(port, 4_096)
    with connection:
        await send(connection, reads())
        await until_disconnected(connection)


async def dribbles(port: int, number: int) -> None:
    """One byte a second."""
    connection = await connect(port)
    with connection:
        for byte in create(f"dribbled-{number}"):
            await send(connection, bytes([byte]))
            await asyncio.sleep(1)


async def lists_large_values(port: int, _: int) -> None:
    """Twice a second, and reads what it gets."""
    connection = await connect(port)
    loop = asyncio.get_running_loop()
    with connection:
        data = {"tags": {"large": "yes"}, "limit": 100}
        await send(connection, envelope("promise.search", data))
        connection.setblocking(False)  # noqa: FBT003 - the socket's own
        head = b""
        while b"\r\n\r\n" not in head:
            head += await loop.sock_recv(connection, 65_536)
        top, __, body = head.partition(b"\r\n\r\n")
        left = int(top.lower().split(b"content-length:")[1].split(b"\r\n")[0]) - len(body)
        while left > 0:
            left -= len(await loop.sock_recv(connection, 1 << 20))
    await asyncio.sleep(0.5)


async def listens_and_does_not_read(port: int, number: int) -> None:
    """A stream to which messages of half a megabyte are sent all the time."""
    stream, asking = await connect(port, 4_096), await connect(port)
    with stream, asking:
        path = f"/poll/rude/{number}"
        await send(stream, f"GET {path} HTTP/1.1\r\nHost: l\r\n\r\n".encode())
        value = {"headers": {}, "data": "x" * 2**19}
        for count in range(10**6):
            promise_id = f"told-{number}-{count}-{time.time_ns()}"
            data = {"awaited": promise_id, "address": f"poll://uni@rude/{number}"}
            for request in (
                create(promise_id),
                envelope("promise.register_listener", data),
                envelope("promise.settle", {"id": promise_id, "state": "resolved", "value": value}),
            ):
                await send(asking, request)
                await asyncio.get_running_loop().sock_recv(asking, 2**21)
            await asyncio.sleep(5)


async def is_half_open(port: int, number: int) -> None:
    """A request that ends within its body, and then nothing."""
    connection = await connect(port)
    with connection:
        await send(connection, create(f"half-{number}")[:-20])
        await until_disconnected(connection, 60)


RUDE: dict[str, Callable[[int, int], Awaitable[None]]] = {
    "hangs_up": hangs_up,
    "hangs_up_later": hangs_up_later,
    "does_not_read": does_not_read,
    "dribbles": dribbles,
    "lists": lists_large_values,
    "stream": listens_and_does_not_read,
    "half_open": is_half_open,
}


async def be_rude(port: int, kinds: list[str]) -> None:
    async def again_and_again(kind: str, number: int) -> None:
        while True:
            with suppress(OSError):
                await RUDE[kind](port, number)
            await asyncio.sleep(0.05 if IN_STEP else random.uniform(0, 0.1))

    os.setpriority(os.PRIO_PROCESS, 0, 19)
    print("rude", flush=True)
    await asyncio.gather(*(again_and_again(kind, n) for kind in kinds for n in range(EACH)))


# --- everybody else ------------------------------------------------------------------------------


def latencies_ms(port: int, seconds: float, name: str) -> list[float]:
    """Small commands, one after the other, two hundred a second at most."""
    wire, found = Wire(port), []
    until = time.perf_counter() + seconds
    while (began := time.perf_counter()) < until:
        wire.ask(create(f"{name}-{len(found)}"))
        found.append((time.perf_counter() - began) * 1000)
        time.sleep(0.005)
    wire.close()
    return found


# --- the bench -----------------------------------------------------------------------------------


@contextmanager
def server(folder: Path) -> Iterator[tuple[int, int]]:
    """The port and the pid of a server that has answered, with large promises in it."""
    port = free_port()
    place = ["--db", f"sqlite:{folder / 'layby.db'}", "--port", str(port)]
    command = [sys.executable, "-m", "layby.cli", "serve", *place, "--log-level", "warning"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        while not answers(port):
            assert process.poll() is None, "the server has ended"
            time.sleep(0.05)
        fill(port)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(60)


def fill(port: int) -> None:
    wire = Wire(port)
    for number in range(LARGES):
        param = {"headers": {}, "data": "x" * (LARGE - 100)}
        tags = {"large": "yes"}
        data = {"id": f"large-{number}", "timeoutAt": FAR_AWAY, "param": param, "tags": tags}
        wire.ask(envelope("promise.create", data))
    wire.close()


def resident_mb(pid: int) -> float:
    told = Path(f"/proc/{pid}/status").read_text()
    return int(told.split("VmRSS:")[1].split()[0]) / 1024


@contextmanager
def watched_memory(pid: int) -> Iterator[list[float]]:
    """Megabytes, four times a second."""
    found, over = [resident_mb(pid)], threading.Event()

    def watch() -> None:
        while not over.wait(0.25):
            found.append(resident_mb(pid))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


@contextmanager
def rude_clients(port: int, kinds: list[str]) -> Iterator[int]:
    """Their pid. They would be on other machines: so they get what the server leaves (nice 19)."""
    command = [sys.executable, __file__, "rude", str(port), *kinds]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


def processor_s(pid: int) -> float:
    """What it has used since it began."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def beside_them(kinds: list[str], turns: int, turn_s: float) -> Result:
    quiet, rude, used = list[float](), list[float](), defaultdict[str, float](float)
    with reference.folder() as folder, server(folder) as (port, pid):
        numbers_from(__file__, "polite", port, 2.0, "warm")
        for turn in range(turns):
            quiet += numbers_from(__file__, "polite", port, turn_s, f"quiet-{turn}")
            with rude_clients(port, kinds) as rude_pid:
                numbers_from(__file__, "polite", port, ARRIVING_S, f"first-{turn}")
                before = processor_s(pid), processor_s(rude_pid), time.perf_counter()
                rude += numbers_from(__file__, "polite", port, turn_s, f"rude-{turn}")
                used["server"] += processor_s(pid) - before[0]
                used["rude"] += processor_s(rude_pid) - before[1]
                used["seconds"] += time.perf_counter() - before[2]
            numbers_from(__file__, "polite", port, ARRIVING_S, f"then-{turn}")
    return compared(kinds, quiet, rude, used)


def memory(kinds: list[str], rude_s: float) -> Result:
    settled_s = min(SETTLED_S, rude_s / 3)
    with reference.folder() as folder, server(folder) as (port, pid):
        began = resident_mb(pid)
        with rude_clients(port, kinds):
            numbers_from(__file__, "polite", port, settled_s, "first")
            with watched_memory(pid) as resident:
                numbers_from(__file__, "polite", port, rude_s - settled_s, "rude")
    return flat(kinds, began, resident, rude_s)


def compared(
    kinds: list[str], quiet: list[float], rude: list[float], used: Mapping[str, float]
) -> Result:
    share = {who: used[who] / used["seconds"] for who in ("server", "rude")}
    shares = ", ".join(f"{each:.2f} by the {who}" for who, each in share.items())
    before, beside = percentile(quiet, 0.99), percentile(rude, 0.99)
    halves = f"p50 {percentile(quiet, 0.5):.2f} and {percentile(rude, 0.5):.2f} ms"
    return Result(
        f"a small command beside {EACH} rude clients of each kind ({', '.join(kinds)})",
        f"p99 {beside:.2f} ms = {beside / before:.2f} × {before:.2f} ms without them",
        "≤ 2 ×",
        beside <= 2 * before,
        f"{halves}, longest {max(quiet):.0f} and {max(rude):.0f} ms; "
        f"processors used beside them: {shares}; {commits()}",
        beside / before,
        "×",
    )


def flat(kinds: list[str], began: float, resident: list[float], seconds: float) -> Result:
    levels = [median(each) for each in windows(resident, round(4 * min(WINDOW_S, seconds / 4)))]
    grown = max(levels) - levels[0]
    return Result(
        f"memory of the server, {seconds:.0f} s of rude clients ({', '.join(kinds)})",
        f"{grown:.0f} MB more than after the first seconds",
        f"≤ {FLAT_MB} MB",
        grown <= FLAT_MB,
        f"{began:.0f} MB before them, then {levels[0]:.0f} to {max(levels):.0f} MB, at the end "
        f"{levels[-1]:.0f}; at single moments {min(resident):.0f} to {max(resident):.0f} MB, "
        f"the highest {max(resident) - resident[0]:.0f} MB above the first (the former measure)",
    )


def windows(numbers: list[float], size: int) -> Iterator[list[float]]:
    for start in range(0, max(len(numbers) - size, 0) + 1, size):
        yield numbers[start : start + size]


def rude() -> Iterator[Result]:
    yield beside_them(list(RUDE), TURNS, TURN_S)


def rude_memory() -> Iterator[Result]:
    yield memory(list(RUDE), RUDE_S)


BENCHES: tuple[Bench, ...] = (rude, rude_memory)


def main() -> None:
    if sys.argv[1:2] == ["rude"]:
        asyncio.run(be_rude(int(sys.argv[2]), sys.argv[3:]))
    if sys.argv[1:2] == ["polite"]:
        _, _, port, seconds, name = sys.argv
        print(*latencies_ms(int(port), float(seconds), name))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", choices=[*RUDE, []], help="all unless given")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--turn-seconds", type=float, default=TURN_S)
    parser.add_argument("--memory-seconds", type=float, default=0.0, help="memory instead")
    asked = parser.parse_args()
    kinds = asked.kinds or list(RUDE)
    if asked.memory_seconds:
        print(memory(kinds, asked.memory_seconds).line, flush=True)
    else:
        print(beside_them(kinds, asked.turns, asked.turn_seconds).line, flush=True)


if __name__ == "__main__":
    main()
