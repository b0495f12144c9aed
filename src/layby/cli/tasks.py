"""`layby tasks`: every operation of the protocol on tasks."""

from typing import Any

import click
import msgspec

from layby.cli import record_views, showing
from layby.cli.command_groups import CommandGroup
from layby.cli.connection import Place, ask, now_at
from layby.cli.expected_replies import expect, unknown
from layby.cli.listing import listed
from layby.cli.options import DURATION, JSON, as_json, limited, reaching, tagged, tags_of
from layby.cli.promises import print_promise, value_of
from layby.client.interface import Client
from layby.core.commands import (
    AcquireTask,
    Command,
    ContinueTask,
    CreateAction,
    CreatePromise,
    CreateTask,
    FenceTask,
    FulfillTask,
    GetTask,
    HaltTask,
    HeartbeatTasks,
    RegisterCallback,
    ReleaseTask,
    SettleAction,
    SettlePromise,
    SuspendAction,
    SuspendTask,
    TaskVersion,
)
from layby.core.model import NEVER, Task
from layby.core.queries import SearchTasks
from layby.core.replies import ClaimData, FenceData, PromiseData, Reply, TaskData
from layby.errors import Conflict, UsageError
from layby.wire.decode import decode_data

STATES = ("pending", "acquired", "suspended", "halted", "fulfilled")
versioned = click.option(
    "--version", required=True, type=int, help="The version that the task is at."
)
claiming = [
    click.option("--pid", required=True, help="Who takes it."),
    click.option("--ttl", type=DURATION, default="1m", show_default=True, help="The lease."),
]


@click.group(cls=CommandGroup, aliases={"acquire": "claim", "fulfill": "complete"})
def tasks() -> None:
    """Tasks, by the protocol: what a worker does, by hand."""


@tasks.command(epilog="Example:  layby tasks get order-7")
@click.argument("task_id", metavar="ID")
@reaching
@as_json
def get(place: Place, task_id: str, *, as_json: bool) -> None:
    """Show one task."""
    data = _sent(place, GetTask(id=task_id), task_id, TaskData)
    _print_task(data.task, as_json=as_json)


@tasks.command(
    epilog="Example:  layby tasks create job-7 --pid me --timeout 1h "
    "--tag resonate:target=poll://any@default"
)
@click.argument("task_id", metavar="ID")
@claiming[0]
@claiming[1]
@click.option("--timeout", type=DURATION, help="The promise's deadline.  [default: none]")
@click.option("--param", type=JSON, help="The parameter of the promise, as JSON or @FILE.")
@tagged("A tag; resonate:target=ADDRESS is needed.")
@reaching
@as_json
def create(
    place: Place,
    task_id: str,
    pid: str,
    ttl: int,
    timeout: int | None,
    param: Any,
    tags: Any,
    *,
    as_json: bool,
) -> None:
    """Create a promise with its task and acquire the task at once."""
    timeout_at = NEVER if timeout is None else now_at(place) + timeout
    inner = CreatePromise(
        id=task_id, timeout_at=timeout_at, param=value_of(param), tags=tags_of(tags)
    )
    action = CreateAction(inner.kind, {}, inner)
    _claim(place, CreateTask(pid=pid, ttl=ttl, action=action), task_id, as_json=as_json)


@tasks.command(epilog="Example:  layby tasks claim job-7 --version 0 --pid me --ttl 30s")
@click.argument("task_id", metavar="ID")
@versioned
@claiming[0]
@claiming[1]
@reaching
@as_json
def claim(place: Place, task_id: str, version: int, pid: str, ttl: int, *, as_json: bool) -> None:
    """Acquire a pending task (also: acquire). Its version goes up by one."""
    command = AcquireTask(id=task_id, version=version, pid=pid, ttl=ttl)
    _claim(place, command, task_id, as_json=as_json)


@tasks.command(
    epilog="""\b
Example:
  layby tasks fence job-7 --version 1 --action \\
    '{"kind": "promise.settle", "data": {"id": "job-7.1", "state": "resolved"}}'"""
)
@click.argument("task_id", metavar="ID")
@versioned
@click.option(
    "--action",
    type=JSON,
    required=True,
    help="A promise.create or promise.settle: {kind, data}, as on the wire.",
)
@reaching
@as_json
def fence(place: Place, task_id: str, version: int, action: Any, *, as_json: bool) -> None:
    """Create or settle another promise, if the task is still yours."""
    data = _sent(place, _fence(task_id, version, action), task_id, FenceData)
    inner = expect(data.reply, PromiseData, f"{data.kind} by task '{task_id}'")
    print_promise(place, inner.promise, as_json=as_json)


@tasks.command(epilog="Example:  layby tasks heartbeat --pid me --task job-7=1 --task job-8=3")
@click.option("--pid", required=True, help="Who holds them.")
@click.option(
    "--task",
    "held",
    multiple=True,
    metavar="ID=VERSION",
    help="A task to renew.  [default: all of this pid]",
)
@reaching
@as_json
def heartbeat(place: Place, pid: str, held: tuple[str, ...], *, as_json: bool) -> None:
    """Renew leases; skips tasks that are no longer yours."""
    command = HeartbeatTasks(pid=pid, tasks=[_task_version(each) for each in held])
    _do(place, command, "", f"renewed for {pid}", as_json=as_json)


@tasks.command(
    short_help="Suspend a task until one of the given promises settles.",
    epilog="Example:  layby tasks suspend job-7 --version 1 --on job-7.1 --on job-7.2",
)
@click.argument("task_id", metavar="ID")
@versioned
@click.option(
    "--on", "awaited", multiple=True, required=True, help="A promise to wait for; repeatable."
)
@reaching
@as_json
def suspend(
    place: Place, task_id: str, version: int, awaited: tuple[str, ...], *, as_json: bool
) -> None:
    """Let the task wait in the store until one of these promises settles.

    If one is already settled, the task stays yours and the exit code is 1.
    """
    waits = [RegisterCallback(awaited=each, awaiter=task_id) for each in awaited]
    actions = [SuspendAction(wait.kind, {}, wait) for wait in waits]
    command = SuspendTask(id=task_id, version=version, actions=actions)
    _do(place, command, task_id, f"{task_id} is suspended", as_json=as_json)


@tasks.command(epilog="Example:  layby tasks complete job-7 --version 1 --value '{\"ok\": true}'")
@click.argument("task_id", metavar="ID")
@versioned
@click.option(
    "--state",
    type=click.Choice(("resolved", "rejected", "rejected_canceled")),
    default="resolved",
    show_default=True,
    help="The outcome.",
)
@click.option("--value", "given", type=JSON, help="Its value, as JSON or @FILE.")
@reaching
@as_json
def complete(
    place: Place, task_id: str, version: int, state: str, given: Any, *, as_json: bool
) -> None:
    """Settle the promise of a task you hold (also: fulfill)."""
    inner = SettlePromise(id=task_id, state=state, value=value_of(given))
    action = SettleAction(inner.kind, {}, inner)
    command = FulfillTask(id=task_id, version=version, action=action)
    print_promise(place, _sent(place, command, task_id, PromiseData).promise, as_json=as_json)


@tasks.command(epilog="Example:  layby tasks release job-7 --version 1")
@click.argument("task_id", metavar="ID")
@versioned
@reaching
@as_json
def release(place: Place, task_id: str, version: int, *, as_json: bool) -> None:
    """Hand back a task you hold, so others may take it."""
    command = ReleaseTask(id=task_id, version=version)
    _do(place, command, task_id, f"{task_id} is released", as_json=as_json)


@tasks.command(epilog="Example:  layby tasks halt job-7")
@click.argument("task_id", metavar="ID")
@reaching
@as_json
def halt(place: Place, task_id: str, *, as_json: bool) -> None:
    """Stop a task until it is continued, whoever holds it."""
    _do(place, HaltTask(id=task_id), task_id, f"{task_id} is halted", as_json=as_json)


@tasks.command("continue", epilog="Example:  layby tasks continue job-7")
@click.argument("task_id", metavar="ID")
@reaching
@as_json
def continue_(place: Place, task_id: str, *, as_json: bool) -> None:
    """Continue a halted task."""
    _do(place, ContinueTask(id=task_id), task_id, f"{task_id} is continued", as_json=as_json)


@tasks.command(epilog="Example:  layby tasks search --state halted")
@click.option("--state", type=click.Choice(STATES), help="Only those in this state.")
@click.option("--target", help="Only those of this address.")
@tagged("Only those whose promise has this tag; give it again for more.")
@limited(100)
@reaching
@as_json
def search(
    place: Place, state: Any, target: str | None, tags: Any, limit: int, *, as_json: bool
) -> None:
    """List tasks by id."""
    query = SearchTasks(state=state, target=target, tags=tags_of(tags))
    rows, is_cut = listed(place, query, limit)
    found: list[Task] = rows
    if as_json:
        showing.print_json({"tasks": [record_views.task_json(each) for each in found]})
        return
    showing.print_found(
        "tasks",
        ("TASK", "STATE", "VERSION", "PID"),
        (
            (
                showing.plain(each.id),
                showing.state(each.state),
                str(each.version),
                showing.plain(each.pid if each.state == "acquired" else "-"),
            )
            for each in found
        ),
        cut_at=limit if is_cut else None,
    )


def _claim(place: Place, command: Command, task_id: str, *, as_json: bool) -> None:
    data = _sent(place, command, task_id, ClaimData)
    if as_json:
        showing.print_json(
            {
                "task": record_views.task_json(data.task),
                "promise": record_views.promise_json(data.promise),
                "preload": [record_views.promise_json(each) for each in data.preload],
            }
        )
        return
    fields = (*record_views.task_fields(data.task), ("param", showing.value(data.promise.param)))
    showing.print_fields((name, showing.plain(each)) for name, each in fields)


def _print_task(task: Task, *, as_json: bool) -> None:
    if as_json:
        showing.print_json({"task": record_views.task_json(task)})
    else:
        showing.print_fields(record_views.task_fields(task))


def _do(place: Place, command: Command, task_id: str, told: str, *, as_json: bool) -> None:
    """Send a command whose answer has no data, and print what happened."""
    reply = ask(place, lambda client: _reply(client, command, task_id))
    if reply.status == 300:
        raise Conflict(f"{task_id} is not suspended: one of the promises is already settled")
    showing.print_json({"ok": True}) if as_json else showing.print_line(told)


def _sent(place: Place, command: Command, task_id: str, kind: type[Any]) -> Any:
    reply = ask(place, lambda client: _reply(client, command, task_id))
    return expect(reply, kind, f"task '{task_id}'")


async def _reply(client: Client, command: Command, task_id: str) -> Reply:
    reply = await client.send(command)
    if reply.status == 404:
        raise await unknown(client, task_id, "task")
    if reply.status == 409:
        raise Conflict(await _conflict(client, task_id, str(reply.data)))
    expect(reply, object, f"task '{task_id}'" if task_id else command.kind)
    return reply


async def _conflict(client: Client, task_id: str, why: str) -> str:
    """The refusal, and how the task stands: it may be another's by now, or at another version."""
    text = f"task '{task_id}': {why[:1].lower()}{why[1:]}"
    data = (await client.send(GetTask(id=task_id))).data
    if not isinstance(data, TaskData):
        return text
    task = data.task
    by = f" by {task.pid}" if task.state == "acquired" and task.pid else ""
    stands = f"it is {task.state}{by} at version {task.version}"
    return f"{text}: {stands}, see `layby tasks get {task_id}`"


def _fence(task_id: str, version: int, action: object) -> FenceTask:
    data = {"id": task_id, "version": version, "action": action}
    decoded = decode_data(FenceTask.kind, msgspec.json.encode(data))
    if isinstance(decoded, Reply):
        why = str(decoded.data).removeprefix("Invalid request: ")
        remedy = "write a promise.create or promise.settle, see `layby tasks fence --help`"
        raise UsageError(f"--action: {why}: {remedy}")
    assert isinstance(decoded, FenceTask)
    return decoded


def _task_version(text: str) -> TaskVersion:
    task_id, _, version = text.rpartition("=")
    if not task_id or not version.isdecimal():
        raise UsageError(f"--task {text!r}: write ID=VERSION, for example job-7=1")
    return TaskVersion(task_id, int(version))
