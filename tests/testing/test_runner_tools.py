"""What `layby.testing` offers beside time: watched slots, waits, settled promises, one fate."""

import asyncio
import random

import pytest

import layby.testing
from layby import PromiseRejected, RetryPolicy, RunFailed, Workflow, task
from layby.executors import SlotPool
from layby.testing import (
    SlotWatch,
    current_clock,
    deterministic_runner,
    settle,
    virtual_test,
    waits,
)
from layby.testing.virtual import NEW_YEAR


def test_the_public_names_are_these():
    """A name is added or taken away on purpose, never by accident."""
    assert layby.testing.__all__ == [
        "RealWork",
        "SlotWatch",
        "VirtualClock",
        "VirtualDeadlock",
        "VirtualTime",
        "Wait",
        "current_clock",
        "deterministic_runner",
        "real_work",
        "run_virtual",
        "settle",
        "virtual_test",
        "virtual_time",
        "waits",
    ]


# --- slots -----------------------------------------------------------------------------------


@virtual_test
async def test_a_slot_watch_sees_every_change():
    """Taking, waiting in line, handing over and giving back are noted with their time."""
    pool, clock = SlotPool(2), current_clock()
    with SlotWatch(pool) as slots:

        async def body(seconds):
            async with pool.token():
                await asyncio.sleep(seconds)

        await asyncio.gather(body(1), body(2), body(3))
        slots.assert_never_more_than(2)
        slots.assert_none_held()
    start = slots.history[0][0]
    assert [(at - start, held) for at, held in slots.history] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (2_000, 1),
        (4_000, 0),
    ]
    assert slots.peak == 2
    assert clock.elapsed == 4


@virtual_test
async def test_a_slot_watch_names_the_first_excess():
    """The assertion says how many were held, when, and how often."""
    pool = SlotPool(3)
    with SlotWatch(pool) as slots:
        await asyncio.sleep(1.5)
        tokens = [await pool.acquire() for _ in range(3)]
        with pytest.raises(AssertionError, match="still held"):
            slots.assert_none_held()
        for token in tokens:
            token.release()
    with pytest.raises(AssertionError, match=r"at most 1 .* got 2, 1500 ms .* 3 at most"):
        slots.assert_never_more_than(1)


@virtual_test
async def test_a_slot_watch_leaves_the_pool_as_it_was():
    """After the block the pool has its own methods again, and changes are noted no more."""
    pool = SlotPool(1)
    before = set(vars(pool.ledger))
    with SlotWatch(pool) as slots:
        pass
    token = await pool.acquire()
    assert set(vars(pool.ledger)) == before
    assert slots.peak == 0
    token.release()


# --- waits and promises ----------------------------------------------------------------------


@task(id="poll")
async def poll(context, handle):
    await handle.defer_until(lambda: False, poll_interval=60)


@task(id="ask")
async def ask(context, handle):
    context["answer"] = await handle.wait_for("question")


@task(id="after", dependencies=["ask"])
async def after(context):
    context["after"] = True


@virtual_test
async def test_waits_tells_who_waits_for_what():
    """A condition, a promise and a dependency, each with its sentence; one run or all."""
    async with deterministic_runner() as runner:
        await runner.start(Workflow("a", tasks=[poll]), run_id="a")
        await runner.start(Workflow("b", tasks=[ask, after]), run_id="b")
        await current_clock().advance(130)
        found = await waits(runner)
        assert [(wait.run_id, wait.task_id, wait.on.kind) for wait in found] == [
            ("a", "poll", "condition"),
            ("b", "ask", "promise"),
            ("b", "after", "dependency"),
        ]
        assert found[0].on.polls == 2
        assert str(found[1]) == "b/ask (Running): waiting for promise question"
        assert [wait.task_id for wait in await waits(runner, "b")] == ["ask", "after"]


@virtual_test
async def test_settle_lets_everything_follow():
    """After `settle` the waiting task and those behind it are done, in the same instant."""
    async with deterministic_runner() as runner:
        run = await runner.start(Workflow("b", tasks=[ask, after]), run_id="b")
        await current_clock().advance(10)
        await settle(runner, "question", 42)
        assert await waits(runner) == []
        assert (await run.result()).to_dict() == {"answer": 42, "after": True}
        assert current_clock().elapsed == 10


@virtual_test
async def test_settle_with_an_error_rejects():
    """The rejection is raised where the task waits."""
    seen = []

    @task(id="ask")
    async def careful(context, handle):
        try:
            await handle.wait_for("question")
        except PromiseRejected as error:
            seen.append(str(error))
            raise

    async with deterministic_runner() as runner:
        run = await runner.start(Workflow("c", tasks=[careful]), run_id="c")
        await settle(runner, "question", error="no such order")
        with pytest.raises(RunFailed):
            await run.result()
    assert "no such order" in seen[0]


# --- one fate --------------------------------------------------------------------------------


@task(id="flaky", retry=RetryPolicy(max_attempts=5, delay=10, jitter=0.5))
async def flaky(context, handle):
    await handle.defer_until(lambda: random.random() < 0.3, poll_interval=7, jitter=0.5)
    if random.random() < 0.7:
        raise OSError("down")


async def one_life(seed):
    async with deterministic_runner(seed=seed) as runner:
        flow = Workflow("f", tasks=[flaky])
        runs = [await runner.start(flow, run_id=f"r{n}") for n in range(10)]
        await current_clock().advance(2_000)
        statuses = [await run.status() for run in runs]
        return [(each.state, each.settled_at, each.tasks["flaky"].tries) for each in statuses]


def test_the_same_seed_is_the_same_life():
    """Two lives with one seed agree in every state, time and try; another seed differs."""
    first, second, other = (asyncio.run(one_life(seed)) for seed in (1, 1, 2))
    assert first == second
    assert first != other
    assert any(state == "Completed" for state, _, _ in first)


def test_chance_is_given_back():
    """After the block the `random` module goes on where it was, and time is real."""

    async def main():
        async with deterministic_runner() as runner:
            assert runner.now() == NEW_YEAR
            random.random()

    random.seed(99)
    expected = random.random()
    random.seed(99)
    asyncio.run(main())
    assert random.random() == expected


@virtual_test
async def test_two_runners_may_share_one_virtual_time():
    """Opened where virtual time is on already, a deterministic runner takes that clock."""
    async with deterministic_runner() as one, deterministic_runner() as other:
        await current_clock().advance(60)
        assert one.now() == other.now() == current_clock().now()
