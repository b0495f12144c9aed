"""What the end of a wait does to its trigger, and the end of a trigger to who has to clean up."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from layby.core import values
from layby.core.draft import Draft
from layby.core.fields import Tags
from layby.core.model import EMPTY, NEVER, Promise, Task, Wait
from layby.core.resumption import Resumption, clean_up_id, cleans_up
from layby.core.tag_names import CANCELS, ON_CANCEL

_tags: Final = msgspec.json.Decoder(Tags)


def ended_with(d: Draft, settled: Sequence[Promise]) -> Iterator[Promise]:
    """What deferred tasks among these had of their own to wait for: it ends with them."""
    for promise in settled:
        task = d.tasks.get(promise.id) or d.rows.tasks.get(promise.id)
        waited = None if task is None or task.resume is None else task.open_resumption
        if waited is not None:
            yield from cancelled(d, waited.owned, f"task {promise.id} has ended")


def cancelled(d: Draft, ids: Iterator[str], why: str) -> Iterator[Promise]:
    """Those of them that are pending, cancelled; not written yet."""
    for promise in map(d.promise, ids):
        if promise is not None and promise.is_pending:
            value = values.cancelled("layby", why)
            yield promise.settled("rejected_canceled", value, d.now)


def losers(resumption: Resumption, won: str) -> Iterator[str]:
    """What belongs to the wait, and has not ended it."""
    return (each for each in resumption.owned if each != won)


def clean_up_after(d: Draft, promise: Promise, task: Task) -> None:
    """A trigger was cancelled or timed out: if it asks for that, a task of its own cleans up.

    Not before its body has ended. So this is done at least once, whoever dies meanwhile.
    """
    if promise.state not in ("rejected_canceled", "rejected_timedout"):
        return
    clean_up = clean_up_id(promise.id)
    if not cleans_up(promise.tags) or d.promise(clean_up) is not None:
        return
    body = Task(clean_up, task.target, task.group, task.name, task.kind)
    if task.is_kept:
        body = replace(body.suspended(), waits_left=1)
        d.wait(Wait(promise.id, clean_up, "end"))
    else:
        body = body.pending(NEVER, d.now)
    d.insert(_born(promise, clean_up, d.now), body)


def _born(trigger: Promise, clean_up: str, now: int) -> Promise:
    tags = {**_tags.decode(trigger.tags), CANCELS: trigger.id}
    del tags[ON_CANCEL]
    return Promise(
        id=clean_up,
        root=trigger.root,
        param=trigger.param,
        tags=msgspec.json.encode(tags).decode(),
        timeout_at=NEVER,
        created_at=now,
        state="pending",
        value=EMPTY,
    )
