"""A request was sent twice and refused: did the first copy succeed and only its reply get lost?

A task that is settled with our value, or acquired for our pid at the next version, is our doing.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from layby.core.commands import (
    AcquireTask,
    Command,
    ContinueTask,
    CreateTask,
    DeleteSchedule,
    FailTask,
    FinishTask,
    FulfillTask,
    GetPromise,
    GetTask,
    ReleaseTask,
    SuspendTask,
    Value,
)
from layby.core.model import Promise, Task
from layby.core.queries import Query
from layby.core.replies import (
    OK,
    ClaimData,
    FailData,
    FinishData,
    PromiseData,
    Reply,
    TaskData,
    ok,
)

Read = Callable[[Command | Query], Awaitable[Reply]]


async def recovered_reply(read: Read, request: Command | Query, refusal: Reply) -> Reply:
    """The reply that was lost, or the refusal if this was not our doing."""
    match request:
        case FinishTask(id=task_id, state=state, value=value):
            promise = await _settled(read, task_id, state, value)
            if promise is None:
                return refusal
            return ok(FinishData(promise, root=await _root(read, request)))
        case FulfillTask(id=task_id):
            settle = request.action.data
            promise = await _settled(read, task_id, settle.state, settle.value)
            return refusal if promise is None else ok(PromiseData(promise))
        case FailTask():
            return await _failed(read, request) or refusal
        case AcquireTask(id=task_id, pid=pid, version=version):
            return await _claimed(read, task_id, pid, version + 1) or refusal
        case CreateTask(pid=pid):
            return await _claimed(read, request.action.data.id, pid, None) or refusal
        case ReleaseTask() | SuspendTask() | ContinueTask():
            task = await _task(read, request.id)
            return OK if task is not None and _has_moved(task, request) else refusal
        case DeleteSchedule():
            return OK  # whoever deleted it, it is gone
        case _:
            return refusal


def _has_moved(task: Task, request: ReleaseTask | SuspendTask | ContinueTask) -> bool:
    """Whether the task is in the state the request asked for, or has moved on from there."""
    if isinstance(request, ContinueTask):
        return task.state in ("pending", "acquired")
    if isinstance(request, SuspendTask):
        return task.version == request.version and task.state in ("suspended", "pending")
    is_free = task.version == request.version and task.state != "acquired"
    return is_free or task.version > request.version


async def _failed(read: Read, fail: FailTask) -> Reply | None:
    """Back-off leaves a timer that only this try can have created."""
    promise, task = await _promise(read, fail.id), await _task(read, fail.id)
    if promise is None or task is None:
        return None
    if fail.retry_in is None:
        is_ours = _is(promise, "rejected", fail.error)
    else:
        is_ours = await _promise(read, fail.backoff_id) is not None
    if not is_ours:
        return None
    root = await _root(read, fail) if fail.retry_in is None else None
    return ok(FailData(promise, task, root=root))


async def _root(read: Read, command: FinishTask | FailTask) -> Promise | None:
    """The root of the run, if it is settled as the verdict in the command says."""
    verdict = command.root
    if verdict is None:
        return None
    return await _settled(read, command.root_id, verdict.state, verdict.value)


async def _settled(read: Read, promise_id: str, state: str, value: Value) -> Promise | None:
    """The promise, if it is settled as we would have settled it."""
    promise = await _promise(read, promise_id)
    return promise if promise is not None and _is(promise, state, value) else None


async def _claimed(read: Read, task_id: str, pid: str, version: int | None) -> Reply | None:
    task, promise = await _task(read, task_id), await _promise(read, task_id)
    if task is None or promise is None or task.state != "acquired" or task.pid != pid:
        return None
    return ok(ClaimData(task, promise)) if version in (None, task.version) else None


async def _promise(read: Read, promise_id: str) -> Promise | None:
    data = (await read(GetPromise(id=promise_id))).data
    return data.promise if isinstance(data, PromiseData) else None


async def _task(read: Read, task_id: str) -> Task | None:
    data = (await read(GetTask(id=task_id))).data
    return data.task if isinstance(data, TaskData) else None


def _is(promise: Promise, state: str, value: Value) -> bool:
    stored: Any = msgspec.json.decode(promise.value)
    return promise.state == state and stored == msgspec.to_builtins(value)
