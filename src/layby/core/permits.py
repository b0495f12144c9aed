"""Who may run under the limits of a task: the one place where permits are taken and given back.

A permit is a mark on the leased task (`Task.permits`) and a count on the limit (`Limit.held`). It
lasts as long as the task's claim does: whatever ends that frees it in the same step, because every
write of a task comes by here (`placed`, `moved`).

A task without a permit is behind the gate of one of its limits, in the lane of its own group and
name, and no take sees it. Gates are opened for as many as may begin, the oldest first: so takes
come across no more tasks than there are free permits, however many wait. A take charges all limits
of a task, or puts it back behind the gate of the one that lacks a permit.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from layby.core import waits
from layby.core.limit import NOBODY
from layby.core.model import NEVER, Millis, Task, later, task_name_in

if TYPE_CHECKING:
    from layby.core.draft import Draft
    from layby.core.lane import Lane
    from layby.core.limit import Limit

CONTENDED_MS: Final[Millis] = 5
"""When somebody looks again at a lane that another process was about to change."""


def lacking(d: "Draft", task: Task) -> str | None:
    """The first of its limits that nobody else may begin under now; None if it may begin."""
    for name in task.limit_names:
        rule = d.rule(name)
        if rule is None or rule.free(d.limit(name), d.now) <= 0:
            return name
    return None


def charged(d: "Draft", claimed: Task) -> Task:
    """With a permit of each of its limits; the begin counts for their rates."""
    for name in claimed.limit_names:
        rule = d.rule(name)
        if rule is not None:
            d.put_limit(d.limit(name).begun(rule, d.now))
    return claimed.permitted(claimed.limit_names)


def turn_back(d: "Draft", task: Task, gate: str) -> None:
    """It was let in, but somebody else has begun meanwhile: it keeps its place in the lane."""
    place = d.now if task.ready_at is None else task.ready_at
    d.put_task(_behind(d, task, gate, place))


# --- every write of a task comes by here -------------------------------------------------


def placed(d: "Draft", task: Task) -> Task:
    """As it is written: with the permits it keeps, and behind a gate if it is ready."""
    task = task.permitted(tuple(_kept(d, task)))
    if task.state == "acquired" and task.gate is not None and not waits.is_to_go_on(task):
        task = task.out_of_lane()  # it waits for something else again
    is_new = task.is_ready and task.gate_at is None and task.refused is None
    if not is_new or task.ready_at is None or task.ready_at > d.now:
        return task
    return _behind(d, task, task.limit_names[0], task.ready_at)


def _kept(d: "Draft", task: Task) -> Iterable[str]:
    """What it holds: all while its body runs, nothing when its claim is over. One that is parked
    keeps those that count it all the same, and what it got back to go on. It gets none while it is
    parked, even if it counts from now on: more might run then than are allowed.
    """
    if task.holder is None:
        return ()
    if task.state != "acquired" or waits.is_for_slot(task):
        return task.permit_names
    if task.sub_status != "Deferred":
        return task.limit_names
    rules = {name: d.rule(name) for name in task.permit_names}
    return (name for name, rule in rules.items() if rule is not None and rule.count_parked)


def moved(d: "Draft", before: Task | None, after: Task) -> None:
    """Count what has changed, and let others in."""
    touched = dict[str, None]()
    for name, by in _differences(_permits(before), _permits(after)):
        d.put_limit(d.limit(name).holding(by))
        touched |= {name: None} if by < 0 else {}
        _note_closed(d, name)
    for name, by in _differences(_openings(before), _openings(after)):
        what = (after.gate_at or 0, after.slots) if by > 0 else ()
        d.put_limit(d.limit(name).opening(after.lane, by, *what))
        touched |= {name: None} if by < 0 else {}
    if after.gate is not None and (before is None or before.gate != after.gate):
        d.rows.join_lane(after)
        touched[after.gate] = None
    if before is not None and before.is_in_line and after.gate_at != before.gate_at:
        d.regained.append(before.regain_id)
    for name in touched:
        let_in(d, name)
    left = _left_gate(before, after)
    if left is not None and d.has_limit(left) and d.rule(left) is None:
        d.put_limit(d.limit(left).due_at(d.now))  # was it the last that kept the row? A tick looks


def _left_gate(before: Task | None, after: Task) -> str | None:
    """The gate it was behind, if it will not be let in by it."""
    has_left = after.gate is None and not after.is_let_in
    return before.gate if before is not None and has_left else None


def _permits(task: Task | None) -> tuple[str, ...]:
    return () if task is None else task.permit_names


def _openings(task: Task | None) -> tuple[str, ...]:
    """One that some code has refused does not count: it must not hold up others of its name."""
    is_open = task is not None and task.is_let_in and task.refused is None
    return task.limit_names if task is not None and is_open else ()


def _differences(before: Iterable[str], after: Iterable[str]) -> Iterator[tuple[str, int]]:
    was, now = set(before), set(after)
    for name in sorted(was ^ now):
        yield name, 1 if name in now else -1


# --- gates -------------------------------------------------------------------------------


def let_in(d: "Draft", name: str) -> None:
    """Open the gate of a limit for as many as may begin, the oldest of each lane first.

    If more may be let in than were loaded, or the rate allows the next one later, a tick does it.
    """
    rule, lanes = d.rule(name), d.rows.lanes.get(name)
    _reckon(d, name, rule)
    if lanes is None:
        d.put_limit(d.limit(name).due_at(d.now))
        return
    next_at: Millis | None = None
    is_awaited = False
    for lane_name, lane in list(lanes.items()):
        left = _open_lane(d, name, lane_name, lane)
        is_awaited = is_awaited or left is None or lane.end is not None
        if left is not None and left > 0 and lane.end is not None:
            next_at = later(d.now, CONTENDED_MS) if lane.is_contended else d.now
    _note_closed(d, name)
    limit = d.limit(name)
    if next_at is None and is_awaited and rule is not None and rule.free_permits(limit) > 0:
        begins = rule.free_begins(limit, d.now)
        next_at = rule.next_begin_at(limit, d.now) if begins <= 0 else None
    _write(d, limit, next_at, is_awaited=is_awaited)


def _reckon(d: "Draft", name: str, rule: "Limit | None") -> None:
    """If another rate counts than before, it counts from now on."""
    limit = d.limit(name)
    reckoned = limit if rule is None else limit.reckoned(rule, d.now)
    if reckoned is not limit:
        d.put_limit(reckoned)


def _note_closed(d: "Draft", name: str) -> None:
    """Nobody else may begin now. For those that were let in, and need several slots, workers may
    keep slots: they are to look again.
    """
    opened = d.limit(name).opened
    if opened is not None and _free(d, name) <= 0:
        found = d.limit(name).opened_by_lane.items()
        d.closed += [task_name_in(lane) for lane, each in found if each.slots > 1]


def _free(d: "Draft", gate: str) -> int:
    rule = d.rule(gate)
    return 0 if rule is None else rule.free(d.limit(gate), d.now)


def _room(d: "Draft", gate: str, lane_name: str) -> int:
    """How many more of a lane may be let in."""
    return _free(d, gate) - d.limit(gate).opened_by_lane.get(lane_name, NOBODY).count


def _open_lane(d: "Draft", gate: str, lane_name: str, lane: "Lane") -> int | None:
    """Let in as many as there is room for: how much room is left, or None if somebody waits.

    One that was turned back, or given back, may be older than those that are let in already: they
    must not begin before it, so it is let in as well.
    """
    older, last = 0, d.limit(gate).opened_by_lane.get(lane_name, NOBODY).last
    for place, task_id in list(lane.known):
        task = d.task(task_id) if d.rows.is_known(task_id) else None
        if task is None or task.gate != gate or task.gate_at != place:
            continue
        goes_on = task.state == "acquired"
        is_older = place < last and older < _free(d, gate)
        if not goes_on and not is_older and _room(d, gate, lane_name) <= 0:
            return None
        other = _lacking_permit(d, task) if goes_on else lacking(d, task)
        if other == gate:
            return None
        if other is not None:
            d.put_task(_behind(d, task, other, place))
        elif goes_on:
            d.put_task(task.regained(waits.to_go_on(d.now)))
        elif (hidden := _hidden_elsewhere(d, task)) is not None:
            d.put_task(_behind(d, task, hidden, place))
        else:
            for other_task in _older_elsewhere(d, task):
                d.put_task(other_task.let_in())
            if not is_older and _room(d, gate, lane_name) <= 0:
                return None
            older += is_older
            d.put_task(task.let_in())
    may_be_older = lane.end is not None and lane.end[0] < last
    return max(_room(d, gate, lane_name), _free(d, gate) - older if may_be_older else 0)


def _older_elsewhere(d: "Draft", task: Task) -> Iterator[Task]:
    """Those with the same limits that came earlier, and are behind the gate of another of them."""
    for name, lane in _lanes_elsewhere(d, task):
        for place, task_id in list(lane.known):
            if (place, task_id) > (task.gate_at or 0, task.id):
                break
            other = d.task(task_id)
            if other is None or (other.gate, other.gate_at, other.state) != (
                name,
                place,
                "pending",
            ):
                continue
            if other.limits == task.limits and lacking(d, other) is None:
                yield other


def _hidden_elsewhere(d: "Draft", task: Task) -> str | None:
    """Another of its limits behind whose gate some may wait that came earlier and were not loaded:
    it is let in by that gate, after them.
    """
    for name, lane in _lanes_elsewhere(d, task):
        if lane.end is not None and lane.end < (task.gate_at or 0, task.id):
            return name
    return None


def _lanes_elsewhere(d: "Draft", task: Task) -> Iterator[tuple[str, "Lane"]]:
    """Where it would wait behind the gates of its other limits."""
    for name in task.limit_names if len(task.limit_names) > 1 else ():
        lane = d.rows.lanes.get(name, {}).get(task.lane)
        if lane is not None and name != task.gate:
            yield name, lane


def _lacking_permit(d: "Draft", task: Task) -> str | None:
    """Of a body that was parked: it has begun already, so rates do not count."""
    for name in task.limit_names:
        rule = d.rule(name)
        if rule is None:
            return name
        if name not in task.permit_names and rule.free_permits(d.limit(name)) <= 0:
            return name
    return None


def stand_in_line(d: "Draft", task: Task, place: Millis) -> None:
    """A parked body is to go on. It comes before tasks that have not begun: those wait in the
    store, and need nobody's memory.
    """
    missing = [name for name in task.limit_names if name not in task.permit_names]
    d.put_task(_behind(d, task, missing[0], place - NEVER))


def _behind(d: "Draft", task: Task, gate: str, place: Millis) -> Task:
    since = task.waiting_since or d.now
    return task.told(waits.limited(gate, since)).behind(gate, place)


def _write(d: "Draft", limit: "Limit", next_at: Millis | None, *, is_awaited: bool) -> None:
    """A limit that nobody has defined is forgotten as soon as nothing of it is in use."""
    if limit.pattern:
        return
    if limit.is_recounting:
        next_at = d.now if limit.next_at is None else limit.next_at
    elif not limit.defined and limit.is_idle and not is_awaited:
        if limit.paid_us <= d.now * 1_000:
            if d.has_limit(limit.name):
                d.drop_limit(limit.name)
            return
        next_at = -(-limit.paid_us // 1_000)
    if next_at != limit.next_at or not d.has_limit(limit.name):
        d.put_limit(limit.due_at(next_at))
