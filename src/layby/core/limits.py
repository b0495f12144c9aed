"""layby.limit.*: how many tasks run at once on all machines, and how many begin in a time.

A name that ends in `*` is a pattern: it counts for every limit that begins so and has no numbers of
its own. Whoever needs a limit for something of their own makes it inside their step (`define`),
with a name that begins with a dot, declares it in their footprint and ends it (`undefine`).
"""

from itertools import takewhile
from typing import Final

from msgspec.structs import replace

from layby.core import permits, validate, waits
from layby.core.draft import Draft
from layby.core.fields import Int64
from layby.core.footprint import Footprint
from layby.core.kinds import Command, Ids, Problems, Query, Sender, declare, handles
from layby.core.limit import (
    ANY,
    MAX_PATTERNS,
    MOST,
    PRIVATE,
    RATE_FORM,
    Limit,
    is_under,
    name_problems,
    read_rate,
)
from layby.core.model import later
from layby.core.queries import Reader
from layby.core.replies import OK, Empty, LimitPage, LimitStanding, Reply, ok, refuse, standing_of
from layby.core.ticks import IdsTick, Tick

SPREAD: Final = 100
"""Names that are told in one step of a pattern that was changed, and parked bodies."""
HOLDERS_TOLD: Final = 10


class LimitCommand(Command, frozen=True):
    """A token must cover the name, as it must cover an id."""

    name: str

    def footprint(self, into: Footprint) -> None:
        into.limits.add(self.name)
        into.defines = True

    def named_ids(self) -> Ids:
        return (self.name,)

    def problems(self) -> Problems:
        yield from name_problems(self.name)
        if self.name.startswith(PRIVATE):
            yield f"the name of a limit must not begin with '{PRIVATE}': {self.name}"


@declare("layby.limit.set", sender=Sender.CLIENT, answer=LimitStanding)
class SetLimit(LimitCommand, frozen=True):
    """Define a limit, or change it: at once, and for everybody. Nobody who runs is stopped.

    `concurrency`: how many bodies may run at once. `rate`: how many may begin in a time, like
    10/min; `burst`: how many of them at once. `count_parked`: whether a body that waits in memory
    counts as one that runs.
    """

    concurrency: Int64 | None = None
    rate: str | None = None
    burst: Int64 = 1
    count_parked: bool = False

    def problems(self) -> Problems:
        yield from super().problems()
        if self.concurrency is None and self.rate is None:
            yield "it limits nothing: give it a concurrency, a rate or both"
        if self.concurrency is not None and not 0 <= self.concurrency <= MOST:
            yield f"concurrency must be between 0 and {MOST:,}"
        if self.rate is not None and read_rate(self.rate) is None:
            yield f"rate '{self.rate}' is not known: {RATE_FORM}"
        if not 1 <= self.burst <= MOST:
            yield f"burst must be between 1 and {MOST:,}"
        if self.burst > 1 and self.rate is None:
            yield "burst needs a rate: it says how many of that may begin at once"


@handles(SetLimit)
def set_limit(d: Draft, c: SetLimit) -> Reply:
    wanted = Limit(
        c.name,
        defined=True,
        pattern=c.name.endswith(ANY),
        concurrency=c.concurrency,
        rate=c.rate,
        burst=c.burst,
        count_parked=c.count_parked,
    )
    others = {name for name, each in d.rows.patterns.items() if each.defined} - {c.name}
    if wanted.pattern and len(others) >= MAX_PATTERNS:
        return refuse(422, f"There are {MAX_PATTERNS} limits whose names end in '{ANY}' already")
    limit = define(d, wanted)
    return ok(standing_of(limit, limit, d.now))


def define(d: Draft, wanted: Limit) -> Limit:
    """From now on these numbers count: whoever may begin by them is let in."""
    before = d.rule(wanted.name)
    d.put_limit(d.limit(wanted.name).defined_as(wanted))
    _tell(d, wanted.name, before)
    return d.limit(wanted.name)


def undefine(d: Draft, name: str) -> None:
    """The numbers of a pattern count again, if there is one; else whoever waits goes on waiting."""
    before = d.rule(name)
    d.put_limit(d.limit(name).undefined())
    _tell(d, name, before)


def _tell(d: Draft, name: str, before: Limit | None) -> None:
    """Those under a pattern, and parked bodies, may be many: ticks tell them, a few at a time."""
    limit = d.limit(name)
    if _no_longer_counts_parked(d, name, before):
        limit = limit.recounted_up_to("").due_at(d.now)
    if limit.pattern:
        limit = limit.told_up_to("").due_at(d.now)
    d.put_limit(limit)
    permits.let_in(d, name)


def _no_longer_counts_parked(d: Draft, name: str, before: Limit | None) -> bool:
    """Or may do so, if no numbers counted before. When parked bodies begin to count, nobody has to
    be looked at: those that are parked have no permits, and get them before they go on, as ever.
    """
    rule = d.rule(name)
    if rule is None or rule.count_parked:
        return False
    may_hold = rule.pattern or d.limit(name).held > 0
    return may_hold if before is None else before.count_parked


@declare("layby.limit.delete", sender=Sender.CLIENT, answer=Empty)
class DeleteLimit(LimitCommand, frozen=True):
    """Forget the numbers of a limit. Tasks that name it wait until it is defined again."""


@handles(DeleteLimit)
def delete_limit(d: Draft, c: DeleteLimit) -> Reply:
    if not d.limit(c.name).defined:
        return refuse(404, f"Limit '{c.name}' is not defined")
    undefine(d, c.name)
    return OK


@declare("layby.limit.get", sender=Sender.CLIENT, answer=LimitStanding)
class GetLimit(Query, frozen=True):
    """A limit, whose numbers count for it, who holds its permits and how many wait."""

    is_quick = True
    name: str
    prefix: str = ""
    """Only holders with this prefix are named: what the caller's token allows."""

    def named_ids(self) -> Ids:
        return (self.name,)

    def problems(self) -> Problems:
        return name_problems(self.name)

    def read(self, reader: Reader, now: int, /) -> Reply:
        found = reader.limit_standings([self.name], HOLDERS_TOLD, now)
        if not found:
            return refuse(404, f"Limit '{self.name}' is not defined, and no task names it")
        shown = tuple(each for each in found[0].holders if each.startswith(self.prefix))
        return ok(replace(found[0], holders=shown))


@declare("layby.limit.list", sender=Sender.ADMIN, answer=LimitPage)
class ListLimits(Query, frozen=True):
    """Limits that are defined or in use, ordered by name."""

    limit: Int64 = 100
    cursor: str | None = None

    def problems(self) -> Problems:
        return validate.page(self.limit)

    def read(self, reader: Reader, now: int, /) -> Reply:
        names = reader.limit_names(self.cursor or "", self.limit + 1)
        shown = names[: self.limit]
        standings = reader.limit_standings(shown, HOLDERS_TOLD, now)
        return ok(LimitPage(standings, shown[-1] if len(names) > len(shown) else None))


@declare("tick.open_gates", sender=Sender.INTERNAL, answer=Empty)
class OpenGates(Tick, frozen=True):
    """More may be let in under these limits: the rate allows it, or they were many."""

    names: tuple[str, ...]

    def footprint(self, into: Footprint) -> None:
        into.limits.update(self.names)


@handles(OpenGates)
def open_gates(d: Draft, c: OpenGates) -> Reply:
    for name in c.names:
        permits.let_in(d, name)
    return OK


@declare("tick.recount_parked", sender=Sender.INTERNAL, answer=Empty)
class RecountParked(IdsTick, frozen=True):
    """A limit no longer counts parked bodies: these are the next after `after`."""

    name: str
    after: str

    def footprint(self, into: Footprint) -> None:
        super().footprint(into)
        into.limits.add(self.name)


@handles(RecountParked)
def recount_parked(d: Draft, c: RecountParked) -> Reply:
    """Every write of a task settles which permits it keeps (`permits`). One that another process
    is about to change was not loaded: it is looked at again.
    """
    limit = d.limit(c.name)
    if limit.parked_after != c.after:
        return OK
    loaded = [task for task in takewhile(bool, map(d.task, c.ids)) if task is not None]
    if loaded:
        limit = limit.recounted_up_to(loaded[-1].id)
    elif not c.ids:
        limit = limit.recounted_up_to(None)
    is_contended = len(loaded) < len(c.ids)
    d.put_limit(limit.due_at(later(d.now, permits.CONTENDED_MS) if is_contended else d.now))
    for task in loaded:
        if waits.is_parked(task):
            d.put_task(task)
    permits.let_in(d, c.name)
    return OK


@declare("tick.spread_pattern", sender=Sender.INTERNAL, answer=Empty)
class SpreadPattern(Tick, frozen=True):
    """A pattern was changed: tell the next names that are in use under it."""

    pattern: str
    names: tuple[str, ...]

    def footprint(self, into: Footprint) -> None:
        into.limits.update((self.pattern, *self.names))
        into.defines = True


@handles(SpreadPattern)
def spread_pattern(d: Draft, c: SpreadPattern) -> Reply:
    pattern = d.limit(c.pattern)
    if pattern.cursor is None:
        return OK
    for name in c.names:
        if is_under(name, c.pattern) and not d.limit(name).pattern:
            permits.let_in(d, name)
    if c.names:
        d.put_limit(pattern.told_up_to(c.names[-1]).due_at(d.now))
    elif pattern.defined:
        d.put_limit(pattern.told_up_to(None).due_at(None))
    else:
        d.drop_limit(c.pattern)
    return OK
