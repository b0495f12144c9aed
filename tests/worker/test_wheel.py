"""The timer wheel, mostly in virtual time: who is asked when, and what comes of it."""

import asyncio
import contextvars
import functools
import logging
import random
import re
import threading
import time
import tracemalloc
from itertools import pairwise
from typing import Any

import pytest

from layby.errors import ConditionError, DeferTimeout, UsageError
from layby.testing import current_clock, run_virtual, virtual_test
from layby.worker.condition_threads import MAX_ANSWERS_PER_TURN
from layby.worker.wheel import LAST_CHECK_S, Poll, Wheel

PATIENCE = 90.0


class Asked:
    """A condition that notes when it was asked and says yes the n-th time."""

    def __init__(self, yes_at=None):
        self.at = []
        self.yes_at = yes_at

    def __call__(self):
        self.at.append(current_clock().elapsed)
        return len(self.at) == self.yes_at


class Flaky:
    """A condition that gives or raises what it was told, then repeats the last."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def __call__(self):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer


def idle(wheel):
    """Nothing parked, nothing armed, nothing kept."""
    return not (wheel.parked or wheel._buckets or wheel._timer or wheel._ready)


# --- pace ------------------------------------------------------------------------------------


@virtual_test
async def test_sleep_check_sleep_check():
    """The first question comes after one interval, the next after another, and then no more."""
    wheel, asked = Wheel(), Asked(yes_at=4)
    poll = wheel.watch(asked, 10)
    assert poll.next_poll_at == asyncio.get_running_loop().time() + 10
    await poll.future
    assert asked.at == [10, 20, 30, 40]
    assert (poll.polls, poll.last_error, idle(wheel)) == (4, None, True)


@virtual_test
async def test_backoff_lengthens_the_pause_up_to_its_cap():
    """Each pause is `backoff` times the last, at most `max_interval`."""
    asked = Asked(yes_at=6)
    await Wheel().watch(asked, 1, backoff=2, max_interval=6).future
    assert asked.at == [1, 3, 7, 13, 19, 25]


@pytest.mark.parametrize(("drawn", "pause"), [(0.0, 8), (0.5, 10), (1.0, 12)])
@virtual_test
async def test_jitter_stays_within_its_bounds(drawn, pause):
    """A jitter of 0.2 gives pauses from 80 to 120 per cent, as chance will have it."""
    asked = Asked(yes_at=3)
    await Wheel(random=lambda: drawn).watch(asked, 10, jitter=0.2).future
    assert asked.at == [pause, 2 * pause, 3 * pause]


@virtual_test
async def test_jitter_never_exceeds_the_cap():
    """`max_interval` holds for what chance makes of it, too."""
    asked = Asked(yes_at=2)
    await Wheel(random=lambda: 1.0).watch(asked, 10, jitter=1, max_interval=11).future
    assert asked.at == [11, 22]


@virtual_test
async def test_many_polls_of_many_paces_are_asked_at_their_own_instants():
    """Two hundred polls with odd intervals and starts are each asked exactly when they should."""
    wheel, chance = Wheel(), random.Random(5)

    async def one():
        await asyncio.sleep(chance.randrange(1, 5_000) / 1000)
        begin, interval = current_clock().elapsed, chance.randrange(1, 30_000) / 1000
        asked = Asked(yes_at=chance.randrange(1, 12))
        await wheel.watch(asked, interval).future
        expected = [begin + interval * n for n in range(1, len(asked.at) + 1)]
        assert asked.at == pytest.approx(expected, abs=1e-6)

    await asyncio.gather(*(one() for _ in range(200)))
    assert idle(wheel)


@virtual_test
async def test_equal_instants_keep_the_order_of_coming():
    """Polls due together are asked first come, first served."""
    wheel, order = Wheel(), []
    polls = [wheel.watch(functools.partial(order.append, n), 5) for n in range(50)]
    await current_clock().advance(5)
    assert order == list(range(50))
    wheel.close()
    assert all(poll.future.cancelled() for poll in polls)


# --- truth -----------------------------------------------------------------------------------


@pytest.mark.parametrize("truth", [1, "x", [0], {"a": 1}, object()])
@pytest.mark.parametrize("lie", [0, "", [], None, 0.0])
@virtual_test
async def test_truthiness_counts(truth, lie):
    """Whatever Python takes for true ends the wait, whatever it takes for false does not."""
    poll = Wheel().watch(Flaky(lie, truth), 1)
    assert await poll.future is None
    assert poll.polls == 2


class Ambiguous:
    def __bool__(self):
        raise ValueError("neither true nor false")


@virtual_test
async def test_an_answer_without_truth_is_an_error():
    """An answer whose truth cannot be told (an array, say) counts as an exception."""
    poll = Wheel().watch(Flaky(Ambiguous(), True), 1)
    await current_clock().advance(1)
    assert poll.last_error == "ValueError: neither true nor false"
    await poll.future


@pytest.mark.parametrize("condition", [None, True, "ready", 7])
@virtual_test
async def test_what_cannot_be_called_is_refused_by_name(condition):
    """A condition that is a value is a TypeError that shows the value."""
    with pytest.raises(TypeError, match=re.escape(repr(condition))):
        Wheel().watch(condition, 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("interval", 0),
        ("interval", -1),
        ("interval", float("nan")),
        ("interval", float("inf")),
        ("timeout", -0.1),
        ("backoff", 0.5),
        ("max_interval", 0.5),
        ("jitter", 1.1),
        ("jitter", -0.1),
        ("max_errors", -1),
    ],
)
@virtual_test
async def test_senseless_numbers_are_refused_by_name(name, value):
    """Numbers that would spin, go back or never come are refused, and the error names them."""
    with pytest.raises(UsageError, match=f"{name} must be"):
        Wheel().watch(lambda: True, **{"interval": 1, name: value})


@virtual_test
async def test_a_wake_of_another_kind_is_refused():
    """Only events can wake."""
    with pytest.raises(TypeError, match="wake must be an asyncio"):
        Wheel().watch(lambda: True, 1, wake=asyncio.Lock())  # pyright: ignore[reportArgumentType]


variable = contextvars.ContextVar("variable", default="outside")


@pytest.mark.parametrize("kind", ["plain", "async"])
@virtual_test
async def test_conditions_see_the_context_of_who_waits(kind):
    """A context variable of the waiting task is visible to its condition."""
    seen = []

    def plain():
        seen.append(variable.get())
        return True

    async def coroutine():
        return plain()

    wheel = Wheel()

    async def waiter(name):
        variable.set(name)
        await wheel.watch(plain if kind == "plain" else coroutine, 1).future

    await asyncio.gather(waiter("a"), waiter("b"))
    assert seen == ["a", "b"]


# --- async conditions ------------------------------------------------------------------------


@virtual_test
async def test_a_slow_async_condition_never_overlaps_itself():
    """The pause begins when the answer has come: 10 s of pause, 25 s of asking, 10 s of pause."""
    begun, running = [], []

    async def slow():
        assert not running
        running.append(1)
        begun.append(current_clock().elapsed)
        await asyncio.sleep(25)
        running.pop()
        return len(begun) == 3

    poll = Wheel().watch(slow, 10)
    await asyncio.sleep(15)
    assert poll.next_poll_at is None
    await poll.future
    assert begun == [10, 45, 80]
    assert current_clock().elapsed == 105


@virtual_test
async def test_any_awaitable_may_be_the_answer():
    """A plain function that returns a future or a coroutine is awaited as well."""
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(30, future.set_result, "yes")
    await Wheel().watch(lambda: future, 10).future
    assert current_clock().elapsed == 30


@virtual_test
async def test_somebody_elses_future_is_not_cancelled_with_the_poll():
    """A condition may answer with a task of the user's; withdrawing leaves that task alone."""
    theirs = asyncio.create_task(asyncio.sleep(100, "done"))
    poll = Wheel().watch(lambda: theirs, 10)
    await asyncio.sleep(20)
    poll.future.cancel()
    assert await theirs == "done"


@virtual_test
async def test_cancelling_ends_a_question_under_way():
    """An async condition that is being asked is cancelled with its poll, and cleans up."""
    cleaned = []

    async def hangs():
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(current_clock().elapsed)

    wheel = Wheel()
    poll = wheel.watch(hangs, 1)
    await asyncio.sleep(5)
    poll.future.cancel()
    await current_clock().settled()
    assert cleaned == [5]
    assert idle(wheel)


@virtual_test
async def test_a_condition_that_exits_has_failed():
    """Asyncio would let it end the loop, and all others with it."""

    async def leaves():
        raise SystemExit(3)

    poll = Wheel().watch(leaves, 1, max_errors=1)
    with pytest.raises(ConditionError, match="raised 2 times in a row, at last SystemExit: 3"):
        await poll.future


# --- timeouts --------------------------------------------------------------------------------


@virtual_test
async def test_a_moved_deadline_is_not_told_by_a_length():
    """Neither the one it was to have nor that from the move to its end is true."""
    wheel = Wheel()
    poll = wheel.watch(Asked(), 10, timeout=60)
    poll.record_id = "r"
    wheel.move("r", 3)
    with pytest.raises(DeferTimeout, match=r"not met by its deadline, which was moved \(1 poll\)"):
        await poll.future


@virtual_test
async def test_a_last_question_at_the_deadline():
    """The deadline falls between two questions: one more is asked there, then it times out."""
    wheel, asked = Wheel(), Asked()
    with pytest.raises(DeferTimeout, match=r"Asked was not met within 25 s \(3 polls\)"):
        await wheel.watch(asked, 10, timeout=25).future
    assert asked.at == [10, 20, 25]
    assert idle(wheel)


@virtual_test
async def test_what_is_true_at_the_deadline_is_in_time():
    """A condition that holds only at the last question ends the wait well."""
    asked = Asked(yes_at=3)
    await Wheel().watch(asked, 10, timeout=25).future
    assert asked.at == [10, 20, 25]


@pytest.mark.parametrize(("limit", "at"), [(30, [10, 20, 30]), (0, [0])])
@virtual_test
async def test_a_deadline_on_the_beat_asks_once(limit, at):
    """A deadline that coincides with a question does not ask twice; 0 asks once, at once."""
    asked = Asked()
    with pytest.raises(DeferTimeout):
        await Wheel().watch(asked, 10, timeout=limit).future
    assert asked.at == at


@virtual_test
async def test_a_question_that_never_ends_does_not_outlive_the_deadline():
    """A hanging async condition gets some seconds after the deadline, then it is cut off."""
    wheel = Wheel()
    with pytest.raises(DeferTimeout):
        await wheel.watch(asyncio.Event().wait, 10, timeout=60).future
    assert current_clock().elapsed == 60 + LAST_CHECK_S
    await current_clock().settled()
    assert idle(wheel)


@virtual_test
async def test_a_question_under_way_at_the_deadline_is_the_last():
    """Begun before the deadline and answered after it: yes is yes, no is a timeout."""

    async def answer(value):
        await asyncio.sleep(8)
        return value

    wheel = Wheel()
    await wheel.watch(lambda: answer(True), 10, timeout=15).future
    assert current_clock().elapsed == 18
    with pytest.raises(DeferTimeout):
        await wheel.watch(lambda: answer(False), 10, timeout=15).future
    assert current_clock().elapsed == 36


# --- errors ----------------------------------------------------------------------------------


@virtual_test
async def test_errors_in_a_row_are_tolerated_up_to_a_number():
    """Three are tolerated: the fourth in a row ends the wait, with the cause attached."""
    poll = Wheel().watch(Flaky(OSError("down")), 1, max_errors=3)
    with pytest.raises(ConditionError, match="4 times in a row, at last OSError: down") as caught:
        await poll.future
    assert isinstance(caught.value.__cause__, OSError)
    assert current_clock().elapsed == 4


@virtual_test
async def test_one_that_raises_for_ever_does_not_fill_the_log(caplog):
    """Ten times in full; after that each time its errors have doubled."""
    caplog.set_level(logging.WARNING)
    poll = Wheel().watch(Flaky(OSError("down")), 1, max_errors=10_000)
    await current_clock().advance(1_000)
    told = [record.args[2] for record in caplog.records if isinstance(record.args, tuple)]
    assert told == [*range(1, 11), 16, 32, 64, 128, 256, 512]
    assert (poll.errors, poll.last_error) == (1_000, "OSError: down")
    poll.future.cancel()


@virtual_test
async def test_a_good_answer_forgives_the_errors_before():
    """Errors that are not in a row never add up."""
    answers = [OSError("down"), OSError("down"), False] * 20 + [True]
    poll = Wheel().watch(Flaky(*answers), 1, max_errors=2)
    await current_clock().advance(2)
    assert (poll.errors, poll.last_error) == (2, "OSError: down")
    await current_clock().advance(1)
    assert (poll.errors, poll.last_error) == (0, None)
    await poll.future


@pytest.mark.parametrize("kind", ["plain", "async"])
@virtual_test
async def test_no_error_tolerated(kind):
    """`max_errors=0` ends the wait at the first exception."""
    plain = Flaky(KeyError("k"))

    async def coroutine():
        return plain()

    with pytest.raises(ConditionError, match="raised, at last KeyError: 'k'"):
        await Wheel().watch(plain if kind == "plain" else coroutine, 1, max_errors=0).future


@virtual_test
async def test_a_cancelled_error_from_a_condition_is_an_error_like_others():
    """A condition that asks a cancelled future does not take the wheel down."""
    lost = asyncio.get_running_loop().create_future()
    lost.cancel()
    wheel = Wheel()
    poll = wheel.watch(lost.result, 1)
    asked = Asked(yes_at=5)
    await wheel.watch(asked, 1).future
    assert poll.errors == 5
    wheel.close()


@virtual_test
async def test_errors_are_logged_with_the_name(caplog):
    """Each tolerated exception is a warning that says which condition, where, and how often."""

    def is_paid():
        raise OSError("down")

    with caplog.at_level(logging.WARNING):
        wheel = Wheel()
        wheel.watch(functools.partial(is_paid), 1)
        await current_clock().advance(1)
        wheel.close()
    message = caplog.records[-1].getMessage()
    assert re.search(
        r"is_paid \(test_wheel.py:\d+\) raised OSError: down \(1 in a row, 10 are", message
    )


@virtual_test
async def test_a_timeout_tells_the_last_error():
    """Who times out while the condition raises learns of the error."""
    with pytest.raises(DeferTimeout, match="last error OSError: down"):
        await Wheel().watch(Flaky(OSError("down")), 10, timeout=20).future


# --- waking ----------------------------------------------------------------------------------


@virtual_test
async def test_an_asyncio_event_makes_it_look_at_once():
    """Set after 7 s, an event brings the question forward; the next pause counts from there."""
    event, asked, clock = asyncio.Event(), Asked(yes_at=3), current_clock()
    poll = Wheel().watch(asked, 100, wake=event)
    await clock.advance(7)
    event.set()
    await clock.advance(0)
    assert asked.at == [7]
    await poll.future
    assert asked.at == [7, 107, 207]


@virtual_test
async def test_an_event_left_set_does_not_spin_and_rings_again_once_cleared():
    """One look per setting: left set it is asked at its pace, cleared it can ring again."""
    event, asked, clock = asyncio.Event(), Asked(), current_clock()
    wheel = Wheel()
    wheel.watch(asked, 100, wake=event)
    event.set()
    await clock.advance(250)
    assert asked.at == [0, 100, 200]
    event.clear()
    await clock.advance(100)
    assert asked.at == [0, 100, 200, 300]
    event.set()
    await clock.advance(0)
    assert asked.at == [0, 100, 200, 300, 350]
    wheel.close()


@virtual_test
async def test_pulses_ring_every_time():
    """Set and cleared in one breath, an event rings each time."""
    event, asked, clock = asyncio.Event(), Asked(), current_clock()
    wheel = Wheel()
    wheel.watch(asked, 1_000, wake=event)
    for _ in range(5):
        await clock.advance(3)
        event.set()
        event.clear()
    await clock.advance(0)
    assert asked.at == [3, 6, 9, 12, 15]
    wheel.close()


@virtual_test
async def test_an_event_set_before_makes_it_look_at_once():
    """An event that is set when the wait begins is not lost."""
    event, asked = asyncio.Event(), Asked(yes_at=1)
    event.set()
    await Wheel().watch(asked, 100, wake=event).future
    assert asked.at == [0]


@virtual_test
async def test_waking_does_not_lengthen_the_pause():
    """Back-off counts only questions that nobody asked for."""
    event, asked, clock = asyncio.Event(), Asked(), current_clock()
    wheel = Wheel()
    wheel.watch(asked, 10, backoff=2, wake=event)
    for _ in range(4):
        event.set()
        event.clear()
        await clock.advance(1)
    await clock.advance(40)
    assert asked.at == [0, 1, 2, 3, 13, 33]
    wheel.close()


@virtual_test
async def test_a_ring_during_a_question_asks_once_more():
    """What changed while the question was under way is not overlooked."""
    event, clock, begun = asyncio.Event(), current_clock(), []

    async def slow():
        begun.append(clock.elapsed)
        await asyncio.sleep(5)
        return len(begun) == 2

    poll = Wheel().watch(slow, 10, wake=event)
    await clock.advance(12)
    event.set()
    await poll.future
    assert begun == [10, 15]


@virtual_test
async def test_one_event_wakes_many_without_a_task():
    """A thousand polls that share an event cost no task, and are all asked when it rings."""
    event, wheel = asyncio.Event(), Wheel()
    before = len(asyncio.all_tasks())
    polls = [wheel.watch(event.is_set, 3_600, wake=event) for _ in range(1_000)]
    await current_clock().settled()
    assert len(asyncio.all_tasks()) == before
    event.set()
    await asyncio.gather(*(poll.future for poll in polls))
    assert current_clock().elapsed == 0
    await current_clock().settled()
    assert not event._waiters


@virtual_test
async def test_a_threading_event_set_in_a_thread_wakes_without_a_thread_of_ours():
    """Set elsewhere, even by a bound method taken before, it makes the wheel look at once."""
    event, wheel = threading.Event(), Wheel()
    timer = threading.Timer(0.02, event.set)
    before = threading.active_count()
    poll = wheel.watch(event.is_set, 3_600, wake=event)
    assert threading.active_count() == before
    current_clock().work.begin()
    timer.start()
    await poll.future
    current_clock().work.end()
    assert current_clock().elapsed == 0
    timer.join()


@virtual_test
async def test_threading_events_ring_like_the_others():
    """Pulses ring each time, left set it does not spin, and withdrawing leaves no trace."""
    event, asked, clock = threading.Event(), Asked(), current_clock()
    wheel = Wheel()
    wheel.watch(asked, 100, wake=event)
    for _ in range(3):
        event.set()
        event.clear()
        await clock.advance(1)
    event.set()
    await clock.advance(200)
    assert asked.at == [0, 1, 2, 3, 103, 203]
    event.clear()
    await clock.advance(105)
    wheel.close()
    assert not event._cond._waiters  # pyright: ignore[reportAttributeAccessIssue]


@virtual_test
async def test_real_waiters_of_a_threading_event_are_woken_too():
    """We stand in the line of a threading event without pushing anybody out."""
    event, wheel = threading.Event(), Wheel()
    woken = asyncio.create_task(asyncio.to_thread(event.wait, PATIENCE))
    poll = wheel.watch(event.is_set, 3_600, wake=event)
    await asyncio.to_thread(event.set)
    await poll.future
    assert await woken is True


# --- cancelling ------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 5, 10, 10.5, 12])
@pytest.mark.parametrize("kind", ["plain", "async", "wake"])
def test_cancel_at_any_moment_withdraws_at_once(after, kind):
    """Cancelled before, at, during or after a question: never asked again, nothing kept."""
    asked = Asked()

    async def slow():
        asked()
        await asyncio.sleep(1)

    async def main():
        wheel, event = Wheel(), asyncio.Event()
        condition = slow if kind == "async" else asked
        poll = wheel.watch(condition, 10, wake=event if kind == "wake" else None, timeout=1_000)
        waiter = asyncio.create_task(wait_on(poll))
        await asyncio.sleep(after)
        count = len(asked.at)
        waiter.cancel()
        event.set()
        await current_clock().settled()
        assert len(asked.at) == count
        assert waiter.cancelled()
        assert idle(wheel)
        await asyncio.sleep(100)
        assert len(asked.at) == count
        assert len(asyncio.all_tasks()) == 1

    async def wait_on(poll):
        await poll.future

    run_virtual(main())


@virtual_test
async def test_a_condition_may_cancel_its_own_poll():
    """A condition that ends its own wait, sync or async, does not upset the wheel."""
    wheel = Wheel()
    polls: list[Poll] = []

    def plain():
        polls[0].future.cancel()
        return True

    async def coroutine():
        polls[1].future.cancel()
        return True

    def half():
        polls[2].future.cancel()
        return asyncio.sleep(1, True)

    polls += [wheel.watch(condition, 1) for condition in (plain, coroutine, half)]
    await current_clock().advance(1)
    assert all(poll.future.cancelled() for poll in polls)
    assert idle(wheel)


@virtual_test
async def test_churn_leaves_nothing_behind():
    """Ten thousand long waits that are withdrawn early leave no buckets and no ticks."""
    wheel = Wheel()
    for n in range(10_000):
        poll = wheel.watch(lambda: False, 3_600 + n / 1000)
        poll.future.cancel()
        if n % 10 == 0:
            await asyncio.sleep(0)
    await current_clock().settled()
    assert idle(wheel)
    assert len(wheel._ticks) <= 64


@virtual_test
async def test_an_empty_wheel_keeps_no_timer():
    """When the last poll ends, early too, the loop has nothing of the wheel to wait for."""
    wheel = Wheel()
    poll = wheel.watch(lambda: True, 3_600)
    poll.future.cancel()
    await current_clock().settled()
    loop: Any = asyncio.get_running_loop()
    assert [timer for timer in loop._scheduled if not timer.cancelled()] == []


def test_an_empty_wheel_is_true():
    """`wheel or Wheel()` keeps the wheel that it was given."""
    assert Wheel()


@virtual_test
async def test_close_cancels_everything():
    """Closing ends parked, ready and asked polls, and later watches are refused."""
    wheel = Wheel()
    polls = [
        wheel.watch(lambda: False, 10),
        wheel.watch(asyncio.Event().wait, 1),
        wheel.watch(lambda: False, 10, wake=asyncio.Event()),
        wheel.watch(lambda: False, 10, wake=threading.Event(), timeout=5),
    ]
    await asyncio.sleep(2)
    wheel.close()
    wheel.close()
    assert all(poll.future.cancelled() for poll in polls)
    await current_clock().settled()
    assert idle(wheel)
    assert len(asyncio.all_tasks()) == 1
    with pytest.raises(UsageError, match="closed"):
        wheel.watch(lambda: True, 1)


def test_a_wheel_belongs_to_one_loop():
    """Used in a second loop it says so."""
    wheel = Wheel()

    async def main():
        await wheel.watch(lambda: True, 0.001).future

    asyncio.run(main())
    with pytest.raises(UsageError, match="one per loop"):
        asyncio.run(main())


# --- slow conditions -------------------------------------------------------------------------


def test_a_slow_plain_condition_is_named_once_and_gets_threads_of_its_own(caplog):
    """Over 50 ms: one warning, and from then on it is asked beside others like it, bounded."""
    threads, together, most = [], [], []
    pause = threading.Event()

    def make(number):
        def blocks():
            together.append(number)
            most.append(len(together))
            threads.append(threading.current_thread().name)
            pause.wait(0.1)
            together.remove(number)
            return len(threads) > 12 + number

        return blocks

    async def main():
        wheel = Wheel(max_threads=4)
        await asyncio.gather(*(wheel.watch(make(n), 0.01).future for n in range(3)))
        wheel.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    named = [r.getMessage() for r in caplog.records if "thread of its own" in r.getMessage()]
    assert len(named) == 1
    assert "make.<locals>.blocks (test_wheel.py:" in named[0]
    assert set(threads) == {"layby-condition"}
    assert max(most) == 2


@pytest.mark.parametrize("error", [OSError, StopIteration])
def test_errors_and_truth_in_threads_count_the_same(error: type[Exception]):
    """A slow condition that raises in its thread is tolerated, then ends the wait."""
    pause = threading.Event()

    def raises():
        pause.wait(0.06)
        raise error

    async def main():
        wheel = Wheel()
        with pytest.raises(ConditionError, match="3 times in a row"):
            await wheel.watch(raises, 1, max_errors=2).future
        wheel.close()

    run_virtual(main())


# --- crowds ----------------------------------------------------------------------------------


def test_a_crowd_due_at_once_does_not_hog_the_loop():
    """30,000 conditions due in the same moment: other callbacks run every few hundred of them."""
    turns = []

    async def main():
        wheel, event = Wheel(), asyncio.Event()
        polls = [wheel.watch(lambda: True, 3_600, wake=event) for _ in range(30_000)]
        waiting = asyncio.gather(*(poll.future for poll in polls))
        event.set()
        while wheel.parked:
            turns.append(wheel.parked)
            await asyncio.sleep(0)
        await waiting
        wheel.close()

    asyncio.run(main())
    assert len(turns) > 15_000 / MAX_ANSWERS_PER_TURN
    assert max(before - after for before, after in pairwise(turns)) <= 2 * MAX_ANSWERS_PER_TURN


@virtual_test
async def test_in_a_crowd_long_intervals_share_buckets():
    """Above a thousand polls, intervals of 10 s and more are rounded up to 10 ms, never down."""
    wheel, asked = Wheel(), Asked(yes_at=1)
    for n in range(2_000):
        wheel.watch(lambda: False, 30 + n / 1000)
    assert len(wheel._buckets) < 1_300
    begin = current_clock().elapsed
    await wheel.watch(asked, 29.003).future
    assert begin + 29.003 <= asked.at[0] <= begin + 29.0131
    wheel.close()


def parked_bytes(count):
    """Memory per parked poll, its future and an own condition included."""

    async def main():
        wheel = Wheel()
        conditions = [(lambda n=n: n < 0) for n in range(count)]
        tracemalloc.start()
        polls = [wheel.watch(condition, 30) for condition in conditions]
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert len(polls) == wheel.parked == count
        wheel.close()
        return size / count

    return asyncio.run(main())


def test_a_parked_poll_is_small():
    """Ten thousand parked polls take less than 1.5 KB each."""
    assert parked_bytes(10_000) < 1_500


@pytest.mark.slow
def test_a_hundred_thousand_polls_cost_little():
    """100,000 polls of 30 s: below 1.5 KB each, and an hour of them below 5 % of a core."""
    assert parked_bytes(100_000) < 1_500

    async def main():
        wheel, chance = Wheel(), random.Random(1)
        for _ in range(100):
            for _ in range(1_000):
                wheel.watch(lambda: False, 30)
            await asyncio.sleep(chance.random())
        begin = time.process_time()
        await asyncio.sleep(300)
        spent = time.process_time() - begin
        wheel.close()
        return spent / 300

    assert run_virtual(main()) < 0.05
