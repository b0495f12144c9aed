"""Rows as the wire shows them, one struct for each and for both directions.

`of` makes the record of a row; `row` makes the row again from what the wire shows, where fields
that are not shown have their defaults. A key that has nothing to say is absent, never null.
"""

from collections.abc import Iterable
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.json import Decoder
from msgspec.structs import asdict, replace

from layby.core import birth, tag_names
from layby.core.codes import Refusals
from layby.core.fields import Tags
from layby.core.model import (
    EMPTY,
    Holder,
    Message,
    NodeKind,
    Promise,
    PromiseState,
    Standing,
    Task,
    TaskState,
)
from layby.core.replies import (
    Claim,
    ClaimData,
    Explanation,
    LimitStanding,
    Resumed,
    TriggerEvent,
)
from layby.core.schedule_row import Overlap, Schedule
from layby.core.waits import ShownState, shown_state
from layby.wire.large_texts import raw

Pair = tuple[Promise, Task | None]
_deadlines, _awaited = Decoder(dict[str, int]), Decoder(dict[str, str])
_refusals, _limit_names = Decoder(Refusals), Decoder(tuple[str, ...])
Json = Raw | UnsetType
"""Encoded already, or absent."""


_tags = Decoder(Tags)


class WireRecord(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The default is what an absent key means."""


class PromiseRecord(WireRecord, frozen=True):
    id: str
    state: PromiseState
    param: Raw
    value: Raw
    tags: Raw
    timeout_at: int
    created_at: int
    settled_at: int | None = None
    deadline: int | None = None
    """Only of what a task of ours waits for: when it ends as things stand, if that may change."""

    @classmethod
    def of(cls, row: Promise) -> "PromiseRecord":
        return cls(
            id=row.id,
            state=row.state,
            param=raw(row.param),
            value=raw(row.value),
            tags=Raw(row.tags),
            timeout_at=row.told_timeout_at,
            created_at=row.created_at,
            settled_at=row.settled_at,
            deadline=row.timeout_at if row.is_movable else None,
        )

    def row(self) -> Promise:
        tags = bytes(self.tags).decode()
        return Promise(
            id=self.id,
            root="",
            param=bytes(self.param).decode(),
            tags=tags,
            timeout_at=self.timeout_at if self.deadline is None else self.deadline,
            created_at=self.created_at,
            timer=tag_names.TIMER in tags and birth.is_timer(_tags.decode(tags)),
            expired_at=birth.expired_at(_tags.decode(tags)) if tag_names.EXPIRED in tags else None,
            state=self.state,
            value=bytes(self.value).decode(),
            settled_at=self.settled_at,
        )


class TriggerEventRecord(WireRecord, frozen=True):
    id: str
    state: PromiseState
    value: Raw
    settled_at: int
    by: str = ""
    reason: str = ""

    @classmethod
    def of(cls, row: TriggerEvent) -> "TriggerEventRecord":
        value = raw(row.value)
        return cls(row.id, row.state, value, row.settled_at, row.by, row.reason)

    def row(self) -> TriggerEvent:
        value = bytes(self.value).decode()
        return TriggerEvent(self.id, self.state, value, self.settled_at, self.by, self.reason)


class ResumedRecord(WireRecord, frozen=True):
    """How a task goes on that was deferred by `layby.task.defer`."""

    kind: str
    at: int
    event: TriggerEventRecord
    name: str | None = None
    kwargs: Json = UNSET
    context: Json = UNSET
    key: str | None = None
    bare: bool = False

    @classmethod
    def of(cls, row: Resumed) -> "ResumedRecord":
        event, kwargs = TriggerEventRecord.of(row.event), _json(row.kwargs)
        context = _json(row.context)
        return cls(row.kind, row.at, event, row.name, kwargs, context, row.key, row.bare)

    def row(self) -> Resumed:
        kwargs, context = _text(self.kwargs) or EMPTY, _text(self.context)
        event = self.event.row()
        return Resumed(self.kind, self.at, event, self.name, kwargs, context, self.key, self.bare)


class TaskRecord(WireRecord, frozen=True):
    """A task as the protocol shows it. It does not show tries: to it, each claim is one."""

    id: str
    state: TaskState
    version: int
    resumes: int
    ttl: int | None = None
    pid: str | None = None
    resume: "ResumedRecord | None" = None
    """Of a claim that resumes a deferred task: how it goes on."""

    @classmethod
    def of(cls, row: Task) -> "TaskRecord":
        return cls(*_protocol_fields(row))

    def row(self) -> Task:
        return Task(
            id=self.id,
            target="",
            state=self.state,
            version=self.version,
            pid=self.pid,
            ttl=self.ttl,
            tries=self.version,
        )

    @property
    def resumed(self) -> Resumed | None:
        return None if self.resume is None else self.resume.row()


class ClaimedTaskRecord(WireRecord, frozen=True):
    """A claim by the protocol; that of a task which had deferred shows more than the protocol's."""

    task: TaskRecord
    promise: PromiseRecord
    preload: list[PromiseRecord]

    @classmethod
    def of(cls, row: ClaimData) -> "ClaimedTaskRecord":
        task = replace(TaskRecord.of(row.task), resume=_resumed(row.resumed))
        return cls(task, PromiseRecord.of(row.promise), promises_of(row.preload))

    def row(self) -> ClaimData:
        preload = [each.row() for each in self.preload]
        return ClaimData(self.task.row(), self.promise.row(), preload, self.task.resumed)


class AnnotatedTaskRecord(TaskRecord, frozen=True):
    """The worker that annotates is told when its waits end."""

    deadlines: Json = UNSET

    @classmethod
    def of(cls, row: Task) -> "AnnotatedTaskRecord":
        return cls(*_protocol_fields(row), deadlines=_json(row.deadlines))

    def row(self) -> Task:
        return replace(super().row(), deadlines=_checked(self.deadlines, _deadlines))


UNTOLD: Final = ""
"""The incarnation of a holder: it stays with the server, since workers prove themselves by it."""


class HeldTaskRecord(TaskRecord, frozen=True):
    """A task as layby's own kinds show it: with all that `core.waits` reads, and people are told.

    What is claimed does not wait, so the fields about waits do not make a claim larger.
    """

    state: ShownState  # pyright: ignore[reportIncompatibleVariableOverride] - one more, for people
    name: str | None = None
    kind: NodeKind | None = None
    group: str | None = None
    target: str | None = None
    ready_at: int | None = None
    waits_left: int | None = None
    failures: int | None = None
    crashes: int | None = None
    error: Json = UNSET
    sub_status: str | None = None
    waiting_on: Json = UNSET
    progress: Json = UNSET
    history: Json = UNSET
    tries: int | None = None
    ahead: bool = False
    deadlines: Json = UNSET
    lives: int | None = None
    wake_at: int | None = None
    waiting_since: int | None = None
    refused: Json = UNSET
    pin: str | None = None
    awaited: Json = UNSET
    items: int | None = None
    kept_by: str | None = None
    """The process that has not said yet that its body has ended."""
    priority: int | None = None
    slots: int | None = None
    """Only if it needs several."""
    limits: Json = UNSET
    gate: str | None = None

    @classmethod
    def of(cls, row: Task) -> "HeldTaskRecord":
        return cls(
            row.id,
            shown_state(row),
            *_protocol_fields(row)[2:],
            name=row.name,
            kind=row.kind,
            group=row.group,
            target=row.target,
            ready_at=row.ready_at,
            waits_left=row.waits_left,
            failures=row.failures,
            crashes=row.crashes,
            error=_json(row.error),
            sub_status=row.sub_status or ("Active" if row.state == "acquired" else None),
            waiting_on=_json(row.waiting_on),
            progress=_json(row.progress),
            history=_json(row.history),
            tries=row.tries,
            ahead=row.ahead,
            deadlines=_json(row.deadlines),
            refused=_json(row.refused),
            pin=row.pin,
            awaited=_json(row.awaited),
            wake_at=row.wake_at,
            waiting_since=row.waiting_since,
            kept_by=row.pid if row.is_kept else None,
            lives=row.lives,
            items=row.items,
            priority=row.priority or None,
            slots=row.slots if row.slots > 1 else None,
            limits=_json(row.limits),
            gate=row.gate,
        )

    def row(self) -> Task:
        return Task(
            id=self.id,
            target=self.target or "",
            group=self.group,
            name=self.name,
            kind=self.kind,
            priority=self.priority or 0,
            slots=self.slots or 1,
            state="suspended" if self.state == "deferred" else self.state,
            version=self.version,
            pid=self.pid or self.kept_by,
            holder=None if self.kept_by is None else UNTOLD,
            ttl=self.ttl,
            ready_at=self.ready_at,
            waits_left=self.waits_left or 0,
            failures=self.failures or 0,
            crashes=self.crashes or 0,
            error=_text(self.error),
            sub_status=self.sub_status,
            waiting_on=_text(self.waiting_on),
            progress=_text(self.progress),
            history=_text(self.history),
            wake_at=self.wake_at,
            waiting_since=self.waiting_since,
            tries=self.version if self.tries is None else self.tries,
            ahead=self.ahead,
            deadlines=_checked(self.deadlines, _deadlines),
            refused=_checked(self.refused, _refusals),
            pin=self.pin,
            awaited=_checked(self.awaited, _awaited),
            lives=self.lives,
            items=self.items,
            limits=_checked(self.limits, _limit_names),
            gate=self.gate,
        )


class ScheduleRecord(WireRecord, frozen=True):
    """One that starts runs shows more than the protocol's."""

    id: str
    cron: str
    promise_id: str
    promise_timeout: int
    promise_param: Raw
    promise_tags: Raw
    created_at: int
    next_run_at: int
    last_run_at: int | None = None
    flow: str | None = None
    timezone: str | None = None
    catch_up: bool | None = None
    overlap: Overlap | None = None
    paused_at: int | None = None
    skipped: int | None = None

    @classmethod
    def of(cls, row: Schedule) -> "ScheduleRecord":
        starts_runs = row.flow is not None
        return cls(
            id=row.id,
            cron=row.cron,
            promise_id=row.promise_id,
            promise_timeout=row.promise_timeout,
            promise_param=raw(row.promise_param),
            promise_tags=Raw(row.promise_tags),
            created_at=row.created_at,
            next_run_at=row.next_run_at,
            last_run_at=row.last_run_at,
            flow=row.flow,
            timezone=row.timezone if starts_runs else None,
            catch_up=row.catch_up if starts_runs else None,
            overlap=row.overlap if starts_runs else None,
            paused_at=row.paused_at,
            skipped=row.skipped if starts_runs else None,
        )

    def row(self) -> Schedule:
        return Schedule(
            id=self.id,
            cron=self.cron,
            promise_id=self.promise_id,
            promise_timeout=self.promise_timeout,
            promise_param=bytes(self.promise_param).decode(),
            promise_tags=bytes(self.promise_tags).decode(),
            created_at=self.created_at,
            next_run_at=self.next_run_at,
            last_run_at=self.last_run_at,
            timezone=self.timezone or "UTC",
            catch_up=self.catch_up is not False,
            flow=self.flow,
            overlap=self.overlap or "allow",
            paused_at=self.paused_at,
            skipped=self.skipped or 0,
        )


class ClaimRecord(WireRecord, frozen=True):
    task: HeldTaskRecord
    promise: PromiseRecord
    ready_at: int
    root_param: Json = UNSET

    @classmethod
    def of(cls, row: Claim) -> "ClaimRecord":
        task, promise = HeldTaskRecord.of(row.task), PromiseRecord.of(row.promise)
        if row.resumed is not None:
            task = replace(task, resume=_resumed(row.resumed))
        return cls(task, promise, row.ready_at, _json(row.root_param))

    def row(self) -> Claim:
        task, promise, root_param = self.task.row(), self.promise.row(), _text(self.root_param)
        return Claim(task, promise, self.ready_at, root_param, self.task.resumed)


class PairRecord(WireRecord, frozen=True):
    """A promise with its task."""

    promise: PromiseRecord
    task: HeldTaskRecord | None = None

    @classmethod
    def of(cls, row: Pair) -> "PairRecord":
        promise, task = row
        held = None if task is None else HeldTaskRecord.of(task)
        return cls(PromiseRecord.of(promise), held)

    def row(self) -> Pair:
        return self.promise.row(), None if self.task is None else self.task.row()


class HolderRecord(WireRecord, frozen=True):
    """Without its incarnation, which proves a worker's identity, and without its code."""

    pid: str
    group: str
    embedded: bool
    ttl: int
    expires_at: int
    standing: Standing
    held: int

    @classmethod
    def of(cls, row: Holder) -> "HolderRecord":
        return cls(**{name: getattr(row, name) for name in cls.__struct_fields__})

    def row(self) -> Holder:
        return Holder(incarnation="", **asdict(self))


class LimitRecord(WireRecord, frozen=True):
    name: str
    burst: int
    count_parked: bool
    held: int
    holders: tuple[str, ...]
    waiting: int
    rule: str | None = None
    concurrency: int | None = None
    rate: str | None = None
    next_at: int | None = None

    @classmethod
    def of(cls, row: LimitStanding) -> "LimitRecord":
        return cls(**{name: getattr(row, name) for name in cls.__struct_fields__})

    def row(self) -> LimitStanding:
        return LimitStanding(**asdict(self))


class ExplanationRecord(WireRecord, frozen=True):
    promise: PromiseRecord
    awaited: list[PairRecord]
    more_awaited: bool
    awaiters: list[str]
    more_awaiters: bool
    listeners: int
    workers: int
    able_workers: int
    task: HeldTaskRecord | None = None
    holder: HolderRecord | None = None
    limit: LimitRecord | None = None

    @classmethod
    def of(cls, row: Explanation) -> "ExplanationRecord":
        return cls(
            promise=PromiseRecord.of(row.promise),
            awaited=[PairRecord.of(each) for each in row.awaited],
            more_awaited=row.more_awaited,
            awaiters=list(row.awaiters),
            more_awaiters=row.more_awaiters,
            listeners=row.listeners,
            workers=row.workers,
            able_workers=row.able_workers,
            task=None if row.task is None else HeldTaskRecord.of(row.task),
            holder=None if row.holder is None else HolderRecord.of(row.holder),
            limit=None if row.limit is None else LimitRecord.of(row.limit),
        )

    def row(self) -> Explanation:
        return Explanation(
            promise=self.promise.row(),
            task=None if self.task is None else self.task.row(),
            awaited=[each.row() for each in self.awaited],
            more_awaited=self.more_awaited,
            awaiters=tuple(self.awaiters),
            more_awaiters=self.more_awaiters,
            listeners=self.listeners,
            holder=None if self.holder is None else self.holder.row(),
            workers=self.workers,
            able_workers=self.able_workers,
            limit=None if self.limit is None else self.limit.row(),
        )


class NoticeRecord(WireRecord, frozen=True):
    """A task, at the version that a message is about."""

    id: str
    version: int

    @classmethod
    def of(cls, row: Message) -> "NoticeRecord":
        return cls(row.id, row.version)

    def row(self) -> Message:
        return Message(self.id, "lost", "", self.version)


class MessageData(WireRecord, frozen=True):
    task: NoticeRecord | None = None
    promise: PromiseRecord | None = None


class MessageRecord(Struct, frozen=True):
    """What comes on a stream, and what a push sends; an `unblock` shows its promise."""

    kind: str
    head: dict[str, str]
    data: MessageData

    @classmethod
    def of(cls, row: Message, about: Promise | None, **head: str) -> "MessageRecord":
        if about is not None:
            return cls("unblock", {}, MessageData(promise=PromiseRecord.of(about)))
        return cls(row.kind, head, MessageData(task=NoticeRecord.of(row)))


def _resumed(row: Resumed | None) -> ResumedRecord | None:
    return None if row is None else ResumedRecord.of(row)


def promises_of(rows: Iterable[Promise]) -> list[PromiseRecord]:
    return [PromiseRecord.of(row) for row in rows]


def _protocol_fields(row: Task) -> tuple[str, TaskState, int, int, int | None, str | None]:
    """The fields of `TaskRecord`, in their order."""
    pid = row.pid if row.state == "acquired" else None
    return row.id, row.state, row.version, len(row.resumes), row.ttl, pid


def _json(text: str | None) -> Json:
    return UNSET if text is None else raw(text)


def _checked(json: Json, decoder: "Decoder[Any]") -> str | None:
    """Of what a row decodes later, where an error would not be taken for that of a peer."""
    if isinstance(json, UnsetType):
        return None
    decoder.decode(json)
    return _text(json)


def _text(json: Json) -> str | None:
    return None if isinstance(json, UnsetType) else bytes(json).decode()
