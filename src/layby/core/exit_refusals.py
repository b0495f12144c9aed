"""Why a wait cannot be ended or prolonged by hand as somebody asked, and what to do instead."""

from collections.abc import Iterable
from typing import Final

from layby.core.ids import life_root_of
from layby.core.model import Promise, Task
from layby.core.promises import RUN_PREFIX
from layby.core.questions import settled_by
from layby.core.waits import WaitingOn, limited_sentence

GOES_ON: Final = "Its wait is over: the task goes on already"
TOO_LATE: Final = "Its deadline has passed: the wait is over"
NOT_IN_IT: Final = (
    "The task is not shown in a wait of that id: it is over, or another one is shown first. Name "
    "the task itself to mean the wait that it is shown in now"
)
NOT_WAITING: Final = "Task does not wait"
NOT_TOLD: Final = (
    "Its body cannot be told of this: the process that runs it is not a worker that is known "
    "here. Cancel the task, or let it end"
)
NO_DEADLINE: Final = (
    "It waits without a deadline: there is nothing to move. End what it waits for, or cancel it"
)
NO_LATER_TRY: Final = (
    "It backs off until its next try: halt it, and continue it when it may be tried again"
)
NO_FAILED_BACKOFF: Final = "It backs off after a failure: cancel it to let it be the last"


def why_not_waiting(task: Task) -> str:
    """Of a task that is not deferred, and whose body does not wait: what it is held up by."""
    return f"{NOT_WAITING}{_instead(task)}"


def _instead(task: Task) -> str:
    if task.state == "fulfilled":
        return " any more: it has ended"
    if task.state == "halted":
        return " in its code, it is halted: continue it, or cancel it"
    if task.is_join:
        return " by itself: cancel the map, or end what its items wait for"
    if task.waits_left > 0:
        return " in its code: other tasks have to end before it begins. End those, or cancel it"
    if task.gate is not None:
        return f" in its code, it {_for_permit(task.gate)}"
    if task.refused is not None:
        return " in its code, it is blocked: start a worker with other code, or continue it by code"
    if task.state == "pending":
        return " in its code: a worker has to begin it, or goes on with it already"
    if task.state == "suspended":
        return " for a trigger: its program waits for promises. Settle one of those, or cancel it"
    return ""


def goes_on(ended: Promise | None) -> str:
    """What has ended the wait names whoever did it, if a person did."""
    by = "" if ended is None else settled_by(ended)[0]
    return f"Its wait was ended by {by}: the task goes on already" if by else GOES_ON


def why_it_goes_on(gate: str | None) -> str:
    """Of a parked body whose wait is over: it needs a slot, or a permit, of this limit."""
    return GOES_ON if gate is None else f"Its wait is over, but it {_for_permit(gate)}"


def instead_of_waking(told: WaitingOn | None, standing: Promise | None) -> str:
    """What ends a wait that cannot simply be ended."""
    if told is None:
        return _unknown_wait(standing)
    if told.kind == "approval":
        return f"It waits for an answer to '{told.awaited}': approve or deny that"
    if told.kind == "map":
        return (
            f"It waits for the items of a map: cancel the map '{told.awaited}' to let the call "
            "fail, or end what its items wait for"
        )
    if told.kind == "bundle":
        return _instead_of_waking_all(told)
    if told.awaited is None:
        return "Its worker has not said how this wait can be ended: cancel the task"
    if is_run(told.awaited):
        return (
            f"It waits for run '{told.awaited.removeprefix(RUN_PREFIX)}' and goes on with its "
            "outcome: end what that run waits for, or cancel that run to let the wait fail"
        )
    return (
        f"It waits for '{told.awaited}' and goes on with its value, so it cannot be woken without "
        "one: resolve that promise to skip the wait with a value, reject it to let the wait fail"
    )


def _instead_of_waking_all(told: WaitingOn) -> str:
    promises = _listed(each for each in (told.awaited, *told.also_awaited) if each)
    woken = (each for each in told.members if each.kind in ("sleep", "condition"))
    wakeable = _listed(each.record_id for each in woken if each.record_id)
    ways = [f"settle one of {promises}"] if promises else []
    ways += [f"wake one of {wakeable}"] if wakeable else []
    return f"It waits for several at once: {', '.join([*ways, 'or cancel the task'])}"


def _listed(ids: Iterable[str]) -> str:
    return ", ".join(f"'{each}'" for each in ids)


def _unknown_wait(standing: Promise | None) -> str:
    if standing is None:
        return NOT_IN_IT
    if not standing.is_pending:
        return goes_on(standing)
    return f"'{standing.id}' needs a value: resolve it, or reject it to let the wait fail"


def why_not_extended(told: WaitingOn | None, standing: Promise | None) -> str:
    """Why the deadline of a wait cannot move."""
    if standing is not None and not standing.is_pending:
        return goes_on(standing)
    if standing is not None and standing.timer:
        return (
            f"The time of timer '{standing.id}' never changes: it was made by an older version of "
            "layby, or by another program. Wake the task, and let its code sleep again"
        )
    if told is None:
        return NO_DEADLINE if standing is not None else _unknown_wait(None)
    if told.deadline is None:
        return NO_DEADLINE
    if told.kind in ("rpc", "approval"):
        return (
            f"Its deadline is that of promise '{told.awaited}', which never changes: it was made "
            "by an older version of layby. Answer it in time, or let the task fail and be retried"
        )
    if told.kind == "bundle":
        ends = _listed(each.record_id for each in told.members if each.deadline and each.record_id)
        which = f": name one of {ends}" if ends else ""
        return f"The bundle has no timeout of its own, its waits have{which}"
    return "Its worker has not said how its deadline can be moved: it is of an older version"


def is_run(promise_id: str) -> bool:
    """Whether it is the promise of a whole run."""
    return promise_id.startswith(RUN_PREFIX) and life_root_of(promise_id) == promise_id


def _for_permit(gate: str) -> str:
    more = "let other items of it end" if gate.startswith(".") else "define that limit larger"
    return f"{limited_sentence(gate)}: {more}, or cancel the task"
