"""What surrounds a promise: waits in both directions, listeners, holders.

Read for people who ask why something has not settled; no command needs it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, Protocol, TypeVar

import msgspec
from msgspec import Struct

from layby.core.address import OWN_INBOXES
from layby.core.codes import fits
from layby.core.limit import Limit, rule_for
from layby.core.model import Holder, Millis, Promise, Task, Wait
from layby.core.replies import Explanation, LimitStanding, standing_of
from layby.core.search import projected
from layby.core.state import State
from layby.core.waits import awaited_in_memory
from layby.store.page_bounds import Pair, lean
from layby.store.session import Session, packed
from layby.store.statements import LAST, Statements, naming
from layby.store.tables import HOLDERS, WAITS

T = TypeVar("T")

HOLDS_UP: Final = "mode NOT IN ('read', 'child', 'below')"
"""As `Wait.holds_up`."""

_pairs = msgspec.json.Decoder(list[Pair])
_waits = msgspec.json.Decoder(list[Wait])
_holders = msgspec.json.Decoder(list[Holder])
_limits = msgspec.json.Decoder(list[Limit])
_texts = msgspec.json.Decoder(list[str])
_counted = msgspec.json.Decoder(list[tuple[str, int]])


LISTED_HOLDERS: Final = 3
"""How many of those that hold permits of a limit are told with a task that waits for one."""
COUNTED: Final = 100_000
"""Those who wait for a limit are counted up to this."""


class Neighbours(Protocol):
    """Lookups for many ids at once; long lists are cut to the first `each + 1`."""

    def waits_of(self, awaiters: Sequence[str], each: int) -> list[Wait]: ...

    def waits_on(self, awaited: Sequence[str], each: int) -> list[Wait]: ...

    def listeners_on(self, awaited: Sequence[str]) -> dict[str, int]:
        """How many; without our own workers, which listen for tasks that wait by themselves."""
        ...

    def pairs(self, ids: Sequence[str]) -> list[Pair]:
        """Lean ones."""
        ...

    def holders(self, pids: Sequence[str]) -> list[Holder]:
        """Those with these pids, and all living ones."""
        ...

    def limits(self, names: Sequence[str]) -> list[Limit]:
        """Those of these names, and all patterns."""
        ...

    def permit_holders(self, name: str, most: int) -> list[str]:
        """Tasks that hold a permit of a limit, by id."""
        ...

    def waiting_for(self, name: str) -> int:
        """How many tasks wait for a permit of a limit, as far as they are counted."""
        ...


class _Around(Struct):
    """What was found for a page of promises."""

    waits_of: dict[str, list[str]]
    waits_on: dict[str, list[str]]
    listeners: dict[str, int]
    pairs: dict[str, Pair]
    holders: list[Holder]
    limits: dict[str, LimitStanding]


def standings(
    look: Neighbours, names: Sequence[str], holders: int, now: Millis
) -> list[LimitStanding]:
    """Limits that exist, in the order of the names, with so many of those that hold permits."""
    found = {each.name: each for each in look.limits(names)} if names else {}
    patterns = [each for each in found.values() if each.pattern]
    return [
        standing_of(
            found[name],
            rule_for(name, found[name], patterns),
            now,
            tuple(look.permit_holders(name, holders)) if found[name].held else (),
            look.waiting_for(name),
        )
        for name in names
        if name in found
    ]


def explained(look: Neighbours, rows: Sequence[Pair], each: int, now: Millis) -> list[Explanation]:
    """`rows` are projected; `each` is how long the lists around one promise may be."""
    around = _look_around(look, rows, each, now)
    return [_explanation(promise, task, around, each) for promise, task in rows]


def _look_around(look: Neighbours, rows: Sequence[Pair], each: int, now: Millis) -> _Around:
    tasks = [task for _, task in rows if task is not None]
    ids = [promise.id for promise, _ in rows]
    stored = ((w.awaiter, w.awaited) for w in look.waits_of([t.id for t in tasks], each))
    in_memory = ((t.id, awaited) for t in tasks for awaited in awaited_in_memory(t))
    waits_of = _grouped((*stored, *in_memory))
    awaited = {key for keys in waits_of.values() for key in keys[:each]}
    gates = sorted({task.gate for task in tasks if task.gate is not None})
    return _Around(
        waits_of=waits_of,
        waits_on=_grouped((w.awaited, w.awaiter) for w in look.waits_on(ids, each)),
        listeners=look.listeners_on(ids),
        pairs={pair[0].id: projected(*pair, now) for pair in look.pairs(sorted(awaited))},
        holders=look.holders(sorted({task.pid for task in tasks if task.pid is not None})),
        limits={each.name: each for each in standings(look, gates, LISTED_HOLDERS, now)},
    )


def _explanation(promise: Promise, task: Task | None, around: _Around, each: int) -> Explanation:
    awaited, awaiters = (found.get(promise.id, []) for found in (around.waits_of, around.waits_on))
    group = [h for h in around.holders if h.is_alive and task is not None and h.group == task.group]
    return Explanation(
        promise=promise,
        task=task,
        awaited=[around.pairs[key] for key in awaited[:each] if key in around.pairs],
        more_awaited=len(awaited) > each,
        awaiters=awaiters[:each],
        more_awaiters=len(awaiters) > each,
        listeners=around.listeners.get(promise.id, 0),
        holder=_holder_of(task, around.holders),
        workers=len(group),
        able_workers=sum(task is not None and _can_take(holder, task) for holder in group),
        limit=None if task is None or task.gate is None else around.limits.get(task.gate),
    )


def _can_take(holder: Holder, task: Task) -> bool:
    return task.name in holder.names and fits(task.refused, holder.codes)


def _holder_of(task: Task | None, holders: Iterable[Holder]) -> Holder | None:
    if task is None or task.holder is None:
        return None
    return next((h for h in holders if (h.pid, h.incarnation) == (task.pid, task.holder)), None)


def _grouped(keyed: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for key, other in sorted(keyed):
        found[key].append(other)
    return dict(found)


class SqlNeighbours:
    """A constant number of statements for a page, each through an index."""

    def __init__(self, session: Session, sql: Statements) -> None:
        self._session = session
        self._sql = sql

    def waits_of(self, awaiters: Sequence[str], each: int) -> list[Wait]:
        return self._waits("awaiter", "awaited", awaiters, each)

    def waits_on(self, awaited: Sequence[str], each: int) -> list[Wait]:
        return self._waits("awaited", "awaiter", awaited, each)

    def listeners_on(self, awaited: Sequence[str]) -> dict[str, int]:
        dialect = self._sql.dialect
        source = f"""
            (SELECT awaited, count(*) AS found FROM listeners
                WHERE {dialect.among("awaited")}
                    AND substr(address, 1, {len(OWN_INBOXES)}) <> ?
                GROUP BY awaited) AS counted
        """
        statement = dialect.all_of(dialect.cells("awaited", "found"), source)
        return dict(self._session.read(statement, _counted, packed(awaited), OWN_INBOXES))

    def pairs(self, ids: Sequence[str]) -> list[Pair]:
        return self._session.read(self._sql.lean_pairs, _pairs, packed(ids)) if ids else []

    def holders(self, pids: Sequence[str]) -> list[Holder]:
        dialect = self._sql.dialect
        where = f"standing = 'alive' OR {dialect.among('pid')}"
        source = f"(SELECT * FROM holders WHERE {where} ORDER BY pid, incarnation) AS holders"
        statement = dialect.all_of(dialect.packed(HOLDERS.columns, "holders"), source)
        return self._session.read(statement, _holders, packed(pids))

    def limits(self, names: Sequence[str]) -> list[Limit]:
        return self._session.read(self._sql.limits, _limits, packed(names))

    def permit_holders(self, name: str, most: int) -> list[str]:
        return self._session.read(self._sql.permit_holders, _texts, naming(name), most)

    def waiting_for(self, name: str) -> int:
        return self._session.row(self._sql.count_waiting, (name, COUNTED))[0]

    def _waits(self, by: str, other: str, ids: Sequence[str], each: int) -> list[Wait]:
        if not ids:
            return []
        dialect = self._sql.dialect
        source = f"""
            (SELECT w.* FROM {dialect.any_text} JOIN waits AS w ON w.{by} = i.value
                AND w.{HOLDS_UP} AND w.{other} <= COALESCE(
                    (SELECT x.{other} FROM waits AS x WHERE x.{by} = i.value AND x.{HOLDS_UP}
                        ORDER BY x.{other} LIMIT 1 OFFSET ?), '{LAST}')
            ) AS w
        """
        statement = dialect.all_of(dialect.packed(WAITS.columns, "w"), source)
        return self._session.read(statement, _waits, packed(ids), each)


class MemoryNeighbours:
    """Scans, like all lists of the memory store."""

    def __init__(self, state: State) -> None:
        self._state = state

    def waits_of(self, awaiters: Sequence[str], each: int) -> list[Wait]:  # noqa: ARG002 - all
        return [wait for wait in self._open_waits if wait.awaiter in set(awaiters)]

    def waits_on(self, awaited: Sequence[str], each: int) -> list[Wait]:  # noqa: ARG002 - all
        return [wait for wait in self._open_waits if wait.awaited in set(awaited)]

    def listeners_on(self, awaited: Sequence[str]) -> dict[str, int]:
        others = (x for x in self._state.listeners if not x.address.startswith(OWN_INBOXES))
        found = Counter(listener.awaited for listener in others)
        return {key: found[key] for key in awaited if key in found}

    def pairs(self, ids: Sequence[str]) -> list[Pair]:
        promises, tasks = self._state.promises, self._state.tasks
        return [lean((promises[key], tasks.get(key))) for key in ids if key in promises]

    def holders(self, pids: Sequence[str]) -> list[Holder]:
        found = (h for _, h in sorted(self._state.holders.items()))
        return [holder for holder in found if holder.is_alive or holder.pid in pids]

    def limits(self, names: Sequence[str]) -> list[Limit]:
        found = (each for _, each in sorted(self._state.limits.items()))
        return [each for each in found if each.pattern or each.name in names]

    def permit_holders(self, name: str, most: int) -> list[str]:
        held = (task.id for task in self._state.tasks.values() if name in task.permit_names)
        return sorted(held)[:most]

    def waiting_for(self, name: str) -> int:
        return min(COUNTED, sum(task.gate == name for task in self._state.tasks.values()))

    @property
    def _open_waits(self) -> list[Wait]:
        return [wait for wait in self._state.waits.values() if wait.holds_up]
