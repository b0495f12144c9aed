"""Turns what a server shows of its state into a state that invariants can be checked on."""

from collections.abc import Iterable
from typing import Final

from layby.core import invariants
from layby.core.invariants import INVARIANTS
from layby.core.model import Promise, Task, Wait
from layby.core.replies import Explanation
from layby.core.state import State

UNSEEN: Final = (
    invariants.count_equals_waits,
    invariants.ready_only_while_pending,
    invariants.tries_are_claims_that_began,
    invariants.waiting_since_while_waiting,
    invariants.named_life_exists,
    invariants.one_living_holder_per_pid,
    invariants.held_count_is_true,
    invariants.schedule_runs_forward,
    invariants.deferred_waits_for_its_trigger,
    invariants.triggers_end_with_their_waits,
    invariants.triggers_have_awaiters,
    invariants.held_permits_are_out,
    invariants.gates_are_of_limits,
    invariants.openings_are_counted,
)
"""They need what a snapshot leaves out: holders, schedules, lives, resumptions, internal counts."""
SEEN: Final = tuple(each for each in INVARIANTS if each not in UNSEEN)


def state_of_entries(entries: Iterable[Explanation]) -> State:
    """What waits, with what it waits for."""
    state = State()
    for entry in entries:
        _add(state, entry.promise, entry.task)
        is_suspended = entry.task is not None and entry.task.state == "suspended"
        for awaited, task in entry.awaited if is_suspended else ():
            _add(state, awaited, task)
            state.waits[awaited.id, entry.promise.id] = Wait(awaited.id, entry.promise.id)
    return state


def _add(state: State, row: Promise, task: Task | None) -> None:
    state.promises[row.id] = row
    if task is not None:
        state.tasks[task.id] = task
