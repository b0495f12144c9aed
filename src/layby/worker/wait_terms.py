"""What a task may wait for, as values: a bundle of waits is made of these.

`handle.sleep(5)` waits; `waits.sleep(5)` only says what to wait for, with or without a thread of
its own. They are public as `layby.waits`. Everything that can be wrong with a wait is refused here,
for single waits too.
"""

import math
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any, Final, Literal

from msgspec import Struct

from layby.core.validate import MAX_ID_BYTES
from layby.errors import UsageError
from layby.program import Served
from layby.wire.call_format import Call
from layby.wire.durations import is_never, limit_of, seconds_of, seconds_of_millis
from layby.worker.condition_poll import check_condition, check_pace, name_of
from layby.worker.outgoing_call import (
    DEFAULT_TARGET,
    check_target,
    name_called,
    new_call,
)
from layby.worker.replay import Record, check_key, digest_of
from layby.worker.wake_events import Wake, check_wake

Seconds = float | int | timedelta
Condition = Callable[[], Any]
BundleKind = Literal["all_of", "first_of", "any_of"]

POLL_INTERVAL_S: Final = 1.0
MAX_MEMBERS: Final = 1_000
"""Of one bundle, those of bundles in it included."""


class WaitTerm(Struct, frozen=True):
    """Something to wait for."""

    def called(self) -> Record:
        """What must be the same in every run of the body."""
        raise NotImplementedError

    def sentence(self) -> str:
        """For people, as part of a sentence about a bundle."""
        raise NotImplementedError

    def count(self) -> int:
        return 1


class SleepTerm(WaitTerm, frozen=True):
    length: float

    def called(self) -> Record:
        return Record("sleep", digest_of(self.length))

    def sentence(self) -> str:
        return sleep_sentence(self.length)


class PromiseTerm(WaitTerm, frozen=True):
    promise_id: str
    within: float | None = None

    def called(self) -> Record:
        return Record("wait_for", digest_of(self.promise_id))

    def sentence(self) -> str:
        return f"promise {self.promise_id}"


class ConditionTerm(WaitTerm, frozen=True):
    condition: Condition
    interval: float
    within: float | None
    backoff: float
    longest: float | None
    jitter: float
    max_errors: int
    wake: Wake | None

    def called(self) -> Record:
        return Record("defer_until")

    def sentence(self) -> str:
        return f"{name_of(self.condition)} is true"


class CallTerm(WaitTerm, frozen=True):
    call: Call
    target: str
    within: float | None
    returns: type[Any] | None

    def called(self) -> Record:
        return Record("rpc", digest_of(self.call.func, self.call.version, *self.call.args))

    def sentence(self) -> str:
        return f"{self.call.func}() at {self.target}"


class BundleTerm(WaitTerm, frozen=True):
    kind: BundleKind
    terms: tuple[WaitTerm, ...]
    within: float | None = None

    def called(self) -> Record:
        return Record(self.kind, digest_of(*(str(each.called()) for each in self.terms)))

    def sentence(self) -> str:
        return f"{_WORDS[self.kind]} {_shown(self.terms)}"

    def count(self) -> int:
        return 1 + sum(each.count() for each in self.terms)


Waitable = Any
"""A wait of `layby.waits`, or a token that `handle.promise()` or `handle.approval()` gave."""


def sleep(seconds: Seconds) -> SleepTerm:
    """As `handle.sleep`."""
    length = seconds_of(seconds, "the length of a sleep")
    return SleepTerm(math.inf if is_never(length) else length)


def wait_for(promise_id: str, timeout: Seconds | None = None) -> PromiseTerm:
    """As `handle.wait_for`."""
    check_key(promise_id, "promise id", MAX_ID_BYTES)
    return PromiseTerm(promise_id, limit_of(timeout, "timeout"))


def defer_until(
    condition: Condition,
    poll_interval: Seconds | None = None,
    *,
    poll_interval_ms: float | None = None,
    timeout: Seconds | None = None,
    backoff: float = 1.0,
    max_interval: Seconds | None = None,
    jitter: float = 0.0,
    max_errors: int = 10,
    wake: Wake | None = None,
) -> ConditionTerm:
    """As `handle.defer_until`."""
    check_condition(condition)
    check_wake(wake)
    interval = _interval(poll_interval, poll_interval_ms)
    within, longest = limit_of(timeout, "timeout"), limit_of(max_interval, "max_interval")
    check_pace(interval, within, backoff, longest, jitter, max_errors)
    return ConditionTerm(condition, interval, within, backoff, longest, jitter, max_errors, wake)


def rpc(
    func: str | Served[Any],
    *args: Any,
    returns: type[Any] | None = None,
    target: str = DEFAULT_TARGET,
    timeout: Seconds | None = None,
    version: int = 1,
) -> CallTerm:
    """As `handle.rpc`."""
    call, place = new_call(name_called(func), args, version), check_target(target)
    return CallTerm(call, place, limit_of(timeout, "timeout"), returns)


def all_of(*waits: Waitable, timeout: Seconds | None = None) -> BundleTerm:
    """All of these; their results in order. The first to fail ends it."""
    return _bundle("all_of", waits, timeout)


def first_of(*waits: Waitable, timeout: Seconds | None = None) -> BundleTerm:
    """The first of these to end, well or not."""
    return _bundle("first_of", waits, timeout)


def any_of(*waits: Waitable, timeout: Seconds | None = None) -> BundleTerm:
    """The first of these to succeed."""
    return _bundle("any_of", waits, timeout)


def _bundle(kind: BundleKind, waits: tuple[Waitable, ...], timeout: Seconds | None) -> BundleTerm:
    terms = tuple(_terms(kind, waits))
    if not terms:
        raise UsageError(f"{kind} needs at least one wait: give it some of layby.waits")
    bundle = BundleTerm(kind, terms, limit_of(timeout, "timeout"))
    if bundle.count() - 1 > MAX_MEMBERS:  # it is not a member of itself
        raise UsageError(
            f"{kind} takes at most {MAX_MEMBERS} waits, those of bundles in it included: "
            "start a task for each part"
        )
    return bundle


def _terms(kind: str, waits: tuple[Waitable, ...]) -> Iterator[WaitTerm]:
    wrong: object = None
    for each in waits:
        term = each if isinstance(each, WaitTerm) else getattr(each, "term", None)
        if isinstance(term, WaitTerm):
            yield term
        else:
            wrong = wrong or each
            close = getattr(each, "close", None)  # a coroutine would warn that nobody awaited it
            if isinstance(each, Awaitable) and callable(close):
                close()
    if wrong is not None:
        shown = getattr(wrong, "__qualname__", repr(wrong))
        raise UsageError(
            f"{kind} cannot wait for {shown}: say what to wait for with layby.waits, such as "
            "waits.sleep(5) or waits.wait_for('id'), or give it a token of handle.promise()"
        )


def sleep_sentence(length: float) -> str:
    return "sleeping without end" if length == math.inf else f"sleeping {length:g} s"


_WORDS: Final[dict[BundleKind, str]] = {
    "all_of": "all of",
    "first_of": "the first of",
    "any_of": "the first success of",
}
_SHOWN = 5


def _shown(terms: tuple[WaitTerm, ...]) -> str:
    told = [each.sentence() for each in terms[:_SHOWN]]
    more = f" and {len(terms) - _SHOWN} more" if len(terms) > _SHOWN else ""
    return f"({'; '.join(told)}{more})"


def _interval(seconds: Seconds | None, milliseconds: float | None) -> float:
    if seconds is not None and milliseconds is not None:
        raise UsageError("give poll_interval (seconds) or poll_interval_ms, not both")
    if milliseconds is not None:
        interval = seconds_of_millis(milliseconds, "poll_interval_ms")
    elif seconds is not None:
        interval = seconds_of(seconds, "poll_interval")
    else:
        return POLL_INTERVAL_S
    if interval <= 0 or is_never(interval):
        raise UsageError(f"the poll interval must be positive and finite, got {interval:g} s")
    return interval
