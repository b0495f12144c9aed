"""A process that works until it is killed: `python recovery_child.py ADDRESS FOLDER MODE`.

Every side effect is one line appended to FOLDER/effects, written before the task goes on. Lines
that begin with `@` on stdout tell the test where the process stands.
"""

# ruff: noqa: T201, ASYNC110 - it speaks by printing, and looks again at what tells nobody

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from layby import Runner, Workflow, task
from layby.errors import LaybyError

ADDRESS, FOLDER, MODE = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
EACH = 80
SLEEP_S = 2.0
EFFECTS = os.open(FOLDER / "effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def effect(what: str, run: str) -> None:
    os.write(EFFECTS, f"{what} {run} {time.time_ns() // 1_000_000}\n".encode())


def tell(text: str) -> None:
    print(f"@{text}", flush=True)


def gate_is_open() -> bool:
    return (FOLDER / "gate").exists()


# --- flows whose runs are in every stage when the process dies -----------------------------


def link(number: int):
    @task(id=f"link{number}", dependencies=[f"link{number - 1}"] if number else [])
    async def append(context):
        effect(f"link{number}", context["run"])
        context[f"link{number}"] = True

    return append


chain = Workflow("chain", tasks=[link(number) for number in range(6)])


@task
async def sleeps(context, handle):
    effect("lies-down", context["run"])
    await handle.sleep(SLEEP_S)
    effect("gets-up", context["run"])


@task
async def pays(context, handle):
    receipt = await handle.checkpoint("pay", pay, context["run"])
    await handle.sleep(0.2)
    context["shipped"] = await handle.checkpoint("ship", ship, context["run"], receipt)


def pay(run: str) -> str:
    effect("pay", run)
    return f"receipt of {run}"


async def ship(run: str, receipt: str) -> str:
    await asyncio.sleep(0)
    effect("ship", run)
    return f"shipped for {receipt}"


@task
async def polls(context, handle):
    asked = []

    def second_time() -> bool:
        asked.append(1)
        effect("asked", context["run"])
        return len(asked) > 1

    await handle.defer_until(second_time, poll_interval_ms=50)
    effect("half", context["run"])
    await handle.defer_until(gate_is_open, poll_interval_ms=50)
    effect("polled", context["run"])


@task
async def waits(context, handle):
    await handle.wait_for(f"early-{context['run']}")
    context["answer"] = await handle.wait_for(f"late-{context['run']}")
    effect("woken", context["run"])


@task
async def computes(context):
    """Holds its slot for a while in every life."""
    effect("computes", context["run"])
    await asyncio.sleep(0.05)
    effect("computed", context["run"])


FLOWS = [
    chain,
    Workflow("sleeper", tasks=[sleeps]),
    Workflow("payer", tasks=[pays]),
    Workflow("poller", tasks=[polls]),
    Workflow("waiter", tasks=[waits]),
    Workflow("computer", tasks=[computes]),
]


async def work(runner: Runner) -> None:
    runs = []
    for number in range(EACH):
        for flow in FLOWS:
            name = f"{flow.name}-{number}"
            runs.append(await runner.start(flow, {"run": name}, run_id=name))
        await runner.resolve(f"early-waiter-{number}", number)
    tell("started")
    while not gate_is_open():
        await asyncio.sleep(0.02)
    for number in range(EACH):
        await runner.resolve(f"late-waiter-{number}", number)
    for run in runs:
        await run.result()
    tell("done")


# --- a task that takes its process with it --------------------------------------------------


@task
async def poison(context):
    effect("poison", context["run"])
    os._exit(9)


@task
async def patient(context, handle):
    await handle.wait_for("never")


async def be_poisoned(runner: Runner) -> None:
    innocent = Workflow("innocent", tasks=[patient])
    for number in range(100):
        await runner.start(innocent, run_id=f"innocent-{number}")
    while runner.worker.credit.held or len(runner.worker.attempts) < 100:
        await asyncio.sleep(0.01)  # all are parked now; whether they stay so is the question
    await (await runner.get("innocent-0")).status()  # and their `Deferred` is committed
    run = await runner.start(
        Workflow("poisoned", tasks=[poison]), {"run": "poisoned"}, run_id="poisoned"
    )
    try:
        await run.result()
    except LaybyError as error:
        tell(f"failed {error}")
    crashes = 0
    for number in range(100):
        status = await (await runner.get(f"innocent-{number}")).status()
        crashes += status.tasks["patient"].crashes
    tell(f"innocent crashes {crashes}")


# --- a process that is asked to stop ---------------------------------------------------------


@task
async def long_hold(context, handle):
    effect("holds", context["run"])
    while handle.try_number == 1:
        await asyncio.sleep(0.05)
    context["try"] = handle.try_number


async def stop_on_request(runner: Runner) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    holder, waiter = Workflow("holder", tasks=[long_hold]), FLOWS[4]
    runs = [await runner.start(holder, {"run": f"h{n}"}, run_id=f"h{n}") for n in range(4)]
    runs += [await runner.start(waiter, {"run": f"w{n}"}, run_id=f"w{n}") for n in range(200)]
    tell("started")
    if MODE == "graceful":
        await stopping.wait()
        return
    for number in range(200):
        await runner.resolve(f"early-w{number}")
        await runner.resolve(f"late-w{number}", number)
    crashes = 0
    for run in runs:
        await run.result()
        crashes += sum(each.crashes for each in (await run.status()).tasks.values())
    tell(f"crashes {crashes}")


MODES = {
    "work": work,
    "poison": be_poisoned,
    "graceful": stop_on_request,
    "resume": stop_on_request,
}


async def main() -> None:
    async with Runner(ADDRESS, slots=8, max_crashes=3) as runner:
        tell(f"open {time.time_ns() // 1_000_000}")
        await MODES[MODE](runner)


asyncio.run(main())
