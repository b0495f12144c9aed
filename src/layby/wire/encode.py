"""Replies as the wire shows them: exact records, omitted keys omitted, never null."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from layby.core import replies, snapshot
from layby.core.model import Holder, Message, Promise, Schedule, Task
from layby.core.replies import Reply
from layby.core.state import State
from layby.wire.decode import BATCH, VERSION

PIECE_BYTES: Final = 2**20
_encode = msgspec.json.Encoder().encode


class PromiseRecord(Struct, rename="camel"):
    id: str
    state: str
    param: Raw
    value: Raw
    tags: Raw
    timeout_at: int
    created_at: int
    settled_at: int | UnsetType = UNSET


class TaskRecord(Struct, rename="camel"):
    id: str
    state: str
    version: int
    resumes: int
    ttl: int | UnsetType = UNSET
    pid: str | UnsetType = UNSET


class ScheduleRecord(Struct, rename="camel"):
    id: str
    cron: str
    promise_id: str
    promise_timeout: int
    promise_param: Raw
    promise_tags: Raw
    created_at: int
    next_run_at: int
    last_run_at: int | UnsetType = UNSET
    flow: str | UnsetType = UNSET
    timezone: str | UnsetType = UNSET
    catch_up: bool | UnsetType = UNSET


def encode(kind: str, corr_id: str, reply: Reply) -> bytes:
    head = {"corrId": corr_id, "status": reply.status, "version": VERSION}
    return _encode({"kind": kind, "head": head, "data": shown(reply, corr_id)})


def encode_batch(corr_id: str, answers: Iterable[bytes]) -> Iterator[bytes]:
    """The answer to a batch: those to its requests, in their order; in pieces when it is large."""
    head = {"corrId": corr_id, "status": 200, "version": VERSION}
    piece = bytearray(_encode({"kind": BATCH, "head": head})[:-1])
    separator = b',"data":{"replies":['
    for answer in answers:
        piece += separator + answer
        separator = b","
        if len(piece) > PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece) + (b"]}}" if separator == b"," else separator + b"]}}")


def encode_message(row: Message, about: Promise | None, server_url: str) -> bytes:
    """A message as it leaves; who gets an execute is told where to answer."""
    shown = message(row, about)
    if row.kind == "execute":
        shown["head"] = {"serverUrl": server_url}
    return _encode(shown)


def shown(reply: Reply, corr_id: str) -> Any:
    """The `data` of a reply, ready to be encoded."""
    if isinstance(reply.data, replies.FenceData):
        return _fence(reply.data, corr_id)
    show = _SHOWN.get(type(reply.data))
    return reply.data if show is None else show(reply.data)


def promise(row: Promise) -> PromiseRecord:
    return PromiseRecord(
        id=row.id,
        state=row.state,
        param=Raw(row.param.encode()),
        value=Raw(row.value.encode()),
        tags=Raw(row.tags.encode()),
        timeout_at=row.timeout_at,
        created_at=row.created_at,
        settled_at=UNSET if row.settled_at is None else row.settled_at,
    )


def task(row: Task) -> TaskRecord:
    return TaskRecord(
        id=row.id,
        state=row.state,
        version=row.version,
        resumes=len(row.resumes),
        ttl=UNSET if row.ttl is None else row.ttl,
        pid=UNSET if row.pid is None or row.state != "acquired" else row.pid,
    )


def schedule(row: Schedule) -> ScheduleRecord:
    """One that starts runs shows more than the protocol's."""
    ours = row.flow is not None
    return ScheduleRecord(
        id=row.id,
        cron=row.cron,
        promise_id=row.promise_id,
        promise_timeout=row.promise_timeout,
        promise_param=Raw(row.promise_param.encode()),
        promise_tags=Raw(row.promise_tags.encode()),
        created_at=row.created_at,
        next_run_at=row.next_run_at,
        last_run_at=UNSET if row.last_run_at is None else row.last_run_at,
        flow=UNSET if row.flow is None else row.flow,
        timezone=row.timezone if ours else UNSET,
        catch_up=row.catch_up if ours else UNSET,
    )


def message(row: Message, about: Promise | None) -> dict[str, Any]:
    if about is not None:
        return {"kind": "unblock", "head": {}, "data": {"promise": promise(about)}}
    return {"kind": row.kind, "head": {}, "data": {"task": {"id": row.id, "version": row.version}}}


def _fence(data: replies.FenceData, corr_id: str) -> dict[str, Any]:
    head = {"corrId": corr_id, "status": data.reply.status, "version": VERSION}
    inner = {"kind": data.kind, "head": head, "data": shown(data.reply, corr_id)}
    return {"action": inner, "preload": _promises(data.preload)}


def _snapshot(state: State) -> dict[str, Any]:
    return {
        "promises": _promises(snapshot.promises(state)),
        "promiseTimeouts": snapshot.promise_timeouts(state),
        "callbacks": snapshot.callbacks(state),
        "listeners": snapshot.listeners(state),
        "tasks": [task(row) for row in snapshot.tasks(state)],
        "taskTimeouts": snapshot.task_timeouts(state),
        "messages": [
            {"address": row.address, "message": message(row, _about(state, row))}
            for row in snapshot.messages(state)
        ],
    }


def _about(state: State, row: Message) -> Promise | None:
    return state.promises[row.id] if row.kind == "unblock" else None


def _promises(rows: Sequence[Promise]) -> list[PromiseRecord]:
    return [promise(row) for row in rows]


def _taken(taken: replies.TakeData) -> dict[str, Any]:
    claims = [_claim(each) for each in taken.claims]
    left = taken.oldest_left
    return {"claims": claims} if left is None else {"claims": claims, "oldestLeft": left}


def _claim(claim: replies.Claim) -> dict[str, Any]:
    record: dict[str, Any] = {
        "task": held_task(claim.task),
        "promise": promise(claim.promise),
        "readyAt": claim.ready_at,
    }
    if claim.root_param is not None:
        record["rootParam"] = Raw(claim.root_param.encode())
    return record


def _root(row: Promise | None) -> dict[str, Any]:
    return {} if row is None else {"root": promise(row)}


def held_task(row: Task) -> dict[str, Any]:
    """Our own workers see more of a task than the protocol shows."""
    ours = {
        "name": row.name,
        "kind": row.kind,
        "group": row.group,
        "target": row.target,
        "readyAt": row.ready_at,
        "waitsLeft": row.waits_left,
        "failures": row.failures,
        "crashes": row.crashes,
        "error": _raw(row.error),
        "subStatus": row.sub_status or ("Active" if row.state == "acquired" else None),
        "waitingOn": _raw(row.waiting_on),
        "progress": _raw(row.progress),
        "history": _raw(row.history),
        "tries": row.tries,
        "ahead": row.ahead or None,
        "deadlines": _raw(row.deadlines),
    }
    record: dict[str, Any] = msgspec.to_builtins(task(row))
    return record | {key: value for key, value in ours.items() if value is not None}


def _annotated(row: Task) -> dict[str, Any]:
    """Who annotates hears until when its waits last."""
    record: dict[str, Any] = msgspec.to_builtins(task(row))
    return record if row.deadlines is None else record | {"deadlines": _raw(row.deadlines)}


def _raw(text: str | None) -> Raw | None:
    return None if text is None else Raw(text.encode())


def _row(about: Promise, held: Task | None) -> dict[str, Any]:
    shown: dict[str, Any] = {"promise": promise(about)}
    return shown if held is None else shown | {"task": held_task(held)}


def _explanation(about: replies.Explanation) -> dict[str, Any]:
    """Also what stands around the promise; whose code a worker has stays with us."""
    shown = _row(about.promise, None) | {
        "awaited": [_row(*row) for row in about.awaited],
        "moreAwaited": about.more_awaited,
        "awaiters": about.awaiters,
        "moreAwaiters": about.more_awaiters,
        "listeners": about.listeners,
        "workers": about.workers,
        "ableWorkers": about.able_workers,
    }
    if about.task is not None:
        shown["task"] = explained_task(about.task)
    if about.holder is not None:
        shown["holder"] = _holder(about.holder)
    return shown


def explained_task(row: Task) -> dict[str, Any]:
    """All that people may want to know of a task."""
    more = {"wakeAt": row.wake_at, "waitingSince": row.waiting_since}
    return held_task(row) | {key: value for key, value in more.items() if value is not None}


def _holder(row: Holder) -> dict[str, Any]:
    return {
        "pid": row.pid,
        "group": row.group,
        "embedded": row.embedded,
        "ttl": row.ttl,
        "expiresAt": row.expires_at,
        "standing": row.standing,
        "held": row.held,
    }


def _page(key: str, rows: list[Any], cursor: str | None) -> dict[str, Any]:
    return {key: rows} if cursor is None else {key: rows, "cursor": cursor}


_SHOWN: dict[type[Any], Callable[[Any], Any]] = {
    replies.Empty: lambda _: {},
    replies.PromiseData: lambda d: {"promise": promise(d.promise)},
    replies.TaskData: lambda d: {"task": task(d.task)},
    replies.ScheduleData: lambda d: {"schedule": schedule(d.schedule)},
    replies.PreloadData: lambda d: {"preload": _promises(d.preload)},
    replies.ClaimData: lambda d: {
        "task": task(d.task),
        "promise": promise(d.promise),
        "preload": _promises(d.preload),
    },
    replies.PromisePage: lambda d: _page("promises", _promises(d.promises), d.cursor),
    replies.TaskPage: lambda d: _page("tasks", [task(row) for row in d.tasks], d.cursor),
    replies.SchedulePage: lambda d: _page(
        "schedules", [schedule(row) for row in d.schedules], d.cursor
    ),
    replies.RowPage: lambda d: _page("rows", [_row(*row) for row in d.rows], d.cursor),
    replies.TakeData: _taken,
    replies.FinishData: lambda d: {
        "promise": promise(d.promise),
        **_taken(d.taken),
        **_root(d.root),
    },
    replies.FailData: lambda d: {
        "promise": promise(d.promise),
        "task": task(d.task),
        **_taken(d.taken),
        **_root(d.root),
    },
    replies.RunData: lambda d: {
        "promise": promise(d.promise),
        "created": d.created,
        **_taken(d.taken),
    },
    replies.AnnotateData: lambda d: (
        {"task": _annotated(d.task)} | ({} if d.record is None else {"record": promise(d.record)})
    ),
    replies.HeartbeatData: lambda d: {
        "lost": [{"id": m.id, "version": m.version} for m in d.lost],
        "agrees": d.agrees,
        "now": d.now,
    },
    replies.Explanation: _explanation,
    replies.WaitingPage: lambda d: _page(
        "entries", [_explanation(each) for each in d.entries], d.cursor
    ),
    State: _snapshot,
}
