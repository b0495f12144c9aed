"""Replay keys: what a task has durably done under which key, so that it is not done again.

Every durable call has a key: the caller's, else its kind and its number among the calls of that
kind in this body. Records are promises below the task's id; those of waits carry the number of
failures, so that waits start afresh after a *failed* try while checkpoints stay. One key is one
call: called again under the same key, in this run of the body or a later one, it returns what it
returned first. Functions called elsewhere have promises below the task's id; see `outgoing_call`.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from layby.core.commands import Value
from layby.core.held_exits import is_exit
from layby.core.model import Millis, Promise
from layby.core.replies import Resumed
from layby.errors import (
    ConditionError,
    ContextError,
    DeferTimeout,
    LaybyError,
    ReplayMismatch,
    UsageError,
)
from layby.wire import json_values

LASTING = "c"
"""Records that survive a failed try."""
CALLS = "x"
"""Calls of functions elsewhere. Their ids sort last: what those functions keep below is theirs, and
a reader of the task's records may stop here."""
CHECKPOINTS = f"{LASTING}.checkpoint"
"""Of those, the ones that the same task keeps in the next life of its run."""
MAX_PLAIN_DIGEST = 60
"""Arguments whose JSON is no longer than this are stored as they are, for people to read."""
MAX_KEY_BYTES = 200

_WAIT_ERRORS: dict[str, type[LaybyError]] = {
    "DeferTimeout": DeferTimeout,
    "ConditionError": ConditionError,
}


class Record(Struct, frozen=True):
    """The content of a record: which call made it, with which arguments, and its result."""

    kind: str
    digest: str = ""
    value: object = None
    error: str | None = None
    """The type name of what it raised; `value` is the message then."""

    def raising(self, error: BaseException) -> "Record":
        return Record(self.kind, self.digest, str(error), type(error).__name__)

    def error_again(self) -> LaybyError | None:
        """What it raised, as it is raised in every later run."""
        return None if self.error is None else _WAIT_ERRORS.get(self.error, LaybyError)(self.value)

    def raise_again(self) -> None:
        if (error := self.error_again()) is not None:
            raise error

    def __str__(self) -> str:
        return f"{self.kind}({self.digest})"


class Recalled(Struct, frozen=True):
    """What earlier claims of a task have left, and what the same task left in earlier lives."""

    records: Sequence[Promise] = ()
    kept: Sequence[Promise] = ()
    """Checkpoints of earlier lives, with the ids they would have in this one."""
    earlier: tuple[str, ...] = ()
    """The promises of the task in earlier lives, the latest first."""
    began_at: Millis = 0
    """When this life began: what happened in earlier ones after that does not count."""


NEW: Final = Recalled()


class Replay:
    """The records of one task, and the count of calls in this body."""

    __slots__ = (
        "_awaited",
        "_before",
        "_body",
        "_calls",
        "_failed_at",
        "_failures",
        "_found",
        "_on_mismatch",
        "_task_id",
        "_unkeyed",
        "mismatch",
    )

    def __init__(
        self,
        task_id: str,
        failures: int,
        recalled: Recalled = NEW,
        awaited: Mapping[str, str] | None = None,
        on_mismatch: Callable[[], None] = lambda: None,
        body: str = "",
    ) -> None:
        self._task_id = task_id
        self._body = body
        """Which function runs: calls without a key are counted for each by itself."""
        self._awaited = awaited or None
        """What earlier runs of the body waited for, by the keys of those waits."""
        self.mismatch: ReplayMismatch | None = None
        """The first call that does not fit what an earlier run did. Whatever the body makes of the
        error, it cannot go on with this code."""
        self._on_mismatch = on_mismatch
        self._failures = failures
        self._before = recalled if recalled.earlier else None
        """Earlier lives of the task; what they checkpointed counts if it was the same call."""
        records = recalled.records
        self._found: dict[str, Promise | Record] | None = (
            {each.id: each for each in records} if records else None
        )
        self._calls: tuple[tuple[str, int], ...] = ()
        """There are few kinds, and thousands of parked tasks: a dictionary would be larger."""
        self._unkeyed: str | None = None
        self._failed_at = max(map(self._failed_try_at, records), default=0)

    def has(self, record_id: str) -> bool:
        """Whether an earlier run of the body has made it, or this one was told of it."""
        return self._found is not None and record_id in self._found

    def remember(self, record_id: str, record: "Record | Promise") -> None:
        if self._found is None:
            self._found = {}
        self._found[record_id] = record

    def record_id(self, key: str, *, lasting: bool = False) -> str:
        group = LASTING if lasting else f"w{self._failures}"
        return f"{self._task_id}.{group}.{key}"

    def call_id(self, key: str, number: int, caller: str | None = None) -> str:
        """The promise of a function's call, made for the first, second, ... time.

        `caller`: the same task in an earlier life.
        """
        caller = self._task_id if caller is None else caller
        group = CALLS if number == 1 else f"{CALLS}{number}"
        is_root = ":" not in caller and "." not in caller  # as the SDKs join ids
        return f"{caller}{':' if is_root else '.'}{group}.{key}"

    @property
    def earlier(self) -> tuple[str, ...]:
        """The promises of the task in earlier lives of its run, the latest first."""
        return () if self._before is None else self._before.earlier

    def succeeded_before(self, call: Promise) -> bool:
        """Whether a call of an earlier life had its result when this life began."""
        began_at = 0 if self._before is None else self._before.began_at
        return call.state == "resolved" and (call.settled_at or 0) <= began_at

    def must_be_repeated(self, call: Promise) -> bool:
        """Whether it failed in a try that has failed since: then this try makes it again."""
        is_wrong = call.settled_at is not None and call.state != "resolved"
        return is_wrong and (call.settled_at or 0) <= self._failed_at

    def was_before(self, child: Promise) -> bool:
        """Whether a child run had ended before this life of the task, or before its latest failure.

        What ended since then, this try has seen, or an earlier run of the body that did not fail.
        """
        began_at = 0 if self._before is None else self._before.began_at
        return (child.settled_at or 0) <= max(self._failed_at, began_at)

    def _failed_try_at(self, record: Promise) -> Millis:
        """When a try failed, from the timer that it leaves; 0 for other records."""
        is_backoff = record.id.startswith(f"{self._task_id}.backoff.")
        return record.created_at if is_backoff else 0

    def timer(self, record_id: str) -> Promise | None:
        """The timer of a sleep that an earlier run of the body began."""
        found = None if self._found is None else self._found.get(record_id)
        return found if isinstance(found, Promise) and found.timer else None

    def recorded_at(self, record_id: str) -> Millis:
        """When an earlier run of the body stored this; 0 if none did."""
        found = None if self._found is None else self._found.get(record_id)
        return (found.settled_at or 0) if isinstance(found, Promise) else 0

    def found(self, record_id: str, call: Record) -> Record | None:
        """What was stored under this key before, if it was the same call."""
        found = None if self._found is None else self._found.get(record_id)
        if found is None:
            return self._kept(record_id, call)
        is_earlier = isinstance(found, Promise)
        record = _ended_as(found, call) if is_earlier else found
        self.check(record_id, record, call, is_earlier=is_earlier)
        if is_earlier and not found.timer:
            self.remember(record_id, record)  # the second such call must be the same again
        return record

    def _kept(self, record_id: str, call: Record) -> Record | None:
        """What an earlier life stored. Other arguments are not a mismatch: code may be mended."""
        for each in () if self._before is None else self._before.kept:
            if each.id == record_id:
                record = record_of(each)
                return record if is_same_call(record, call) else None
        return None

    def check(self, record_id: str, record: Record, call: Record, *, is_earlier: bool) -> None:
        """Raise if it is another call. If an earlier run made the record, the code has changed:
        that is remembered. Otherwise this very body uses a key for two different calls.
        """
        if is_same_call(record, call):
            return
        mismatch = ReplayMismatch(
            f"{self._task_id}: the code now calls {call} where an earlier try of this task "
            f"called {record} under '{record_id}': give changed calls a new key="
        )
        if is_earlier and self.mismatch is None:
            self.mismatch = mismatch
            self._on_mismatch()
        raise mismatch

    def check_awaited(self, record_id: str, call: Record) -> tuple[str, str] | None:
        """Raise if an earlier run waited for something else here. What is to be stored about this
        wait for a promise, by its key; None if an earlier run has stored it.
        """
        key = record_id.removeprefix(f"{self._task_id}.")
        before = None if self._awaited is None else self._awaited.get(key)
        if before is not None:
            self.check(record_id, Record(call.kind, before), call, is_earlier=True)
            return None
        return key, call.digest

    def call(self, kind: str, key: str | None) -> "KeyedCall":
        return KeyedCall(self, kind, key)

    def keyed(self, kind: str, key: str | None) -> "KeyedCall":
        """As `call`, for callers that build ids from the key: entering gives the key itself."""
        return KeyedCall(self, kind, key, is_record=False)

    def enter_unkeyed(self, kind: str) -> str:
        """The key of a call without one: no other such call may be under way."""
        if self._unkeyed is not None:
            raise UsageError(
                f"{self._task_id}: {kind}() was called while {self._unkeyed}() is still waiting: "
                "give calls that run at the same time a key= each"
            )
        self._unkeyed = kind
        return self.numbered(kind)

    def numbered(self, kind: str) -> str:
        """The next key of this kind: the n-th such call is the n-th in every run of the body."""
        number = next((count for each, count in self._calls if each == kind), 0) + 1
        others = (each for each in self._calls if each[0] != kind)
        self._calls = ((kind, number), *others)
        return f"{kind}-{self._body}{number}"

    def leave_unkeyed(self) -> None:
        self._unkeyed = None


class KeyedCall:
    """One durable call: entering gives the id of the record that its end is stored under."""

    __slots__ = ("_is_record", "_key", "_kind", "_replay")

    def __init__(
        self, replay: Replay, kind: str, key: str | None, *, is_record: bool = True
    ) -> None:
        self._replay = replay
        self._kind = kind
        self._key = key
        self._is_record = is_record

    def __enter__(self) -> str:
        own = self._key
        key = self._replay.enter_unkeyed(self._kind) if own is None else f"key.{own}"
        return self._replay.record_id(key) if self._is_record else key

    def __exit__(self, *_: object) -> None:
        if self._key is None:
            self._replay.leave_unkeyed()


def body_of(resumed: Resumed | None) -> str:
    """Marks the calls of a function that a task was resumed at; empty for the task's own."""
    return "" if resumed is None or resumed.name is None else f"r{resumed.at}."


def _ended_as(found: Promise, call: Record) -> Record:
    """What is stored; of a wait that a person has ended, whatever the call would have stored."""
    if not is_exit(found):
        return record_of(found)
    error = condition_error(found)
    return call if error is None else call.raising(error)


def condition_error(exit_: Promise) -> ConditionError | None:
    """What a condition raises that a person lets fail; None if it counts as met."""
    if exit_.state == "resolved":
        return None
    return ConditionError(json_values.read_error(exit_.value).message)


def is_same_call(record: Record, call: Record) -> bool:
    return (record.kind, record.digest) == (call.kind, call.digest)


def record_of(promise: Promise) -> Record:
    """A timer carries its record from its creation; everything else is settled with it."""
    return msgspec.convert(
        json_values.from_text(promise.param if promise.timer else promise.value), Record
    )


def digest_of(*arguments: object) -> str:
    """A fingerprint of arguments, readable if short; empty if they have no JSON form."""
    try:
        text = msgspec.json.encode(arguments)
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError):
        return ""
    inner = text[1:-1].decode()
    return inner if len(inner) <= MAX_PLAIN_DIGEST else hashlib.sha256(text).hexdigest()[:16]


def encoded(record: Record) -> Value:
    return json_values.to_value(msgspec.to_builtins(record))


def checkpointed(record: Record, key: str) -> Value:
    """Refuse what does not survive JSON unchanged: a later run must read what this one saw."""
    try:
        json_values.encode(record.value, "its result")
    except ContextError as error:
        raise ContextError(f"checkpoint '{key}' cannot be stored as JSON: {error}") from error
    return encoded(record)


def check_key(key: object, what: str = "key", most: int = MAX_KEY_BYTES) -> str:
    if not isinstance(key, str) or not key.strip():
        raise UsageError(f"{what} must be a non-empty string, got {key!r}")
    if len(key.encode(errors="replace")) > most:
        raise UsageError(f"{what} is too long: at most {most} bytes, got {key[:40]!r}…")
    return key
