"""Refused, though an earlier copy of the request may have arrived: was it that one?

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
    FailTask,
    FinishTask,
    FulfillTask,
    GetPromise,
    GetTask,
    Query,
    ReleaseTask,
    Value,
)
from layby.core.model import Promise, Task
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


async def resolved(read: Read, request: Command | Query, refusal: Reply) -> Reply:
    """The answer the lost one must have been, or the refusal when it was not our doing."""
    match request:
        case FinishTask(id=promise_id, state=state, value=value):
            promise = await _promise(read, promise_id)
            return ok(FinishData(promise)) if _is(promise, state, value) and promise else refusal
        case FulfillTask(id=promise_id):
            settle = request.action.data
            promise = await _promise(read, promise_id)
            is_ours = _is(promise, settle.state, settle.value)
            return ok(PromiseData(promise)) if is_ours and promise else refusal
        case FailTask():
            return await _failed(read, request) or refusal
        case AcquireTask(id=task_id, pid=pid, version=version):
            return await _claimed(read, task_id, pid, version + 1) or refusal
        case CreateTask(pid=pid):
            return await _claimed(read, request.action.data.id, pid, None) or refusal
        case ReleaseTask(id=task_id, version=version):
            task = await _task(read, task_id)
            is_free = task is not None and task.state != "acquired" and task.version == version
            return OK if is_free else refusal
        case ContinueTask(id=task_id):
            task = await _task(read, task_id)
            return OK if task is not None and task.state in ("pending", "acquired") else refusal
        case _:
            return refusal


async def _failed(read: Read, fail: FailTask) -> Reply | None:
    """Back-off leaves a timer that only this very try can have made."""
    promise, task = await _promise(read, fail.id), await _task(read, fail.id)
    if promise is None or task is None:
        return None
    if fail.retry_at is None:
        is_ours = _is(promise, "rejected", fail.error)
    else:
        is_ours = await _promise(read, fail.backoff_id) is not None
    return ok(FailData(promise, task)) if is_ours else None


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


def _is(promise: Promise | None, state: str, value: Value) -> bool:
    if promise is None or promise.state != state:
        return False
    told: Any = msgspec.json.decode(promise.value)
    return told == msgspec.to_builtins(value)
