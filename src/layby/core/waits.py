"""What a promise or its task waits for: decided here, and nowhere else.

Lists, statuses, sentences and gauges ask `waiting_of`. SQL cannot, so a test compares the view
`task_executions` with it on random stores. A wait in memory is known only to the worker, which
reports it (`WaitingOn`); core itself reports a back-off, a halt or a block when it begins.
"""

from collections.abc import Iterable
from typing import Final, Literal, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from layby.core.fields import Int64
from layby.core.model import Millis, Promise, Task, TaskState
from layby.core.resumption import Resumption, own_id

WaitKind = Literal[
    "condition",  # parked in defer_until
    "sleep",  # parked in sleep, or not due yet
    "promise",  # parked in wait_for or in the result of another run, or suspended on promises
    "rpc",  # parked in rpc: a function elsewhere has to answer
    "bundle",  # parked in all_of, first_of or any_of: several waits as one
    "map",  # parked in map: its items have to end
    "slot",  # woken, and waiting for a slot of its worker
    "trigger",  # suspended by defer
    "approval",  # a person has to answer
    "backoff",  # failed, and will be tried again
    "dependency",  # other tasks of the run have to settle first
    "worker",  # ready, and nobody has taken it yet
    "manual",  # halted: somebody has to continue it
    "code",  # the code of its workers does not fit: it needs a worker with other code
    "limit",  # it needs a permit of a limit
]
WAIT_KINDS: Final[tuple[str, ...]] = get_args(WaitKind)

MAX_ERROR_CHARS: Final = 1_000
MAX_ID_CHARS: Final = 2_000
_MOVED_BY: Final = " (its deadline was moved by "

Form = Literal[
    "timer",  # time itself settles the promise
    "open",  # a promise without a task
    "dependency",  # not before other tasks of the run have settled
    "delayed",  # pending, but not due yet
    "untaken",  # ready
    "kept",  # continued, but its holder has not yet said that the halted body has ended
    "in_slot",  # its body waits, and keeps the slot
    "parked",  # its body waits in memory
    "suspended",  # its body waits in the store
    "backoff",  # it failed
    "halted",
    "blocked",  # ready, but only for workers with other code
    "limited",  # ready, but without a permit of a limit
]
"""Where something waits: each form has one kind unless a worker reports another."""

_KINDS: Final[dict[Form, WaitKind]] = {
    "timer": "sleep",
    "open": "promise",
    "dependency": "dependency",
    "delayed": "sleep",
    "untaken": "worker",
    "kept": "worker",
    "suspended": "promise",
    "halted": "manual",
    "blocked": "code",
    "limited": "limit",
}


class WaitingOn(Struct, frozen=True, omit_defaults=True, gc=False):
    """The JSON of a wait. The worker stores this; polls are added from its memory when asked for.

    `kind` is one of `WaitKind`, or one that only a newer worker knows.
    """

    kind: str
    sentence: str
    since: Millis = 0
    """Set when the wait begins."""
    deadline: Millis | None = None
    polls: int | None = None
    next_poll_at: Millis | None = None
    last_error: str | None = None
    awaited: str | None = None
    """The promise it waits for, if any."""
    asked_since: Millis | None = None
    """Since when its condition has been polled, if it is."""
    last_poll_at: Millis | None = None
    also_awaited: tuple[str, ...] = ()
    """Of a bundle: what else it waits for, the first few."""
    record_id: str | None = None
    """What a person who may end or prolong it calls it: in most cases what its end is stored as. No
    other wait of the task is ever called so.
    """
    members: "tuple[WaitingOn, ...]" = ()
    """Of a bundle: the waits in it that have not ended, the first few."""
    asks_value: bool = False
    """Of an approval: whether a yes needs a value."""
    is_endless: bool = False
    """Whether a person has removed its deadline: it can be given one again."""

    def to_text(self) -> str:
        return msgspec.json.encode(self).decode()

    def polled(self, polling: "Polling | None") -> "WaitingOn":
        if polling is None:
            return self
        return replace(
            self,
            polls=polling.polls,
            next_poll_at=polling.next_poll_at,
            last_error=polling.last_error,
            asked_since=polling.asked_since,
        )

    def reported(self, report: "PollReport") -> "WaitingOn":
        """Of a trigger, with what its manager says of its polls."""
        return replace(
            self,
            polls=report.polls,
            last_poll_at=report.last_poll_at,
            next_poll_at=report.next_poll_at,
            last_error=None if report.last_error is None else report.last_error[:MAX_ERROR_CHARS],
        )


class PollReport(Struct, frozen=True, rename="camel"):
    """How the polls of a trigger went, as its manager reports it with its heartbeats."""

    polls: Int64 = 0
    last_poll_at: Int64 | None = None
    next_poll_at: Int64 | None = None
    last_error: str | None = None


class Polling(Struct, frozen=True, omit_defaults=True):
    """What only the worker's memory knows of a wait: never one write per poll."""

    polls: int = 0
    next_poll_at: Millis | None = None
    last_error: str | None = None
    asked_since: Millis | None = None


class Waiting(Struct, frozen=True):
    """How something waits now: in which form, for what kind of thing, since when, until when."""

    form: Form
    kind: str
    since: Millis
    until: Millis | None = None
    """When the wait ends by itself; None when it does not."""
    told: WaitingOn | None = None

    @property
    def is_listed(self) -> bool:
        """Timers need nobody, and what others of the run hold up is explained by those others."""
        return self.form not in ("timer", "dependency")

    @property
    def is_held(self) -> bool:
        """Its body waits in the memory of a worker."""
        return self.form in ("in_slot", "parked")

    @property
    def has_awaited(self) -> bool:
        """What it waits for may have a reason of its own not to have settled."""
        return self.is_held or self.form in ("suspended", "dependency")


_decoder = msgspec.json.Decoder(WaitingOn)


def waiting_of(promise: Promise, task: Task | None, now: Millis) -> Waiting | None:
    """Of rows as they stand at `now`; None when the promise has settled or the body runs."""
    if not promise.is_pending:
        return None
    if promise.timer:  # SDKs give their sleeps a task, but nobody has to take it
        return _waiting("timer", promise.created_at, promise.timeout_at)
    if task is None:
        return _waiting("open", promise.created_at)
    since = waits_since(promise, task)
    if task.state in ("acquired", "halted"):
        return _reported(task, since)
    if task.waits_left > 0:
        return _waiting("dependency", promise.created_at)
    if task.state == "suspended":
        return _reported(task, since)
    if task.is_kept:
        return _waiting("kept", since)
    if task.gate is not None:
        return _waiting("limited", since, told=read_waiting_on(task.waiting_on))
    ready_at = task.ready_at or 0
    if ready_at > now:
        return _waiting("delayed", since, ready_at)
    if task.refused is not None:
        return _waiting("blocked", since, told=read_waiting_on(task.waiting_on))
    return _waiting("untaken", max(since, ready_at))


ShownState = TaskState | Literal["deferred"]
"""The states of a task, and one more for people: it is suspended, until its trigger fires."""


def shown_state(task: Task) -> ShownState:
    if task.state != "suspended":
        return task.state
    told = read_waiting_on(task.waiting_on)
    return "deferred" if told is not None and told.kind == "trigger" else "suspended"


def waits_since(promise: Promise, task: Task | None) -> Millis:
    """The order in which the store lists what waits."""
    since = None if task is None else task.waiting_since
    return promise.created_at if since is None else since


def awaited_in_memory(task: Task) -> tuple[str, ...]:
    """What a parked body waits for: there is no row for that, only what its worker says."""
    told = read_waiting_on(task.waiting_on) if task.state == "acquired" else None
    return () if told is None or told.awaited is None else (told.awaited, *told.also_awaited)


def held_wait(task: Task) -> WaitingOn | None:
    """What the body of a held task waits for, as its worker says."""
    return read_waiting_on(task.waiting_on) if task.state == "acquired" else None


def held_waits(task: Task) -> dict[str, WaitingOn]:
    """The waits of its body that a person may end or prolong, by what their ends are stored as:
    below the task's id, whatever its worker says. The one that is shown is the first.
    """
    return _recorded_waits(task.id, held_wait(task))


def _recorded_waits(task_id: str, told: WaitingOn | None) -> dict[str, WaitingOn]:
    named = () if told is None else ((each.record_id or "", each) for each in (told, *told.members))
    return {key: each for key, each in named if _is_record_of(task_id, key)}


def _is_record_of(task_id: str, record_id: str) -> bool:
    return record_id.startswith(f"{task_id}.") and len(record_id) <= MAX_ID_CHARS


def backoff_id(task_id: str, version: int) -> str:
    """The timer that a task waits for whose claim of this version has failed."""
    return f"{task_id}.backoff.{version}"


def deferral_id(task_id: str, waited: Resumption) -> str:
    """What this wait of a deferred task is called, whatever its trigger and deadline are by now."""
    return own_id(task_id, waited.at)


def wait_id(task: Task) -> str:
    """What the wait is called that the task is shown in; empty if nobody can end it by a name."""
    is_in_one = task.state in ("acquired", "suspended")
    told = read_waiting_on(task.waiting_on) if is_in_one else None
    named = "" if told is None else told.record_id or ""
    return named if _is_record_of(task.id, named) else ""


def is_backing_off(task: Task) -> bool:
    return task.state == "suspended" and _begins_as(task, "backoff")


def exit_ids(task: Task) -> Iterable[str]:
    """Rows that a person who ends a wait of this task may change."""
    return (backoff_id(task.id, task.version),) if is_backing_off(task) else held_waits(task)


def told_exit_ids(task_id: str, texts: Iterable[str]) -> Iterable[str]:
    """The same of waits that its holder is about to tell of."""
    return (key for text in texts for key in _recorded_waits(task_id, read_waiting_on(text)))


def moved(
    told: WaitingOn, record_id: str, until: Millis | None, by: str, own: Millis | None = None
) -> WaitingOn:
    """With another deadline of this wait, or of a member of it that is recorded so; `own`: what the
    wait itself has for a deadline, whatever its members have.
    """
    if told.record_id == record_id:
        sentence = moved_sentence(told.sentence, by)
        return replace(told, deadline=until, sentence=sentence, is_endless=until is None)
    before = next((each for each in told.members if each.record_id == record_id), None)
    if before is None:
        return told
    members = tuple(
        moved(each, record_id, until, by) if each is before else each for each in told.members
    )
    if told.deadline is None or told.deadline != before.deadline:
        earliest = told.deadline
    else:
        ends = [at for at in (own, *(each.deadline for each in members)) if at is not None]
        earliest = min(ends, default=None)
    return replace(told, members=members, deadline=earliest)


def moved_sentence(sentence: str, by: str) -> str:
    """Of a wait whose deadline somebody has moved, if it is known who."""
    before = sentence.partition(_MOVED_BY)[0]
    return f"{before}{_MOVED_BY}{by})" if by else before


def read_waiting_on(text: str | None) -> WaitingOn | None:
    """What a worker wrote; None if it wrote nothing, or nothing that can be read."""
    try:
        return _decoder.decode(text) if text else None
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def backing_off(failures: int, retry_at: Millis, now: Millis, timer: str | None = None) -> str:
    """What a task that failed and will be tried again waits for."""
    sentence = f"backs off after failure {failures}"
    return WaitingOn("backoff", sentence, now, retry_at, record_id=timer).to_text()


def halted(by: str, reason: str, now: Millis) -> str | None:
    """What a halted task waits for, if it is known who halted it or why."""
    if not by and not reason:
        return None
    return WaitingOn("manual", halted_sentence(by, reason), now).to_text()


def halted_sentence(by: str = "", reason: str = "") -> str:
    who = f" by {by}" if by else ""
    why = f" ({reason})" if reason else ""
    return f"is halted{who}{why} until somebody continues it"


def deferred(task_id: str, waited: Resumption) -> str:
    """What a deferred task waits for. Who runs its trigger is told of that."""
    awaited = waited.trigger
    if waited.own and waited.kind in ("Delay", "At"):
        sentence = "deferred until its time has come"
    else:
        what = f"trigger {waited.kind} fires" if waited.own else f"'{awaited}' settles"
        sentence = f"deferred until {what}"
    sentence = moved_sentence(sentence, waited.by)
    return WaitingOn(
        "trigger",
        sentence,
        waited.since,
        waited.until,
        awaited=awaited,
        record_id=deferral_id(task_id, waited),
    ).to_text()


def running(now: Millis) -> WaitingOn:
    """What a trigger waits for whose manager has not said it."""
    return WaitingOn("trigger", "waits for its event", now)


def blocked(codes: Iterable[str], why: str, pin: str | None, now: Millis) -> str:
    """What a task waits for that these codes could not go on with; `why`: so the last one said."""
    return WaitingOn("code", blocked_sentence(codes, pin, why), now).to_text()


def blocked_sentence(codes: Iterable[str], pin: str | None, why: str) -> str:
    refused = " and ".join(f"'{code}'" for code in codes)
    fitting = f"other code than {refused}" if pin is None else f"code '{pin}'"
    return f"is blocked until a worker with {fitting} takes it" + (f": {why}" if why else "")


def limited(name: str, now: Millis) -> str:
    """What a task waits for that lacks a permit; how many are out is known when it is asked for."""
    return WaitingOn("limit", limited_sentence(name), now).to_text()


def to_go_on(now: Millis) -> str:
    """What a parked body waits for that has its permits again."""
    return WaitingOn("slot", "ready to go on, waiting for a slot", now).to_text()


def is_parked(task: Task) -> bool:
    """Whether its body waits in memory, without a slot."""
    return task.state == "acquired" and task.sub_status == "Deferred"


def is_for_slot(task: Task) -> bool:
    """Whether it is parked, and waits for nothing but a slot."""
    return is_parked(task) and _begins_as(task, "slot")


def is_to_go_on(task: Task) -> bool:
    """Whether it is parked, and waits only for what it needs to go on."""
    return is_for_slot(task) or _begins_as(task, "limit")


def _begins_as(task: Task, kind: str) -> bool:
    """Without reading all of it: the kind stands first."""
    return task.waiting_on is not None and task.waiting_on.startswith(f'{{"kind":"{kind}"')


def limited_sentence(name: str) -> str:
    if name.startswith("."):
        return "waits for a permit of its map"
    return f"waits for a permit of '{name}'"


def _reported(task: Task, since: Millis) -> Waiting | None:
    """Of a wait that its worker, or core, may have reported."""
    told = read_waiting_on(task.waiting_on)
    if task.state == "halted":
        return _waiting("halted", since, told=told)
    if task.state == "suspended":
        form: Form = "backoff" if told is not None and told.kind == "backoff" else "suspended"
        return _waiting(form, since, told=told)
    if task.gate is not None:  # and what else it has said is over
        told = WaitingOn("limit", limited_sentence(task.gate), since)
    if told is None:
        return None
    return _waiting("parked" if task.sub_status == "Deferred" else "in_slot", since, told=told)


def _waiting(
    form: Form, since: Millis, until: Millis | None = None, told: WaitingOn | None = None
) -> Waiting:
    if told is None:
        return Waiting(form, _KINDS[form], since, until)
    return Waiting(form, told.kind, since, told.deadline, told)
