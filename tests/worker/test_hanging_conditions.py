"""Plain conditions that hang hold up nobody but their own task, from the first question on.

Real time and real threads: under virtual time the loop waits a moment for the answers.
"""

import asyncio
import itertools
import logging
import random
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from layby import DeferTimeout, RunFailed, Runner, task
from layby.testing import current_clock, virtual_test
from layby.worker import wheel as wheels
from layby.worker.condition_threads import QUICK_AGAIN, SLOW_S
from layby.worker.wheel import Wheel
from tests.helpers.workers import flow_of, look, until

PATIENCE = 20.0
"""Nothing here hangs longer than this, should a test fail."""


_numbers = itertools.count()


class Hanging:
    """A condition that answers when it is let go."""

    def __init__(self):
        self.asked = threading.Semaphore(0)
        self.over = threading.Event()
        self.count = 0

    def __call__(self):
        self.count += 1
        self.asked.release()
        return self.over.wait(PATIENCE)


@contextmanager
def hanging():
    condition = Hanging()
    try:
        yield condition
    finally:
        condition.over.set()


def waits_for(condition, **options):
    @task(id="gate")
    async def gate(context, handle):
        await handle.defer_until(condition, poll_interval=0.01, **options)

    return flow_of(gate, name=f"gate{next(_numbers)}")


@task
async def works(context):
    context["worked"] = True


def answers_at_the(number):
    seen = []

    def condition():
        seen.append(threading.current_thread())
        return len(seen) >= number

    condition.seen = seen
    return condition


# --- others go on ----------------------------------------------------------------------------


def test_one_that_hangs_at_its_first_question_holds_up_nobody():
    """On one slot: other tasks run, other conditions are asked, and it ends when it answers."""

    async def main():
        with hanging() as condition:
            async with Runner("memory:", slots=1) as runner:
                run = await runner.start(waits_for(condition))
                await until(lambda: condition.count)
                found = await runner.execute(flow_of(works), timeout=10)
                assert found["worked"]
                await runner.execute(waits_for(answers_at_the(5)), timeout=10)
                assert condition.count == 1
                condition.over.set()
                await run.result(timeout=10)

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["one code", "a code each"])
def test_many_that_hang_hold_up_nobody(kind):
    """Ten of them on two slots, whether or not they are of one origin."""

    def condition_of(condition, number):
        if kind == "one code":
            return condition
        code = f"def hangs_{number}(): return condition()"
        exec(code, space := {"condition": condition})  # each has a code of its own
        return space[f"hangs_{number}"]

    async def main():
        with hanging() as condition:
            async with Runner("memory:", slots=2) as runner:
                runs = [
                    await runner.start(waits_for(condition_of(condition, n))) for n in range(10)
                ]
                await until(lambda: condition.count == 10)
                await runner.execute(waits_for(answers_at_the(3)), timeout=10)
                await runner.execute(flow_of(works), timeout=10)
                condition.over.set()
                await asyncio.gather(*(run.result(timeout=10) for run in runs))

    asyncio.run(main())


def test_one_that_hangs_at_a_later_question_holds_up_nobody():
    """Quick for a while, then dead: the rest of its batch goes on without it."""

    async def main():
        with hanging() as condition:
            wheel = Wheel()
            fast = [answers_at_the(20) for _ in range(20)]
            turns_bad = answers_at_the(5)
            polls = [wheel.watch(each, 0.01) for each in fast[:10]]
            bad = wheel.watch(lambda: turns_bad() and condition(), 0.01)
            polls += [wheel.watch(each, 0.01) for each in fast[10:]]
            async with asyncio.timeout(10):
                await asyncio.gather(*(poll.future for poll in polls))
            assert condition.count == 1
            assert not bad.future.done()
            condition.over.set()
            await bad.future
            wheel.close()

    asyncio.run(main())


def test_quick_ones_of_the_same_code_stay_quick():
    """A dead file system makes one `exists` hang; those of other files are still asked."""

    async def main():
        with hanging() as condition:
            wheel = Wheel(max_threads=4)
            good = []

            def make(inner):
                return lambda: inner() or False

            for _ in range(10):
                seen = answers_at_the(30)
                good.append((seen, wheel.watch(make(seen), 0.01)))
            await until(lambda: all(len(seen.seen) > 2 for seen, _ in good))
            bad = [wheel.watch(make(condition), 0.01) for _ in range(10)]
            await until(lambda: condition.count >= 2)
            async with asyncio.timeout(10):
                await asyncio.gather(*(poll.future for _, poll in good))
            condition.over.set()
            await asyncio.gather(*(poll.future for poll in bad))
            wheel.close()

    asyncio.run(main())


def test_threads_are_bounded_and_slow_ones_wait_for_each_other(caplog):
    """Half of the threads are for conditions known to be slow; quick ones still have theirs."""

    async def main():
        with hanging() as condition:
            wheel = Wheel(max_threads=6)
            bad = [wheel.watch(condition, 0.01) for _ in range(20)]
            await until(lambda: condition.count >= 3)
            await wheel.watch(answers_at_the(5), 0.05).future
            assert (condition.count, len(wheel._threads._dedicated)) == (3, 3)
            mine = [each for each in threading.enumerate() if each.name == "layby-condition"]
            assert len(mine) <= 6
            condition.over.set()
            await asyncio.gather(*(poll.future for poll in bad))
            wheel.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    told = [record.getMessage() for record in caplog.records]
    assert len([each for each in told if "wait for each other" in each]) == 1


def test_it_is_named_once_with_its_task(caplog):
    """One warning says which condition of which task has a thread of its own from now on."""

    async def main():
        with hanging() as condition:

            def is_paid():
                return condition()

            async with Runner("memory:") as runner:
                flow = waits_for(is_paid)
                runs = [await runner.start(flow, run_id=f"r{n}") for n in range(3)]
                await until(lambda: condition.count == 3)
                condition.over.set()
                await asyncio.gather(*(run.result(timeout=10) for run in runs))

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    (told,) = [r.getMessage() for r in caplog.records if "thread of its own" in r.getMessage()]
    assert "is_paid (test_hanging_conditions.py:" in told
    assert "run/r0:gate" in told


# --- its own task ----------------------------------------------------------------------------


def test_while_it_hangs_its_task_is_deferred_and_says_so():
    """`waiting_on` tells since when the question is under way."""

    async def main():
        with hanging() as condition:
            async with Runner("memory:") as runner:
                begin = runner.now()
                run = await runner.start(waits_for(condition))
                async with asyncio.timeout(PATIENCE / 2):
                    while (seen := await look(run, "gate")).sub_status != "Deferred":  # noqa: ASYNC110
                        await asyncio.sleep(0.001)
                assert seen.waiting_on is not None
                assert seen.waiting_on.next_poll_at is None
                assert seen.waiting_on.asked_since is not None
                assert begin <= seen.waiting_on.asked_since <= runner.now()
                condition.over.set()
                await run.result(timeout=10)

    asyncio.run(main())


def test_cancel_does_not_wait_for_the_answer():
    """The task ends at once; the thread is left to itself."""

    async def main():
        with hanging() as condition:
            async with Runner("memory:", slots=1) as runner:
                run = await runner.start(waits_for(condition))
                await until(lambda: condition.count)
                async with asyncio.timeout(5):
                    await run.cancel()
                    await until(lambda: not runner.worker.attempts)
                assert list(runner.worker._wheel) == []

    begin = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - begin < PATIENCE / 2


@pytest.mark.parametrize("first", [True, False])
def test_a_timeout_comes_although_it_hangs(monkeypatch, first):
    """After the deadline and the time for a last answer, with the slot held again."""
    monkeypatch.setattr(wheels, "LAST_CHECK_S", 0.1)

    async def main():
        with hanging() as condition:
            answers = iter([] if first else [False, False])

            @task(id="gate")
            async def gate(context, handle):
                with pytest.raises(DeferTimeout, match=r"not met within 0.2 s"):
                    await handle.defer_until(
                        lambda: next(answers, True) and condition(), 0.01, timeout=0.2
                    )
                context["held"] = handle.is_slot_held()

            async with Runner("memory:", slots=1) as runner:
                found = await runner.execute(flow_of(gate), timeout=10)
            assert found["held"] is True
            assert condition.count == 1

    asyncio.run(main())


@pytest.mark.parametrize("answer", [True, False, OSError("late")])
def test_a_late_first_answer_counts(answer):
    """Yes ends the wait, no is asked again, an error is counted."""

    async def main():
        with hanging() as condition:

            def slow():
                condition()
                if condition.count == 1 and isinstance(answer, Exception):
                    raise answer
                return answer if condition.count == 1 else True

            async with Runner("memory:", slots=1) as runner:
                run = await runner.start(waits_for(slow, max_errors=1))
                await until(lambda: condition.count and not runner.worker.credit.held)
                condition.over.set()
                await run.result(timeout=10)
                assert condition.count == (1 if answer is True else 2)

    asyncio.run(main())


def test_a_late_first_error_may_be_one_too_many():
    """`max_errors=0`: the wait ends with the error, however late it comes."""

    async def main():
        with hanging() as condition:

            def slow():
                condition()
                raise OSError("late")

            async with Runner("memory:") as runner:
                run = await runner.start(waits_for(slow, max_errors=0))
                await until(lambda: condition.count and not runner.worker.credit.held)
                condition.over.set()
                with pytest.raises(RunFailed, match="OSError: late"):
                    await run.result(timeout=10)

    asyncio.run(main())


# --- asking in threads -----------------------------------------------------------------------


def test_plain_conditions_are_asked_in_a_thread_and_in_order():
    """One thread asks all that are due together; answers come in the order of questions."""

    async def main():
        wheel, asked, heard = Wheel(), [], []

        def condition_of(number):
            def condition():
                asked.append((number, threading.current_thread()))
                return True

            return condition

        polls = [wheel.watch(condition_of(number), 0.01) for number in range(200)]
        for number, poll in enumerate(polls):
            poll.future.add_done_callback(lambda _, number=number: heard.append(number))
        await asyncio.gather(*(poll.future for poll in polls))
        assert [number for number, _ in asked] == list(range(200))
        assert heard == list(range(200))
        assert len({thread for _, thread in asked}) == 1
        assert threading.main_thread() not in {thread for _, thread in asked}
        wheel.close()

    asyncio.run(main())


def test_async_conditions_and_awaitables_are_asked_on_the_loop():
    """A coroutine function is called there; what a plain one returns is awaited there."""

    class Both:
        async def __call__(self):
            return threading.current_thread() is threading.main_thread()

    async def coroutine():
        return await Both()()

    async def main():
        wheel = Wheel()
        for condition in (coroutine, Both(), lambda: asyncio.wait_for(coroutine(), 1)):
            check = await wheel.first_check(condition)
            assert check.holds
            await wheel.watch(condition, 0.01).future
        wheel.close()

    asyncio.run(main())


def test_what_needs_the_loop_is_told_to_be_async():
    """A plain condition that looks for the running loop learns why there is none."""

    async def main():
        wheel = Wheel()
        check = await wheel.first_check(asyncio.get_running_loop)
        assert "make it async" in str(check.error)
        wheel.close()

    asyncio.run(main())


def test_first_questions_of_many_bodies_go_together():
    """What several bodies ask in one turn of the loop is one hand-over."""

    async def main():
        wheel = Wheel()
        handed = []
        await wheel.first_check(lambda: True)
        give = wheel._threads._give_quick
        wheel._threads._give_quick = lambda batch: handed.append(len(batch)) or give(batch)
        checks = await asyncio.gather(*(wheel.first_check(lambda: True) for _ in range(50)))
        assert all(check.holds for check in checks)
        assert handed == [50]
        wheel.close()

    asyncio.run(main())


def test_a_first_question_that_is_withdrawn_leaves_nothing():
    """Cancelled while it is asked, it is forgotten; the next one is answered."""

    async def main():
        with hanging() as condition:
            wheel = Wheel()
            asked = asyncio.ensure_future(wheel.first_check(condition))
            await until(lambda: condition.count)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            assert (await wheel.first_check(lambda: True)).holds
            wheel.close()

    asyncio.run(main())


def test_threads_end_after_a_rest(monkeypatch):
    """A wheel that nobody closes keeps no thread when it has nothing to ask."""
    monkeypatch.setattr("layby.worker.condition_threads.IDLE_S", 0.05)

    async def main():
        wheel = Wheel()
        seen = answers_at_the(2)
        await wheel.watch(seen, 0.01).future
        (thread,) = set(seen.seen)
        await until(lambda: not thread.is_alive())
        assert (await wheel.first_check(lambda: True)).holds
        wheel.close()

    asyncio.run(main())


def test_closing_ends_the_threads_and_waits_for_none():
    """Idle threads end; one that hangs ends when its question does."""

    async def main():
        with hanging() as condition:
            wheel = Wheel()
            seen = answers_at_the(2)
            wheel.watch(condition, 0.01)
            await until(lambda: condition.count)
            await wheel.watch(seen, SLOW_S).future
            begin = time.monotonic()
            wheel.close()
            assert time.monotonic() - begin < 1
            await until(lambda: not any(thread.is_alive() for thread in seen.seen))

    asyncio.run(main())


# --- limits ----------------------------------------------------------------------------------


def test_a_system_without_threads_delays_and_loses_nothing(monkeypatch):
    """What cannot be asked now is asked when the system gives us a thread again."""
    start, refused = threading.Thread.start, []

    def refuses(thread):
        if len(refused) < 3:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    async def main():
        monkeypatch.setattr(threading.Thread, "start", refuses)
        wheel = Wheel()
        async with asyncio.timeout(10):
            first = await wheel.first_check(lambda: True)
            await wheel.watch(
                lambda: True, 0.01, first=first if first.is_under_way else None
            ).future
        wheel.close()

    asyncio.run(main())
    assert len(refused) == 3


class Erratic:
    """Answers after a random while, sometimes with an error; never asked twice at a time."""

    def __init__(self, chance, codes):
        self.chance = chance
        self.left = chance.randrange(1, 6)
        self.running = threading.Lock()
        self.pause = threading.Event()
        self.asked = chance.choice(codes)(self.ask)

    def ask(self):
        assert self.running.acquire(blocking=False)
        try:
            self.pause.wait(self.chance.choice([0, 0, 0, 0, 0.01, 0.06, 0.12]))
            self.left -= 1
            if self.chance.random() < 0.1:
                raise OSError("no luck")
            return self.left <= 0
        finally:
            self.running.release()


@pytest.mark.parametrize("seed", range(3))
def test_nobody_is_lost_or_asked_twice_at_a_time(seed):
    """Slow, quick and broken ones of few codes, withdrawn at any moment, on few threads."""
    chance = random.Random(seed)
    codes = [
        lambda ask: lambda: ask() or False,
        lambda ask: lambda: ask() or None,
        lambda ask: lambda: ask() or 0,
    ]

    async def main():
        wheel = Wheel(max_threads=6)

        async def one():
            await asyncio.sleep(chance.random() / 2)
            asked = Erratic(chance, codes).asked
            first = await wheel.first_check(asked)
            if not first.holds:
                poll = wheel.watch(asked, 0.005, first=first, max_errors=50)
                if chance.random() < 0.2:
                    asyncio.get_running_loop().call_later(chance.random(), poll.future.cancel)
                await asyncio.wait([poll.future])
                assert poll.future.cancelled() or poll.future.exception() is None

        async with asyncio.timeout(60):
            await asyncio.gather(*(one() for _ in range(60)))
            threads = wheel._threads
            await until(lambda: threads._asked == 0)
            assert (
                len(threads._dedicated),
                len(threads._slow_queue),
                len(threads._first_checks),
            ) == (
                0,
                0,
                0,
            )
        assert wheel.parked == 0
        wheel.close()

    asyncio.run(main())


def test_a_code_is_quick_again_when_its_questions_are():
    """One that hung was an exception: after eight quick relatives new ones go with the rest."""

    async def main():
        with hanging() as condition:
            wheel = Wheel()

            def make(inner):
                return lambda: inner() or False

            bad = wheel.watch(make(condition), 0.001)
            await until(lambda: condition.count and wheel._threads._slow)
            for _ in range(QUICK_AGAIN):
                assert wheel._threads._slow
                assert (await wheel.first_check(make(lambda: True))).holds
            assert not wheel._threads._slow
            condition.over.set()
            await bad.future
            assert bad.lane == "own"
            wheel.close()

    asyncio.run(main())


# --- virtual time ----------------------------------------------------------------------------


@virtual_test
async def test_under_virtual_time_an_answer_is_there_at_once():
    """The loop waits for it, so that whoever is ready beside it has the same turn every time."""
    wheel, order = Wheel(), []
    asyncio.get_running_loop().call_soon(order.append, "another")
    check = await wheel.first_check(lambda: threading.current_thread() is threading.main_thread())
    assert (check.is_under_way, check.holds, order) == (False, False, [])
    wheel.close()


@virtual_test
async def test_under_virtual_time_one_that_hangs_holds_time_and_not_the_loop(monkeypatch):
    """Others go on at this instant; time goes on when it has answered, or nobody waits for it."""
    monkeypatch.setattr("layby.worker.condition_threads.VIRTUAL_SLOW_S", 0.05)
    clock = current_clock()
    with hanging() as condition:
        wheel = Wheel()
        polls = [wheel.watch(condition, 10), wheel.watch(condition, 10)]
        quick = wheel.watch(lambda: True, 10)
        await quick.future
        assert (clock.elapsed, clock.work.count) == (10, 2)
        polls[0].future.cancel()
        await asyncio.sleep(0)
        assert clock.work.count == 1
        condition.over.set()
        await polls[1].future
        assert (clock.elapsed, clock.work.count) == (10, 0)
        wheel.close()


# --- the process -----------------------------------------------------------------------------

LEAVING = """
import asyncio, time
from layby import Runner, Workflow, task

@task
async def gate(context, handle):
    await handle.defer_until(lambda: time.sleep(3600))

@task
async def works(context):
    pass

async def main():
    async with Runner("memory:", slots=1) as runner:
        await runner.start(Workflow("gate", tasks=[gate]))
        await runner.execute(Workflow("works", tasks=[works]))
    print("closed", flush=True)

asyncio.run(main())
print("over", flush=True)
"""


def test_a_process_ends_although_a_condition_hangs():
    """Closing and leaving wait for no answer: an hour of sleep in a condition costs nothing."""
    done = subprocess.run(
        [sys.executable, "-c", LEAVING], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.split() == ["closed", "over"]
