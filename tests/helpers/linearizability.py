"""Can all the answers be explained by doing the calls one after the other?

Each call takes effect at one moment between its sending and its answer, and core's `step` says
what is answered then: so what is judged is everything around core, namely batches, the store, the
clock, HTTP. A call without an answer took effect or did not. Leases and deadlines end by
themselves, at their instant or later ("armed means not before").

The search walks through the calls in any order that real time allows and gives up a path at the
first answer that does not fit (Wing and Gong, with Lowe's memory of points that led nowhere).
"""

from collections.abc import Iterable, Iterator, Sequence
from operator import le
from typing import Any, NamedTuple

import msgspec

from layby.core.changes import Changes
from layby.core.commands import Command
from layby.core.footprint import Footprint
from layby.core.replies import Reply
from layby.core.settings import Settings
from layby.core.state import State
from layby.core.step import step
from layby.core.ticks import ExpireLeases, ExpirePromises
from layby.engine.calendar import next_after
from layby.store.memory import MemoryStore
from layby.wire.decode import decode_data
from layby.wire.encode import encode
from tests.helpers.recording import Call, wall_ms

SLACK_MS = 2
"""How far the clocks of two processes may be apart."""
_UNKNOWN_MOMENTS = ("createdAt", "settledAt", "corrId")


class Operation(NamedTuple):
    call: Call
    command: Command
    earliest: int
    latest: int

    @property
    def is_certain(self) -> bool:
        return self.call.answer is not None

    @property
    def only_looks(self) -> bool:
        """It reads, or was refused: wherever it stands, it changes nothing."""
        answer = self.call.answer
        return answer is not None and (answer.status >= 400 or self.call.kind.endswith(".get"))


class Point(NamedTuple):
    """Where a path has led: what is done (as bits), the time at least, and what stands then."""

    done: int
    now: int
    state: State


def problem(calls: Iterable[Call], settings: Settings) -> str | None:
    """Why these calls cannot have happened one after the other, or None if they can."""
    return Search(calls, settings).problem()


class Search:
    def __init__(self, calls: Iterable[Call], settings: Settings) -> None:
        self._operations = list(map(_operation, sorted(calls, key=lambda each: each.invoked_at)))
        self._shown = [_shown_answer(each.call) for each in self._operations]
        self._certain = _bits(n for n, op in enumerate(self._operations) if op.is_certain)
        self._store = MemoryStore(settings, next_after)
        self.steps = 0

    def problem(self) -> str | None:
        been = Been()
        furthest = Point(0, 0, State())
        path = [self._next(furthest)] if self._certain else []
        while path:
            point = next(path[-1], None)
            if point is None:
                path.pop()
            elif self._is_explained(point):
                return None
            elif been.is_new(point):
                path.append(self._next(point))
                furthest = max(furthest, point, key=lambda each: each.done.bit_count())
        return None if self._is_explained(furthest) else self._account(furthest)

    def _is_explained(self, point: Point) -> bool:
        return point.done & self._certain == self._certain

    def _next(self, point: Point) -> Iterator[Point]:
        window = list(self._window(point))
        until = min(self._operations[n].latest for n in window if self._certain >> n & 1)
        last_chance = self._last_chance(window)
        found: list[Point] = []
        for n in sorted(window, key=self._likelihood):
            operation = self._operations[n]
            is_harmless = operation.only_looks and operation.call.invoked_at <= last_chance
            for after in self._done(point, n, until):
                if is_harmless and after.now == point.now:
                    yield after  # it is in nobody's way: no other order can do better
                    return
                found.append(after)
        yield from found
        yield from self._passed(point, until)

    def _last_chance(self, window: Iterable[int]) -> float:
        """What is sent later than this makes it too late for something that was not answered."""
        unsure = (self._operations[n] for n in window if not self._certain >> n & 1)
        return min((each.call.returned_at for each in unsure), default=float("inf"))

    def _likelihood(self, n: int) -> tuple[bool, int]:
        """What was answered first was done first, as a rule; the unanswered only if need be."""
        operation = self._operations[n]
        return not operation.is_certain, operation.call.returned_at

    def _window(self, point: Point) -> Iterator[int]:
        """What can come next: nothing that was sent after the answer to another one of these."""
        first_answer: float = float("inf")
        for n in range(_lowest_zero(point.done), len(self._operations)):
            call = self._operations[n].call
            if call.invoked_at > first_answer:
                return
            if not point.done >> n & 1 and not self._is_too_late(point, call):
                yield n
                if call.answer is not None:
                    first_answer = min(first_answer, call.returned_at)

    def _is_too_late(self, point: Point, call: Call) -> bool:
        """Its server was gone when something that is done was sent: it will not be done any more.

        What was answered is never too late: it is done before what comes after its answer.
        """
        latest = self._operations[point.done.bit_length() - 1].call if point.done else None
        return latest is not None and latest.invoked_at > call.returned_at

    def _done(self, point: Point, n: int, until: int) -> Iterator[Point]:
        """The call takes effect, as early as it can or at a deadline that makes a difference."""
        operation, expected = self._operations[n], self._shown[n]
        now, last = max(point.now, operation.earliest), min(until, operation.latest)
        moments = {now, *(each for each in self._deadlines(point, n) if now < each)}
        for moment in sorted(each for each in moments if each <= last):
            reply, state = self._step(point.state, operation.command, moment)
            if state is point.state and not operation.is_certain:
                continue  # to be done or not to be done is the same
            if expected in (None, _shown_reply(operation.call.kind, reply)):
                # Who only looks does not hold up what may be done a moment before.
                is_idle = operation.only_looks and not self._has_passed(point, moment)
                yield Point(point.done | 1 << n, point.now if is_idle else moment, state)

    def _deadlines(self, point: Point, n: int) -> set[int]:
        own = self._operations[n].call.data
        named = own.get("timeoutAt") or own.get("action", {}).get("data", {}).get("timeoutAt")
        pending = {p.timeout_at for p in point.state.promises.values() if p.is_pending}
        return pending | ({named} if named else set())

    def _has_passed(self, point: Point, moment: int) -> bool:
        """Whether a promise is pending at the point and is not at this moment."""
        promises = point.state.promises.values()
        return any(p.is_pending and point.now < p.timeout_at <= moment for p in promises)

    def _passed(self, point: Point, until: int) -> Iterator[Point]:
        """Time has done its work on one row."""
        for promise in point.state.promises.values():
            if promise.is_pending and promise.timeout_at <= until:
                yield self._ticked(point, ExpirePromises(ids=(promise.id,)), promise.timeout_at)
        for task in point.state.tasks.values():
            if task.state == "acquired" and task.wake_at is not None and task.wake_at <= until:
                yield self._ticked(point, ExpireLeases(ids=(task.id,)), task.wake_at)

    def _ticked(self, point: Point, tick: Command, due_at: int) -> Point:
        now = max(point.now, due_at)
        return Point(point.done, now, self._step(point.state, tick, now)[1])

    def _step(self, state: State, command: Command, now: int) -> tuple[Reply, State]:
        """The very same state comes back when nothing has changed."""
        self.steps += 1
        self._store.state = state
        footprint, changes = Footprint(since=now), Changes()
        command.footprint(footprint)
        reply, draft = step(self._store.load(footprint, now), command, now)
        if reply.status < 400:
            changes.add(draft, now)
        if changes.is_empty:
            return reply, state
        self._store.state = self._store.dump()
        self._store.save(changes)
        return reply, self._store.state

    def _account(self, point: Point) -> str:
        open_calls = [self._operations[n] for n in self._window(point)]
        return "\n".join(
            [
                f"{point.done.bit_count()} of {len(self._operations)} calls are explained; then",
                *(f"  {state}" for state in point.state.promises.values()),
                *(f"  {state}" for state in point.state.tasks.values()),
                f"  {list(point.state.waits)}",
                f"stand at {point.now}, and none of these can be next:",
                *(f"  {op.earliest}..{op.latest} {op.call}" for op in open_calls),
            ]
        )


def _operation(call: Call) -> Operation:
    command = decode_data(call.kind, msgspec.json.encode(call.data))
    assert isinstance(command, Command), command
    earliest, latest = wall_ms(call.invoked_at), wall_ms(call.returned_at)
    return Operation(call, command, earliest - SLACK_MS, latest + SLACK_MS)


def _bits(numbers: Iterable[int]) -> int:
    return sum(1 << n for n in numbers)


def _lowest_zero(bits: int) -> int:
    return (~bits & (bits + 1)).bit_length() - 1


def _shown_answer(call: Call) -> object:
    return None if call.answer is None else (call.answer.status, _timeless(call.answer.data))


def _shown_reply(kind: str, reply: Reply) -> object:
    answer = msgspec.json.decode(encode(kind, "", reply))
    return answer["head"]["status"], _timeless(answer["data"])


def _timeless(shown: Any) -> Any:
    """Without the moments that nobody but the server knows."""
    if isinstance(shown, dict):
        return {k: _timeless(v) for k, v in shown.items() if k not in _UNKNOWN_MOMENTS}
    return [_timeless(each) for each in shown] if isinstance(shown, list) else shown


class Been:
    """Points a path has come by. Whoever comes by again, and later, can only do less."""

    def __init__(self) -> None:
        self._times: dict[object, list[tuple[int, ...]]] = {}

    def is_new(self, point: Point) -> bool:
        place, times = _place(point), _times(point)
        known = self._times.setdefault(place, [])
        if any(all(map(le, each, times)) for each in known):
            return False
        known.append(times)
        return True


def _place(point: Point) -> object:
    """All that can make a difference to later answers, but for times."""
    promises: Sequence[object] = [
        (p.id, p.state, p.value, p.timeout_at, p.tags) for p in point.state.promises.values()
    ]
    tasks: Sequence[object] = [
        (t.id, t.state, t.version, t.pid, t.ttl, t.resumes) for t in point.state.tasks.values()
    ]
    return point.done, frozenset(promises), frozenset(tasks), frozenset(point.state.waits)


def _times(point: Point) -> tuple[int, ...]:
    """Now, and the ends of all leases: a lease may last longer than its end, not shorter."""
    tasks = sorted(point.state.tasks.items())
    return point.now, *(task.wake_at or 0 for _, task in tasks if task.state == "acquired")
