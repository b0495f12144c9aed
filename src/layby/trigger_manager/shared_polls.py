"""Polls of all triggers of one manager, on one timer wheel; identical ones are asked once.

Polls are identical when class and arguments are, and whoever they are asked for: the prefix of the
token that deferred. So nobody learns from a poll that somebody else asks the same.
"""

import asyncio
import inspect
import random as chance
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import partial
from types import CodeType
from typing import TYPE_CHECKING, Any, Final, cast
from zlib import crc32

from layby.core.model import Millis
from layby.core.waits import PollReport
from layby.errors import ConditionError, TriggerError
from layby.trigger_manager.access_checks import AccessChecks, AccessRefused
from layby.trigger_manager.file_polls import FilePolls, TooYoung
from layby.trigger_manager.sql_polls import SqlPolls
from layby.trigger_manager.trigger_origin import Key, current_origin
from layby.triggers.built_in import FileExists, HttpPoll, SqlPoll
from layby.triggers.polled import PolledTrigger, RetryAfter, pause_after
from layby.worker.wheel import Poll, Wheel

if TYPE_CHECKING:
    from layby.trigger_manager.http_polls import HttpPolls

_WHOLE: Final = 2.0**32


class SharedPolls:
    """Belongs to one event loop."""

    def __init__(
        self,
        checks: AccessChecks,
        now: Callable[[], Millis],
        *,
        max_threads: int = 32,
        random: Callable[[], float] = chance.random,
    ) -> None:
        self._now = now
        self._random = random
        self._wheel = Wheel(random=random, max_threads=max_threads)
        self._files = FilePolls(checks, self._wheel.ask_now)
        self._checks = checks
        self._http: HttpPolls | None = None
        self._sql = SqlPolls(checks)
        self._polls: dict[Key, SharedPoll] = {}
        self.on_join: Callable[[], None] = lambda: None
        """Called whenever somebody joins a poll."""

    def __len__(self) -> int:
        return len(self._polls)

    def join(self, key: Key, trigger: PolledTrigger, *, is_new: bool, phase: str) -> "SharedPoll":
        """The poll for this key; it is asked for until the last who joined has left it.

        One that is new to the store is asked at once; one that was asked elsewhere before, at a
        moment that depends on `phase`, so that a crowd that was taken over is spread out.
        """
        poll = self._polls.get(key)
        if poll is None:
            fraction = _fraction(phase)
            question = self._question(trigger, fraction if is_new else None)
            first_in = 0.0 if is_new else trigger.every * fraction
            context = copy_context()  # who joins first may leave first
            context.run(current_origin.set, key)
            watched = context.run(self._watch, question, first_in)
            poll = self._polls[key] = SharedPoll(key, question, watched)
        poll.waiters += 1
        self.on_join()
        return poll

    def leave(self, poll: "SharedPoll") -> None:
        poll.waiters -= 1
        if poll.waiters == 0 and self._polls.get(poll.key) is poll:
            del self._polls[poll.key]
            if isinstance(poll.question.trigger, FileExists):
                self._files.end(poll.question.trigger, poll.watched)
            poll.watched.future.cancel()

    def asked_in(self, task: "asyncio.Task[Any]") -> Key | None:
        """The poll whose question this is the Task of. May be called in any thread."""
        polls = list(self._polls.values())
        return next((poll.key for poll in polls if poll.watched.asking is task), None)

    async def close(self) -> None:
        self._wheel.close()
        self._files.close()
        self._sql.close()
        if self._http is not None:
            await self._http.close()

    def _watch(self, question: "PollQuestion", first_in: float) -> Poll:
        trigger = question.trigger
        poll = self._wheel.watch(
            question,
            trigger.every,
            backoff=trigger.backoff,
            max_interval=trigger.max_interval,
            jitter=trigger.jitter,
            max_errors=trigger.max_errors,
            first_in=first_in,
        )
        question.poll = poll
        if isinstance(trigger, FileExists):
            self._files.begin(trigger, poll)
        return poll

    def _question(self, trigger: PolledTrigger, fraction: float | None) -> "PollQuestion":
        ask: Callable[[], Any]
        match trigger:
            case FileExists():
                ask = partial(self._files.ask, trigger)
            case HttpPoll():
                ask = partial(self._ask_http, trigger)
            case SqlPoll():
                ask = partial(self._sql.ask, trigger)
            case _:
                ask = trigger.poll
        return PollQuestion(trigger, ask, fraction, self._now, self._random)

    async def _ask_http(self, trigger: HttpPoll) -> Any:
        if self._http is None:
            http_polls = await asyncio.to_thread(_load_http_polls)
            self._http = self._http or http_polls(self._checks)
        return await self._http.ask(trigger, self._now())


def _load_http_polls() -> "type[HttpPolls]":
    """It takes a while, in which tasks of the same loop would stand still."""
    from layby.trigger_manager.http_polls import HttpPolls  # noqa: PLC0415 - slow to load

    return HttpPolls


class SharedPoll:
    __slots__ = ("key", "question", "waiters", "watched")

    def __init__(self, key: Key, question: "PollQuestion", watched: Poll) -> None:
        self.key = key
        self.question = question
        self.watched = watched
        self.waiters = 0

    async def payload(self) -> Any:
        """What the poll found; raises when it has failed."""
        try:
            await asyncio.shield(self.watched.future)
        except ConditionError as error:
            raise TriggerError(str(error)) from error.__cause__
        if self.question.refusal is not None:
            raise TriggerError(str(self.question.refusal))
        return self.question.payload

    def report(self, now: Millis, loop_time: float) -> PollReport:
        """`loop_time` is the moment that is `now` for the store."""
        next_at = self.watched.next_poll_at
        return PollReport(
            polls=self.watched.polls,
            last_poll_at=self.question.last_poll_at,
            next_poll_at=None if next_at is None else now + round((next_at - loop_time) * 1000),
            last_error=self.watched.last_error,
        )


class PollQuestion:
    """The condition on the wheel: asks once, and keeps what was found.

    The wheel knows code by `__code__`: which is async, and which is slow.
    """

    def __init__(
        self,
        trigger: PolledTrigger,
        ask: Callable[[], Any],
        fraction: float | None,
        now: Callable[[], Millis],
        random: Callable[[], float],
    ) -> None:
        self.trigger = trigger
        self.payload: Any = None
        self.refusal: AccessRefused | None = None
        self.last_poll_at: Millis | None = None
        self.poll: Poll | None = None
        self.__qualname__ = trigger.kind()
        self.__code__ = _code_of(ask)
        self._ask = ask
        self._fraction = fraction
        self._now = now
        self._random = random

    def __call__(self) -> bool | Awaitable[bool]:
        self.last_poll_at = self._now()
        try:
            answer = self._ask()
        except (RetryAfter, TooYoung, AccessRefused) as told:
            return self._told(told)
        if inspect.isawaitable(answer):
            return self._awaited(answer)
        return self._answered(answer)

    async def _awaited(self, answer: Awaitable[Any]) -> bool:
        try:
            return self._answered(await answer)
        except (RetryAfter, AccessRefused) as told:
            return self._told(told)

    def _answered(self, payload: Any) -> bool:
        self.payload = payload
        if payload is None and self._fraction is not None and self.poll is not None:
            # Those that began together are asked apart from the second time on.
            self.poll.retry_in = self.trigger.every * (1 + self._fraction) / 2
            self._fraction = None
        return payload is not None

    def _told(self, told: RetryAfter | TooYoung | AccessRefused) -> bool:
        """What is not allowed now will not be later: it has failed."""
        if isinstance(told, AccessRefused):
            self.refusal = told
            return True
        if self.poll is None:
            return False
        if isinstance(told, TooYoung):  # no event tells that it has become old enough
            self.poll.retry_in = min(told.seconds, self.poll.interval)
        else:
            spread = pause_after(told.seconds, self.trigger.jitter, self._random)
            self.poll.retry_in = max(spread, self.poll.interval)
        return False


def _fraction(phase: str) -> float:
    """Where in its interval something with this id is asked: the same every time."""
    return crc32(phase.encode()) / _WHOLE


def _code_of(ask: Callable[[], Any]) -> CodeType | None:
    function = cast("Any", ask.func if isinstance(ask, partial) else ask)
    return getattr(function, "__code__", None)
