"""`make walk`: how far a reader walks through src/layby to follow one request.

Three requests, each on SQLite with real threads, as users have them:

  execute      `runner.execute` of a run with one task, embedded
  defer_until  the same, and the task waits for a plain condition that holds when asked again
  HTTP settle  one `promise.settle` to a server, from the first byte to the answer

Counted are calls of Python functions in src/layby, in all threads, from the request until nothing
has happened for a while, so that what follows the answer belongs to it. A coroutine that goes on
counts as called: the reader goes back to it. Comprehensions belong to their function.

  files      different files
  functions  different functions
  switches   how often the next call of a thread is in another package than the one before

Imports, caches and connections are warm, and the process is kept on one processor: on several, it
is chance whether two commands share a batch. What chance is left only adds, so each request is
repeated and the smallest number counts; median and largest follow in brackets where they differ.
From run to run, files and functions stay the same. Switches nearly do: those of `execute` were 167
in four runs and 180 in a fifth, so a difference of less than 15 means nothing.

The last line says how many statements there are in all of src/layby (see statements.py).
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

from statements import statements_in

import layby
from layby import Runner, Workflow, task
from layby.server import server_config
from layby.server.server import Server

# ruff: noqa: ARG001 - bodies take a context

SOURCE = Path(layby.__file__).parent
QUIET_S = 0.1
"""A request is over when no function of layby has been called for so long."""
WARM = 3
FAR_AWAY = 4_000_000_000_000

Request = Callable[[int], Awaitable[None]]
"""Given a number that makes its ids unique."""


class Walk(NamedTuple):
    files: Counter[str]
    """With how many of its functions were called."""
    switches: int

    @property
    def counts(self) -> tuple[int, int, int]:
        return len(self.files), self.files.total(), self.switches


class Recorder:
    """The functions of src/layby that each thread calls, one after the other."""

    def __init__(self) -> None:
        self.calls: dict[int, list[CodeType]] = {}
        self.last_call_at = 0.0
        self._is_on = False
        self._is_ours: dict[CodeType, bool] = {}

    def install(self) -> None:
        """Before any thread is started: one that runs already could not be heard."""
        threading.setprofile(self._hear)
        sys.setprofile(self._hear)

    def start(self) -> None:
        self.calls = {}
        self.last_call_at = time.monotonic()
        self._is_on = True

    def stop(self) -> Walk:
        self._is_on = False
        called = {code for codes in self.calls.values() for code in codes}
        return Walk(
            files=Counter(_path_of(code).as_posix() for code in called),
            switches=sum(_switches(codes) for codes in self.calls.values()),
        )

    @property
    def is_quiet(self) -> bool:
        return time.monotonic() - self.last_call_at > QUIET_S

    def _hear(self, frame: FrameType, event: str, _: object) -> None:
        if not self._is_on or event != "call":
            return
        code = frame.f_code
        is_ours = self._is_ours.get(code)
        if is_ours is None:
            is_ours = self._is_ours[code] = _is_ours(code)
        if is_ours:
            self.calls.setdefault(threading.get_ident(), []).append(code)
            self.last_call_at = time.monotonic()


def _is_ours(code: CodeType) -> bool:
    """Python 3.12 and later inline most comprehensions, so none is counted."""
    is_comprehension = code.co_name.endswith(("comp>", "genexpr>"))
    return not is_comprehension and Path(code.co_filename).is_relative_to(SOURCE)


def _switches(codes: list[CodeType]) -> int:
    return sum(one != other for one, other in pairwise(map(_package_of, codes)))


def _package_of(code: CodeType) -> str:
    """`worker` for src/layby/worker/body.py, `errors` for src/layby/errors.py."""
    return _path_of(code).with_suffix("").parts[0]


def _path_of(code: CodeType) -> Path:
    return Path(code.co_filename).relative_to(SOURCE)


# --- the three requests ----------------------------------------------------------------------


@task
async def one(context):
    context["done"] = True


@task
async def waits(context, handle):
    answers = iter([False, True])
    await handle.defer_until(lambda: next(answers), poll_interval=0.01)


ONE = Workflow("one", tasks=[one])
WAITS = Workflow("waits", tasks=[waits])


@asynccontextmanager
async def running(flow: Workflow, folder: Path) -> AsyncIterator[Request]:
    async with Runner(f"sqlite:{folder / 'layby.db'}") as runner:

        async def request(number: int) -> None:
            await runner.execute(flow, run_id=f"{flow.name}-{number}")

        yield request


@asynccontextmanager
async def settling(folder: Path, count: int) -> AsyncIterator[Request]:
    """The promises are there already; the client is a bare socket, which is no part of layby."""
    flags = {"db": f"sqlite:{folder / 'served.db'}", "server.port": 0}
    server = Server(server_config.load(flags))
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)

    async def ask(kind: str, data: object) -> None:
        writer.write(_post(kind, data))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 20"), head
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))

    async def request(number: int) -> None:
        await ask("promise.settle", {"id": f"p{number}", "state": "resolved", "value": {}})

    try:
        for number in range(count):
            promise = {"id": f"p{number}", "timeoutAt": FAR_AWAY, "param": {}, "tags": {}}
            await ask("promise.create", promise)
        yield request
    finally:
        writer.close()
        await writer.wait_closed()
        await server.stop()


def _post(kind: str, data: object) -> bytes:
    head = {"corrId": "c", "version": "2026-04-01"}
    body = json.dumps({"kind": kind, "head": head, "data": data}).encode()
    return b"POST / HTTP/1.1\r\nHost: l\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


# --- walking ---------------------------------------------------------------------------------


async def walk(recorder: Recorder, request: Request, repeat: int) -> list[Walk]:
    found: list[Walk] = []
    for number in range(WARM + repeat):
        recorder.start()
        await _quiet(recorder)
        recorder.start()
        await request(number)
        await _quiet(recorder)
        found.append(recorder.stop())
    return found[WARM:]


async def _quiet(recorder: Recorder) -> None:
    while not recorder.is_quiet:  # noqa: ASYNC110 - quiet is no event
        await asyncio.sleep(QUIET_S / 5)


async def walk_all(recorder: Recorder, repeat: int) -> dict[str, list[Walk]]:
    found: dict[str, list[Walk]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, flow in (("execute", ONE), ("defer_until", WAITS)):
            async with running(flow, Path(folder)) as request:
                found[name] = await walk(recorder, request, repeat)
        async with settling(Path(folder), WARM + repeat) as request:
            found["HTTP settle"] = await walk(recorder, request, repeat)
    return found


def _cell(numbers: list[int]) -> str:
    low, middle, high = min(numbers), statistics.median_low(numbers), max(numbers)
    return f"{low}" if low == high else f"{low} ({middle}, {high})"


def _print(found: dict[str, list[Walk]]) -> None:
    _print_row("one …", ["files", "functions", "switches"])
    for name, walks in found.items():
        columns = zip(*(each.counts for each in walks), strict=True)
        _print_row(name, [_cell(list(each)) for each in columns])


def _print_row(name: str, cells: list[str]) -> None:
    print(f"{name:<14}" + "".join(f"{cell:<18}" for cell in cells).rstrip())


def _print_files(found: dict[str, list[Walk]]) -> None:
    for name, walks in found.items():
        shortest = min(walks, key=lambda each: each.counts)
        print(f"\n{name}: functions called in each file")
        for file, count in sorted(shortest.files.items()):
            print(f"  {count:>4}  {file}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--repeat", type=int, default=31, help="so many of each; the smallest counts"
    )
    parser.add_argument("--files", action="store_true", help="list the files of each, too")
    asked = parser.parse_args()
    if sys.platform == "linux":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    recorder = Recorder()
    recorder.install()
    found = asyncio.run(walk_all(recorder, asked.repeat))
    sys.setprofile(None)
    _print(found)
    print(f"\n{statements_in(SOURCE):,} statements in src/layby")
    if asked.files:
        _print_files(found)


if __name__ == "__main__":
    main()
