"""Every kind of wait and every exit of a person: it works, or the error says what to do instead.

The same table stands in docs/waiting.md, and has to say the same.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from layby import (
    Conflict,
    DeferTimeout,
    LaybyError,
    RetryPolicy,
    Runner,
    Workflow,
    task,
    waits,
)
from layby.core.queries import ExplainPromise
from layby.testing import current_clock, virtual_test
from layby.triggers import Delay, Event
from layby.workflow.why import find_why
from tests.helpers.workers import flow_of, settled_down

HOUR = 3600
EXITS = ("wake", "skip", "fail", "extend", "cancel")
"""Each is done to a run of this name."""
DOCS = Path(__file__).parents[2] / "docs" / "waiting.md"


def run_of(handle: Any) -> str:
    return handle.task_execution_id.removeprefix("run/").partition(":")[0]


def paid(handle: Any) -> str:
    return f"paid-{run_of(handle)}"


@task
async def stuck(context: Any, handle: Any) -> None:
    await handle.wait_for("nothing")


@task
async def stuck_item(context: Any, handle: Any, item: Any) -> None:
    await handle.wait_for("nothing")


child_flow = Workflow("child", tasks=[stuck])


async def of_child(handle: Any) -> Any:
    child = await handle.start(child_flow, run_id=f"c-{run_of(handle)}")
    return await child.result(timeout=HOUR)


async def of_token(handle: Any) -> Any:
    return await (await handle.promise("ok")).wait(HOUR)


async def of_approval(handle: Any) -> Any:
    return (await handle.approval("ship?", int, timeout=HOUR)).value


async def fails_once(handle: Any) -> None:
    if handle.failures == 0:
        raise ValueError("not yet")


class Kind(NamedTuple):
    """A wait, and what a person settles to skip it with a value, or to let it fail."""

    wait: Callable[[Any], Any]
    settles: str = ""
    is_approval: bool = False
    member: str = ""
    """The id of the wait that is meant, of several."""
    serves: Callable[[Any], Any] | None = None
    """What the function waits for that the task has called: that wait is ended."""
    options: dict[str, Any] = {}  # noqa: RUF012 - nobody changes it


PAID, CALLED = "paid-{run}", "run/{run}:t.x.rpc-1"
APPROVAL = "run/{run}:t.c.approval.approval-1"
SERVED = "t.x.rpc-1"
RETRIED = {"retry": RetryPolicy(max_attempts=2, delay=HOUR, max_delay=HOUR)}
KINDS = {
    "sleep": Kind(lambda handle: handle.sleep(HOUR)),
    "defer_until": Kind(
        lambda handle: handle.defer_until(lambda: False, poll_interval=60, timeout=HOUR)
    ),
    "wait_for": Kind(lambda handle: handle.wait_for(paid(handle), timeout=HOUR), PAID),
    "token": Kind(of_token, "run/{run}:t.c.promise.ok"),
    "approval": Kind(of_approval, APPROVAL, is_approval=True),
    "rpc": Kind(
        lambda handle: handle.rpc("f", target="poll://any@elsewhere", timeout=HOUR), CALLED
    ),
    "all_of": Kind(
        lambda handle: handle.all_of(waits.sleep(0), waits.wait_for(paid(handle)), timeout=HOUR),
        PAID,
    ),
    "first_of": Kind(
        lambda handle: handle.first_of(
            waits.sleep(HOUR), waits.wait_for(paid(handle)), timeout=HOUR
        ),
        PAID,
    ),
    "any_of": Kind(lambda handle: handle.any_of(waits.wait_for(paid(handle)), timeout=HOUR), PAID),
    "sleep in a bundle": Kind(
        lambda handle: handle.first_of(waits.sleep(HOUR), waits.wait_for(paid(handle))),
        member="run/{run}:t.w0.of.first_of-1.0",
    ),
    "condition in a bundle": Kind(
        lambda handle: handle.first_of(
            waits.all_of(waits.defer_until(lambda: False, 60, timeout=HOUR), waits.sleep(0))
        ),
        member="run/{run}:t.w0.of.of.first_of-1.0.0",
    ),
    "approval in a bundle": Kind(
        lambda handle: handle.first_of(handle.approval("ship?", int, timeout=HOUR)),
        APPROVAL,
        is_approval=True,
        member=APPROVAL,
    ),
    "condition in a call": Kind(
        lambda handle: handle.rpc("poll", target="poll://any@default"),
        serves=lambda handle: handle.defer_until(lambda: False, poll_interval=60, timeout=HOUR),
    ),
    "map": Kind(lambda handle: handle.map(stuck_item, [1])),
    "child run": Kind(of_child),
    "defer": Kind(lambda handle: handle.defer(Event(paid(handle)), timeout=HOUR)),
    "defer for a time": Kind(lambda handle: handle.defer(Delay(HOUR))),
    "back-off": Kind(fails_once, options=RETRIED),
    "permit": Kind(lambda handle: handle.sleep(0), options={"limit": "full"}),
}

ON, SLEPT, LATE = "goes on at 5", "goes on at 15", "DeferTimeout at 15"
REJECTED, CANCELLED = "PromiseRejected at 5", "Cancelled"
SETTLE = "no: resolve that promise to skip the wait with a value, reject it"
OF_RUN = "no: cancel that run to let the wait fail"
OF_MAP = "no: cancel the map 'run/{run}:t:map/1' to let the call fail"
NO_PERMIT = "no: waits for a permit of 'full': define that limit larger, or cancel the task"
ANSWER = "no: It waits for an answer to 'run/{run}:t.c.approval.approval-1': approve or deny"
TABLE = {
    "sleep": (ON, ON, REJECTED, SLEPT, CANCELLED),
    "defer_until": (ON, ON, "ConditionError at 5", LATE, CANCELLED),
    "wait_for": (SETTLE, ON, REJECTED, LATE, CANCELLED),
    "token": (SETTLE, ON, REJECTED, LATE, CANCELLED),
    "approval": (ANSWER, ON, ON, LATE, CANCELLED),
    "rpc": (SETTLE, ON, REJECTED, LATE, CANCELLED),
    "all_of": ("no: settle one of 'paid-wake'", ON, REJECTED, LATE, CANCELLED),
    "first_of": ("no: wake one of 'run/wake:t.w0.of", ON, REJECTED, LATE, CANCELLED),
    "any_of": ("no: settle one of 'paid-wake'", ON, "NoneSucceeded at 5", LATE, CANCELLED),
    "sleep in a bundle": (ON, ON, REJECTED, SLEPT, CANCELLED),
    "condition in a bundle": (ON, ON, "ConditionError at 5", LATE, CANCELLED),
    "approval in a bundle": (ANSWER, ON, ON, LATE, CANCELLED),
    "condition in a call": (ON, ON, "ConditionError at 5", LATE, CANCELLED),
    "map": (OF_MAP, OF_MAP, OF_MAP, "no: without a deadline", CANCELLED),
    "child run": (OF_RUN, OF_RUN, OF_RUN, LATE, CANCELLED),
    "defer": (ON, ON, "TriggerError at 5", LATE, CANCELLED),
    "defer for a time": (ON, ON, "TriggerError at 5", SLEPT, CANCELLED),
    "back-off": (ON, ON, "no: cancel it to let it be the last", "no: halt it", CANCELLED),
    "permit": (NO_PERMIT, NO_PERMIT, NO_PERMIT, NO_PERMIT, CANCELLED),
}
"""What becomes of the wait, five seconds after it began, by `EXITS`."""


def waiting_task(kind: Kind, seen: dict[str, str]) -> Any:
    """`seen`: how the body of each run went on, and when; of a call, the body that serves it."""

    @task(id="t", **kind.options)
    async def waiting(context: Any, handle: Any) -> None:
        how = await how_it_ends(kind.wait(handle))
        seen.setdefault(run_of(handle), how)

    return waiting


def serving_task(kind: Kind, seen: dict[str, str]) -> Any:
    @task(rpc="poll")
    async def serving(context: Any, handle: Any) -> None:
        assert kind.serves is not None
        seen[run_of(handle)] = await how_it_ends(kind.serves(handle))

    return serving


async def how_it_ends(wait: Any) -> str:
    try:
        await wait
        how = "goes on"
    except (LaybyError, DeferTimeout) as error:
        how = type(error).__name__
    return f"{how} at {current_clock().elapsed:g}"


async def do_exit(runner: Runner, kind: Kind, run: str) -> None:
    """As a person would: by `wake` if nothing has to be settled."""
    by = {"by": "ann", "reason": "enough"}
    settles, which = kind.settles.format(run=run), {**by, "wait": kind.member.format(run=run)}
    name = "t" if kind.serves is None else SERVED
    match run, bool(settles):
        case "cancel", _:
            await runner.cancel(run, name, **by)
        case "extend", _:
            await runner.extend(run, name, 10, **which)
        case "wake", _:
            await runner.wake(run, name, **which)
        case "skip", False:
            await runner.wake(run, name, 7, **which)
        case "skip", True if kind.is_approval:
            await runner.approve(settles, 7, **by)
        case "skip", True:
            await runner.resolve(settles, 7)
        case "fail", False:
            await runner.wake(run, name, error="no", **which)
        case "fail", True if kind.is_approval:
            await runner.deny(settles, **by)
        case _:
            await runner.reject(settles, "no")


@pytest.mark.parametrize("name", KINDS)
@virtual_test
async def test_every_exit_of_every_wait(name):
    """Each cell of the table holds: the body goes on, fails or waits on as it says, and when."""
    kind, seen, found = KINDS[name], dict[str, str](), dict[str, str]()
    async with Runner("memory:") as runner:
        await runner.limit("full", concurrency=0)
        flow = flow_of(waiting_task(kind, seen))
        runner.register(child_flow)
        if kind.serves is not None:
            runner.register(serving_task(kind, seen))
        runs = [await runner.start(flow, run_id=each) for each in EXITS]
        await asyncio.sleep(5)
        await settled_down()
        for each in EXITS:
            try:
                await do_exit(runner, kind, each)
            except Conflict as refused:
                found[each] = f"no: {refused}"
        await asyncio.sleep(60)
        for run in runs:
            is_cancelled = (await run.status()).tasks["t"].status == "Cancelled"
            is_cancelled |= seen.get(run.id, "").startswith("PromiseCancelled")  # as its caller
            found.setdefault(run.id, CANCELLED if is_cancelled else seen.get(run.id, "waits on"))
    for each, expected in zip(EXITS, TABLE[name], strict=True):
        parts = expected.format(run=each).split("no: ")
        assert all(part in found[each] for part in parts), (name, each, found[each])
        assert found[each].startswith("no: ") == (len(parts) == 2), (name, each, found[each])


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row[3] in (SLEPT, LATE)])
@virtual_test
async def test_a_wait_without_end_can_be_given_one_again(name):
    """The command for it is named as before, and works: the wait ends as after one move."""
    kind, seen = KINDS[name], dict[str, str]()
    async with Runner("memory:") as runner:
        flow = flow_of(waiting_task(kind, seen))
        runner.register(child_flow)
        if kind.serves is not None:
            runner.register(serving_task(kind, seen))
        run = await runner.start(flow, run_id="extend")
        await asyncio.sleep(5)
        await settled_down()
        member = kind.member.format(run="extend")
        task = "t" if kind.serves is None else SERVED
        commands = await extending(runner, task)
        assert commands
        await runner.extend(run.id, task, None, wait=member)
        await settled_down()
        assert await extending(runner, task) == commands
        await do_exit(runner, kind, "extend")
        await asyncio.sleep(60)
    assert seen["extend"] == TABLE[name][3]


async def extending(runner: Runner, task: str) -> list[str]:
    """The commands that move a deadline, of all that `layby why` names for this task."""
    asked = f"run/extend:{task}"

    async def look(promise_id: str) -> Any:
        return (await runner.send(ExplainPromise(id=promise_id))).data

    why = await find_why(look, asked, runner.now())
    assert why is not None
    return [line for line in why.chain[0].by_hand if line.startswith("layby extend")]


def test_the_docs_have_the_same_table():
    """A refusal is a no there, followed by what to do."""
    lines = DOCS.read_text().partition("## Ending a wait by hand")[2].splitlines()
    rows = [[cell.strip() for cell in each.split("|")[1:-1]] for each in lines if "|" in each]
    told = {row[0].replace("`", ""): row[1:] for row in rows if len(row) == 1 + len(EXITS)}
    for name, cells in TABLE.items():
        refused = [each.startswith("no:") for each in told[name]]
        assert refused == [each.startswith("no: ") for each in cells], name
