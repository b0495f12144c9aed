"""One condition that is polled, and how long to pause between two polls."""

import asyncio
import inspect
import logging
import math
import os
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import partial
from pathlib import Path, PurePath
from types import CodeType
from typing import Any, Final, Literal, cast

from layby.core.pauses import spread
from layby.errors import ConditionError, DeferTimeout, UsageError
from layby.wire.json_values import error_text
from layby.worker.wake_events import Wake

logger = logging.getLogger(__name__)

MOVED_DEADLINE: Final = "by its deadline, which was moved"
"""Instead of how long a wait was to last: a person has decided otherwise."""
MAX_PATH_CHARS: Final = 200
_OWN_FOLDER: Final = f"{Path(__file__).parents[1]}{os.sep}"

Condition = Callable[[], Any]
Tick = int
"""Milliseconds since the wheel began."""
Lane = Literal["async", "quick", "own"]
"""Where it is evaluated: on the loop, in a thread with others, in one of its own."""


class Poll:
    """Await `future`; cancelling it withdraws the condition. The rest is for observers."""

    __slots__ = (
        "asked_at",
        "asking",
        "backoff",
        "condition",
        "context",
        "deadline",
        "errors",
        "expire",
        "future",
        "grows",
        "interval",
        "is_expiring",
        "is_ready",
        "is_woken",
        "jitter",
        "lane",
        "last_error",
        "max_errors",
        "max_interval",
        "next_poll_at",
        "polls",
        "quick_answer",
        "record_id",
        "retry_in",
        "task",
        "tick",
        "timeout",
        "wake",
    )

    def __init__(
        self,
        condition: Condition,
        interval: float,
        *,
        timeout: float | None,
        backoff: float,
        max_interval: float | None,
        jitter: float,
        max_errors: int,
        wake: Wake | None,
        future: asyncio.Future[None],
    ) -> None:
        self.future = future
        self.polls = 0
        self.next_poll_at: float | None = None
        """In loop time; None while it is being evaluated."""
        self.last_error: str | None = None
        self.errors = 0
        """How many polls in a row raised."""
        self.condition = condition
        self.context = copy_context()
        self.interval = interval
        self.timeout = timeout
        self.backoff = backoff
        self.max_interval = max_interval
        self.jitter = jitter
        self.max_errors = max_errors
        self.wake = wake
        self.deadline: Tick | None = None
        self.tick: Tick | None = None
        self.asking: asyncio.Future[Any] | FirstCheck | Poll | None = None
        """The question under way: a task, or what a condition thread was given."""
        self.quick_answer = False
        """Its last quick answer, on its way from the thread."""
        self.asked_at: float | None = None
        """Since when, in loop time."""
        self.lane: Lane | None = None
        """None until its own answers decide it."""
        self.task: str | None = None
        self.record_id: str | None = None
        """What its end is stored as, by which people may end it."""
        self.expire: Callable[[], None] | None = None
        """Asks whether its deadline has been moved; without it, nobody can move it."""
        self.is_expiring = False
        self.is_ready = False
        self.is_woken = False
        self.grows = False
        self.retry_in: float | None = None
        """Seconds until the next poll, whatever the pace is; for that one only."""

    @property
    def name(self) -> str:
        return name_of(self.condition)

    @property
    def is_over(self) -> bool:
        return self.future.done()

    def next_pause(self, random: Callable[[], float]) -> float:
        """Seconds until the next poll; they grow unless the wake event was set."""
        if self.retry_in is not None:
            pause, self.retry_in = self.retry_in, None
            return pause
        if self.grows:
            self.interval = self._capped(self.interval * self.backoff)
        return self._capped(spread(self.interval, self.jitter, random))

    def timed_out(self) -> DeferTimeout:
        error = f", last error {self.last_error}" if self.last_error else ""
        polls = "1 poll" if self.polls == 1 else f"{self.polls} polls"
        within = MOVED_DEADLINE if self.timeout is None else f"within {self.timeout:g} s"
        return DeferTimeout(f"{self.name} was not met {within} ({polls}{error})")

    def failed(self, error: BaseException) -> ConditionError:
        times = "" if self.errors == 1 else f" {self.errors} times in a row"
        problem = ConditionError(f"{self.name} raised{times}, at last {self.last_error}")
        problem.__cause__ = error
        return problem

    def _capped(self, seconds: float) -> float:
        return seconds if self.max_interval is None else min(seconds, self.max_interval)


class FirstCheck:
    """One question before there is a poll. If it takes long, the poll that follows adopts it."""

    __slots__ = (
        "answer",
        "answered",
        "condition",
        "context",
        "error",
        "is_late",
        "is_withdrawn",
        "lane",
        "poll",
        "quick_answer",
        "since",
        "task",
    )

    def __init__(self, condition: Condition, task: str | None, since: float) -> None:
        self.condition = condition
        self.context = copy_context()
        self.task = task
        self.since = since
        self.lane: Lane | None = "async" if is_async(condition) else None
        self.answer: bool | Awaitable[Any] | None = None
        self.error: BaseException | None = None
        self.answered: asyncio.Future[None] | None = None
        self.poll: Poll | None = None
        self.quick_answer = False
        self.is_late = False
        self.is_withdrawn = False

    @property
    def holds(self) -> bool:
        return self.answer is True

    @property
    def is_under_way(self) -> bool:
        return self.answer is None

    @property
    def is_over(self) -> bool:
        return self.is_withdrawn or (self.poll is not None and self.poll.is_over)

    async def ask_here(self) -> None:
        """On the loop: an async condition, or the awaitable that a plain one returned."""
        try:
            found = self.condition() if self.answer is None else self.answer
            self.answer = bool(await found if inspect.isawaitable(found) else found)
        except Exception as error:  # noqa: BLE001 - counted with those of the polls
            self.answer, self.error = False, error

    def take_answer(self, answer: bool | Awaitable[Any], error: BaseException | None) -> None:  # noqa: FBT001
        self.answer, self.error = answer, error
        self.wake()

    def mark_late(self) -> None:
        self.is_late = True
        self.wake()

    def wake(self) -> None:
        if self.answered is not None and not self.answered.done():
            self.answered.set_result(None)


Question = Poll | FirstCheck
"""What a condition thread is given."""


def check_condition(condition: object) -> None:
    if not callable(condition):
        raise TypeError(f"condition must be callable, got {condition!r}: pass a function or lambda")


def check_pace(
    interval: float,
    timeout: float | None,
    backoff: float,
    max_interval: float | None,
    jitter: float,
    max_errors: int,
) -> None:
    """Refuse numbers that would spin, go backwards or never poll."""
    _require(0 < interval < math.inf, "interval", interval, "a positive number of seconds")
    _require(timeout is None or timeout >= 0, "timeout", timeout, "None or at least 0")
    _require(_is_number(backoff) and 1 <= backoff < math.inf, "backoff", backoff, "at least 1.0")
    _require(
        max_interval is None or max_interval >= interval,
        "max_interval",
        max_interval,
        f"None or at least the interval, {interval:g}",
    )
    is_fraction = _is_number(jitter) and 0 <= jitter <= 1
    _require(is_fraction, "jitter", jitter, "a fraction between 0.0 and 1.0")
    _require(_is_number(max_errors) and max_errors >= 0, "max_errors", max_errors, "at least 0")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def count_first(poll: Poll, error: BaseException | None) -> None:
    """An error of the first check, with the slot held, counts like one of a poll."""
    if error is None:
        return
    poll.errors = 1
    poll.last_error = error_text(error)
    if poll.errors > poll.max_errors:
        poll.future.cancel()
        raise poll.failed(error)
    logger.warning("%s raised %s at its first check", poll.name, poll.last_error)


def name_of(condition: object) -> str:
    """What a reader of a log needs to find it: `is_paid (orders.py:12)`.

    Of a path, which: `Path('report.csv').exists`. Where it is defined would say nothing then, nor
    does it of what layby has defined.
    """
    if isinstance(condition, partial):
        return _name_of_partial(cast("partial[Any]", condition))
    owner = getattr(condition, "__self__", None)
    name = getattr(condition, "__qualname__", None) or type(condition).__qualname__
    if isinstance(owner, PurePath):
        return f"{_name_of_path(owner)}.{name.rpartition('.')[2]}"
    code = getattr(condition, "__code__", None)
    if code is None or code.co_filename.startswith(_OWN_FOLDER):
        return name
    return f"{name} ({Path(code.co_filename).name}:{code.co_firstlineno})"


def _name_of_partial(condition: "partial[Any]") -> str:
    """Arguments may be long or confidential, so only a path among them is named."""
    name = name_of(condition.func)
    paths = [_name_of_path(each) for each in condition.args if isinstance(each, PurePath)]
    return f"{name} of {', '.join(paths)}" if paths else name


def _name_of_path(path: PurePath) -> str:
    """The end of a long path says more than its beginning."""
    text = str(path)
    shown = text if len(text) <= MAX_PATH_CHARS else f"...{text[-MAX_PATH_CHARS:]}"
    return f"Path({shown!r})"


def code_of(condition: object) -> object:
    """What conditions from the same code have in common, though each is a closure of its own."""
    if isinstance(condition, partial):
        return code_of(condition.func)
    return getattr(condition, "__code__", None) or type(condition)


def is_async(condition: Any) -> bool:
    """Whether calling it only makes a coroutine; found out without calling it."""
    while isinstance(condition, partial):
        condition = condition.func
    code = getattr(condition, "__code__", None)
    if isinstance(code, CodeType):
        return bool(code.co_flags & inspect.CO_COROUTINE)
    call = getattr(condition, "__call__", None)  # noqa: B004 - the method itself is looked at
    return inspect.iscoroutinefunction(condition) or inspect.iscoroutinefunction(call)


def truth_of(condition: Condition) -> bool | Awaitable[Any]:
    """Call it and take the truth of what it returns, which may raise as well."""
    return truth(condition())


def truth(answer: Any) -> bool | Awaitable[Any]:
    if answer is True or answer is False:
        return answer
    return answer if inspect.isawaitable(answer) else bool(answer)


def _require(is_good: bool, name: str, value: object, wanted: str) -> None:  # noqa: FBT001
    if not is_good:
        raise UsageError(f"{name} must be {wanted}, got {value!r}")
