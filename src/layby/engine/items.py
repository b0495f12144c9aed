"""A request on its way through the engine, and where its answer goes."""

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

from layby.core import validate
from layby.core.commands import Command
from layby.core.model import Millis
from layby.core.queries import Query
from layby.core.replies import Reply, refuse
from layby.errors import StoreError

logger = logging.getLogger(__name__)

NOT_BEGUN: Final = refuse(503, "Nothing was done: ask again")
"""The answer to a request for which its allowance had no room, that is behind one that could not be
served, or whose sender has hung up.
"""

Answer = Reply | BaseException
Sink = Callable[[Sequence[tuple["Item", Answer]]], None]
"""Receives answers on the thread of the writer or of a reader: must not block."""


class Allowance:
    """How much one caller may have loaded for several requests, in characters.

    The first is always served, unless the allowance is `strict`. Once it is spent the others are
    not begun, none of them, so that their order is kept; they are answered with NOT_BEGUN. So are
    those that come after one that could not be served.
    """

    __slots__ = ("_is_strict", "has_failed", "left")

    def __init__(self, chars: int, *, strict: bool = False) -> None:
        self.left = chars
        self._is_strict = strict
        self.has_failed = False
        """Whether one of these requests could not be served."""

    def admits(self, chars: int) -> bool:
        """Whether a request may begin whose rows have this size."""
        if self._is_strict and chars > self.left:
            self.left = 0
        if self.left <= 0:
            return False
        self.left -= chars
        return True


def _stays() -> bool:
    """Whoever asks from within this process does not hang up."""
    return False


class Item:
    """`token` belongs to the sender (usually a future); the engine does not look at it."""

    __slots__ = (
        "allowance",
        "caller",
        "is_abandoned",
        "is_gone",
        "now",
        "request",
        "sink",
        "token",
        "until",
    )

    def __init__(
        self,
        request: Command | Query,
        sink: Sink,
        token: Any = None,
        now: Millis | None = None,
        caller: Hashable = None,
        allowance: Allowance | None = None,
        is_gone: Callable[[], bool] = _stays,
    ) -> None:
        self.request = request
        self.sink = sink
        self.caller: Hashable = sink if caller is None else caller
        """Whose turn it is when reads wait for theirs."""
        self.token = token
        self.now = now
        self.allowance = allowance
        self.is_gone = is_gone
        """Whether its sender has hung up: asked on any thread. What has not begun is dropped."""
        self.until: Millis | None = None
        """How long a take waits at most; set when it first finds nothing."""
        self.is_abandoned = False
        """Nobody waits for the answer any more; a request that is only waiting may be dropped."""

    @property
    def is_void(self) -> bool:
        """Whether its sender hung up before it began; a take that waits has begun."""
        return self.until is None and self.is_gone()

    @property
    def is_behind_failure(self) -> bool:
        """Whether a request before it, of the same allowance, could not be served."""
        return self.allowance is not None and self.allowance.has_failed

    def could_not_be_served(self) -> None:
        """Those behind it are not begun: its sender asks again, in order."""
        if self.allowance is not None:
            self.allowance.has_failed = True

    def cancel(self) -> None:
        self.is_abandoned = True


def answer(answers: Sequence[tuple[Item, Answer]]) -> None:
    """Hand out answers, all of one sink together: one wake-up per caller and batch."""
    by_sink: dict[Sink, list[tuple[Item, Answer]]] = {}
    for each in answers:
        by_sink.setdefault(each[0].sink, []).append(each)
    for sink, theirs in by_sink.items():
        try:
            sink(theirs)
        except Exception:
            logger.exception("a sink failed to receive its answers; the others still get theirs")


def answer_to_failure(request: Command | Query, failure: Exception) -> Answer:
    """A failed store says so itself; anything else is a bad request or a bug."""
    if isinstance(failure, StoreError):
        return failure
    if (wrong := _problems(request)) is not None:
        return refuse(400, wrong)
    logger.error("bug while serving %s", request.kind, exc_info=failure)
    return refuse(500, f"Internal error: {type(failure).__name__}: {failure}")


def _problems(request: Command | Query) -> str | None:
    """None, too, if a check fails of itself: others of the batch are answered all the same."""
    try:
        return validate.problems(request)
    except Exception:
        logger.exception("bug in a check of %s", request.kind)
        return None
