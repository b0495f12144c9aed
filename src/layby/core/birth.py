"""How promises and their tasks come into being, and what their tags mean."""

import msgspec
from msgspec.structs import replace

from layby.core import address
from layby.core.draft import Draft
from layby.core.fields import MAX_PRIORITY, MAX_SLOTS, Tags, Value
from layby.core.ids import root_of
from layby.core.model import EMPTY, FAR, NEVER, Millis, NodeKind, Promise, Task, later
from layby.core.resumption import TRIGGER_GROUP
from layby.core.settlement import make_ready, settle_all
from layby.core.tag_names import (
    AFTER,
    BRANCH,
    DELAY,
    EXPIRED,
    EXTERNAL,
    KEEPS,
    KIND,
    LIMITS,
    NAME,
    PLACEHOLDER,
    PRIORITY,
    SCHEDULE,
    SLOTS,
    TARGET,
    TIMER,
    has_tag,
    tag_of,
)

_encoder = msgspec.json.Encoder()
_tags, _ids = msgspec.json.Decoder(Tags), msgspec.json.Decoder(tuple[str, ...])


def encoded(value: Value | Tags) -> str:
    return _encoder.encode(value).decode() if value else EMPTY


def keeps(promise: Promise) -> str | None:
    """The task whose checkpoints this one keeps, if it keeps any."""
    return tag_of(promise.tags, KEEPS)


def schedule_of(tags: str) -> str | None:
    """The schedule that has made the promise with these encoded tags."""
    return tag_of(tags, SCHEDULE)


def run_priority_of(tags: str) -> int:
    """Of a run, by the encoded tags of its root."""
    return priority_of(_tags.decode(tags)) if has_tag(tags, PRIORITY) else 0


def awaited_runs(tags: str) -> tuple[str, ...]:
    """Of the root of a run that was queued: the roots it was to wait for."""
    after = tag_of(tags, AFTER)
    return () if after is None else _ids.decode(after)


def delay_of(tags: Tags) -> Millis | None:
    """The instant before which the task is not dispatched; None when there is none."""
    text = tags.get(DELAY, "")
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(FAR))):
        return None
    return int(text) if int(text) <= FAR else None


def priority_of(tags: Tags) -> int:
    """What is not a priority counts as none."""
    found = _whole(tags.get(PRIORITY, ""))
    return found if found is not None and abs(found) <= 2 * MAX_PRIORITY else 0


def slots_of(tags: Tags) -> int:
    found = _whole(tags.get(SLOTS, ""))
    return found if found is not None and 1 <= found <= MAX_SLOTS else 1


def _whole(text: str) -> int | None:
    digits = text.removeprefix("-")
    is_short = digits.isascii() and digits.isdecimal() and len(digits) <= len(str(MAX_SLOTS))
    return int(text) if is_short else None


def is_timer(tags: Tags) -> bool:
    """It settles by itself when its time has come, as resolved."""
    return tags.get(TIMER) == "true"


def expired_at(tags: Tags) -> Millis | None:
    """When a promise with these tags was pruned; None when it was not."""
    text = tags.get(EXPIRED, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(FAR)) else None


def is_external(tags: Tags) -> bool:
    """Someone outside the process that made it settles it, or was promised to hear of its end."""
    return TARGET in tags or is_timer(tags) or tags.get(EXTERNAL) == "true"


def is_absent(promise: Promise | None) -> bool:
    """To a command that creates its id, a pending placeholder counts as absent."""
    return promise is None or (promise.placeholder and promise.is_pending)


def create(
    d: Draft, promise_id: str, timeout_at: Millis, param: str, tags: Tags, at: Millis | None = None
) -> Promise:
    """Insert a promise; with a target its task is born pending, past the deadline both are over."""
    promise = _promise(promise_id, timeout_at, param, tags, d.now if at is None else at)
    task = _task(promise_id, tags)
    if timeout_at <= d.now:
        return _born_settled(d, promise, task, at)
    d.insert(promise, None)
    if task is not None:
        make_ready(d, task, not_before=delay_of(tags) or 0)
    return promise


def create_internal(
    d: Draft, promise_id: str, timeout_at: Millis, param: str, tags: Tags
) -> Promise:
    """Insert a promise nobody may wait for; past its deadline there is nothing to do about it."""
    promise = _promise(promise_id, timeout_at, param, tags, d.now)
    internal = msgspec.structs.replace(promise, internal=True)
    if timeout_at <= d.now:
        return _born_settled(d, internal, None, None)
    d.insert(internal, None)
    return internal


def create_claimed(
    d: Draft, promise_id: str, timeout_at: Millis, param: str, tags: Tags, pid: str, ttl: Millis
) -> Promise:
    """Insert a promise whose task is born acquired: birth counts as one acquire."""
    promise = _promise(promise_id, timeout_at, param, tags, d.now)
    task = _task(promise_id, tags)
    if timeout_at <= d.now or task is None:
        return _born_settled(d, promise, task, None)
    d.insert(promise, task.acquired(pid, ttl, later(d.now, ttl), None))
    return promise


def create_suspended(
    d: Draft,
    promise_id: str,
    timeout_at: Millis,
    param: str,
    tags: Tags,
    at: Millis,
    waits_left: int,
) -> None:
    """Insert a promise whose task waits for `waits_left` others; the caller adds those waits."""
    task = _task(promise_id, tags)
    assert task is not None
    suspended = msgspec.structs.replace(task.suspended(), waits_left=waits_left)
    d.insert(_promise(promise_id, timeout_at, param, tags, at), suspended)


def create_join(d: Draft, promise_id: str, timeout_at: Millis, param: str, tags: Tags) -> None:
    """Insert a join that has no items yet. Tags alone do not make one: nobody would end it."""
    task = _task(promise_id, tags)
    assert task is not None
    join = msgspec.structs.replace(task.suspended(), kind="join")
    d.insert(_promise(promise_id, timeout_at, param, tags, d.now), join)


def expired(promise: Promise, at: Millis) -> Promise:
    """What is left of a promise that is pruned."""
    return promise.expired(at, encoded({EXPIRED: str(at)}))


def placeholder(d: Draft, promise_id: str) -> Promise:
    """A pending promise that came into being because somebody waits for its id."""
    tags = {PLACEHOLDER: "true"}
    promise = _promise(promise_id, NEVER, EMPTY, tags, d.now)
    promise = msgspec.structs.replace(promise, placeholder=True)
    d.insert(promise, None)
    return promise


def _born_settled(d: Draft, promise: Promise, task: Task | None, at: Millis | None) -> Promise:
    created_at = promise.timeout_at if at is None else at
    settled = msgspec.structs.replace(promise.timed_out(), created_at=created_at)
    d.insert(settled, None if task is None else task.fulfilled())
    settle_all(d, [settled])
    return settled


def _promise(
    promise_id: str, timeout_at: Millis, param: str, tags: Tags, created_at: Millis
) -> Promise:
    if not tags:
        return Promise(promise_id, root_of(promise_id), param, EMPTY, timeout_at, created_at)
    return Promise(
        id=promise_id,
        root=root_of(promise_id),
        param=param,
        tags=encoded(tags),
        timeout_at=timeout_at,
        created_at=created_at,
        timer=is_timer(tags),
        branch=tags.get(BRANCH),
    )


def _task(promise_id: str, tags: Tags) -> Task | None:
    target = tags.get(TARGET)
    if target is None:
        return None
    group = address.group_of(target)
    if group is None:
        return Task(promise_id, target, None, tags.get(NAME))
    kind: NodeKind = "root" if tags.get(KIND) == "root" else "node"
    task = Task(promise_id, target, group, tags.get(NAME), kind)
    if kind == "root" or group == TRIGGER_GROUP:
        return task
    if PRIORITY in tags or SLOTS in tags:
        task = replace(task, priority=priority_of(tags), slots=slots_of(tags))
    limits = tags.get(LIMITS)
    return task if limits is None else task.limited(_ids.decode(limits))
