"""When polls are asked, in virtual time: pace, back-off, jitter, Retry-After, phases, sharing."""

import asyncio
import logging
import re
import threading
from typing import Any, ClassVar

import pytest

from layby import triggers
from layby.errors import TriggerError
from layby.testing import current_clock, virtual_test
from layby.trigger_manager import shared_polls
from layby.trigger_manager.access_checks import AccessChecks
from layby.trigger_manager.shared_polls import SharedPolls
from layby.trigger_manager.trigger_access import TriggerAccess


class Asked(triggers.PolledTrigger, frozen=True):
    """Notes when it is asked; gives or raises what it was told, then repeats the last."""

    key: str = "a"
    at: ClassVar[list[float]] = []
    answers: ClassVar[list[Any]] = []

    async def poll(self) -> Any:
        self.at.append(current_clock().elapsed)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer


class AskedInThread(Asked, frozen=True):
    """The same as a plain `def`."""

    def poll(self) -> Any:
        self.at.append(current_clock().elapsed)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture(autouse=True)
def _reset():
    Asked.at.clear()
    Asked.answers[:] = [None]


def polls(drawn: float = 0.5) -> SharedPolls:
    return SharedPolls(AccessChecks(TriggerAccess()), lambda: 0, random=lambda: drawn)


async def payload(shared: SharedPolls, trigger: Asked, *, is_new: bool = True) -> Any:
    key = (trigger.kind(), trigger.key.encode(), "", None)
    poll = shared.join(key, trigger, is_new=is_new, phase=trigger.key)
    try:
        return await poll.payload()
    finally:
        shared.leave(poll)


@virtual_test
async def test_the_pace():
    """At once, then somewhere in the second half of the first interval, then steadily."""
    Asked.answers[:] = [None, None, None, None, {"n": 1}]
    assert await payload(polls(), Asked(every=10, jitter=0)) == {"n": 1}
    first, second, *more = Asked.at
    assert first == 0
    assert 5 <= second <= 10
    assert [round(each - second) for each in more] == [10, 20, 30]


@virtual_test
async def test_one_that_was_asked_elsewhere_before():
    """After a hand-over a crowd is spread over its interval, each at its own moment."""
    shared = polls()
    crowd = [
        asyncio.create_task(payload(shared, Asked(key=str(n), every=100), is_new=False))
        for n in range(200)
    ]
    await asyncio.sleep(100)
    halves = sum(each < 50 for each in Asked.at)
    assert len(Asked.at) == 200
    assert 70 < halves < 130
    for each in crowd:
        each.cancel()
    await asyncio.gather(*crowd, return_exceptions=True)
    assert len(shared) == 0


@virtual_test
async def test_back_off_and_its_cap():
    """Each pause is twice the last, at most 35 s."""
    Asked.answers[:] = [None] * 7 + [True]
    await payload(polls(), Asked(every=10, backoff=2, max_interval=35, jitter=0))
    pauses = [round(b - a) for a, b in zip(Asked.at[1:], Asked.at[2:], strict=False)]
    assert pauses == [20, 35, 35, 35, 35, 35]


@pytest.mark.parametrize(("drawn", "pause"), [(0.0, 8), (0.5, 10), (1.0, 12)])
@virtual_test
async def test_jitter(drawn, pause):
    """A fraction of the pause, in both directions."""
    Asked.answers[:] = [None, None, True]
    await payload(polls(drawn), Asked(every=10, jitter=0.2))
    assert Asked.at[2] - Asked.at[1] == pytest.approx(pause, abs=0.002)


@pytest.mark.parametrize(("drawn", "seconds"), [(0.0, 60), (1.0, 72)])
@virtual_test
async def test_retry_after(drawn, seconds):
    """Never before the time that was asked for, and it is not an error; once only."""
    Asked.answers[:] = [None, triggers.RetryAfter(60), None, True]
    await payload(polls(drawn), Asked(every=10, jitter=0.1, max_errors=0))
    pauses = [b - a for a, b in zip(Asked.at[1:], Asked.at[2:], strict=False)]
    assert pauses[0] == pytest.approx(seconds, abs=0.01)
    assert 9 <= pauses[1] <= 11


@virtual_test
async def test_a_short_retry_after_is_not_shorter_than_the_pace():
    """A service cannot make us ask faster."""
    Asked.answers[:] = [None, triggers.RetryAfter(0), True]
    await payload(polls(), Asked(every=10, jitter=0))
    assert Asked.at[2] - Asked.at[1] == pytest.approx(10)


@virtual_test
async def test_errors_in_a_row(caplog):
    """Tolerated and shown; an answer in between begins anew; one too many is the failure."""
    caplog.set_level(logging.CRITICAL)
    bad = OSError("away")
    Asked.answers[:] = [bad, bad, None, bad, bad, bad]
    with pytest.raises(TriggerError, match="3 times in a row, at last OSError: away"):
        await payload(polls(), Asked(every=10, max_errors=2))
    assert len(Asked.at) == 6


@virtual_test
async def test_an_error_names_where_a_poll_is_defined():
    """Yours: where layby has defined its own helps nobody."""
    shared = polls()
    for trigger, name in (
        (triggers.HttpPoll("http://h"), r"HttpPoll"),
        (triggers.FileExists("/x"), r"FileExists"),
        (triggers.SqlPoll("shop", "SELECT 1"), r"SqlPoll"),
        (Asked(), r"Asked \(test_shared_polls\.py:\d+\)"),
    ):
        key = (trigger.kind(), b"", "", None)
        poll = shared.join(key, trigger, is_new=False, phase="")
        assert re.fullmatch(name, poll.watched.name), poll.watched.name
        shared.leave(poll)


@virtual_test
async def test_a_plain_poll_is_asked_in_a_thread():
    """With the same pace."""
    AskedInThread.answers[:] = [None, None, "found"]
    assert await payload(polls(), AskedInThread(every=10, jitter=0)) == "found"
    assert len(Asked.at) == 3


@virtual_test
async def test_identical_polls_are_asked_once():
    """For all who wait; others are asked by themselves; who leaves does not take it away."""
    shared = polls()
    waiters = [asyncio.create_task(payload(shared, Asked(every=10, jitter=0))) for _ in range(50)]
    other = asyncio.create_task(payload(shared, Asked(key="b", every=10, jitter=0)))
    await asyncio.sleep(1)
    assert (len(shared), len(Asked.at)) == (2, 2)
    for each in waiters[:49]:
        each.cancel()
    await asyncio.sleep(30)
    assert len(shared) == 2
    Asked.answers[:] = [{"n": 3}]
    assert await waiters[49] == {"n": 3}
    assert await other == {"n": 3}
    assert len(shared) == 0


@virtual_test
async def test_the_state_of_a_poll():
    """How often, when next, and what it raised last."""
    shared = polls()
    Asked.answers[:] = [None, OSError("away"), None]
    poll = shared.join(("Asked", b"", "", None), Asked(every=10, jitter=0), is_new=True, phase="x")
    await asyncio.sleep(11)
    state = poll.report(1_000_000, asyncio.get_running_loop().time())
    assert (state.polls, state.last_error) == (2, "OSError: away")
    assert state.next_poll_at is not None
    assert 1_000_000 < state.next_poll_at <= 1_010_000
    shared.leave(poll)


def test_the_client_of_http_polls_is_loaded_beside_the_loop(monkeypatch):
    """Loading it takes a while: tasks of the same loop must not stand still meanwhile."""
    loaded_in: list[int] = []

    def load() -> Any:
        loaded_in.append(threading.get_ident())
        return _AnswersAtOnce

    monkeypatch.setattr(shared_polls, "_load_http_polls", load)

    async def scene() -> None:
        shared = polls()
        trigger = triggers.HttpPoll("http://127.0.0.1:1/")
        poll = shared.join((trigger.kind(), b"", "", None), trigger, is_new=True, phase="")
        assert await poll.payload() == {"status": 200}
        await shared.close()

    asyncio.run(scene())
    assert len(loaded_in) == 1
    assert threading.get_ident() not in loaded_in


class _AnswersAtOnce:
    def __init__(self, checks: AccessChecks) -> None:
        del checks

    async def ask(self, trigger: triggers.HttpPoll, now: int) -> Any:
        del trigger, now
        return {"status": 200}

    async def close(self) -> None:
        pass
