"""A limit as a row: how many bodies may run at once on all machines, and how many begin in a time.

The rate is kept by one number, the instant up to which begins are paid for: each begin moves it on
by its share of the time. With a burst of b, as many as b may begin at once, and in no window more
than the rate and b - 1. It is counted in microseconds, so that fast rates are not rounded.
"""

import re
from collections.abc import Iterable, Iterator
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
PARKED: Final = "\n"
"""At the beginning of a cursor: it is the id of a task, not a name."""
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
    """Tasks of one name that were let in under a limit and not taken yet."""

    count: int = 0
    last: Millis = -1
    """The last place that one of them had in the lane."""
    slots: int = 1
    """As many as one of them needs at most."""

    def with_more(self, by: int, place: Millis, slots: int) -> "Opened":
        return Opened(self.count + by, max(self.last, place), max(self.slots, slots))


NOBODY: Final = Opened()
_opened = msgspec.json.Decoder(dict[str, Opened | int])
"""Earlier layby stored only the counts."""


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
    """By name, the tasks that were let in and not taken yet (`Opened`): a JSON object."""
    next_at: Millis | None = None
    """When somebody is to be let in by a tick; None when only others' steps do that."""
    cursor: str | None = None
    """Of a pattern that was changed: the last name that has been told. Before that, and of any
    limit that counts parked bodies otherwise than before: the last of them that has been counted
    (`PARKED`).
    """

    @property
    def opened_by_name(self) -> dict[str, Opened]:
        found = {} if self.opened is None else _opened.decode(self.opened)
        return {
            name: Opened(each) if isinstance(each, int) else each for name, each in found.items()
        }

    @property
    def is_idle(self) -> bool:
        """Nothing of it is in use."""
        return self.held == 0 and self.opened is None

    def opening(self, name: str, by: int, place: Millis = -1, slots: int = 1) -> "Limit":
        """So many more tasks of that name are let in; one had this place, and needs these slots."""
        opened = self.opened_by_name
        opened[name] = opened.get(name, NOBODY).with_more(by, place, slots)
        kept = {key: each for key, each in opened.items() if each.count > 0}
        text = msgspec.json.encode(kept, order="sorted").decode() if kept else None
        return replace(self, opened=text)

    def holding(self, by: int) -> "Limit":
        return replace(self, held=max(0, self.held + by))

    def begun(self, rule: "Limit", now: Millis) -> "Limit":
        """One more has begun: its share of the time is paid for."""
        rate = rule.pace
        if rate is None:
            return self
        return replace(self, paid_us=max(self.paid_us, now * 1_000) + rate.share_us)

    def due_at(self, at: Millis | None) -> "Limit":
        return self if self.next_at == at else replace(self, next_at=at)

    def told_up_to(self, cursor: str | None) -> "Limit":
        return replace(self, cursor=cursor)

    def recounting(self, after: str = "") -> "Limit":
        """Parked bodies up to this id have been counted again."""
        return replace(self, cursor=f"{PARKED}{after}")

    def recounted(self) -> "Limit":
        """All have been; those under a pattern are told next."""
        return replace(self, cursor="" if self.pattern else None)

    @property
    def is_recounting(self) -> bool:
        return self.cursor is not None and self.cursor.startswith(PARKED)

    def defined_as(self, rule: "Limit", now: Millis, before: "Limit | None") -> "Limit":
        """With other numbers: what is in use stays so. `before`: whose numbers counted so far."""
        paid_us = self.paid_by(rule, now, before).paid_us
        return replace(
            rule, held=self.held, paid_us=paid_us, opened=self.opened, cursor=self.cursor
        )

    def undefined(self) -> "Limit":
        return Limit(
            self.name,
            pattern=self.pattern,
            held=self.held,
            paid_us=self.paid_us,
            opened=self.opened,
            cursor=self.cursor,
        )

    def paid_by(self, rule: "Limit", now: Millis, before: "Limit | None" = None) -> "Limit":
        """As many begins are paid for as were by the numbers that counted `before`: a change gives
        no second burst. But nobody waits longer than by the new ones.
        """
        pace, was, ahead_us = rule.pace, before and before.pace, self.paid_us - now * 1_000
        if pace is None or ahead_us <= 0:
            return replace(self, paid_us=0)
        if was is not None:
            ahead_us = -(-ahead_us * pace.share_us // was.share_us)
        return replace(self, paid_us=now * 1_000 + min(ahead_us, rule.burst * pace.share_us))

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
        pace, now_us = self.pace, now * 1_000
        if pace is None:
            return MANY
        ahead_us = max(used.paid_us, now_us) - now_us
        return max(0, self.burst - -(-ahead_us // pace.share_us))

    def next_begin_at(self, used: "Limit") -> Millis:
        """When the rate allows the next one."""
        pace = self.pace
        if pace is None:
            return 0
        return min(NEVER, -(-(used.paid_us - (self.burst - 1) * pace.share_us) // 1_000))


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
