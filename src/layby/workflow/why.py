"""Follows what a promise waits for to what really holds it up, and puts that into words."""

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from layby.core.model import Millis
from layby.core.replies import Explanation
from layby.workflow.moments import ahead, span
from layby.workflow.outcome import moment
from layby.workflow.reasons import Reason, reason_of
from layby.workflow.short_ids import quoted, short_id

Ask = Callable[[str], Awaitable[Explanation | None]]
"""What the store knows about a promise; None when there is no such promise."""

ENOUGH: Final = 100
"""Enough promises to look at once a cause is found: a large tree has more of the same."""
MAX_ASKED: Final = 1_000
SHOWN: Final = 4
"""Only the ends of a longer chain are shown."""
_URGENCY: Final = {
    "condition": 1,
    "trigger": 1,
    "limit": 1,
    "slot": 2,
    "running": 2,
    "backoff": 3,
    "sleep": 3,
    "settled": 4,
}
"""What somebody could do something about (0) comes first, what only time can end comes last."""
_LEAST: Final = max(_URGENCY.values())
"""A permit that nobody can give, but for those who are waited for as well."""


class Why(Struct, frozen=True):
    """`chain` leads from what was asked for to its cause; `others` counts further causes."""

    chain: tuple[Reason, ...]
    others: int = 0
    is_cut: bool = False
    """Not everything was looked at: there may be more causes."""
    failures: tuple[Reason, ...] = ()
    """What failed, with tracebacks: the cause itself, or the tasks of a run that failed."""
    failed: tuple[Reason, ...] = ()
    """Tasks that failed in a run that has not ended, because it is being cleaned up."""

    @property
    def cause(self) -> Reason:
        return self.chain[-1]


async def find_why(ask: Ask, promise_id: str, now: Millis) -> Why | None:
    """None when there is no such promise. Searches depth-first: causes are at the ends."""
    reasons: dict[str, Reason] = {}
    has_cause = False
    waiting = [promise_id]
    while waiting and len(reasons) < (ENOUGH if has_cause else MAX_ASKED):
        asked = waiting.pop()
        about = None if asked in reasons else await ask(asked)
        if about is not None:
            reasons[asked] = reason_of(about, now)
            waiting += reversed(reasons[asked].awaited)
            has_cause |= not reasons[asked].awaited
    if promise_id not in reasons:
        return None
    why = replace(why_of(_still_open(reasons), promise_id), is_cut=bool(waiting))
    failed = await _failed(ask, why, now)
    # A run keeps no tracebacks of its own: each stands once, with its task.
    failures = tuple(each for each in (why.cause, *failed) if each.traceback)
    is_over = why.chain[0].kind == "settled"
    return replace(why, failures=failures, failed=() if is_over else failed)


async def _failed(ask: Ask, why: Why, now: Millis) -> tuple[Reason, ...]:
    """The tasks that failed in the run it is about: in the cause, or in one being cleaned up."""
    asked = [await ask(each) for each in (why.cause.failed or why.chain[0].failed)[:ENOUGH]]
    return tuple(
        reason_of(about, now)
        for about in asked
        if about is not None and about.promise.state in ("rejected", "rejected_timedout")
    )


def _still_open(reasons: Mapping[str, Reason]) -> Mapping[str, Reason]:
    """A run that has ended is held up by nothing once those that clean up have ended as well."""
    return {
        each: replace(reason, awaited=tuple(_unsettled(reasons, reason)))
        if reason.kind == "settled" and reason.awaited
        else reason
        for each, reason in reasons.items()
    }


def _unsettled(reasons: Mapping[str, Reason], reason: Reason) -> list[str]:
    return [each for each in _known(reasons, reason) if reasons[each].kind != "settled"]


def why_of(reasons: Mapping[str, Reason], promise_id: str) -> Why:
    """The path to the most urgent cause; among equals, to the one that has waited longest."""
    ways = _ways(reasons, promise_id)
    causes = [way for way in ways.values() if _is_cause(reasons, way[-1])]
    if not causes:
        return Why(_around(reasons, promise_id))
    return Why(_in_turn(min(causes, key=lambda way: _order(way[-1]))), len(causes) - 1)


def told(why: Why, now: Millis) -> str:
    """One sentence: what it waits for, since when, and who can unblock it."""
    cause = why.cause
    aside = f"; {cause.aside}" if cause.aside and len(why.chain) == 1 else ""
    return (
        f"{_run_path(why)} {cause.sentence}{_how_long(cause, now)}{_limit(cause, now)}"
        f"{aside}{_who(cause)}{_beside(why)}"
    )


def _ways(reasons: Mapping[str, Reason], start: str) -> dict[str, tuple[Reason, ...]]:
    """The shortest path to everything that is waited for, directly or not."""
    ways: dict[str, tuple[Reason, ...]] = {start: (reasons[start],)}
    ahead_of_us = deque([start])
    while ahead_of_us:
        way = ways[ahead_of_us.popleft()]
        for each in _known(reasons, way[-1]):
            if each not in ways:
                ways[each] = (*way, reasons[each])
                ahead_of_us.append(each)
    return ways


def _known(reasons: Mapping[str, Reason], reason: Reason) -> list[str]:
    return [each for each in reason.awaited if each in reasons]


def _is_cause(reasons: Mapping[str, Reason], reason: Reason) -> bool:
    """It waits for nothing known. A promise that was merely not looked at is not a cause."""
    return not _known(reasons, reason) and (not reason.awaited or len(reasons) == 1)


def _around(reasons: Mapping[str, Reason], start: str) -> tuple[Reason, ...]:
    """Everything here waits for something else, so every path leads back to itself."""
    way: dict[str, Reason] = {}
    step = start
    while step not in way:
        way[step] = reasons[step]
        known = _known(reasons, way[step])
        if not known:
            return tuple(way.values())  # deeper than we look
        step = known[0]
    *before, last = way.values()
    return (*before, _closing(last, reasons[step]))


def _in_turn(way: tuple[Reason, ...]) -> tuple[Reason, ...]:
    """A permit that nobody gives back before the task that lacks it has ended is said to be one."""
    *before, last = way
    waiting = {each.id for each in before}
    if last.full is None or not waiting.issuperset(last.full.holders):
        return way
    verb = "waits" if len(last.full.holders) == 1 else "wait"
    told = replace(
        last,
        sentence=f"{last.sentence}, which {verb} for it in turn",
        unblock="whoever raises the limit, or cancels one of those that hold it,",
        command=last.full.raising or last.command,
    )
    return (*before, told)


def _closing(last: Reason, first: Reason) -> Reason:
    return replace(
        last,
        kind="circle",
        sentence=f"waits for {first.subject} in turn, so none of them can go on",
        unblock="whoever cancels one of them",
        command=f"layby cancel {quoted(short_id(last.id))}",
        awaited=(),
    )


def _order(cause: Reason) -> tuple[int, Millis, str]:
    is_idle = cause.kind == "limit" and not cause.unblock
    return _LEAST if is_idle else _URGENCY.get(cause.kind, 0), cause.since or 0, cause.id


def _run_path(why: Why) -> str:
    """A run ends after those that clean up, whatever has failed before."""
    if not why.failed or len(why.chain) == 1:
        return _path(why.chain)
    run, first, more = why.chain[0], why.failed[0], len(why.failed) - 1
    beside = f" (and {more} more failed)" if more else ""
    why_so = f"since {first.subject_beside(run.id)} {first.sentence}{beside}"
    return f"{run.subject} is being cleaned up after a failure, {why_so}; {_path(why.chain[1:])}"


def _path(chain: Sequence[Reason]) -> str:
    """A run is named once, however many of its tasks follow."""
    if chain[0].kind == "settled" and len(chain) > 1:
        return (
            f"{chain[0].subject} {chain[0].sentence}, and is being cleaned up: {_path(chain[1:])}"
        )
    names = [each.subject_after(before) for before, each in pairwise(chain)]
    first = 2 if len(chain) > 2 and chain[2].is_previous_of(chain[1]) else 1
    left_out = len(chain) - 2 - first
    if len(chain) > SHOWN and left_out > 1:
        names = [*names[:first], f"a chain of {left_out} more that ends with {names[-1]}"]
    links = [f"waits for {name}, which" for name in names]
    return " ".join([chain[0].subject, *links])


def _beside(why: Why) -> str:
    if not why.others:
        return ""
    more = " or more" if why.is_cut else ""
    plural = "s" if why.others > 1 or why.is_cut else ""
    return f" ({why.others}{more} other cause{plural})"


def _how_long(cause: Reason, now: Millis) -> str:
    """A wait with a known end does not need its beginning."""
    if cause.since is None or cause.kind in ("settled", "sleep") or now - cause.since < 1_000:
        return ""
    return f", for {span(now - cause.since)} now"


def _limit(cause: Reason, now: Millis) -> str:
    """A deadline that would end the wait without its outcome."""
    until = cause.deadline
    if until is None or cause.kind in ("settled", "running", "sleep", "backoff"):
        return ""
    return f", until {moment(until)} at most ({ahead(until, now)})"


def _who(cause: Reason) -> str:
    """Something that runs is not blocked."""
    is_told = cause.unblock and cause.kind != "running"
    return f"; {cause.unblock} can unblock it" if is_told else ""
