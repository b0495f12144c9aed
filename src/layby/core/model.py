"""The rows of the store as frozen values; each row knows its own legal moves and nothing else.

`param`, `value` and `tags` stay encoded JSON text: core never looks into them after birth.
A field that tags decide (target, branch, timer, …) is worked out once, when the row is born.
Field order is column order: the store derives its tables from these structs. They hold nothing
but texts and numbers, so the garbage collector need not look at them (`gc=False`).
"""

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Final, Literal

from msgspec import Struct, json
from msgspec.structs import replace

from layby.core.ids import life_id, root_of
from layby.core.left_waits import LeftWait, read_left_wait, shown_wait
from layby.core.resumption import TRIGGER_GROUP, Resumption, read_resumption
from layby.core.tag_names import MOVABLE, has_tag
from layby.core.values import error

Millis = int

NEVER: Final[Millis] = 2**53 - 1
FAR: Final[Millis] = 2**63 - 1
EMPTY: Final = "{}"
_TIME_IS_UP: Final = error("TimedOut", "it did not settle in time")
MAX_AWAITED: Final = 64
"""Waits for promises of which a task remembers what they were for."""

PromiseState = Literal["pending", "resolved", "rejected", "rejected_canceled", "rejected_timedout"]
TaskState = Literal["pending", "acquired", "suspended", "halted", "fulfilled"]
Standing = Literal["alive", "lost", "left"]
WaitMode = Literal["any", "all", "both", "end", "read", "child", "child_any", "below"]
NodeKind = Literal["root", "node", "join"]
MessageKind = Literal["execute", "unblock", "lost"]
MessageKey = tuple[str, MessageKind, str]
"""Promise id, kind, address: a newer message of the same key replaces the older."""
HeldKey = tuple[str, str]
"""Pid and incarnation: which holder."""
Codes = tuple[tuple[str, str], ...]
"""Of each workflow that a worker has code for: its name, and the name of that code."""


_deadlines = json.Decoder(dict[str, Millis])
_names = json.Decoder(tuple[str, ...])


def lane_name(group: str, name: str) -> str:
    """Of the lane in which such tasks wait for a permit; no group contains a slash."""
    return f"{group}/{name}"


def task_name_in(lane: str) -> str:
    return lane.partition("/")[2]


@lru_cache(maxsize=4_096)
def names_in(text: str | None) -> tuple[str, ...]:
    """Names of limits, as a task keeps them."""
    return () if text is None else _names.decode(text)


@lru_cache(maxsize=4_096)
def text_of_names(names: tuple[str, ...]) -> str | None:
    return json.encode(names).decode() if names else None


_awaited = json.Decoder(dict[str, str])


def later(now: Millis, by_ms: Millis) -> Millis:
    """The instant `by_ms` after `now`, kept inside what both databases can store."""
    return min(now + by_ms, FAR)


def deadline(now: Millis, length: Millis) -> Millis:
    """When a duration that begins now ends; practically never becomes never."""
    return min(now + length, NEVER)


class Promise(Struct, frozen=True, array_like=True, gc=False):
    """A durable write-once cell."""

    id: str
    root: str
    param: str
    tags: str
    timeout_at: Millis
    """When time settles it. The protocol promises that this never changes, so of one whose deadline
    may move it tells `told_timeout_at` instead.
    """
    created_at: Millis
    timer: bool = False
    branch: str | None = None
    placeholder: bool = False
    internal: bool = False
    """Nobody may wait for it, so no deadline is enforced: past it, it merely reads as settled."""
    expired_at: Millis | None = None
    """When it was pruned: since then its id answers, and nothing else is left of it."""
    state: PromiseState = "pending"
    value: str = EMPTY
    settled_at: Millis | None = None
    settlement_id: str | None = None
    """Which call settled it, if that call told its id: a copy of the call finds that it has won."""
    tail_at: Millis | None = None
    """When the rest of its settlement effects is due; None when they are complete."""

    @property
    def is_pending(self) -> bool:
        return self.state == "pending"

    @property
    def is_armed(self) -> bool:
        """Time itself will settle it."""
        return self.state == "pending" and not self.internal

    def at(self, now: Millis) -> "Promise":
        """The deadline-aware view: past its deadline a pending promise *is* settled."""
        if self.state != "pending" or self.timeout_at > now:
            return self
        return self.timed_out()

    def timed_out(self) -> "Promise":
        """In the protocol's words, what has timed out did so at the time that was told: one whose
        deadline may move is cancelled by it.
        """
        if self.is_movable and not self.timer:
            return self.settled("rejected_canceled", _TIME_IS_UP, self.timeout_at)
        state: PromiseState = "resolved" if self.timer else "rejected_timedout"
        return replace(self, state=state, settled_at=self.timeout_at)

    @property
    def is_timed_out(self) -> bool:
        """Whether time has settled it, and not as a timer."""
        is_at_deadline = self.state == "rejected_canceled" and self.settled_at == self.timeout_at
        return self.state == "rejected_timedout" or (is_at_deadline and self.is_movable)

    @property
    def is_movable(self) -> bool:
        return has_tag(self.tags, MOVABLE)

    @property
    def told_timeout_at(self) -> Millis:
        """Its `timeoutAt` in the protocol: of a movable one, the latest that can be."""
        return NEVER if self.is_movable else self.timeout_at

    def moved(self, timeout_at: Millis) -> "Promise":
        """With another deadline: only if it is movable."""
        return replace(self, timeout_at=timeout_at)

    def settled(
        self, state: PromiseState, value: str, at: Millis, settlement_id: str | None = None
    ) -> "Promise":
        """Never before it was created: the clocks of two servers may be a moment apart."""
        at = max(at, self.created_at)
        return replace(self, state=state, value=value, settled_at=at, settlement_id=settlement_id)

    @property
    def is_expired(self) -> bool:
        return self.expired_at is not None

    def expired(self, at: Millis, tags: str) -> "Promise":
        """What is left when it was pruned: how it ended, and no value."""
        return replace(self, param=EMPTY, value=EMPTY, tags=tags, branch=None, expired_at=at)

    def ended_as(self, last: "Promise") -> "Promise":
        """Of a run's root: its latest life says how and when the run ended."""
        return replace(
            self, state=last.state, settled_at=last.settled_at, timeout_at=last.timeout_at
        )

    def with_tail(self, tail_at: Millis | None) -> "Promise":
        return replace(self, tail_at=tail_at)


class Task(Struct, frozen=True, array_like=True, gc=False):
    """The right to run code for the promise of the same id."""

    id: str
    target: str
    group: str | None = None
    """The layby group of the target; None for tasks that are dispatched by `execute`."""
    name: str | None = None
    kind: NodeKind | None = None
    priority: int = 0
    """Of a node: of those that are ready, one of higher priority begins first."""
    slots: int = 1
    """Of a node: how many slots of its worker its body holds."""
    state: TaskState = "pending"
    version: int = 0
    pid: str | None = None
    holder: str | None = None
    """Incarnation of the holder whose lease covers this task; None when it has its own."""
    ttl: Millis | None = None
    wake_at: Millis | None = None
    """Retry deadline while pending, own lease deadline while acquired."""
    ready_at: Millis | None = None
    resumes: tuple[str, ...] = ()
    waits_left: int = 0
    """Waits of mode *all* that have not settled yet."""
    failures: int = 0
    crashes: int = 0
    error: str | None = None
    sub_status: str | None = None
    waiting_on: str | None = None
    progress: str | None = None
    history: str | None = None
    """Tries and their spans, as reported by the worker; core only keeps the text."""
    waiting_since: Millis | None = None
    """Since when it waits as it does now; None while it runs and while dependencies are open."""
    tries: int = 0
    """Claims that have begun a body: the number of the try, as people see it."""
    ahead: bool = False
    """Claimed ahead of a slot: its body has not begun, so losing it is not a crash."""
    deadlines: str | None = None
    """When its waits end, by their record ids, as a JSON object; None when no wait has an end.

    Fixed when a wait first begins; it outlives the claim, so a restart does not extend it.
    """
    refused: str | None = None
    """Which codes have refused it, as `codes.Refusals`; None when any code may take it."""
    pin: str | None = None
    """Of a root: the code that its run is pinned to. Of a node: the only code that may take it."""
    awaited: str | None = None
    """What its waits for promises are for, by key, so that changed code is noticed; or None."""

    lives: int | None = None
    """Of a root whose run was run again: how many lives it has had since. None on the latest one's.

    The first root is always told; so it knows the latest life.
    """

    resume: str | None = None
    """How it goes on after a defer, as a `Resumption`: until it fails, ends or defers again."""

    items: int | None = None
    """Of a join: how many items it has, as soon as all of them are there."""
    limits: str | None = None
    """Names of the limits it runs under, as a JSON list; None when there are none."""
    gate: str | None = None
    """The limit whose permit it waits for: no take sees it meanwhile."""
    gate_at: Millis | None = None
    """Its place in the lane of that limit. It stays when the gate is opened: `is_let_in`."""
    permits: str | None = None
    """Names of the limits it holds a permit of, as a JSON list: as long as its claim lasts."""

    waited: str | None = None
    """The wait in which its last claim has ended, as `LeftWait`: whoever goes on with that wait
    begins no new one.
    """

    @property
    def limit_names(self) -> tuple[str, ...]:
        return names_in(self.limits)

    @property
    def permit_names(self) -> tuple[str, ...]:
        return names_in(self.permits)

    @property
    def lane(self) -> str:
        """Where it waits behind a gate: with those that the same workers may take."""
        return lane_name(self.group or "", self.name or "")

    @property
    def is_let_in(self) -> bool:
        """Its gate was opened, and nobody has taken it yet."""
        return self.state == "pending" and self.gate is None and self.gate_at is not None

    @property
    def resumption(self) -> Resumption | None:
        return None if self.resume is None else read_resumption(self.resume)

    @property
    def open_resumption(self) -> Resumption | None:
        """What it waits for; None if it has not deferred, or that wait is over."""
        found = self.resumption
        return None if found is None or found.is_over else found

    @property
    def is_trigger(self) -> bool:
        """Its body is run by a trigger manager, for a task that waits."""
        return self.group == TRIGGER_GROUP

    @property
    def is_node(self) -> bool:
        """It is a task of a run, as its workflow names it."""
        return self.kind == "node" and not self.is_trigger

    @property
    def latest_life_id(self) -> str | None:
        """The root that `lives` names."""
        return None if self.lives is None else life_id(root_of(self.id), self.lives)

    @property
    def resumes_text(self) -> str:
        """As it is stored."""
        return json.encode(self.resumes).decode() if self.resumes else "[]"

    @property
    def is_ours(self) -> bool:
        return self.group is not None

    @property
    def is_root(self) -> bool:
        return self.kind == "root"

    @property
    def is_join(self) -> bool:
        """It waits for the items of one call of `map`; core itself settles it."""
        return self.kind == "join"

    @property
    def has_parts(self) -> bool:
        """What it waits for is a part of it, and ends with it."""
        return self.kind in ("root", "join")

    @property
    def try_number(self) -> int:
        """The number of its try, counting a claim whose body has not begun."""
        return self.tries + self.ahead

    @property
    def is_ready(self) -> bool:
        """A take may find it as soon as it is due."""
        return self.state == "pending" and self.ready_at is not None

    @property
    def is_kept(self) -> bool:
        """Halted (and maybe continued since) or settled by others, but its holder has not said
        that its body has ended.
        """
        return self.holder is not None and self.state in ("halted", "pending", "fulfilled")

    @property
    def is_waiting(self) -> bool:
        """It waits for a worker, a person, a promise or anything else its body waits for.

        Not for tasks of its own run: those are waiting or running themselves.
        """
        if self.state == "suspended":
            return self.waits_left == 0
        if self.state == "acquired":
            return self.waiting_on is not None
        return self.state != "fulfilled"

    def is_claim_of(self, pid: str, incarnation: str, version: int) -> bool:
        """Whether this holder was given it at this version and has not handed it back."""
        return (self.pid, self.holder, self.version) == (pid, incarnation, version)

    def dated(self, before: "Task | None", now: Millis) -> "Task":
        """With the time since when it waits as it does now: kept while that stays the same."""
        since = self._since(before, now) if self.is_waiting else None
        return self if self.waiting_since == since else replace(self, waiting_since=since)

    def _since(self, before: "Task | None", now: Millis) -> Millis:
        if before is not None and before.waiting_since is not None:
            is_same = (before.state, before.waiting_on) == (self.state, self.waiting_on)
            if is_same or self._is_in_same_line(before):
                return before.waiting_since
        return self._since_before(now)

    def _since_before(self, now: Millis) -> Millis:
        """Now, unless its body is in the wait in which an earlier claim has ended."""
        if self.waited is None or self.state != "acquired":
            return now
        left = read_left_wait(self.waited)
        return left.since if left.wait == shown_wait(self.waiting_on) else now

    def _is_in_same_line(self, before: "Task") -> bool:
        """Whether it has not begun, and has the place in the lane of a limit that it had: being
        let in for a moment, or moved to the gate of another limit, does not begin a new wait.
        """
        is_pending = self.state == before.state == "pending"
        return is_pending and self.gate_at is not None and self.gate_at == before.gate_at

    def acquired(
        self,
        pid: str,
        ttl: Millis,
        lease_at: Millis | None,
        holder: str | None,
        *,
        ahead: bool = False,
    ) -> "Task":
        return replace(
            self,
            state="acquired",
            version=self.version + 1,
            pid=pid,
            ttl=ttl,
            wake_at=lease_at,
            holder=holder,
            ready_at=None,
            resumes=(),
            waiting_on=None,
            waiting_since=None,
            tries=self.tries if ahead else self.tries + 1,
            ahead=ahead,
            gate=None,
            gate_at=None,
        )

    def begun(self) -> "Task":
        """Its body runs: from now on this claim is a try."""
        return replace(self, ahead=False, tries=self.tries + 1) if self.ahead else self

    def never_begun(self) -> "Task":
        """Its body never ran: this claim was not a try."""
        return self if self.ahead else replace(self, tries=max(0, self.tries - 1))

    def pending(self, retry_at: Millis, ready_at: Millis) -> "Task":
        return replace(self._unheld(), state="pending", wake_at=retry_at, ready_at=ready_at)

    def pending_kept(self) -> "Task":
        """Continued, but not ready until its holder has said that the previous body has ended."""
        kept = replace(self._unheld(), pid=self.pid, holder=self.holder)
        return replace(kept, state="pending", wake_at=NEVER)

    def blocked(self, ready_at: Millis, refused: str, pin: str | None, why: str) -> "Task":
        """Back to pending, with its place, for workers with other code."""
        pending = self.pending(NEVER, ready_at)
        return replace(pending, refused=refused, pin=pin, waiting_on=why)

    def for_any_code(self) -> "Task":
        """Whoever refused it may try again; a root is no longer pinned."""
        is_told = self.refused is not None and self.state == "pending"
        why = None if is_told else self.waiting_on
        return replace(self, refused=None, pin=None, waiting_on=why)

    def pinned(self, code: str) -> "Task":
        return replace(self, pin=code)

    def suspended(self, why: str | None = None) -> "Task":
        return replace(self._unheld(), state="suspended", resumes=(), waiting_on=why)

    def deferred(self, resumption: Resumption, why: str) -> "Task":
        return replace(self.suspended(why), resume=resumption.to_text())

    def resuming(self, resumption: Resumption) -> "Task":
        return replace(self, resume=resumption.to_text())

    def halted(self, why: str | None = None) -> "Task":
        """A layby holder keeps it until its body has ended: one ahead may have begun."""
        pid = None if self.holder is None else self.pid
        held = replace(self._unheld(), pid=pid, holder=self.holder, tries=self.try_number)
        return replace(held, state="halted", waiting_on=why)

    def let_go(self) -> "Task":
        """Still halted or fulfilled, but no longer kept by anyone."""
        return replace(self, pid=None, holder=None)

    def fulfilled(self) -> "Task":
        return replace(
            self._unheld(),
            state="fulfilled",
            resumes=(),
            waits_left=0,
            deadlines=None,
            refused=None,
            awaited=None,
            resume=None,
            waited=None,
        )

    def fulfilled_kept(self) -> "Task":
        """Fulfilled while its body may run: a layby holder keeps a node until that has ended."""
        if self.kind != "node" or self.holder is None:
            return self.fulfilled()
        kept = replace(self.fulfilled(), pid=self.pid, holder=self.holder)
        return replace(kept, tries=self.try_number)

    def followed_by(self, life: int) -> "Task":
        """Of a root: its run has this life now."""
        return replace(self, lives=life)

    def leased_until(self, lease_at: Millis) -> "Task":
        return replace(self, wake_at=lease_at)

    def resumed_by(self, awaited: str) -> "Task":
        return replace(self, resumes=tuple(sorted({*self.resumes, awaited})))

    def without_resumes(self) -> "Task":
        return replace(self, resumes=())

    def one_wait_fewer(self) -> "Task":
        return replace(self, waits_left=max(0, self.waits_left - 1))

    def waiting_for(self, more: int) -> "Task":
        return replace(self, waits_left=self.waits_left + more)

    def complete(self, items: int) -> "Task":
        """Of a join: it has all its items."""
        return replace(self, items=items)

    def failed(self, error: str | None) -> "Task":
        return replace(
            self,
            failures=self.failures + 1,
            error=error,
            deadlines=None,
            awaited=None,
            resume=None,
            waited=None,
        )

    def crashed(self) -> "Task":
        return replace(self, crashes=self.crashes + 1)

    def annotated(
        self,
        sub_status: str | None,
        waiting_on: str | None,
        progress: str | None,
        history: str | None,
    ) -> "Task":
        return replace(
            self,
            sub_status=sub_status,
            waiting_on=waiting_on,
            progress=progress or self.progress,
            history=history or self.history,
            waited=self._still_left(waiting_on),
        )

    def told(self, waiting_on: str) -> "Task":
        return replace(self, waiting_on=waiting_on)

    def waiting_until(
        self, begun: Mapping[str, Millis], ended: Collection[str], now: Millis
    ) -> "Task":
        """The first deadline of a wait stays until the wait ends."""
        if not begun and not ended:
            return self
        kept = {key: later(now, length) for key, length in begun.items()} | self.deadlines_by_id
        kept = {key: at for key, at in kept.items() if key not in ended}
        text = json.encode(kept, order="sorted").decode() if kept else None
        return self if text == self.deadlines else replace(self, deadlines=text)

    def waiting_later(self, record_id: str, at: Millis) -> "Task":
        """A person has moved the deadline of a wait."""
        moved = self.deadlines_by_id | {record_id: at}
        return replace(self, deadlines=json.encode(moved, order="sorted").decode())

    @property
    def deadlines_by_id(self) -> dict[str, Millis]:
        return {} if self.deadlines is None else _deadlines.decode(self.deadlines)

    def awaiting(self, begun: Mapping[str, str]) -> "Task":
        """It has begun to wait for these; the oldest of very many are forgotten."""
        if not begun:
            return self
        known = {**self.awaited_by_key, **begun}
        kept = dict(list(known.items())[-MAX_AWAITED:])
        return replace(self, awaited=json.encode(kept).decode())

    @property
    def awaited_by_key(self) -> dict[str, str]:
        return {} if self.awaited is None else _awaited.decode(self.awaited)

    def with_history(self, history: str | None) -> "Task":
        return self if history is None else replace(self, history=history)

    def _unheld(self) -> "Task":
        return replace(
            self,
            pid=None,
            ttl=None,
            holder=None,
            wake_at=None,
            ready_at=None,
            sub_status=None,
            waiting_on=None,
            waiting_since=None,
            ahead=False,
            gate=None,
            gate_at=None,
            waited=self._left(),
        )

    def _left(self) -> str | None:
        """Of a claim that ends while its body is parked."""
        wait = shown_wait(self.waiting_on) if self.state == "acquired" else ""
        if not wait or self.waiting_since is None:
            return self.waited
        return LeftWait(wait, self.waiting_since).to_text()

    def _still_left(self, waiting_on: str | None) -> str | None:
        """Once its body has gone on from a wait, no wait that looks alike is that one."""
        if self.waited is None or self.waiting_on is None:
            return self.waited
        is_same = shown_wait(self.waiting_on) == shown_wait(waiting_on)
        return self.waited if is_same else None

    # --- limits --------------------------------------------------------------------------

    def limited(self, names: tuple[str, ...]) -> "Task":
        return replace(self, limits=text_of_names(names))

    def behind(self, gate: str, gate_at: Millis) -> "Task":
        """In the lane of a limit: a pending one is not ready meanwhile, and keeps its place."""
        return replace(self, gate=gate, gate_at=gate_at, ready_at=None)

    def let_in(self) -> "Task":
        """Ready again, with the place it had."""
        return replace(self, gate=None, ready_at=self.gate_at, waiting_on=None)

    def out_of_lane(self) -> "Task":
        return replace(self, gate=None, gate_at=None)

    def regained(self, why: str) -> "Task":
        """A parked body has all its permits again."""
        return replace(self.out_of_lane(), permits=self.limits, waiting_on=why)

    @property
    def is_in_line(self) -> bool:
        """Its body is parked, and is to go on as soon as it has its permits again."""
        return self.state == "acquired" and self.gate is not None

    @property
    def regain_id(self) -> str:
        """The promise that tells a parked body that it has its permits again."""
        return f"{self.id}.permit.{self.version}.{(self.gate_at or 0) + NEVER}"

    def permitted(self, names: tuple[str, ...]) -> "Task":
        permits = text_of_names(names)
        return self if permits == self.permits else replace(self, permits=permits)


class Wait(Struct, frozen=True, array_like=True, gc=False):
    """This task (awaiter) resumes when that promise (awaited) settles.

    Mode *any* is the protocol's callback; *all* counts towards the task's `waits_left`;
    *both* is an *all* wait the running task has also suspended on; *end* is an *all* wait of
    or for a node that cleans up: it lasts until the body of the awaited task has ended.
    *read* neither counts nor wakes: the body has awaited a promise of another tree, and reads it
    again whenever it is replayed or tried again, so that promise is not pruned before the task
    has ended. *child* neither counts nor wakes either: the awaited root is a run that the awaiter
    has started, or the run of the task that did. What cancels the awaiter cancels it, and it is not
    pruned before the awaiter has ended. *child_any* is such a run that its caller also waits for.
    *below* neither counts nor wakes: the awaiter is a join, which ends with the task it was made
    for.
    """

    awaited: str
    awaiter: str
    mode: WaitMode = "any"

    @property
    def counts(self) -> bool:
        return self.mode in ("all", "both", "end")

    @property
    def wakes(self) -> bool:
        return self.mode in ("any", "both", "child_any")

    @property
    def is_for_end(self) -> bool:
        return self.mode == "end"

    @property
    def is_read(self) -> bool:
        return self.mode == "read"

    @property
    def is_child(self) -> bool:
        return self.mode in ("child", "child_any")

    @property
    def is_note(self) -> bool:
        """Nobody waits by it."""
        return self.mode in ("read", "child")

    @property
    def holds_up(self) -> bool:
        """Whether the awaiter cannot go on before the awaited has settled, or one like it."""
        return self.mode not in ("read", "child", "below")


class Listener(Struct, frozen=True, array_like=True, gc=False):
    """An address that is told when the promise settles."""

    awaited: str
    address: str


class Message(Struct, frozen=True, array_like=True, gc=False):
    """What must be told to whom after commit. The text on the wire is made when it is sent."""

    id: str
    kind: MessageKind
    address: str
    version: int = 0

    @property
    def key(self) -> MessageKey:
        return (self.id, self.kind, self.address)


class Holder(Struct, frozen=True, array_like=True, gc=False):
    """A worker process; one lease for all tasks it has taken."""

    pid: str
    incarnation: str
    group: str
    embedded: bool
    ttl: Millis
    expires_at: Millis
    standing: Standing = "alive"
    held: int = 0
    """How many tasks it holds. Kept up to date by deltas, so a heartbeat need not count."""
    names: tuple[str, ...] = ()
    """What it has code for, as its last take said."""
    codes: Codes = ()
    """And by which names those codes go."""
    retried_at: Millis = 0
    """When it was last handed a task that other code has refused."""

    @property
    def is_alive(self) -> bool:
        return self.standing == "alive"

    def wants_renewal(self, now: Millis, ttl: Millis) -> bool:
        """A take renews a lease only when a quarter of it is over: empty takes write nothing."""
        fresh = NEVER if self.embedded else later(now, ttl - ttl // 4)
        return self.expires_at < fresh or self.ttl != ttl

    def knows(self, names: tuple[str, ...], codes: Codes) -> bool:
        """A take without names only renews the lease: it says nothing about code."""
        return not names or (self.names == names and self.codes == codes)

    def knowing(self, names: tuple[str, ...], codes: Codes) -> "Holder":
        return self if self.knows(names, codes) else replace(self, names=names, codes=codes)

    def retried(self, now: Millis) -> "Holder":
        return replace(self, retried_at=now)

    def renewed(self, now: Millis, ttl: Millis) -> "Holder":
        expires_at = NEVER if self.embedded else later(now, ttl)
        return replace(self, ttl=ttl, expires_at=expires_at)

    def leased_until(self, at: Millis) -> "Holder":
        return replace(self, expires_at=at)

    def gone(self, standing: Standing, at: Millis) -> "Holder":
        """`expires_at` says since when."""
        return replace(self, standing=standing, expires_at=at)


class PublishedFlow(Struct, frozen=True, array_like=True, gc=False):
    """The layout of a workflow, as the worker that registered last has it."""

    group: str
    name: str
    layout: str
    published_at: Millis


class Pruning(Struct, frozen=True, array_like=True, gc=False):
    """How far retention has come: one row, so that several servers prune once."""

    id: str
    due_at: Millis
    """When the next batch, or the next pass, is due."""
    cursor: str = ""
    """Where the pass under way goes on; empty between passes."""
