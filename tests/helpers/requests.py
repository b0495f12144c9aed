"""Commands as tests write them: only what matters is named."""

from typing import Any

from msgspec import Raw, json

from layby.core import commands as c
from layby.core.model import NEVER
from layby.core.resumption import TRIGGER_GROUP

OTHER = "poll://any@other"
WORKER = "poll://uni@other/w"


def promise(promise_id: str, timeout_at: int = NEVER - 1, **tags: str) -> c.CreatePromise:
    """Tags are named without their `resonate:`."""
    named = {f"resonate:{name}": text for name, text in tags.items()}
    return c.CreatePromise(id=promise_id, timeout_at=timeout_at, tags=named)


def target(promise_id: str, timeout_at: int = NEVER - 1, **tags: str) -> c.CreatePromise:
    """A promise with a task, dispatched by `execute`."""
    return promise(promise_id, timeout_at, **{"target": OTHER} | tags)


def claimed(
    task_id: str, timeout_at: int = NEVER - 1, pid: str = "p", ttl: int = 5_000, **tags: str
) -> c.CreateTask:
    """A promise whose task is born acquired at version 1."""
    action = c.CreateAction("promise.create", {}, target(task_id, timeout_at, **tags))
    return c.CreateTask(pid=pid, ttl=ttl, action=action)


def settle(promise_id: str, state: str = "resolved") -> c.SettlePromise:
    return c.SettlePromise(id=promise_id, state=state)


def acquire(task_id: str, version: int, pid: str = "p", ttl: int = 5_000) -> c.AcquireTask:
    return c.AcquireTask(id=task_id, version=version, pid=pid, ttl=ttl)


def fulfill(task_id: str, version: int, state: str = "resolved") -> c.FulfillTask:
    action = c.SettleAction("promise.settle", {}, settle(task_id, state))
    return c.FulfillTask(id=task_id, version=version, action=action)


def suspend(task_id: str, version: int, *awaited: str) -> c.SuspendTask:
    waits = [c.RegisterCallback(awaited=each, awaiter=task_id) for each in awaited]
    actions = [c.SuspendAction("promise.register_callback", {}, wait) for wait in waits]
    return c.SuspendTask(id=task_id, version=version, actions=actions)


def beat(pid: str, *tasks: tuple[str, int]) -> c.HeartbeatTasks:
    return c.HeartbeatTasks(pid=pid, tasks=[c.TaskVersion(*each) for each in tasks])


def callback(awaited: str, awaiter: str) -> c.RegisterCallback:
    return c.RegisterCallback(awaited=awaited, awaiter=awaiter)


def take(
    free: int = 10,
    pid: str = "p",
    incarnation: str = "1",
    ttl: int = 60_000,
    wait_ms: int = 0,
    *,
    names: tuple[str, ...] = ("f", "root"),
    group: str = "g",
    embedded: bool = False,
    prefix: str = "",
) -> c.Take:
    return c.Take(
        pid=pid,
        incarnation=incarnation,
        group=group,
        names=names,
        free=free,
        ttl=ttl,
        wait_ms=wait_ms,
        embedded=embedded,
        prefix=prefix,
    )


def run(
    run_id: str = "run/a",
    timeout: int = NEVER,
    with_take: c.Take | None = None,
    **after: str,
) -> c.StartRun:
    """Nodes by name, each with the names it depends on: `run(a="", b="a", c="a b")`."""
    return dag(after, run_id, timeout, with_take)


def dag(
    after: dict[str, str],
    run_id: str = "run/a",
    timeout: int = NEVER,
    with_take: c.Take | None = None,
) -> c.StartRun:
    nodes = tuple(
        c.Node(id=name, name="f", after=tuple(before.split())) for name, before in after.items()
    )
    return c.StartRun(
        id=run_id, name="root", group="g", nodes=nodes, timeout=timeout, take=with_take
    )


def nightly(**changed: Any) -> c.CreateRunSchedule:
    """A schedule of runs of one node."""
    nodes = (c.Node(id="a", name="f"),)
    given = {"id": "nightly", "cron": "0 3 * * *", "name": "root", "group": "g", "nodes": nodes}
    return c.CreateRunSchedule(**given | changed)


def finish(task_id: str, version: int = 1, with_take: c.Take | None = None) -> c.FinishTask:
    return c.FinishTask(id=task_id, version=version, take=with_take)


def fail(task_id: str, version: int = 1, retry_in: int | None = None) -> c.FailTask:
    error = c.Value(data="ZXJy")
    return c.FailTask(id=task_id, version=version, error=error, retry_in=retry_in)


def trigger(kind: str, *, on_cancel: bool = False, **args: Any) -> c.TriggerSpec:
    return c.TriggerSpec(kind, Raw(json.encode(args)), on_cancel)


def defer(
    task_id: str,
    version: int,
    spec: c.TriggerSpec,
    timeout: int | None = None,
    resume: str | None = None,
    *,
    bare: bool = False,
    **kwargs: Any,
) -> c.DeferTask:
    named = c.ResumeSpec(resume, Raw(json.encode(kwargs)), bare=bare)
    return c.DeferTask(id=task_id, version=version, trigger=spec, resume=named, timeout=timeout)


def take_triggers(
    *names: str, free: int = 10, pid: str = "m", incarnation: str = "1", ttl: int = 60_000
) -> c.Take:
    return take(free, pid, incarnation, ttl, names=names or ("Poll",), group=TRIGGER_GROUP)
