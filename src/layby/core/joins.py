"""Joins: one call of `map`, as a promise that waits for the tasks of its items.

A join is made for a task, its caller, and ends with it. Its items are tasks of the same run, each
awaited by a counting wait; they are added in portions, and the join is complete when the last
portion says so. No worker takes a join: a tick settles it when it is complete and all its items
have settled, when its caller has ended, or, unless failures are collected, when an item has failed.
Whatever is still open of it then is cancelled as the nodes of a run that has ended are.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from layby.core import values
from layby.core.draft import Draft
from layby.core.model import Promise, PromiseState, Task, Wait
from layby.core.replies import ItemCounts
from layby.core.tag_names import COLLECTS, MAPS, has_tag, tag_of

_SHOWN: Final = {
    "resolved": "done",
    "rejected": "failed",
    "rejected_timedout": "failed",
    "rejected_canceled": "cancelled",
}

MAP: Final = "map/"
"""What the ids of joins have after their caller's: no task's name contains a '/'."""
ITEM_FAILED: Final = "ItemFailed"
MAX_ITEM_BYTES: Final = 1_000_000
"""Of an item, and of its result, as JSON."""
MAX_ITEM_CHARS: Final = -(-MAX_ITEM_BYTES // 3) * 4
"""Of an item as it travels: in base64."""
MAX_ITEMS: Final = 1_000_000
MAX_EARLIER: Final = 1_000
"""Joins of one call that one of them may take over from."""


def item_id(join_id: str, index: int) -> str:
    return f"{join_id}:{index}"


def is_below_join(promise_id: str) -> bool:
    """Whether it is an item, or something that an item has made."""
    _, found, below = promise_id.partition(f":{MAP}")
    return bool(found) and ":" in below


def counted(states: Iterable[tuple[str, str, str | None, int]]) -> ItemCounts:
    """From the states of items, of their tasks, their sub-states, and how many are so."""
    found = Counter[str]()
    for state, task_state, sub_status, count in states:
        found[_SHOWN.get(state) or _shown_open(task_state, sub_status)] += count
    return ItemCounts(**found)


def _shown_open(task_state: str, sub_status: str | None) -> str:
    if task_state == "pending":
        return "ready"
    return "running" if task_state == "acquired" and sub_status is None else "waiting"


def caller_of(join_id: str) -> str:
    """The task that has called `map`."""
    return join_id.rpartition(":")[0]


def mapped_by(promise: Promise) -> str | None:
    """Of a join: the name of the task that it runs for each item."""
    return tag_of(promise.tags, MAPS)


def told(d: Draft, join: Task, wait: Wait) -> Task:
    """The join when one of the promises it waits for has settled; the first that ends it counts."""
    has_failed = wait.counts and _has_failed(d, join, wait.awaited)
    has_caller_ended = wait.awaited == caller_of(join.id)
    if join.resumes or not (has_caller_ended or has_failed):
        return join
    return join.resumed_by(wait.awaited)


def is_over(join: Task) -> bool:
    """`resumes` names what has ended it early."""
    return bool(join.resumes) or (join.items is not None and join.waits_left == 0)


def outcome(join: Task) -> tuple[PromiseState, str]:
    """How a join ends that is over. Where its results are, its reader knows."""
    if not join.resumes:
        return "resolved", _wrapped({"items": join.items})
    ended_by = join.resumes[0]
    if ended_by == caller_of(join.id):
        return "rejected_canceled", values.cancelled("layby", f"task {ended_by} has ended")
    return "rejected", values.error(ITEM_FAILED, f"item {ended_by} has failed", item=ended_by)


def _has_failed(d: Draft, join: Task, item: str) -> bool:
    awaited, call = d.promise(item), d.promise(join.id)
    failed = awaited is not None and awaited.state not in ("pending", "resolved")
    return failed and call is not None and not has_tag(call.tags, COLLECTS)


def _wrapped(value: object) -> str:
    return values.text_of(values.wrap(msgspec.json.encode(value)))
