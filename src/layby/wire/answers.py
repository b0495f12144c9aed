"""Answers as a client reads them: the same values an engine in this process would give.

Only what the wire shows comes back: fields of rows that a record leaves out have their defaults.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw, Struct, UnsetType, structs

from layby.core import replies
from layby.core.commands import Command
from layby.core.model import Holder, Message, Promise, Schedule, Task
from layby.core.queries import Query
from layby.core.replies import Reply
from layby.errors import WireError
from layby.wire.encode import PromiseRecord, ScheduleRecord

ABSENT = Raw()


class Head(Struct, frozen=True, rename="camel"):
    status: int
    corr_id: str = "0"


class AnswerEnvelope(Struct, frozen=True):
    kind: str
    head: Head
    data: Raw


class HeldTask(Struct, frozen=True, rename="camel"):
    """A task as the protocol shows it, and what only layby's own kinds show of one.

    The protocol does not tell tries: by it, each claim is one.
    """

    id: str
    state: Any
    version: int
    resumes: int = 0
    ttl: int | None = None
    pid: str | None = None
    name: str | None = None
    kind: Any = None
    group: str | None = None
    target: str = ""
    ready_at: int | None = None
    waits_left: int = 0
    failures: int = 0
    crashes: int = 0
    error: Raw = ABSENT
    sub_status: str | None = None
    waiting_on: Raw = ABSENT
    progress: Raw = ABSENT
    history: Raw = ABSENT
    wake_at: int | None = None
    waiting_since: int | None = None
    tries: int | None = None
    ahead: bool = False
    deadlines: Raw = ABSENT

    def row(self) -> Task:
        return Task(
            id=self.id,
            target=self.target,
            group=self.group,
            name=self.name,
            kind=self.kind,
            state=self.state,
            version=self.version,
            pid=self.pid,
            ttl=self.ttl,
            ready_at=self.ready_at,
            waits_left=self.waits_left,
            failures=self.failures,
            crashes=self.crashes,
            error=_text(self.error),
            sub_status=self.sub_status,
            waiting_on=_text(self.waiting_on),
            progress=_text(self.progress),
            history=_text(self.history),
            wake_at=self.wake_at,
            waiting_since=self.waiting_since,
            tries=self.version if self.tries is None else self.tries,
            ahead=self.ahead,
            deadlines=_text(self.deadlines),
        )


class ClaimRecord(Struct, frozen=True, rename="camel"):
    task: HeldTask
    promise: PromiseRecord
    ready_at: int = 0
    root_param: Raw = Raw()

    def row(self) -> replies.Claim:
        root_param = bytes(self.root_param).decode() or None
        return replies.Claim(self.task.row(), promise(self.promise), self.ready_at, root_param)


class LostRecord(Struct, frozen=True):
    id: str
    version: int


class Row(Struct, frozen=True):
    promise: PromiseRecord
    task: HeldTask | None = None


class HolderRecord(Struct, frozen=True, rename="camel"):
    """Without its incarnation, by which a worker proves who it is."""

    pid: str
    group: str
    embedded: bool
    ttl: int
    expires_at: int
    standing: Any
    held: int = 0

    def row(self) -> Holder:
        return Holder(incarnation="", **structs.asdict(self))


class Explained(Struct, frozen=True, rename="camel"):
    """What `layby.promise.explain` says, and each entry of `layby.waiting.list`."""

    promise: PromiseRecord
    task: HeldTask | None = None
    awaited: tuple[Row, ...] = ()
    more_awaited: bool = False
    awaiters: tuple[str, ...] = ()
    more_awaiters: bool = False
    listeners: int = 0
    holder: HolderRecord | None = None
    workers: int = 0
    able_workers: int = 0

    def read(self) -> replies.Explanation:
        return replies.Explanation(
            *_row(Row(self.promise, self.task)),
            awaited=[_row(each) for each in self.awaited],
            more_awaited=self.more_awaited,
            awaiters=self.awaiters,
            more_awaiters=self.more_awaiters,
            listeners=self.listeners,
            holder=None if self.holder is None else self.holder.row(),
            workers=self.workers,
            able_workers=self.able_workers,
        )


class Entries(Struct, frozen=True):
    entries: tuple[Explained, ...]
    cursor: str | None = None

    def read(self) -> replies.WaitingPage:
        return replies.WaitingPage([each.read() for each in self.entries], self.cursor)


class Action(Struct, frozen=True):
    kind: str
    head: Head
    data: Raw


class Answer(Struct, frozen=True, rename="camel"):
    """Whatever `data` may hold; which of it there is depends on the kind."""

    promise: PromiseRecord | None = None
    task: HeldTask | None = None
    schedule: ScheduleRecord | None = None
    record: PromiseRecord | None = None
    action: Action | None = None
    preload: tuple[PromiseRecord, ...] = ()
    claims: tuple[ClaimRecord, ...] = ()
    promises: tuple[PromiseRecord, ...] = ()
    tasks: tuple[HeldTask, ...] = ()
    schedules: tuple[ScheduleRecord, ...] = ()
    rows: tuple[Row, ...] = ()
    lost: tuple[LostRecord, ...] = ()
    agrees: bool = True
    now: int | None = None
    created: bool = False
    cursor: str | None = None
    root: PromiseRecord | None = None
    oldest_left: int | None = None


class MessageData(Struct, frozen=True):
    task: LostRecord | None = None
    promise: PromiseRecord | None = None


class MessageEnvelope(Struct, frozen=True):
    """What comes on a stream."""

    kind: str
    data: MessageData


class Replies(Struct, frozen=True):
    replies: tuple[Raw, ...]


_envelopes = msgspec.json.Decoder(AnswerEnvelope)
_answers = msgspec.json.Decoder(Answer)
_texts = msgspec.json.Decoder(str)
_batches = msgspec.json.Decoder(Replies)
_messages = msgspec.json.Decoder(MessageEnvelope)


def read(request: Command | Query, body: bytes) -> Reply:
    """The reply to this request; WireError when that is no answer to it."""
    return _read(body, lambda envelope: _reply(request.kind, envelope))


def read_batch(body: bytes) -> Reply | tuple[bytes, ...]:
    """The answers to the requests of a batch; a Reply when the batch was refused as a whole."""

    def answers(envelope: AnswerEnvelope) -> Any:
        if envelope.head.status >= 400:
            return Reply(envelope.head.status, _texts.decode(envelope.data))
        return tuple(bytes(each) for each in _batches.decode(envelope.data).replies)

    return _read(body, answers)


def read_message(body: bytes) -> MessageEnvelope:
    return _read_as(_messages, body)


def promise(record: PromiseRecord) -> Promise:
    tags = bytes(record.tags).decode()
    return Promise(
        id=record.id,
        root="",
        param=bytes(record.param).decode(),
        tags=tags,
        timeout_at=record.timeout_at,
        created_at=record.created_at,
        timer='"resonate:timer":"true"' in tags,
        state=record.state,  # pyright: ignore[reportArgumentType] - whatever the server calls it
        value=bytes(record.value).decode(),
        settled_at=None if isinstance(record.settled_at, UnsetType) else record.settled_at,
    )


def _read(body: bytes, then: Callable[[AnswerEnvelope], Any]) -> Any:
    envelope = _read_as(_envelopes, body)
    try:
        return then(envelope)
    except (msgspec.MsgspecError, UnicodeDecodeError, AssertionError) as error:
        raise WireError(f"the server's answer to {envelope.kind} cannot be read: {error}") from None


def _read_as(decoder: "msgspec.json.Decoder[Any]", body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        shown = body[:200].decode(errors="replace")
        raise WireError(f"this is no answer of a layby server ({error}): {shown!r}") from None


def _reply(kind: str, envelope: AnswerEnvelope) -> Reply:
    status = envelope.head.status
    if status >= 400:
        return Reply(status, _texts.decode(envelope.data))
    if kind in _OWN_FORM:
        return Reply(status, _OWN_FORM[kind].decode(envelope.data).read())
    return Reply(status, _data(kind, _answers.decode(envelope.data)))


def _data(kind: str, answer: Answer) -> Any:
    if kind in _BY_KIND:
        return _BY_KIND[kind](answer)
    if answer.promise is not None:
        return replies.PromiseData(promise(answer.promise))
    if answer.task is not None:
        return replies.TaskData(answer.task.row())
    if answer.schedule is not None:
        return replies.ScheduleData(_schedule(answer.schedule))
    return replies.PreloadData(_promises(answer)) if answer.preload else replies.Empty()


def _fence(answer: Answer) -> replies.FenceData:
    action = answer.action
    assert action is not None
    inner = AnswerEnvelope(action.kind, action.head, action.data)
    return replies.FenceData(action.kind, _reply(action.kind, inner), _promises(answer))


def _claimed(answer: Answer) -> replies.ClaimData:
    assert answer.task is not None
    return replies.ClaimData(answer.task.row(), _promise(answer), _promises(answer))


def _taken(answer: Answer) -> replies.TakeData:
    claims = [claim.row() for claim in answer.claims]
    return replies.TakeData(claims, oldest_left=answer.oldest_left)


def _root(answer: Answer) -> Promise | None:
    return None if answer.root is None else promise(answer.root)


def _finished(answer: Answer) -> replies.FinishData:
    return replies.FinishData(_promise(answer), _taken(answer), _root(answer))


def _failed(answer: Answer) -> replies.FailData:
    assert answer.task is not None
    return replies.FailData(_promise(answer), answer.task.row(), _taken(answer), _root(answer))


def _annotated(answer: Answer) -> replies.AnnotateData:
    assert answer.task is not None
    record = None if answer.record is None else promise(answer.record)
    return replies.AnnotateData(answer.task.row(), record)


def _heard(answer: Answer) -> replies.HeartbeatData:
    lost = [Message(each.id, "lost", "", each.version) for each in answer.lost]
    return replies.HeartbeatData(lost, answer.agrees, answer.now)


def _promise(answer: Answer) -> Promise:
    assert answer.promise is not None
    return promise(answer.promise)


def _promises(answer: Answer) -> list[Promise]:
    return [promise(each) for each in answer.preload]


def _schedule(record: ScheduleRecord) -> Schedule:
    last = record.last_run_at
    return Schedule(
        id=record.id,
        cron=record.cron,
        promise_id=record.promise_id,
        promise_timeout=record.promise_timeout,
        promise_param=bytes(record.promise_param).decode(),
        promise_tags=bytes(record.promise_tags).decode(),
        created_at=record.created_at,
        next_run_at=record.next_run_at,
        last_run_at=None if isinstance(last, UnsetType) else last,
        timezone=record.timezone or "UTC",
        catch_up=record.catch_up is not False,
        flow=record.flow or None,
    )


def _text(raw: Raw) -> str | None:
    return bytes(raw).decode() or None


_BY_KIND: dict[str, Callable[[Answer], Any]] = {
    "task.create": _claimed,
    "task.acquire": _claimed,
    "task.fence": _fence,
    "promise.search": lambda a: replies.PromisePage([promise(p) for p in a.promises], a.cursor),
    "task.search": lambda a: replies.TaskPage([each.row() for each in a.tasks], a.cursor),
    "schedule.search": lambda a: replies.SchedulePage(
        [_schedule(each) for each in a.schedules], a.cursor
    ),
    "layby.worker.list": lambda a: replies.TaskPage([each.row() for each in a.tasks], a.cursor),
    "layby.worker.take": _taken,
    "layby.worker.heartbeat": _heard,
    "layby.task.finish": _finished,
    "layby.task.fail": _failed,
    "layby.task.annotate": _annotated,
    "layby.run.start": lambda a: replies.RunData(_promise(a), a.created, _taken(a)),
    "layby.run.get": lambda a: replies.RowPage([_row(each) for each in a.rows], a.cursor),
    "layby.task.records": lambda a: replies.RowPage([_row(each) for each in a.rows], a.cursor),
    "layby.run.list": lambda a: replies.RowPage([_row(each) for each in a.rows], a.cursor),
}


def _row(row: Row) -> tuple[Promise, Task | None]:
    return promise(row.promise), None if row.task is None else row.task.row()


_OWN_FORM: "dict[str, msgspec.json.Decoder[Any]]" = {
    "layby.promise.explain": msgspec.json.Decoder(Explained),
    "layby.waiting.list": msgspec.json.Decoder(Entries),
}
"""Kinds whose answers have nothing in common with the others."""
