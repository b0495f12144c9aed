"""Several waits as one: `all_of`, `first_of` and `any_of`.

A bundle is one wait of its body: one place in line, one slot to go on with, one record that says
who won. It is decided by the times at which its members ended, earlier first, then by their order,
so a later run of the body comes to the same end; the record makes that certain. Whatever has not
ended then is withdrawn in the same step: timers and calls that the bundle has made are cancelled,
promises of others are left alone.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from msgspec import Struct
from msgspec.structs import replace

from layby.core.model import NEVER, Millis
from layby.core.waits import WaitingOn
from layby.errors import DeferTimeout, LaybyError, NoneSucceeded
from layby.wire.durations import millis_of
from layby.worker.approval_requests import ApprovalTerm, begin_approval
from layby.worker.attempt import Attempt
from layby.worker.begun_waits import (
    BegunWait,
    PromiseWait,
    WaitEnd,
    begin_call,
    begin_condition,
    begin_promise,
    begin_sleep,
    in_what_time,
    stop_all,
)
from layby.worker.promise_watches import DeadlineWatch
from layby.worker.rejections import value_of
from layby.worker.replay import Record
from layby.worker.wait_terms import (
    BundleKind,
    BundleTerm,
    CallTerm,
    ConditionTerm,
    PromiseTerm,
    SleepTerm,
    WaitTerm,
)
from layby.worker.wheel import Wheel

MEMBERS: Final = "of"
"""Keys of members begin with this; no key of a call does."""
MAX_AWAITED: Final = 20
"""Promises named in what is shown of a bundle."""


class First(NamedTuple):
    """Which wait of a bundle decided it, counted from 0, and its result."""

    which: int
    value: Any


class Decision(Struct, frozen=True):
    """`won` is the member that decided the bundle; None if it took all of them."""

    won: int | None
    at: Millis


def decide(kind: BundleKind, ends: Sequence[WaitEnd | None]) -> Decision | None:
    """How a bundle ends whose members have ended like this; None if it is still open."""
    ended = [(each.at, index, each) for index, each in enumerate(ends) if each is not None]
    deciding = [(at, index) for at, index, each in ended if _DECIDES[kind](each)]
    if deciding:
        at, won = min(deciding)
        return Decision(won, at)
    return Decision(None, max(at for at, *_ in ended)) if len(ended) == len(ends) else None


_DECIDES: Final[Mapping[BundleKind, Callable[[WaitEnd], bool]]] = {
    "first_of": lambda _: True,
    "any_of": lambda end: end.succeeded,
    "all_of": lambda end: end.failed,
}
"""Which end of a member ends the bundle."""


class BundleWait(BegunWait):
    """A bundle that has begun; also a member of another bundle."""

    __slots__ = ("_deadline", "_members", "_term", "_winner")

    def __init__(
        self, attempt: Attempt, record_id: str, term: BundleTerm, members: Sequence[BegunWait]
    ) -> None:
        super().__init__(attempt, record_id, _waiting(term, members))
        self._term = term
        self._members = members
        self._winner: tuple[int, BegunWait] | None = None
        self._deadline: DeadlineWatch | None = None

    # --- while it waits ------------------------------------------------------------------

    def begin(self) -> None:
        """Decide at once, or wait for the members to end."""
        length = millis_of(self._term.within)
        if length < NEVER:
            self._begin_deadline(length)
        self._look_at_members()
        if self.end is not None:
            return
        self.future = asyncio.get_running_loop().create_future()
        self.future.add_done_callback(self._stopped)
        for each in self._members:
            if each.future is not None and each.end is None:
                each.future.add_done_callback(self._heard)

    def _begin_deadline(self, length: Millis) -> None:
        self._deadline = self.attempt.watch_deadline(self.record_id, length)
        self._deadline.add_done_callback(self._expired)
        self._deadline.on_moved = self._look_again
        until = _until(self.waiting, self._deadline.deadline)
        self.waiting = replace(until, record_id=self.record_id)

    def _heard(self, future: "asyncio.Future[Any]") -> None:
        if not future.cancelled() and self.end is None:
            self._look_at_members()

    def _look_again(self) -> None:
        """What ended after the former deadline counts now."""
        if self.end is None:
            self._look_at_members()

    def _look_at_members(self) -> None:
        try:
            ends = [each.look() for each in self._members]
        except BaseException as error:  # noqa: BLE001 - raised where the bundle is awaited
            self._broken(error)
            return
        decision = decide(self._term.kind, [self._in_time(each) for each in ends])
        if decision is not None:
            self._decide(decision)

    def _in_time(self, end: WaitEnd | None) -> WaitEnd | None:
        """What ended after the deadline of the bundle does not count."""
        is_late = (
            end is not None and self._deadline is not None and end.at > self._deadline.deadline
        )
        return None if is_late else end

    def _expired(self, deadline: "asyncio.Future[None]") -> None:
        if not deadline.cancelled() and self.end is None:
            self.attempt.spawn(self._last_look())

    async def _last_look(self) -> None:
        await self.ask_again()
        if self.end is None:
            self._look_at_members()
        if self.end is None:
            self._time_out()

    async def ask_again(self) -> None:
        await asyncio.gather(*(each.ask_again() for each in self._members if each.end is None))

    # --- its end -------------------------------------------------------------------------

    def _decide(self, decision: Decision) -> None:
        record = self._term.called()
        if decision.won is not None:
            self._winner = decision.won, self._members[decision.won]
        self._end(WaitEnd(decision.at, error=self._failure()))
        decided = Record(record.kind, record.digest, decision.won)
        self.attempt.annotations.note(self.record_id, decided)

    def _time_out(self) -> None:
        assert self._deadline is not None
        when = in_what_time(self.attempt, self.record_id, self._term.within or 0)
        error = DeferTimeout(f"{self.attempt.id}: {self._term.sentence()} did not end {when}")
        self._end(WaitEnd(self._deadline.deadline, error=error))
        self.attempt.annotations.note(self.record_id, self._term.called().raising(error))

    def _end(self, end: WaitEnd) -> None:
        """Withdraw the others first: the record that follows carries what is cancelled."""
        self.end = end
        self._drop_deadline()
        for each in self._members:
            if each.end is None:
                each.withdraw()
        if self.future is not None and not self.future.done():
            self.future.set_result(None)

    def _broken(self, error: BaseException) -> None:
        stop_all(self._members)
        self._drop_deadline()
        if self.future is None:
            raise error
        if not self.future.done():
            self.future.set_exception(error)

    def _failure(self) -> LaybyError | None:
        """What it raises, if it has failed."""
        if self._winner is not None:
            return _error_of(self._winner[1])
        if self._term.kind == "all_of":
            return None
        errors = [_error_of(each) or _denial_of(each) for each in self._members]
        return NoneSucceeded(self.attempt.id, [each for each in errors if each is not None])

    def restore(self, won: int | None) -> None:
        """As an earlier run of the body recorded it; only those that count have been begun."""
        at = max((each.end.at for each in self._members if each.end is not None), default=0)
        self._winner = None if won is None else (won, self._members[0])
        self.end = WaitEnd(at, error=self._failure())

    def ended(self, future: "asyncio.Future[Any]") -> WaitEnd:
        future.result()
        assert self.end is not None
        return self.end

    def value(self) -> Any:
        assert self.end is not None
        if self.end.error is not None:
            raise self.end.error
        if self._winner is None:
            return [each.value() for each in self._members]
        which, winner = self._winner
        return First(which, winner.value())

    # --- giving it up --------------------------------------------------------------------

    def stop(self) -> None:
        super().stop()
        self._drop_deadline()
        stop_all([each for each in self._members if each.end is None])

    def withdraw(self) -> None:
        super().stop()
        self._drop_deadline()
        for each in self._members:
            if each.end is None:
                each.withdraw()

    def _stopped(self, future: "asyncio.Future[Any]") -> None:
        """Cancelled from inside the body: a later run may come here again, so nothing is undone."""
        if future.cancelled() and self.end is None:
            self.stop()

    def _drop_deadline(self) -> None:
        if self._deadline is not None and not self._deadline.done():
            self._deadline.cancel()


# --- beginning ---------------------------------------------------------------------------------


async def begin_bundle(attempt: Attempt, wheel: Wheel, key: str, term: BundleTerm) -> BundleWait:
    """`key` is that of the call in its body; each member has one made of it."""
    record_id, call = attempt.replay.record_id(key), term.called()
    before = attempt.replay.recorded_at(record_id)
    found = attempt.replay.found(record_id, call)
    if found is not None and (error := found.error_again()) is not None:
        bundle = BundleWait(attempt, record_id, term, ())
        bundle.end = WaitEnd(before, error=error)
        return bundle
    if found is not None:
        return await _restored(attempt, wheel, key, term, cast("int | None", found.value))
    members = await _begin_all(attempt, wheel, key, list(enumerate(term.terms)))
    bundle = BundleWait(attempt, record_id, term, members)
    bundle.begin()
    return bundle


async def _restored(
    attempt: Attempt, wheel: Wheel, key: str, term: BundleTerm, won: int | None
) -> BundleWait:
    counted = [(i, each) for i, each in enumerate(term.terms) if won in (None, i)]
    members = await _begin_all(attempt, wheel, key, counted)
    bundle = BundleWait(attempt, attempt.replay.record_id(key), term, members)
    bundle.restore(won)
    return bundle


async def _begin_all(
    attempt: Attempt, wheel: Wheel, key: str, terms: Sequence[tuple[int, WaitTerm]]
) -> list[BegunWait]:
    """At once, so that the store hears of all of them together."""
    begun: list[BegunWait] = []

    async def begin(index: int, term: WaitTerm) -> BegunWait:
        wait = await _begin(attempt, wheel, f"{MEMBERS}.{key}.{index}", term)
        begun.append(wait)
        return wait

    beginning = [asyncio.ensure_future(begin(*each)) for each in terms]
    try:
        return await asyncio.gather(*beginning)
    except BaseException:
        for each in beginning:
            each.cancel()
        await asyncio.gather(*beginning, return_exceptions=True)
        stop_all(begun)
        raise


async def _begin(attempt: Attempt, wheel: Wheel, key: str, term: WaitTerm) -> BegunWait:
    record_id = attempt.replay.record_id(key)
    match term:
        case SleepTerm(length):
            return await begin_sleep(attempt, record_id, length)
        case PromiseTerm(promise_id, within):
            begun = await begin_promise(attempt, record_id, promise_id, within)
            return PromiseWait(attempt, record_id, promise_id, begun)
        case ConditionTerm():
            return await begin_condition(attempt, wheel, record_id, term)
        case CallTerm():
            return await begin_call(attempt, key, record_id, term)
        case ApprovalTerm():
            return await begin_approval(attempt, record_id, term)
        case BundleTerm():
            return await begin_bundle(attempt, wheel, key, term)
        case _:
            raise TypeError(f"{term!r} cannot be begun")


def _error_of(wait: BegunWait) -> LaybyError | None:
    """What the member raises; None if it has succeeded."""
    if wait.end is None or not wait.end.failed:
        return None
    try:
        wait.value()
    except LaybyError as error:
        return error
    return None


def _denial_of(wait: BegunWait) -> LaybyError | None:
    try:
        return None if wait.end is None or wait.end.promise is None else value_of(wait.end.promise)
    except LaybyError as error:
        return error


def _waiting(term: BundleTerm, members: Sequence[BegunWait]) -> WaitingOn:
    shown = [each.waiting for each in members if each.end is None]
    awaited = [name for each in shown for name in (each.awaited, *each.also_awaited) if name]
    deadlines = [each.deadline for each in shown if each.deadline is not None]
    ends_by_itself = term.kind == "first_of" and deadlines
    return WaitingOn(
        "bundle",
        f"waiting for {term.sentence()}",
        deadline=min(deadlines) if ends_by_itself else None,
        awaited=awaited[0] if awaited else None,
        also_awaited=tuple(awaited[1:MAX_AWAITED]),
        members=tuple(_leaves(shown))[:MAX_AWAITED],
    )


def _leaves(shown: Sequence[WaitingOn]) -> Iterator[WaitingOn]:
    """A bundle in a bundle is one more wait, if it has a deadline that can be moved."""
    for each in shown:
        if each.kind != "bundle" or each.record_id is not None:
            yield replace(each, members=(), also_awaited=())
        yield from each.members


def _until(waiting: WaitingOn, deadline: Millis) -> WaitingOn:
    earlier = deadline if waiting.deadline is None else min(waiting.deadline, deadline)
    return replace(waiting, deadline=earlier)
