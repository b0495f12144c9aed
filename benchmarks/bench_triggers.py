"""Triggers that run code: what many of them cost while they wait.

    python benchmarks/bench_triggers.py own --count 20000
    python benchmarks/bench_triggers.py http --count 10000 --every 30

`own`: custom `async run` triggers in one manager; memory of the whole process, and its CPU while
nothing happens. `http`: HttpPoll against a local service (another process), each poll a request
of its own; CPU of both processes, and how late polls are.
"""

import argparse
import asyncio
import gc
import json
import multiprocessing
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bars import Bench, Result
from bench_worker import commits

from layby import Runner, triggers
from layby.core.commands import CreatePromise
from layby.core.model import NEVER
from layby.wire import json_values


@triggers.register
class Waits(triggers.Trigger, frozen=True):
    number: int

    async def run(self):
        while True:  # noqa: ASYNC110 - what users write
            await asyncio.sleep(60)


def resident_mb():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


async def put(runner, made):
    """The rows that a defer makes, without the tasks that would wait for them.

    By a few callers: a coroutine for each would leave its memory among that of the triggers.
    """
    left = enumerate(made)

    async def caller():
        for number, trigger in left:
            tags = {"resonate:target": "poll://any@layby.triggers", "layby:name": trigger.kind()}
            param = json_values.to_value(trigger.arguments())
            reply = await runner.client.send(
                CreatePromise(id=f"t{number}", timeout_at=NEVER, param=param, tags=tags)
            )
            assert reply.is_ok, reply

    await asyncio.gather(*(caller() for _ in range(500)))


def running(runner):
    return sum(manager.running for manager in runner._triggers.managers)  # noqa: SLF001


async def until_running(runner, count):
    await runner._opening_triggers  # noqa: SLF001
    while running(runner) < count:  # noqa: ASYNC110 - in another thread
        await asyncio.sleep(0.05)


async def own(count, seconds):
    with tempfile.TemporaryDirectory() as folder:
        async with Runner(f"sqlite:{folder}/a.db") as runner:
            empty = resident_mb()
            began = time.perf_counter()
            await put(runner, (Waits(number) for number in range(count)))
            await until_running(runner, count)
            took = time.perf_counter() - began
            await asyncio.sleep(5)  # until all of them are shown as waiting
            gc.collect()
            full, cpu = resident_mb(), time.process_time()
            await asyncio.sleep(seconds)
            idle = (time.process_time() - cpu) / seconds
            closing = time.perf_counter()
        closed = time.perf_counter() - closing
    return {
        "triggers": count,
        "begun_per_s": round(count / took),
        "mb": round(full, 1),
        "mb_empty": round(empty, 1),
        "kb_each": round((full - empty) * 1000 / count, 2),
        "idle_cpu_of_a_core": round(idle, 4),
        "handed_over_in_s": round(closed, 1),
    }


def serve(ready, asked, cpu):
    """A service that is never done."""
    from aiohttp import web  # noqa: PLC0415 - in the child only

    async def answer(_):
        asked.value += 1
        cpu.value = time.process_time()
        return web.json_response({"state": "running"})

    async def main():
        app = web.Application()
        app.router.add_get("/{job}", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        ready.put(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(main())


def has_error(runner, trigger_id):
    polling = runner.polling(trigger_id)
    return polling is not None and polling.last_error is not None


async def http(count, every, seconds):
    context = multiprocessing.get_context("spawn")
    ready, asked, cpu = context.Queue(), context.Value("q", 0), context.Value("d", 0.0)
    child = context.Process(target=serve, args=(ready, asked, cpu), daemon=True)
    child.start()
    port = await asyncio.to_thread(ready.get)
    done = triggers.Compare("/state", "==", "done")
    made = (
        triggers.HttpPoll(f"http://127.0.0.1:{port}/{number}", until=done, every=every)
        for number in range(count)
    )
    async with Runner("memory:") as runner:
        await put(runner, made)
        await until_running(runner, count)
        await asyncio.sleep(every + 5)  # the first round is asked at once
        first, began = asked.value, time.perf_counter()
        own_cpu, service_cpu = time.process_time(), cpu.value
        await asyncio.sleep(seconds)
        took = time.perf_counter() - began
        own_cpu, service_cpu = time.process_time() - own_cpu, cpu.value - service_cpu
        polls = asked.value - first
        errors = sum(has_error(runner, f"t{each}") for each in range(count))
    child.terminate()
    return {
        "triggers": count,
        "every_s": every,
        "polls_per_s": round(polls / took, 1),
        "wanted_per_s": round(count / every, 1),
        "cpu_of_a_core": round(own_cpu / took, 3),
        "cpu_of_the_service": round(service_cpu / took, 3),
        "with_errors": errors,
    }


# --- the bars, each in a process of its own ---------------------------------------------------


def measured(*arguments):
    command = [sys.executable, __file__, *map(str, arguments)]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def own_triggers() -> Iterator[Result]:
    found = measured("own", "--count", 20_000)
    what = f"{found['triggers']:,} custom triggers in one manager"
    mb, idle = found["mb"], found["idle_cpu_of_a_core"]
    yield Result(f"{what}: memory", f"{mb:.0f} MB in all", "≤ 150 MB", mb <= 150, commits())
    shown = f"{idle:.1%} of a core"
    yield Result(f"{what}: idle CPU", shown, "≤ 3 % of a core", idle <= 0.03, commits())


def http_polls() -> Iterator[Result]:
    found = measured("http", "--count", 10_000, "--every", 30, "--seconds", 30)
    rate, wanted = found["polls_per_s"], found["wanted_per_s"]
    used, service = found["cpu_of_a_core"], found["cpu_of_the_service"]
    what = f"{found['triggers']:,} HttpPolls every {found['every_s']:g} s"
    is_kept = rate >= 0.97 * wanted and not found["with_errors"]
    kept = f"{rate:,.0f} polls/s, {found['with_errors']} with errors"
    yield Result(f"{what}: sustained", kept, f"≥ {wanted:,.0f}/s, none", is_kept, commits())
    shown = f"{used:.0%} of a core, and {service:.0%} for the service"
    is_met = used + service <= 1
    yield Result(f"{what}: CPU", shown, "≤ 1 core in all", is_met, commits())


BENCHES: tuple[Bench, ...] = (own_triggers, http_polls)


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("own", "http"))
    parser.add_argument("--count", type=int, default=2_000)
    parser.add_argument("--every", type=float, default=30.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    if given.what == "own":
        print(json.dumps(asyncio.run(own(given.count, given.seconds))))
    else:
        print(json.dumps(asyncio.run(http(given.count, given.every, given.seconds))))


if __name__ == "__main__":
    main()
