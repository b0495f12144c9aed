"""What a Runner sends to steer runs and tasks by hand: cancel, halt, continue, end a wait."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from layby.client.many_requests import send_all
from layby.client.paging import pages
from layby.client.request_ids import new_request_id
from layby.core.commands import (
    CancelPromise,
    ContinueBlocked,
    ContinueTask,
    ExtendWait,
    HaltTask,
    WakeTask,
    WatchRun,
)
from layby.core.meant_waits import FindWait
from layby.core.queries import GetRun
from layby.core.replies import Reply, RowPage, RunWatchData, SettlementData, WaitData
from layby.errors import Conflict, NotFound, error_for
from layby.runner.settling import Settlement, settlement_of
from layby.runner.starting import root_of
from layby.workflow import plan
from layby.workflow.names import check_run_id, check_text, close_match
from layby.workflow.wait_sentences import not_halted

if TYPE_CHECKING:
    from layby.runner.runner import Runner


async def cancel(
    runner: "Runner", run_id: str, task: str | None, *, by: str, reason: str
) -> Settlement:
    command = CancelPromise(
        id=await _promise_id(runner, run_id, task),
        by=by,
        reason=reason,
        settlement_id=new_request_id(),
    )
    reply = await runner.send(command)
    await _check(runner, reply, run_id, task)
    assert isinstance(reply.data, SettlementData)
    return settlement_of(reply.data)


async def steer(
    runner: "Runner",
    run_id: str,
    task: str | None,
    kind: Callable[..., HaltTask | ContinueTask | ContinueBlocked],
) -> None:
    """For a run, every task at once; for a single task, a refusal is raised."""
    if task is None:
        run = await runner.get(run_id)
        ids = await run.unsettled()
        replies = await send_all(runner.send, [kind(id=each) for each in ids])
        if kind is ContinueTask and not any(reply.is_ok for reply in replies):
            await _refuse_blocked(runner, run_id, run.promise_id, _named(run_id))
        return
    promise_id = await _promise_id(runner, run_id, task)
    reply = await runner.send(kind(id=promise_id))
    if kind is ContinueTask and reply.status == 409:
        await _refuse_blocked(runner, run_id, promise_id, _named(run_id, task))
    await _check(runner, reply, run_id, task)


async def end_wait(
    runner: "Runner",
    run_id: str,
    task: str | None,
    wait: str,
    exit_: Callable[..., WakeTask | ExtendWait],
) -> None:
    """Which wait is meant is found first: then no later one is ended in its place."""
    root = plan.root_id(check_run_id(run_id))
    asked = root if task is None else plan.node_id(run_id, check_text(task, "task"))
    reply = await runner.send(FindWait(id=asked))
    if isinstance(found := reply.data, WaitData):
        ending = exit_(id=found.task, wait=wait or found.wait, exit_id=new_request_id())
        reply = await runner.send(ending)
    await _check(runner, reply, run_id, task)


async def _check(runner: "Runner", reply: Reply, run_id: str, task: str | None) -> None:
    """Raise if the request was refused."""
    if reply.status == 404:
        raise await _unknown(runner, run_id, task)
    if not reply.is_ok:
        raise error_for(reply.status, f"{_named(run_id, task)}: {reply.data}")


def _named(run_id: str, task: str | None = None) -> str:
    return f"run '{run_id}'" if task is None else f"task '{task}' of run '{run_id}'"


async def _promise_id(runner: "Runner", run_id: str, task: str | None) -> str:
    """The root of the run's latest life, or a task as it is in that life."""
    if task is not None:
        check_text(task, "task")
    ask = WatchRun(id=plan.root_id(check_run_id(run_id)), hold=False)
    data = (await runner.send(ask)).data
    life = data.lives if isinstance(data, RunWatchData) else 1
    if task is None:
        return plan.root_id(run_id, life)
    if life > 1:  # only then may the task be one of an earlier life
        root = await root_of(runner, run_id, life)
        life = plan.read_root_param(root.param).life_of(task)
    return plan.node_id(run_id, task, life)


async def _refuse_blocked(runner: "Runner", run_id: str, promise_id: str, what: str) -> None:
    """Nothing was halted; whoever continues a blocked task probably meant something else."""
    found = pages(partial(runner.page, kind=RowPage), GetRun(id=plan.root_id(run_id)))
    rows = [row async for page in found for row in page.rows]
    if why := not_halted(what, promise_id, rows, "continue_(code=True)"):
        raise Conflict(why)


async def _unknown(runner: "Runner", run_id: str, task: str | None) -> NotFound:
    """Says whether the run or the task does not exist, and what does."""
    run = await runner.get(run_id)
    tasks = (await run.status()).tasks
    hint = close_match(task or "", tuple(tasks)) or f"; it has {', '.join(tasks)}"
    return NotFound(f"run '{run_id}' has no task '{task}'{hint}")
