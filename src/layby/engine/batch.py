"""One transaction: load what the commands declare, step through them in order, save."""

import logging
from collections.abc import Container, Sequence
from typing import NamedTuple

from layby.core.changes import Changes
from layby.core.commands import Command
from layby.core.footprint import Footprint
from layby.core.model import Millis
from layby.core.queue import Offer
from layby.core.replies import Reply, refuse
from layby.core.rows import Rows
from layby.core.step import step
from layby.engine.conflicts import NOTHING_MORE, Needed
from layby.store.api import BatchStore

logger = logging.getLogger(__name__)

Timed = tuple[Command, Millis]
Asked = tuple[Command, Millis | None]
"""A command, and when it happens, if its sender has said so."""


class Applied(NamedTuple):
    commands: list[Timed]
    replies: list[Reply]
    changes: Changes
    now: Millis
    """When they were applied."""


def apply(
    store: BatchStore,
    commands: Sequence[Asked],
    now: Millis,
    waiting: Sequence[Offer] = (),
    needed: Needed = NOTHING_MORE,
    watched: Container[str] = (),
    *,
    may_wait: bool = True,
) -> Applied:
    """Runs inside an open transaction. A command that hits a bug is refused on its own (500).

    Commands happen `now`, or when the store says that it is, unless they bring a time of their own.
    """
    footprint = declared(commands, now, waiting)
    footprint.also, footprint.also_pids = set(needed.ids), set(needed.pids)
    footprint.also_limits = set(needed.limits)
    footprint.may_wait = may_wait
    rows = store.load(footprint, now)
    rows.to_come, rows.waiting, rows.watched = dict(footprint.takes), waiting, watched
    timed = [(command, rows.now if at is None else at) for command, at in commands]
    changes = Changes()
    replies = [_attempt(rows, changes, command, at) for command, at in timed]
    if not changes.is_empty:
        store.save(changes, rows.now)
    return Applied(timed, replies, changes, rows.now)


def declared(commands: Sequence[Asked], now: Millis, waiting: Sequence[Offer] = ()) -> Footprint:
    times = [now if at is None else at for _, at in commands] or [now]
    footprint = Footprint(since=min(times), until=max(times), waiting=waiting)
    footprint.locks = any(not command.reads for command, _ in commands)
    for command, _ in commands:
        if command.unqueues:
            command.footprint(footprint)
    footprint.leaving = len(footprint.ids)
    for command, _ in commands:
        if not command.unqueues:
            command.footprint(footprint)
    return footprint


def _attempt(rows: Rows, changes: Changes, command: Command, now: Millis) -> Reply:
    try:
        reply, draft = step(rows, command, now)
    except Exception as bug:
        logger.exception("bug in %s", command.kind)
        return refuse(500, f"Internal error: {type(bug).__name__}: {bug}")
    if reply.status < 400:
        rows.add(draft)
        changes.add(draft, now)
    return reply
