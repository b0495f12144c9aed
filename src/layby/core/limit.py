"""A limit as a row: how many bodies may run at once on all machines, and how many begin in a time.

The rate is kept by one number, the instant up to which begins are paid for: each begin moves it on
by its share of the time. With a burst of b, as many as b may begin at once, and in no window more
than the rate and b - 1. It is counted in microseconds, so that fast rates are not rounded.

When the numbers change, as many begins are unpaid as before, and none is paid for faster than by
the fastest rate since it was made. So in any window, across any number of changes, no more begin
than the largest rate and the largest burst that counted in it allow. Each name remembers by which
rate its begins were reckoned, so it does not matter when it hears of a change.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from layby.core.model import NEVER, Millis

ANY: Final = "*"
"""At the end of a name: the limit is meant for every name that begins so and has none."""
PRIVATE: Final = "."
"""At the beginning of a name: it belongs to something else, ends with it and is not listed."""
MAX_NAME_CHARS: Final = 200
MAX_LIMITS: Final = 8
"""Limits of one task."""
MAX_PATTERNS: Final = 100
MOST: Final = 1_000_000
"""Permits of a limit, begins in a time, and burst."""
MANY: Final = 2**53
"""Free permits where nothing bounds them."""

_SPANS: Final = {"s": 1_000, "sec": 1_000, "min": 60_000, "h": 3_600_000, "day": 86_400_000}
_RATE: Final = re.compile(r"([0-9]{1,7})/([a-z]+)")


class Rate(Struct, frozen=True):
    """So many begins in a time."""

    count: int
    span: Millis

    @property
    def share_us(self) -> int:
        """The time that one begin pays for, rounded up: so no window has too many."""
        return -(-self.span * 1_000 // self.count)


@lru_cache(maxsize=256)
def read_rate(text: str) -> Rate | None:
    """What a text like 10/min says; None if it says nothing."""
    found = _RATE.fullmatch(text)
    if found is None or found[2] not in _SPANS or not 1 <= int(found[1]) <= MOST:
        return None
    return Rate(int(found[1]), _SPANS[found[2]])


RATE_FORM: Final = (
    f"write a number from 1 to {MOST:,}, a slash and one of {', '.join(_SPANS)}: 10/min"
)


class Opened(Struct, frozen=True, array_like=True, gc=False):
    """Tasks of one lane that were let in under a limit and not taken yet."""

    count: int = 0
    last: Millis = -1
    """The last place that one of them had in the lane."""
    slots: int = 1
    """As many as one of them needs at most."""

    def with_more(self, by: int, place: Millis, slots: int) -> "Opened":
        return Opened(self.count + by, max(self.last, place), max(self.slots, slots))


NOBODY: Final = Opened()
_opened = msgspec.json.Decoder(dict[str, Opened])


@lru_cache(maxsize=16)
def _opened_in(text: str) -> Mapping[str, Opened]:
    """A step asks for each lane of a limit: of a hundred lanes, hundreds of times."""
    return _opened.decode(text)


class Limit(Struct, frozen=True, array_like=True, gc=False):
    """What is defined for a name, and what is in use of it. One that is only in use has numbers
    from elsewhere: from a pattern, or none yet.
    """

    name: str
    defined: bool = False
    pattern: bool = False
    concurrency: int | None = None
    rate: str | None = None
    burst: int = 1
    count_parked: bool = False
    """Whether a body keeps its permit while it is parked."""
    held: int = 0
    """Permits that are out."""
    paid_us: int = 0
    """Up to which instant begins are paid for."""
    opened: str | None = None
    """By lane, the tasks that were let in and not taken yet (`Opened`): a JSON object."""
    next_at: Millis | None = None
    """When somebody is to be let in by a tick; None when only others' steps do that."""
    cursor: str | None = None
    """Of a pattern that was changed: the last name that has been told; None if all have been."""
    parked_after: str | None = None
    """Of one that no longer counts parked bodies: the last of these, by id, that has been looked
    at; None if all have been.
    """
    each_us: int = 0
    """The time that each unpaid begin counts for. Earlier layby did not store it: 0 is the share of
    the rate that counts.
    """
    rate_us: int = 0
    """The share of the rate by which the unpaid begins were reckoned last."""

    @property
    def opened_by_lane(self) -> Mapping[str, Opened]:
        return {} if self.opened is None else _opened_in(self.opened)

    @property
    def is_idle(self) -> bool:
        """Nothing of it is in use."""
        return self.held == 0 and self.opened is None

    def opening(self, lane: str, by: int, place: Millis = -1, slots: int = 1) -> "Limit":
        """So many more tasks of that lane are let in; one had this place, and needs these slots."""
        opened = dict(self.opened_by_lane)
        opened[lane] = opened.get(lane, NOBODY).with_more(by, place, slots)
        kept = {key: each for key, each in opened.items() if each.count > 0}
        text = msgspec.json.encode(kept, order="sorted").decode() if kept else None
        return replace(self, opened=text)

    def holding(self, by: int) -> "Limit":
        return replace(self, held=max(0, self.held + by))

    def begun(self, rule: "Limit", now: Millis) -> "Limit":
        """One more has begun: its share of the time is to be paid for."""
        rate = rule.pace
        if rate is None:
            return self
        unpaid_us = self.reckoned(rule, now).unpaid_us(rate, now)
        paid_us = now * 1_000 + unpaid_us + rate.share_us
        return replace(self, paid_us=paid_us, each_us=rate.share_us, rate_us=rate.share_us)

    def unpaid_us(self, rate: Rate, now: Millis) -> int:
        """The time that the unpaid begins would count for by a rate."""
        ahead_us = max(0, self.paid_us - now * 1_000)
        return -(-ahead_us * rate.share_us // (self.each_us or rate.share_us))

    def reckoned(self, rule: "Limit", now: Millis) -> "Limit":
        """By the rate that counts now: as many are unpaid as before. By a faster one they are paid
        for sooner; by a slower one later, but no later than by the burst of the new numbers.
        """
        rate, ahead_us = rule.pace, self.paid_us - now * 1_000
        if rate is None or self.rate_us == rate.share_us or ahead_us <= 0:
            return self
        was_us, then_us = self.each_us or rate.share_us, self.unpaid_us(rate, now)
        each_us = rate.share_us
        if was_us < each_us:
            then_us = max(ahead_us, min(then_us, rule.burst * each_us))
            each_us = then_us * was_us // ahead_us
        return replace(self, paid_us=now * 1_000 + then_us, each_us=each_us, rate_us=rate.share_us)

    def due_at(self, at: Millis | None) -> "Limit":
        return self if self.next_at == at else replace(self, next_at=at)

    def told_up_to(self, cursor: str | None) -> "Limit":
        return replace(self, cursor=cursor)

    def recounted_up_to(self, task_id: str | None) -> "Limit":
        return replace(self, parked_after=task_id)

    @property
    def is_recounting(self) -> bool:
        return self.parked_after is not None

    def defined_as(self, rule: "Limit") -> "Limit":
        """With other numbers: what is in use stays so."""
        return replace(
            self,
            defined=rule.defined,
            pattern=rule.pattern,
            concurrency=rule.concurrency,
            rate=rule.rate,
            burst=rule.burst,
            count_parked=rule.count_parked,
        )

    def undefined(self) -> "Limit":
        return self.defined_as(Limit(self.name, pattern=self.pattern))

    # --- as a rule -----------------------------------------------------------------------

    @property
    def pace(self) -> Rate | None:
        return None if self.rate is None else read_rate(self.rate)

    def free(self, used: "Limit", now: Millis) -> int:
        """How many more may begin now, with `used` in use."""
        return min(self.free_permits(used), self.free_begins(used, now))

    def free_permits(self, used: "Limit") -> int:
        return MANY if self.concurrency is None else self.concurrency - used.held

    def free_begins(self, used: "Limit", now: Millis) -> int:
        """So many may begin now as far as the rate goes."""
        rate = self.pace
        if rate is None:
            return MANY
        used = used.reckoned(self, now)
        ahead_us = max(0, used.paid_us - now * 1_000)
        return max(0, self.burst - -(-ahead_us // (used.each_us or rate.share_us)))

    def next_begin_at(self, used: "Limit", now: Millis) -> Millis:
        """When the rate allows the next one."""
        rate = self.pace
        if rate is None:
            return 0
        used = used.reckoned(self, now)
        begin_us = used.paid_us - (self.burst - 1) * (used.each_us or rate.share_us)
        return min(NEVER, -(-begin_us // 1_000))


def limit_names(names: Iterable[str], whose: str) -> Iterator[str]:
    """What is wrong with the limits of a task."""
    listed = list(names)
    if len(listed) > MAX_LIMITS:
        yield f"Limits of {whose}: {len(listed)} are more than {MAX_LIMITS}"
    if len(set(listed)) < len(listed):
        yield f"Limits of {whose}: one is named twice: {', '.join(listed)}"
    for name in listed:
        yield from (f"Limit of {whose}: {why}" for why in name_problems(name))
        if name.endswith(ANY):
            yield f"Limit of {whose}: '{name}' is a pattern; name one limit"


def name_problems(name: str) -> Iterator[str]:
    if not name or len(name) > MAX_NAME_CHARS or not name.isprintable() or name != name.strip():
        yield f"the name of a limit must have 1 to {MAX_NAME_CHARS} printable characters: {name!r}"
    if ANY in name[:-1]:
        yield f"'{name}' has a '{ANY}' that is not at its end"


def rule_for(name: str, own: Limit | None, patterns: Iterable[Limit]) -> Limit | None:
    """Whose numbers count for a name: its own, else those of the longest pattern; None if none."""
    if own is not None and own.defined:
        return own
    fitting = [each for each in patterns if each.defined and is_under(name, each.name)]
    return max(fitting, key=lambda each: len(each.name), default=None)


def is_under(name: str, pattern: str) -> bool:
    return name.startswith(pattern.removesuffix(ANY)) and not name.startswith(PRIVATE)


def is_meant(name: str, wanted: str) -> bool:
    """Whether it is the limit of this name, or one under this pattern."""
    return is_under(name, wanted) if wanted.endswith(ANY) else name == wanted
