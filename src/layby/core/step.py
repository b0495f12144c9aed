"""One pure transition: rows and a command in, a reply and a draft out.

Rule 1: everything that decides about state lives in this package and nowhere else.
Rule 2: nothing here reads a clock, draws a random number, does I/O or raises for a refusal.
Rule 3: a step reads only rows its command declared (`footprint`) plus one hop.
A step is one transaction; the engine commits drafts, alone or many together, with equal result.
"""

from collections.abc import Callable
from typing import Any

from layby.core import (
    commands,
    promises,
    runs,
    schedules,
    strict,
    takes,
    tasks,
    ticks,
    validate,
    workers,
)
from layby.core.commands import Command
from layby.core.draft import Draft
from layby.core.model import Millis
from layby.core.replies import Reply, refuse
from layby.core.rows import Rows

Handler = Callable[[Draft, Any], Reply]

HANDLERS: dict[type[Command], Handler] = {
    commands.GetPromise: promises.get,
    commands.CreatePromise: promises.create,
    commands.SettlePromise: promises.settle_by_id,
    commands.RegisterCallback: promises.register_callback,
    commands.RegisterListener: promises.register_listener,
    commands.ResolvePromise: promises.resolve,
    commands.EnsurePromise: promises.ensure,
    commands.WatchPromise: promises.watch,
    commands.CancelPromise: promises.cancel,
    commands.GetTask: tasks.get,
    commands.CreateTask: tasks.create,
    commands.AcquireTask: tasks.acquire,
    commands.ReleaseTask: tasks.release,
    commands.FulfillTask: tasks.fulfill,
    commands.SuspendTask: tasks.suspend,
    commands.FenceTask: tasks.fence,
    commands.HeartbeatTasks: tasks.heartbeat,
    commands.HaltTask: tasks.halt,
    commands.ContinueTask: tasks.resume_halted,
    commands.GetSchedule: schedules.get,
    commands.CreateSchedule: schedules.create,
    commands.DeleteSchedule: schedules.delete,
    commands.Take: takes.take,
    commands.HeartbeatWorker: workers.heartbeat,
    commands.CheckHolder: workers.check,
    commands.LeaveWorker: workers.leave,
    commands.ReleaseTasks: workers.release,
    commands.FinishTask: workers.finish,
    commands.FailTask: workers.fail,
    commands.AnnotateTask: workers.annotate,
    commands.CreateBelow: workers.create_below,
    commands.StartRun: runs.start,
    commands.CreateRunSchedule: schedules.create_for_runs,
    ticks.ExpirePromises: ticks.expire_promises,
    ticks.RetryTasks: ticks.retry_tasks,
    ticks.ExpireLeases: ticks.expire_leases,
    ticks.FinishSettlement: ticks.finish_settlement,
    ticks.ExpireHolders: ticks.expire_holders,
    ticks.FreeTasks: ticks.free_tasks,
    schedules.FireSchedule: schedules.fire,
    ticks.ForgetMessages: ticks.forget_messages,
}


def step(rows: Rows, command: Command, now: Millis) -> tuple[Reply, Draft]:
    draft = Draft(rows=rows, now=now)
    if (take := command.asks) is not None:
        rows.come(take.key, take.free)
    wrong = validate.problems(command) or strict.problems(command, rows.settings)
    if wrong is not None:
        return refuse(400, wrong), draft
    return HANDLERS[type(command)](draft, command), draft
