"""layby.task.defer: a task gives up its claim, and goes on in a new try when a trigger fires.

Delay, At, Event and PromiseSettled are promises, which nobody has to run. Every other trigger is
the name of a class: its promise has a task, which a trigger manager takes.
"""

from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from layby.core import birth, promises, tag_names, validate, values, waits
from layby.core.address import target_of
from layby.core.draft import Draft
from layby.core.fields import Int64, Tags
from layby.core.footprint import Footprint
from layby.core.kinds import Ids, Problems, Sender, declare
from layby.core.model import EMPTY, NEVER, Millis, Promise, Task, deadline
from layby.core.nesting import TOO_DEEP, is_too_deep
from layby.core.replies import DeferData, Reply, ok, refuse
from layby.core.resumption import (
    NOTHING_GIVEN,
    TRIGGER_GROUP,
    Resumption,
    clean_up_id,
    deadline_id,
    own_id,
)
from layby.core.settlement import end_deferral
from layby.core.tag_names import ON_CANCEL, PRINCIPAL, TRIGGER
from layby.core.takes import take_next
from layby.core.tasks import handles_claim
from layby.core.tries import GiveUpClaim

MAX_ARGS_CHARS: Final = 2**16
MAX_KWARGS_CHARS: Final = 2**20
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""Why JSON that was only looked over cannot be read."""


class DelayArgs(Struct, frozen=True, forbid_unknown_fields=True):
    """Fires when so much time has passed."""

    ms: Int64

    def fires_at(self, now: Millis) -> Millis:
        return deadline(now, self.ms)


class AtArgs(Struct, frozen=True, forbid_unknown_fields=True):
    """Fires at an instant, at once if that is past."""

    at: Int64

    def fires_at(self, now: Millis) -> Millis:  # noqa: ARG002 - as a delay
        return min(max(0, self.at), NEVER)


class EventArgs(Struct, frozen=True, forbid_unknown_fields=True):
    """Fires when the promise of this name settles, which comes into being by waiting for it."""

    name: str

    @property
    def awaited(self) -> str:
        return self.name


class PromiseSettledArgs(Struct, frozen=True, forbid_unknown_fields=True):
    """The same, in the words of whoever waits for a run or a call."""

    id: str

    @property
    def awaited(self) -> str:
        return self.id


Promised = DelayArgs | AtArgs | EventArgs | PromiseSettledArgs
PROMISED: Final[dict[str, type[Promised]]] = {
    "Delay": DelayArgs,
    "At": AtArgs,
    "Event": EventArgs,
    "PromiseSettled": PromiseSettledArgs,
}
"""Triggers that nobody has to run, by their kinds."""


class TriggerSpec(Struct, frozen=True, rename="camel"):
    """`on_cancel`: if it is cancelled or times out, its class has something to do about it."""

    kind: str
    args: Raw | UnsetType = UNSET
    on_cancel: bool = False

    @property
    def given(self) -> Raw:
        return given(self.args)

    @property
    def promised(self) -> Promised | None:
        """What is asked for, if nobody has to run it; None if its arguments are wrong, too."""
        try:
            return self._read()
        except UNREADABLE:
            return None

    def problems(self) -> Problems:
        yield from validate.identifier(self.kind, "Kind of the trigger")
        yield from an_object(self.given, "args of the trigger", MAX_ARGS_CHARS)
        try:
            known = self._read()
        except UNREADABLE as error:
            yield f"args of {self.kind}: {error}"
            return
        if isinstance(known, EventArgs | PromiseSettledArgs):
            yield from validate.identifier(known.awaited, "Awaited promise ID")
        if isinstance(known, DelayArgs) and known.ms < 0:
            yield f"ms of Delay must be non-negative, got {known.ms}: 0 fires at once"

    def _read(self) -> Promised | None:
        wanted = PROMISED.get(self.kind)
        return None if wanted is None else msgspec.json.decode(self.given, type=wanted)


class ResumeSpec(Struct, frozen=True):
    """Where the next try begins: at a function by name, with these arguments besides the event.

    `context`, `key` and `bare` are its worker's own: they come back with the claim.
    """

    name: str | None = None
    kwargs: Raw | UnsetType = UNSET
    context: Raw | UnsetType = UNSET
    key: str | None = None
    bare: bool = False

    def problems(self) -> Problems:
        if self.name is not None:
            yield from validate.identifier(self.name, "Name of the function to resume at")
        if self.key is not None:
            yield from validate.identifier(self.key, "Key of the wait")
        yield from an_object(given(self.kwargs), "kwargs", MAX_KWARGS_CHARS)
        if not isinstance(self.context, UnsetType):
            yield from an_object(self.context, "context", validate.MAX_VALUE_CHARS)


@declare("layby.task.defer", sender=Sender.CLIENT, answer=DeferData, unqueues=False)
class DeferTask(GiveUpClaim, frozen=True, kw_only=True):
    """Wait for a trigger without a claim; `timeout` is the length after which the wait ends."""

    trigger: TriggerSpec
    resume: ResumeSpec = ResumeSpec()
    timeout: Int64 | None = None
    history: str | None = None
    principal: str = ""
    """For whom a trigger asks: a server writes the prefix of the caller's token here."""

    def footprint(self, into: Footprint) -> None:
        super().footprint(into)
        own = own_id(self.id, self.version)
        into.ids.update((own, deadline_id(own), clean_up_id(own)))
        into.pairs.update((each, self.id) for each in (own, deadline_id(own)))
        if (shared := self.shared_id) is not None:
            into.beside.add(shared)
            into.pairs.add((shared, self.id))

    @property
    def shared_id(self) -> str | None:
        """The promise that it waits for, if that is not its own."""
        known = self.trigger.promised
        return known.awaited if isinstance(known, EventArgs | PromiseSettledArgs) else None

    def named_ids(self) -> Ids:
        yield from super().named_ids()
        if (shared := self.shared_id) is not None:
            yield shared

    def problems(self) -> Problems:
        yield from super().problems()
        yield from self.trigger.problems()
        yield from self.resume.problems()
        if self.timeout is not None and self.timeout < 0:
            yield "timeout must be non-negative"
        yield from validate.history(self.history)
        if self.principal:
            yield from validate.identifier(self.principal, "Principal")
        if self.shared_id == self.id:
            yield promises.SELF_AWAITED


@handles_claim(DeferTask)
def defer(d: Draft, c: DeferTask, task: Task, _: Promise) -> Reply:
    """One that has fired already ends the wait in the same step: the next try begins all the same.

    What the wait has of its own is born here, and ends with it.
    """
    own = own_id(c.id, c.version)
    if not all(map(birth.is_absent, map(d.promise, (own, deadline_id(own))))):
        return refuse(
            422, f"Promise '{own}' exists, though its id is kept for the task's own trigger"
        )
    if c.shared_id is not None and (refusal := _shared_refusal(d, c.shared_id, c.id)) is not None:
        return refusal
    waited = _begin_wait(d, c, own)
    begun = task.begun().with_history(c.history)
    late = None if waited.deadline is None else d.promise(waited.deadline)
    won = waited.winner(d.promise(waited.trigger), late)
    if won is None:
        for awaited in waited.awaited:
            promises.add_wait(d, awaited, c.id)
        d.put_task(begun.deferred(waited, waits.deferred(c.id, waited)))
    else:
        end_deferral(d, begun.suspended(), waited.ended(won))
    return ok(DeferData(d.tasks[c.id], take_next(d, c.take)))


def _shared_refusal(d: Draft, shared: str, task_id: str) -> Reply | None:
    promise = d.promise(shared)
    if promise is None and shared.startswith(promises.RUN_PREFIX):
        return refuse(422, str(promises.no_such_run(shared).data))
    if promise is not None and promise.internal:
        return promises.not_external(promise)
    standing = d.rows.wait(shared, task_id)
    if standing is not None and standing.counts:
        return refuse(422, f"'{task_id}' runs before '{shared}' has settled: it waits already")
    return None


def _begin_wait(d: Draft, c: DeferTask, own: str) -> Resumption:
    """Create whatever it waits for that is not there yet."""
    known, ends_at = c.trigger.promised, None
    if c.timeout is not None:
        ends_at = deadline(d.now, c.timeout)
    trigger, until, needs_timer = own, ends_at, ends_at is not None
    if isinstance(known, DelayArgs | AtArgs):
        fires_at = known.fires_at(d.now)
        needs_timer = ends_at is not None and ends_at < fires_at
        until = ends_at if needs_timer else fires_at
        birth.create(d, own, fires_at, EMPTY, {tag_names.TIMER: "true"})
    elif known is not None:
        trigger = known.awaited
        if d.promise(trigger) is None:
            birth.placeholder(d, trigger)
    else:
        needs_timer = False
        create_trigger(d, own, ends_at, c.trigger, c.id, c.principal)
    if needs_timer and ends_at is not None:
        create_deadline(d, own, ends_at)
    return Resumption(
        kind=c.trigger.kind,
        args=c.trigger.given,
        at=c.version,
        trigger=trigger,
        own=trigger == own,
        deadline=deadline_id(own) if needs_timer else None,
        until=until,
        since=d.now,
        name=c.resume.name,
        kwargs=given(c.resume.kwargs),
        context=c.resume.context,
        key=c.resume.key,
        bare=c.resume.bare,
        on_cancel=known is None and c.trigger.on_cancel,
    )


def create_deadline(d: Draft, own: str, ends_at: Millis) -> None:
    birth.create(d, deadline_id(own), ends_at, EMPTY, {tag_names.TIMER: "true"})


def create_trigger(
    d: Draft, own: str, ends_at: Millis | None, spec: TriggerSpec, task_id: str, principal: str
) -> None:
    """Its task is for trigger managers that have its class; its timeout is that of the wait."""
    tags: Tags = {
        tag_names.TARGET: target_of(TRIGGER_GROUP),
        tag_names.NAME: spec.kind,
        TRIGGER: task_id,
    }
    if spec.on_cancel:
        tags[ON_CANCEL] = "true"
    if principal:
        tags[PRINCIPAL] = principal
    param = values.text_of(values.wrap(bytes(spec.given)))
    birth.create(d, own, NEVER if ends_at is None else ends_at, param, tags)


def given(json: Raw | UnsetType) -> Raw:
    """What is absent is an empty object."""
    return NOTHING_GIVEN if isinstance(json, UnsetType) else json


def an_object(json: Raw, what: str, most: int) -> Problems:
    """Requests from the wire are JSON, whose texts nobody has looked into; those of this process
    may be anything.
    """
    text = bytes(json)
    if not text.lstrip().startswith(b"{"):
        yield f"{what} must be a JSON object"
    if not _is_unicode(text):
        yield f"{what} must be valid Unicode"
    if is_too_deep(text):
        yield f"{what} {TOO_DEEP}"
    if len(text) > most:
        remedy = "store it elsewhere and pass its address"
        yield f"{what}: {len(text):,} bytes are more than {most:,}: {remedy}"


def _is_unicode(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
