"""Replay keys: what a task has durably done under which key, so that it is not done again.

Every durable call has a key: the caller's, else its kind and its number of that kind in this
body. Records are promises below the task's id; those of waits carry the number of failures,
so that a *failed* try starts its waits anew while checkpoints stay.
"""

import hashlib
from collections import Counter

import msgspec
from msgspec import Struct

from layby.core.commands import Value
from layby.core.model import Promise
from layby.errors import ReplayMismatch, UsageError
from layby.worker.values import read_value, to_value

LASTING = "c"
"""Records that survive a failed try."""


class Record(Struct, frozen=True):
    """What stands in a record: which call made it, with which arguments, and what came of it."""

    kind: str
    digest: str = ""
    value: object = None


class Replay:
    """The records of one task, and the count of calls in this body."""

    __slots__ = ("_calls", "_failures", "_found", "_task_id", "_unkeyed")

    def __init__(self, task_id: str, failures: int) -> None:
        self._task_id = task_id
        self._failures = failures
        self._found: dict[str, Promise] = {}
        self._calls: Counter[str] = Counter()
        self._unkeyed: str | None = None

    def load(self, promises: list[Promise]) -> None:
        self._found = {promise.id: promise for promise in promises}

    def record_id(self, key: str, *, lasting: bool = False) -> str:
        shelf = LASTING if lasting else f"w{self._failures}"
        return f"{self._task_id}.{shelf}.{key}"

    def promise(self, record_id: str) -> Promise | None:
        return self._found.get(record_id)

    def found(self, record_id: str, kind: str, digest: str) -> Record | None:
        """What an earlier life of this body left under the same key, if it was the same call."""
        promise = self._found.get(record_id)
        if promise is None:
            return None
        text = promise.param if promise.timer else promise.value
        record = msgspec.convert(read_value(text), Record)
        if (record.kind, record.digest) != (kind, digest):
            raise ReplayMismatch(
                f"{self._task_id}: the code now calls {kind}({digest}) where an earlier life of "
                f"this task called {record.kind}({record.digest}) under '{record_id}': "
                "give changed calls a new key="
            )
        return record

    def call(self, kind: str, key: str | None) -> "KeyedCall":
        return KeyedCall(self, kind, key)

    def enter_unkeyed(self, kind: str) -> str:
        """The key of a call that was given none: no other such call may be under way."""
        if self._unkeyed is not None:
            raise UsageError(
                f"{self._task_id}: {kind}() was called while {self._unkeyed}() is still waiting: "
                "give calls that run at the same time a key= each"
            )
        self._calls[kind] += 1
        self._unkeyed = kind
        return f"{kind}-{self._calls[kind]}"

    def leave_unkeyed(self) -> None:
        self._unkeyed = None


class KeyedCall:
    """One durable call: entering gives the id of the record its end is kept under."""

    __slots__ = ("_key", "_kind", "_replay")

    def __init__(self, replay: Replay, kind: str, key: str | None) -> None:
        self._replay = replay
        self._kind = kind
        self._key = key

    def __enter__(self) -> str:
        return self._replay.record_id(self._key or self._replay.enter_unkeyed(self._kind))

    def __exit__(self, *_: object) -> None:
        if self._key is None:
            self._replay.leave_unkeyed()


def digest_of(*arguments: object) -> str:
    """A short fingerprint of arguments; what has no JSON form does not take part."""
    try:
        text = msgspec.json.encode(arguments)
    except (TypeError, ValueError, msgspec.MsgspecError):
        return ""
    return hashlib.sha256(text).hexdigest()[:16]


def encoded(record: Record) -> Value:
    return to_value(msgspec.to_builtins(record))
