"""What must hold for every store at every moment, each invariant under its own name.

The first seven are those of the Tasks specification (seed 004), under exactly their names.
Every function yields one text per violation; `check` runs them all.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct

from layby.core import joins
from layby.core.codes import MAX_REFUSALS, read_refusals
from layby.core.model import EMPTY, NEVER, Millis, Task, Wait
from layby.core.resumption import CLEAN_UP
from layby.core.settlement import is_elsewhere
from layby.core.state import State
from layby.core.tag_names import TARGET, has_tag

Violations = Iterator[str]
Invariant = Callable[["StateView"], Violations]


class Violation(Struct, frozen=True):
    invariant: str
    what: str


class StateView:
    """A state whose waits can also be looked up by the waiting task."""

    def __init__(self, state: State, now: Millis) -> None:
        self.state = state
        self.now = now
        self.waits_of: defaultdict[str, list[Wait]] = defaultdict(list)
        for wait in self.waits:
            self.waits_of[wait.awaiter].append(wait)

    def tasks(self, *states: str) -> Iterator[Task]:
        return (task for task in self.state.tasks.values() if task.state in states)

    def is_pending(self, promise_id: str) -> bool:
        promise = self.state.promises.get(promise_id)
        return promise is not None and promise.is_pending

    def is_open(self, wait: Wait) -> bool:
        """What it waits for has not come yet, or has not been told everyone yet."""
        if self.is_pending(wait.awaited) or self.has_tail(wait.awaited):
            return True
        task = self.state.tasks.get(wait.awaited)
        return wait.is_for_end and task is not None and task.is_kept

    @property
    def waits(self) -> Iterator[Wait]:
        """Without notes of what was read or started: nobody waits by them."""
        return (wait for wait in self.state.waits.values() if not wait.is_note)

    def is_over(self, promise_id: str) -> bool:
        """Past its deadline but not settled yet: what waits for the tick is not a violation."""
        promise = self.state.promises.get(promise_id)
        return promise is not None and promise.at(self.now) is not promise

    def is_internal(self, promise_id: str) -> bool:
        promise = self.state.promises.get(promise_id)
        return promise is not None and promise.internal

    def has_tail(self, promise_id: str) -> bool:
        """More effects of this settlement are armed: what they will clear may still be there."""
        promise = self.state.promises.get(promise_id)
        return promise is not None and promise.tail_at is not None


def check(state: State, now: Millis) -> list[Violation]:
    """Every violation in a state as it stands at `now`."""
    view = StateView(state, now)
    return [
        Violation(invariant.__name__, what) for invariant in INVARIANTS for what in invariant(view)
    ]


def named_by(task: Task) -> set[str]:
    """Other rows that the invariants of this one look at, besides what it waits for."""
    found = task.resumption
    named = set[str]() if found is None else {*found.awaited, found.won or found.trigger}
    if task.is_trigger:
        named.add(_awaiter_of(task))
    if task.latest_life_id is not None:
        named.add(task.latest_life_id)
    return named


def _awaiter_of(trigger: Task) -> str:
    return trigger.id.rpartition(".defer.")[0]


# --- the seven of seed 004 ---------------------------------------------------------------


def orphan_tasks(view: StateView) -> Violations:
    for task_id in view.state.tasks.keys() - view.state.promises.keys():
        yield f"task {task_id} has no promise"


def pending_task_no_ttimeout(view: StateView) -> Violations:
    for task in view.tasks("pending"):
        if task.wake_at is None:
            yield f"pending task {task.id} has no retry deadline"


def acquired_task_no_lease(view: StateView) -> Violations:
    for task in view.tasks("acquired"):
        if view.state.lease_of(task) is None:
            yield f"acquired task {task.id} has no lease"
        if task.pid is None or task.ttl is None or task.ttl <= 0:
            yield f"acquired task {task.id} has no pid or ttl"


def suspended_no_callback(view: StateView) -> Violations:
    for task in view.tasks("suspended"):
        waits = any(map(view.is_open, view.waits_of[task.id]))
        if not waits and not view.is_over(task.id):
            yield f"suspended task {task.id} waits for nothing"


def suspended_with_consumed_callbacks(view: StateView) -> Violations:
    for task in view.tasks("suspended"):
        for wait in view.waits_of[task.id]:
            if not view.is_open(wait):
                yield f"suspended task {task.id} waits for settled promise {wait.awaited}"


def suspended_task_has_ttimeout(view: StateView) -> Violations:
    yield from _timeouts(view, "suspended")


def fulfilled_task_has_ttimeout(view: StateView) -> Violations:
    yield from _timeouts(view, "fulfilled")


# --- promises ----------------------------------------------------------------------------


def promise_times_in_order(view: StateView) -> Violations:
    for p in view.state.promises.values():
        if not 0 <= p.created_at <= p.timeout_at:
            yield f"promise {p.id} was created after its deadline"
        if p.is_pending != (p.settled_at is None):
            yield f"promise {p.id} is {p.state} with settledAt {p.settled_at}"
        if p.is_pending and p.settlement_id is not None:
            yield f"promise {p.id} is pending and was settled by {p.settlement_id}"
        if p.settled_at is not None and not p.created_at <= p.settled_at <= p.timeout_at:
            yield f"promise {p.id} was settled outside its life"


def timeout_settles_at_deadline(view: StateView) -> Violations:
    for p in view.state.promises.values():
        if p.state == "rejected_timedout" and (p.settled_at != p.timeout_at or p.timer):
            yield f"promise {p.id} timed out at {p.settled_at}, not at its deadline, or is a timer"
        if p.timer and p.settled_at == p.timeout_at and p.state == "rejected_timedout":
            yield f"timer {p.id} was rejected by its deadline"


def task_iff_target(view: StateView) -> Violations:
    for p in view.state.promises.values():
        if has_tag(p.tags, TARGET) != (p.id in view.state.tasks):
            yield f"promise {p.id} and its task do not agree on a target"


def fulfilled_iff_settled(view: StateView) -> Violations:
    for task in view.state.tasks.values():
        if (task.state == "fulfilled") == view.is_pending(task.id):
            yield f"task {task.id} is {task.state} but its promise does not match"


def settled_has_no_waits(view: StateView) -> Violations:
    for wait in view.waits:
        if not view.is_open(wait):
            yield f"settled promise {wait.awaited} is still awaited by {wait.awaiter}"


def settled_has_no_listeners(view: StateView) -> Violations:
    for listener in view.state.listeners:
        if not (view.is_pending(listener.awaited) or view.has_tail(listener.awaited)):
            yield f"settled promise {listener.awaited} still has listener {listener.address}"


def expired_is_bare(view: StateView) -> Violations:
    """Of a pruned promise only its outcome is left."""
    for p in view.state.promises.values():
        if p.expired_at is None:
            continue
        if p.is_pending or p.id in view.state.tasks:
            yield f"promise {p.id} was pruned, but is pending or has a task"
        if (p.param, p.value, p.branch) != (EMPTY, EMPTY, None):
            yield f"promise {p.id} was pruned, but has a param, a value or a branch"


def internal_is_not_awaited(view: StateView) -> Violations:
    """No deadline would ever end such a wait."""
    for wait in view.waits:
        if view.is_internal(wait.awaited):
            yield f"internal promise {wait.awaited} is awaited by {wait.awaiter}"
    for listener in view.state.listeners:
        if view.is_internal(listener.awaited):
            yield f"internal promise {listener.awaited} has listener {listener.address}"


def internal_is_plain(view: StateView) -> Violations:
    for p in view.state.promises.values():
        if p.internal and (p.timer or p.placeholder or p.id in view.state.tasks):
            yield f"promise {p.id} is internal, but a timer, a placeholder or a task as well"


def awaiter_is_alive(view: StateView) -> Violations:
    for wait in view.state.waits.values():
        if wait.awaited == wait.awaiter:
            yield f"promise {wait.awaited} awaits itself"
        if wait.awaiter not in view.state.tasks:
            yield f"awaiter {wait.awaiter} has no task"
        elif not view.is_pending(wait.awaiter) and not view.has_tail(wait.awaiter):
            yield f"awaiter {wait.awaiter} is settled"


def what_was_read_is_there(view: StateView) -> Violations:
    """A body that is replayed finds it; what was pruned before it was read stays as it is."""
    for wait in view.state.waits.values():
        if wait.is_read and wait.awaited not in view.state.promises:
            yield f"promise {wait.awaited} is gone, but task {wait.awaiter} has read it"
        if wait.is_read and not is_elsewhere(wait.awaited, wait.awaiter):
            yield f"promise {wait.awaited} is of the same tree as {wait.awaiter}, which has read it"


def child_is_there(view: StateView) -> Violations:
    """A run that a task has started stays while that task or its run is open."""
    for wait in view.state.waits.values():
        if not wait.is_child:
            continue
        child = view.state.tasks.get(wait.awaited)
        if child is None or not child.is_root:
            yield f"{wait.awaited} is not a run, but a child of {wait.awaiter}"
        if not is_elsewhere(wait.awaited, wait.awaiter):
            yield f"run {wait.awaited} is a child of {wait.awaiter}, which is of the same tree"


# --- tasks -------------------------------------------------------------------------------


def claim_only_while_acquired(view: StateView) -> Violations:
    """Or its holder keeps it: it was halted or settled, and its body may not have ended."""
    for task in view.tasks("pending", "suspended", "halted", "fulfilled"):
        has_claim = task.pid is not None or task.holder is not None
        if task.ttl is not None or (has_claim and not (task.is_kept and task.pid is not None)):
            yield f"{task.state} task {task.id} still has a claim"
        if task.sub_status is not None:
            yield f"{task.state} task {task.id} still has sub-status {task.sub_status}"


def halted_task_has_ttimeout(view: StateView) -> Violations:
    yield from _timeouts(view, "halted")


def version_non_negative(view: StateView) -> Violations:
    for task in view.state.tasks.values():
        if task.version < 0:
            yield f"task {task.id} has version {task.version}"


def suspended_or_fulfilled_has_no_resumes(view: StateView) -> Violations:
    for task in view.tasks("suspended", "fulfilled"):
        if task.resumes:
            yield f"{task.state} task {task.id} has resumes {task.resumes}"


def count_equals_waits(view: StateView) -> Violations:
    """`waits_left` is the number of *all* waits that exist."""
    for task in view.tasks("pending", "acquired", "suspended", "halted"):
        counting = sum(wait.counts for wait in view.waits_of[task.id])
        if task.waits_left != counting and not view.is_over(task.id):
            yield f"task {task.id} counts {task.waits_left} waits, but {counting} exist"


def clean_up_comes_last(view: StateView) -> Violations:
    """Its body does not run beside one that it waits for."""
    for task in view.tasks("acquired"):
        for wait in view.waits_of[task.id]:
            if wait.is_for_end and task.holder is not None:
                yield f"task {task.id} runs before {wait.awaited} has ended"


def ready_only_while_pending(view: StateView) -> Violations:
    """And nobody keeps it."""
    for task in view.state.tasks.values():
        is_open = task.state == "pending" and not task.is_kept and task.gate is None
        if is_open != (task.ready_at is not None):
            yield f"{task.state} task {task.id} has ready_at {task.ready_at}"


def turns_are_of_nodes(view: StateView) -> Violations:
    """Nothing else stands in line for slots."""
    for task in view.state.tasks.values():
        if (task.priority, task.slots) != (0, 1) and not task.is_node:
            yield f"task {task.id}, which is not a node, has a priority or several slots"
        if task.slots < 1:
            yield f"task {task.id} needs {task.slots} slots"


def tries_are_claims_that_began(view: StateView) -> Violations:
    """One ahead is acquired by a holder, and has not begun."""
    for task in view.state.tasks.values():
        if not 0 <= task.tries <= task.version - task.ahead:
            yield f"task {task.id} counts {task.tries} tries at version {task.version}"
        if task.ahead and (task.state != "acquired" or task.holder is None):
            yield f"{task.state} task {task.id} is ahead of a slot"


def waiting_since_while_waiting(view: StateView) -> Violations:
    for task in view.state.tasks.values():
        if task.is_waiting != (task.waiting_since is not None):
            yield f"{task.state} task {task.id} waits since {task.waiting_since}"


def refusals_are_of_nodes(view: StateView) -> Violations:
    """Bounded, of the task itself, and none is left when it is over."""
    for task in view.state.tasks.values():
        if task.refused is None:
            continue
        refusals = read_refusals(task.refused)
        if task.kind != "node" or task.state == "fulfilled":
            yield f"{task.state} task {task.id} was refused by codes, but is not an open node"
        if refusals.name != task.name or not 0 < len(refusals.codes) <= MAX_REFUSALS:
            yield f"task {task.id} has refusals {task.refused}"


def named_life_exists(view: StateView) -> Violations:
    """A run that was run again is found by the number of its latest life."""
    for task in view.state.tasks.values():
        life = task.latest_life_id
        if life is None:
            continue
        root = view.state.tasks.get(life)
        if not task.is_root or life == task.id or root is None or not root.is_root:
            yield f"task {task.id} has had {task.lives} lives, but {life} is not the root of one"


def deferred_waits_for_its_trigger(view: StateView) -> Violations:
    """An open wait has its waits, and lasts no longer than the task; one that is over has ended."""
    for task in view.state.tasks.values():
        found = task.resumption
        if found is None:
            continue
        if task.state == "fulfilled":
            yield f"fulfilled task {task.id} would go on after {found.trigger}"
        waited = {wait.awaited for wait in view.waits_of[task.id]}
        if found.won is None and task.state not in ("suspended", "halted"):
            yield f"{task.state} task {task.id} waits for {found.trigger}"
        is_deaf = found.won is None and not waited.issuperset(found.awaited)
        if is_deaf and not view.is_over(task.id):
            yield f"task {task.id} is not told of the end of {found.awaited}"
        if found.won is not None and view.is_pending(found.won) and not view.is_over(found.won):
            yield f"task {task.id} goes on, but {found.won} has not settled"


def triggers_end_with_their_waits(view: StateView) -> Violations:
    for task in view.state.tasks.values():
        found = task.resumption
        for owned in () if found is None or found.won is None else found.owned:
            if view.is_pending(owned) and not view.is_over(owned):
                yield f"{owned} is pending, but task {task.id} does not wait for it any more"


def triggers_have_awaiters(view: StateView) -> Violations:
    """A trigger runs for a task that waits for it, or cleans up."""
    for task in view.tasks("pending", "acquired", "suspended", "halted"):
        if not task.is_trigger or task.id.endswith(CLEAN_UP) or view.is_over(task.id):
            continue
        awaiter = view.state.tasks.get(_awaiter_of(task))
        waited = None if awaiter is None else awaiter.open_resumption
        if waited is None or waited.trigger != task.id:
            yield f"trigger {task.id} is {task.state}, but nobody waits for it"


def joins_end_in_time(view: StateView) -> Violations:
    """A join that waits has something to wait for, and hears of the end of its caller."""
    for task in view.tasks("suspended"):
        if not task.is_join or view.is_over(task.id):
            continue
        if joins.is_over(task):
            yield f"join {task.id} has all its items, but has not ended"
        caller = joins.caller_of(task.id)  # a callback may have taken the place of that wait
        if not any(wait.awaited == caller for wait in view.waits_of[task.id]):
            yield f"join {task.id} is not told of the end of its caller"


def only_joins_have_items(view: StateView) -> Violations:
    """And nobody takes a join: it has no name."""
    for task in view.state.tasks.values():
        if not task.is_join and task.items is not None:
            yield f"task {task.id} has {task.items} items, but is not a join"
        if task.is_join and task.name is not None:
            yield f"join {task.id} has name {task.name}"


# --- holders, messages, schedules --------------------------------------------------------


def one_living_holder_per_pid(view: StateView) -> Violations:
    living = Counter(h.pid for h in view.state.holders.values() if h.is_alive)
    for pid, count in living.items():
        if count > 1:
            yield f"pid {pid} has {count} living holders"


def held_count_is_true(view: StateView) -> Violations:
    tasks = view.state.tasks.values()
    held = Counter((task.pid, task.holder) for task in tasks if task.holder is not None)
    for key, holder in view.state.holders.items():
        if holder.held != held[key]:
            yield f"holder {key} counts {holder.held} tasks, holds {held[key]}"
    for key in held.keys() - view.state.holders.keys():
        yield f"holder {key} is unknown but holds {held[key]} tasks"


def execute_is_current(view: StateView) -> Violations:
    """One execute per task: pending, dispatched by us, and at the version it names."""
    for message in view.state.messages.values():
        if message.kind != "execute":
            continue
        task = view.state.tasks.get(message.id)
        if task is None or task.state != "pending" or task.version != message.version:
            yield f"execute for {message.id} at version {message.version} is stale"
        elif task.is_ours:
            yield f"execute for {message.id}, which is only handed out by take"


def unblock_is_settled(view: StateView) -> Violations:
    for message in view.state.messages.values():
        if message.kind == "unblock" and view.is_pending(message.id):
            yield f"unblock to {message.address} for pending promise {message.id}"


def schedule_runs_forward(view: StateView) -> Violations:
    for s in view.state.schedules.values():
        if s.last_run_at is not None and s.last_run_at >= s.next_run_at:
            yield f"schedule {s.id} runs backwards"
        if not has_tag(s.promise_tags, TARGET):
            yield f"schedule {s.id} has no target"
        if s.paused_at is not None and s.next_run_at != NEVER:
            yield f"schedule {s.id} is paused and has a next occurrence"


# --- limits ------------------------------------------------------------------------------


def held_permits_are_out(view: StateView) -> Violations:
    """A limit counts the permits that tasks hold; a task holds them by a claim."""
    out = Counter[str]()
    for task in view.state.tasks.values():
        out.update(task.permit_names)
        if task.permits is not None and task.holder is None:
            yield f"{task.state} task {task.id} holds permits of {task.permits} without a claim"
        if not set(task.permit_names) <= set(task.limit_names):
            yield f"task {task.id} holds a permit of a limit that is not its own"
    for limit in view.state.limits.values():
        if limit.held != out[limit.name]:
            yield f"limit {limit.name} counts {limit.held} permits, {out[limit.name]} are held"
    for name in out.keys() - view.state.limits.keys():
        yield f"limit {name} is unknown, but {out[name]} of its permits are held"


def gates_are_of_limits(view: StateView) -> Violations:
    """A task is behind the gate of a limit of its own, and that limit exists."""
    for task in view.state.tasks.values():
        if task.gate is not None and task.gate not in task.limit_names:
            yield f"task {task.id} is behind the gate of {task.gate}, which is not its limit"
        if task.gate is not None and task.gate not in view.state.limits:
            yield f"task {task.id} is behind the gate of {task.gate}, which does not exist"
        if task.gate_at is None and task.gate is not None:
            yield f"task {task.id} has no place in the lane of {task.gate}"
        if task.gate_at is not None and task.state not in ("pending", "acquired"):
            yield f"{task.state} task {task.id} has a place in a lane"


def openings_are_counted(view: StateView) -> Violations:
    opened = Counter[tuple[str, str]]()
    places = dict[tuple[str, str], Millis]()
    for task in view.state.tasks.values():
        for name in task.limit_names if task.is_let_in and task.refused is None else ():
            key = (name, task.lane)
            opened[key] += 1
            places[key] = max(places.get(key, 0), task.gate_at or 0)
    counted = dict[tuple[str, str], int]()
    for limit in view.state.limits.values():
        for lane, each in limit.opened_by_lane.items():
            counted[limit.name, lane] = each.count
            if each.last < places.get((limit.name, lane), 0):
                yield f"limit {limit.name} has let in some of {lane} that came after {each.last}"
    if counted != dict(opened):
        yield f"limits count {counted} tasks that were let in, but there are {dict(opened)}"


def _timeouts(view: StateView, state: str) -> Violations:
    for task in view.tasks(state):
        if task.wake_at is not None:
            yield f"{state} task {task.id} has a deadline"


INVARIANTS: Final[tuple[Invariant, ...]] = (
    orphan_tasks,
    pending_task_no_ttimeout,
    acquired_task_no_lease,
    suspended_no_callback,
    suspended_with_consumed_callbacks,
    suspended_task_has_ttimeout,
    fulfilled_task_has_ttimeout,
    promise_times_in_order,
    timeout_settles_at_deadline,
    task_iff_target,
    fulfilled_iff_settled,
    settled_has_no_waits,
    settled_has_no_listeners,
    expired_is_bare,
    internal_is_not_awaited,
    internal_is_plain,
    awaiter_is_alive,
    what_was_read_is_there,
    child_is_there,
    claim_only_while_acquired,
    halted_task_has_ttimeout,
    version_non_negative,
    suspended_or_fulfilled_has_no_resumes,
    count_equals_waits,
    clean_up_comes_last,
    ready_only_while_pending,
    turns_are_of_nodes,
    tries_are_claims_that_began,
    waiting_since_while_waiting,
    refusals_are_of_nodes,
    named_life_exists,
    deferred_waits_for_its_trigger,
    triggers_end_with_their_waits,
    triggers_have_awaiters,
    joins_end_in_time,
    only_joins_have_items,
    one_living_holder_per_pid,
    held_count_is_true,
    execute_is_current,
    unblock_is_settled,
    schedule_runs_forward,
    held_permits_are_out,
    gates_are_of_limits,
    openings_are_counted,
)
