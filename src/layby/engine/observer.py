"""Observers are told of every commit, to count what happens."""

import logging
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from layby.core.changes import Changes
from layby.core.replies import Reply
from layby.engine.batch import Timed

logger = logging.getLogger(__name__)


class Commit(Struct, frozen=True):
    commands: Sequence[Timed]
    replies: Sequence[Reply]
    changes: Changes
    seconds: float
    """From begin to commit."""


class Observer(Protocol):
    def committed(self, commit: Commit) -> None:
        """On the writer's thread, after commit: must not block."""
        ...


def tell(observer: Observer | None, commit: Commit) -> None:
    """What was committed stays committed, even if an observer fails."""
    try:
        if observer is not None:
            observer.committed(commit)
    except Exception:
        logger.exception("a commit was not counted")
