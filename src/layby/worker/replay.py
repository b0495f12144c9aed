"""Replay keys: what a task has durably done under which key, so that it is not done again.

Every durable call has a key: the caller's, else its kind and its number of that kind in this
body. Records are promises below the task's id; those of waits carry the number of failures,
so that a *failed* try starts its waits anew while checkpoints stay. One key is one call: asked
again under the same key, in this life or a later one, it answers what it answered first.
Functions called elsewhere have promises of their own below the task's id; see `rpc`.
"""

import hashlib
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from layby.core.commands import Value
from layby.core.model import Millis, Promise
from layby.errors import (
    ConditionError,
    ContextError,
    DeferTimeout,
    LaybyError,
    ReplayMismatch,
    UsageError,
)
from layby.wire import encoding

LASTING = "c"
"""Records that survive a failed try."""
CALLS = "x"
"""Calls of functions elsewhere. They come last, by id: what those functions keep below is theirs,
and who reads the records of the task may stop here."""
MAX_PLAIN_DIGEST = 60
"""Arguments whose JSON is no longer than this are kept as they are, for people to read."""
MAX_KEY_BYTES = 200

_WAIT_ERRORS: dict[str, type[LaybyError]] = {
    "DeferTimeout": DeferTimeout,
    "ConditionError": ConditionError,
}


class Record(Struct, frozen=True):
    """What stands in a record: which call made it, with which arguments, and what came of it."""

    kind: str
    digest: str = ""
    value: object = None
    error: str | None = None
    """The name of what it raised; the message is its value then."""

    def raising(self, error: BaseException) -> "Record":
        return Record(self.kind, self.digest, str(error), type(error).__name__)

    def raise_again(self) -> None:
        if self.error is not None:
            raise _WAIT_ERRORS.get(self.error, LaybyError)(self.value)

    def __str__(self) -> str:
        return f"{self.kind}({self.digest})"


class Replay:
    """The records of one task, and the count of calls in this body."""

    __slots__ = ("_calls", "_failed_at", "_failures", "_found", "_task_id", "_unkeyed")

    def __init__(self, task_id: str, failures: int, records: Sequence[Promise] = ()) -> None:
        self._task_id = task_id
        self._failures = failures
        self._found: dict[str, Promise | Record] | None = (
            {each.id: each for each in records} if records else None
        )
        self._calls: tuple[tuple[str, int], ...] = ()
        """Few kinds, and thousands of tasks that are parked: a dictionary would be large."""
        self._unkeyed: str | None = None
        self._failed_at = max(map(self._failed_try_at, records), default=0)

    def remember(self, record_id: str, record: "Record | Promise") -> None:
        if self._found is None:
            self._found = {}
        self._found[record_id] = record

    def record_id(self, key: str, *, lasting: bool = False) -> str:
        group = LASTING if lasting else f"w{self._failures}"
        return f"{self._task_id}.{group}.{key}"

    def call_id(self, key: str, number: int) -> str:
        """The promise of a function's call, made for the first, second, ... time."""
        group = CALLS if number == 1 else f"{CALLS}{number}"
        is_root = ":" not in self._task_id and "." not in self._task_id  # as the SDKs join ids
        return f"{self._task_id}{':' if is_root else '.'}{group}.{key}"

    def must_be_repeated(self, call: Promise) -> bool:
        """Whether it went wrong in a try that has failed since: this one makes it anew."""
        is_wrong = call.settled_at is not None and call.state != "resolved"
        return is_wrong and (call.settled_at or 0) <= self._failed_at

    def _failed_try_at(self, record: Promise) -> Millis:
        """A try that fails leaves a timer; 0 for everything else."""
        is_backoff = record.id.startswith(f"{self._task_id}.backoff.")
        return record.created_at if is_backoff else 0

    def timer(self, record_id: str) -> Promise | None:
        """The timer of a sleep that an earlier life began."""
        found = None if self._found is None else self._found.get(record_id)
        return found if isinstance(found, Promise) and found.timer else None

    def found(self, record_id: str, call: Record) -> Record | None:
        """What was left under this key before, if it was the same call."""
        found = None if self._found is None else self._found.get(record_id)
        if found is None:
            return None
        record = record_of(found) if isinstance(found, Promise) else found
        self.check(record_id, record, call)
        return record

    def check(self, record_id: str, record: Record, call: Record) -> None:
        if (record.kind, record.digest) != (call.kind, call.digest):
            raise ReplayMismatch(
                f"{self._task_id}: the code now calls {call} where an earlier life of this task "
                f"called {record} under '{record_id}': give changed calls a new key="
            )

    def call(self, kind: str, key: str | None) -> "KeyedCall":
        return KeyedCall(self, kind, key if key is None else _checked_key(key), self.record_id)

    def keyed(self, kind: str, key: str | None) -> "KeyedCall":
        """As `call`, for who makes ids of the key: entering gives the key itself."""
        return KeyedCall(self, kind, key if key is None else _checked_key(key), str)

    def enter_unkeyed(self, kind: str) -> str:
        """The key of a call that was given none: no other such call may be under way."""
        if self._unkeyed is not None:
            raise UsageError(
                f"{self._task_id}: {kind}() was called while {self._unkeyed}() is still waiting: "
                "give calls that run at the same time a key= each"
            )
        self._unkeyed = kind
        return self.numbered(kind)

    def numbered(self, kind: str) -> str:
        """The next key of this kind: the n-th such call of a body is the n-th in every life."""
        number = next((count for each, count in self._calls if each == kind), 0) + 1
        others = (each for each in self._calls if each[0] != kind)
        self._calls = ((kind, number), *others)
        return f"{kind}-{number}"

    def leave_unkeyed(self) -> None:
        self._unkeyed = None


class KeyedCall:
    """One durable call: entering gives the id of the record its end is kept under."""

    __slots__ = ("_id_of", "_key", "_kind", "_replay")

    def __init__(
        self, replay: Replay, kind: str, key: str | None, id_of: Callable[[str], str]
    ) -> None:
        self._replay = replay
        self._kind = kind
        self._key = key
        self._id_of = id_of

    def __enter__(self) -> str:
        if self._key is not None:
            return self._id_of(f"key.{self._key}")
        return self._id_of(self._replay.enter_unkeyed(self._kind))

    def __exit__(self, *_: object) -> None:
        if self._key is None:
            self._replay.leave_unkeyed()


def record_of(promise: Promise) -> Record:
    """A timer carries its record from its birth, everything else is settled with it."""
    return msgspec.convert(
        encoding.from_text(promise.param if promise.timer else promise.value), Record
    )


def digest_of(*arguments: object) -> str:
    """A fingerprint of arguments, readable if short; what has no JSON form takes no part."""
    try:
        text = msgspec.json.encode(arguments)
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError):
        return ""
    inner = text[1:-1].decode()
    return inner if len(inner) <= MAX_PLAIN_DIGEST else hashlib.sha256(text).hexdigest()[:16]


def encoded(record: Record) -> Value:
    return encoding.to_value(msgspec.to_builtins(record))


def checkpointed(record: Record, key: str) -> Value:
    """Only what comes back as it went in is kept: what a later life reads is what this one saw."""
    try:
        encoding.encode(record.value, "its result")
    except ContextError as error:
        raise UsageError(f"checkpoint '{key}' cannot be stored as JSON: {error}") from error
    return encoded(record)


def check_key(key: object, what: str) -> str:
    if not isinstance(key, str) or not key.strip():
        raise UsageError(f"{what} must be a text that is not empty, got {key!r}")
    if len(key.encode(errors="replace")) > MAX_KEY_BYTES:
        raise UsageError(f"{what} is too long: at most {MAX_KEY_BYTES} bytes, got {key[:40]!r}…")
    return key


def _checked_key(key: object) -> str:
    return check_key(key, "key")
