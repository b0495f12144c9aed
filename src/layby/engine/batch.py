"""One transaction: load what the commands declare, step through them in order, save."""

import logging
from collections.abc import Container, Sequence

from layby.core.changes import Changes
from layby.core.commands import Command
from layby.core.footprint import Footprint
from layby.core.model import Millis
from layby.core.queue import Offer
from layby.core.replies import Reply, refuse
from layby.core.rows import Rows
from layby.core.step import step
from layby.store.api import BatchStore

logger = logging.getLogger(__name__)

Timed = tuple[Command, Millis]


def apply(
    store: BatchStore,
    commands: Sequence[Timed],
    now: Millis,
    waiting: Sequence[Offer] = (),
    store_time: Millis = 0,
    watched: Container[str] = (),
) -> tuple[list[Reply], Changes]:
    """Runs inside an open transaction. A command that hits a bug is refused on its own (500).

    `now` is when the last command happens, which a request may set; store time it may not.
    """
    footprint = declared(commands, now, waiting)
    rows = store.load(footprint, now)
    rows.to_come, rows.waiting, rows.watched = dict(footprint.takes), waiting, watched
    changes = Changes()
    replies = [_attempt(rows, changes, command, at) for command, at in commands]
    if not changes.is_empty:
        store.save(changes, store_time)
    return replies, changes


def declared(commands: Sequence[Timed], now: Millis, waiting: Sequence[Offer] = ()) -> Footprint:
    footprint = Footprint(since=min((at for _, at in commands), default=now), waiting=waiting)
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
