"""`defer_until`, sentence by sentence: seed 000's sample, its picture and its sequence."""

import asyncio
import threading
from datetime import timedelta

import pytest

from layby import (
    ConditionError,
    DeferTimeout,
    RunFailed,
    Runner,
    TaskHandle,
    UsageError,
    task,
)
from layby.executors import SlotPool
from layby.testing import SlotWatch, current_clock, virtual_test
from tests.helpers.workers import flow_of, look, rows, settled_down


@virtual_test
async def test_the_sample_of_seed_000_runs_as_printed():
    """The Python sample of the seed, word for word."""
    loop = asyncio.get_running_loop()
    approved_at = loop.time() + 25
    asked = []

    def check_approval_status(job_id):
        asked.append(job_id)
        return loop.time() >= approved_at

    @task(id="wait_for_approval")
    async def wait_for_approval(context, handle):
        await handle.defer_until(
            condition=lambda: check_approval_status(context["job_id"]),
            poll_interval_ms=10000,
        )
        # Slot reclaimed, continue processing
        context["held"] = handle.is_slot_held()

    clock = current_clock()
    begin = clock.now()
    async with Runner("memory:", slots=4) as runner:
        result = await runner.execute(flow_of(wait_for_approval), {"job_id": 7})
    assert result["held"] is True
    assert asked == [7, 7, 7, 7]
    assert clock.now() - begin == 30_000


@virtual_test
async def test_the_picture_of_seed_000():
    """4 slots: A-D defer, E-H run in their slots, A-D resume; an unrelated run is not delayed."""
    log = []
    is_open = asyncio.Event()
    loop = asyncio.get_running_loop()

    @task
    async def waits(context, handle):
        log.append(f"{context['name']} defers")
        await handle.defer_until(is_open.is_set, poll_interval=1)
        log.append(f"{context['name']} resumes")
        await asyncio.sleep(1)

    @task
    async def works(context):
        log.append(f"{context['name']} works")
        await asyncio.sleep(5)
        log.append(f"{context['name']} done")

    waiting, working = flow_of(waits, name="waiting"), flow_of(works, name="working")
    async with Runner("memory:", slots=4) as runner:
        with SlotWatch(runner) as slots:
            first = [await runner.start(waiting, {"name": name}) for name in "ABCD"]
            await settled_down()
            assert slots.held == 0
            second = [await runner.start(working, {"name": name}) for name in "EFGH"]
            begin = loop.time()
            await asyncio.gather(*(run.result() for run in second))
            assert loop.time() - begin == pytest.approx(5, abs=0.01)
            begin = loop.time()
            await runner.execute(working, {"name": "unrelated"})
            assert loop.time() - begin == pytest.approx(5, abs=0.01)
            is_open.set()
            await asyncio.gather(*(run.result() for run in first))
            slots.assert_never_more_than(4)
            assert slots.peak == 4
            await settled_down()
            slots.assert_none_held()
    assert log[:8] == [
        *(f"{name} defers" for name in "ABCD"),
        *(f"{name} works" for name in "EFGH"),
    ]
    assert log[-4:] == [f"{name} resumes" for name in "ABCD"]


@virtual_test
async def test_a_condition_that_holds_already_costs_neither_time_nor_slot():
    """First one check with the slot held: if it holds, return at once."""
    seen = []

    @task
    async def gate(context, handle):
        def condition():
            seen.append(handle.is_slot_held())
            return "yes"

        await handle.defer_until(condition, poll_interval=60)

    clock = current_clock()
    begin = clock.now()
    async with Runner("memory:") as runner:
        with SlotWatch(runner) as slots:
            await runner.execute(flow_of(gate))
            assert [held for _, held in slots.history] == [0, 1, 0]
    assert seen == [True]
    assert clock.now() == begin


@virtual_test
async def test_the_sequence_check_deferred_release_sleep_check_reclaim_active():
    """Slot held at the first check, released for the others, held again afterwards."""
    held = []
    answers = iter([False, False, True])

    @task
    async def gate(context, handle):
        def condition():
            held.append(handle.is_slot_held())
            return next(answers)

        await handle.defer_until(condition, poll_interval=timedelta(seconds=2))
        held.append(handle.is_slot_held())

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(gate))
        await asyncio.sleep(1)
        seen = await look(run, "gate")
        assert (seen.status, seen.sub_status, seen.parked_in) == ("Running", "Deferred", "memory")
        assert seen.waiting_on is not None
        assert seen.waiting_on.kind == "condition"
        assert "condition" in seen.waiting_on.sentence
        await run.result()
        seen = await look(run, "gate")
        assert (seen.status, seen.sub_status, seen.waiting_on) == ("Completed", None, None)
    assert held == [True, False, False, True]


@virtual_test
async def test_deferred_is_visible_before_its_slot_is_free():
    """Whoever runs in the freed slot finds its predecessor Deferred, in the store too."""
    seen = []

    @task
    async def first(context, handle):
        await handle.defer_until(lambda: bool(seen), poll_interval=1)

    @task
    async def second(context):
        run = await runner.get("one")
        seen.append((await look(run, "first")).sub_status)

    async with Runner("memory:", slots=1) as runner:
        run = await runner.start(flow_of(first, name="a"), run_id="one")
        await runner.execute(flow_of(second, name="b"))
        await run.result()
    assert seen == ["Deferred"]


@virtual_test
async def test_woken_without_a_slot_it_waits_for_one(tmp_path):
    """`sub_status` stays Deferred and `waiting_on.kind` is slot: in the status and in the view."""
    is_open = asyncio.Event()

    @task
    async def gate(context, handle):
        await handle.defer_until(is_open.is_set, poll_interval=1)

    @task
    async def blocker(context):
        await asyncio.sleep(100)

    async with Runner(f"sqlite:{tmp_path / 'a.db'}", slots=1) as runner:
        run = await runner.start(flow_of(gate, name="a"))
        await settled_down()
        other = await runner.start(flow_of(blocker, name="b"))
        is_open.set()
        await asyncio.sleep(10)
        seen = await look(run, "gate")
        assert (seen.status, seen.sub_status) == ("Running", "Deferred")
        assert seen.waiting_on is not None
        assert seen.waiting_on.kind == "slot"
        (row,) = [row for row in rows(tmp_path / "a.db") if row["name"] == "a/gate"]
        assert (row["state"], row["sub_status"]) == ("acquired", "Deferred")
        assert '"kind":"slot"' in row["waiting_on"]
        await asyncio.gather(run.result(), other.result())


@virtual_test
async def test_slots_are_reclaimed_first_come_first_served():
    """Who woke first resumes first, whoever parked first."""
    loop = asyncio.get_running_loop()
    resumed = []
    wakes_at = {"a": 30, "b": 10, "c": 20}

    @task
    async def gate(context, handle):
        name = context["name"]
        await handle.defer_until(lambda: loop.time() >= begin + wakes_at[name], poll_interval=1)
        resumed.append(name)
        await asyncio.sleep(1)

    @task
    async def blocker(context):
        await asyncio.sleep(100)

    async with Runner("memory:", slots=1) as runner:
        begin = loop.time()
        runs = [await runner.start(flow_of(gate, name="g"), {"name": name}) for name in "abc"]
        await asyncio.sleep(0.1)
        runs.append(await runner.start(flow_of(blocker, name="b")))
        await asyncio.gather(*(run.result() for run in runs))
    assert resumed == ["b", "c", "a"]


BAD_CALLS = [
    ({"poll_interval": 1, "poll_interval_ms": 1000}, UsageError, "not both"),
    ({"poll_interval": -1}, UsageError, "negative"),
    ({"poll_interval_ms": -5}, UsageError, "negative"),
    ({"poll_interval": 0}, UsageError, "positive"),
    ({"poll_interval": timedelta(0)}, UsageError, "positive"),
    ({"poll_interval": "1s"}, UsageError, "seconds"),
    ({"timeout": -1}, UsageError, "negative"),
    ({"backoff": 0.5}, UsageError, "backoff"),
    ({"jitter": 2}, UsageError, "jitter"),
    ({"max_errors": -1}, UsageError, "max_errors"),
    ({"poll_interval": 5, "max_interval": 1}, UsageError, "max_interval"),
    ({"wake": object()}, TypeError, "wake"),
    ({"key": ""}, UsageError, "key"),
    ({"key": 7}, UsageError, "key"),
    ({"condition": True}, TypeError, "callable"),
]


@pytest.mark.parametrize(("options", "kind", "told"), BAD_CALLS)
@virtual_test
async def test_a_bad_call_raises_at_once_even_if_the_condition_holds(options, kind, told):
    """Before anything is asked, and with the slot held."""
    seen = []

    @task
    async def gate(context, handle):
        with pytest.raises(kind, match=told):
            await handle.defer_until(**{"condition": lambda: seen.append(1) or True, **options})
        assert handle.is_slot_held()

    async with Runner("memory:") as runner:
        await runner.execute(flow_of(gate))
    assert seen == []


@virtual_test
async def test_a_handle_kept_after_its_task_ended_is_refused():
    """Every call names the task and says what is wrong."""
    kept = []

    @task
    async def gives_away(context, handle):
        kept.append(handle)

    async with Runner("memory:") as runner:
        await runner.execute(flow_of(gives_away), run_id="r")
        (handle,) = kept
        calls = [
            lambda: handle.defer_until(lambda: True),
            lambda: handle.sleep(1),
            lambda: handle.wait_for("p"),
            lambda: handle.promise("p"),
            lambda: handle.checkpoint("k", lambda: 1),
            handle.yield_slot,
        ]
        for call in calls:
            with pytest.raises(UsageError, match=r"run/r:gives_away.*after the task had ended"):
                await call()
        with pytest.raises(UsageError, match="after the task had ended"):
            handle.progress(0.5)
        assert handle.is_slot_held() is False


@pytest.mark.parametrize("max_errors", [0, 1, 3])
@virtual_test
async def test_a_condition_that_raises_is_tolerated_then_a_condition_error(max_errors):
    """The first check counts; the error is raised with the slot held, its cause kept."""
    calls = []

    @task
    async def gate(context, handle):
        def broken():
            calls.append(1)
            raise OSError("no route")

        with pytest.raises(ConditionError, match=r"broken.*no route") as caught:
            await handle.defer_until(broken, poll_interval=1, max_errors=max_errors)
        assert isinstance(caught.value.__cause__, OSError)
        assert handle.is_slot_held()

    async with Runner("memory:") as runner:
        await runner.execute(flow_of(gate))
    assert len(calls) == max_errors + 1


@virtual_test
async def test_errors_of_a_condition_are_shown_from_the_first_check_on():
    """`waiting_on.last_error` names it; a good answer clears it."""
    state = {"broken": True}

    @task
    async def gate(context, handle):
        def condition():
            if state["broken"]:
                raise OSError("no route")
            return False

        await handle.defer_until(condition, poll_interval=10)

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(gate))
        await asyncio.sleep(1)
        waiting_on = (await look(run, "gate")).waiting_on
        assert waiting_on is not None
        assert waiting_on.last_error == "OSError: no route"
        assert (waiting_on.polls, waiting_on.next_poll_at) == (0, runner.now() + 9000)
        state["broken"] = False
        await asyncio.sleep(10)
        waiting_on = (await look(run, "gate")).waiting_on
        assert waiting_on is not None
        assert (waiting_on.last_error, waiting_on.polls) == (None, 1)
        await run.cancel()


@virtual_test
async def test_a_timeout_checks_once_more_and_raises_with_the_slot_held():
    """The last check is at the deadline; the wait's deadline is shown meanwhile."""
    asked = []

    @task
    async def gate(context, handle):
        loop = asyncio.get_running_loop()
        begin = loop.time()

        def condition():
            asked.append(round(loop.time() - begin, 3))

        with pytest.raises(DeferTimeout, match=r"condition.*25 s"):
            await handle.defer_until(condition, poll_interval=10, timeout=25)
        assert handle.is_slot_held()

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(gate))
        begin = runner.now()
        await asyncio.sleep(1)
        waiting_on = (await look(run, "gate")).waiting_on
        assert waiting_on is not None
        assert waiting_on.deadline == begin + 25_000
        await run.result()
    assert asked == [0, 10, 20, 25]


@virtual_test
async def test_what_came_true_at_the_deadline_is_no_timeout():
    """The last check decides; waiting for the slot afterwards does not count."""
    loop = asyncio.get_running_loop()

    @task
    async def gate(context, handle):
        begin = loop.time()
        condition = lambda: loop.time() - begin > 24  # noqa: E731 - looks are at 10, 20 and 25
        await handle.defer_until(condition, poll_interval=10, timeout=25)

    @task
    async def blocker(context):
        await asyncio.sleep(500)

    async with Runner("memory:", slots=1) as runner:
        run = await runner.start(flow_of(gate, name="a"))
        await settled_down()
        other = await runner.start(flow_of(blocker, name="b"))
        await asyncio.gather(run.result(), other.result())


@pytest.mark.parametrize("event", [asyncio.Event, threading.Event], ids=["asyncio", "threading"])
@virtual_test
async def test_a_wake_event_makes_it_look_at_once(event):
    """Not at the next poll, an hour away."""
    wake, is_open = event(), []
    clock = current_clock()

    @task
    async def gate(context, handle):
        await handle.defer_until(lambda: bool(is_open), poll_interval=3600, wake=wake)
        return {"at": clock.now()}

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(gate))
        await asyncio.sleep(5)
        is_open.append(1)
        at = clock.now()
        wake.set()
        assert (await run.result())["at"] == at


@virtual_test
async def test_cancel_while_parked_does_not_reclaim():
    """A cancelled body ends at once although no slot is free; its finally block runs."""
    ended = []

    @task
    async def gate(context, handle):
        try:
            await handle.defer_until(lambda: False, poll_interval=1)
        finally:
            ended.append(handle.is_slot_held())

    @task
    async def blocker(context):
        await asyncio.sleep(1000)

    async with Runner("memory:", slots=1) as runner:
        run = await runner.start(flow_of(gate, name="a"), run_id="a")
        await settled_down()
        other = await runner.start(flow_of(blocker, name="b"))
        await asyncio.sleep(5)
        with SlotWatch(runner) as slots:
            begin = runner.now()
            await run.cancel()
            await settled_down()
            assert ended == [False]
            assert runner.now() == begin
            assert slots.history == [(begin, 1)]
        await other.result()


@pytest.mark.parametrize("is_woken", [False, True])
@virtual_test
async def test_a_timeout_of_the_users_own_gives_the_slot_back_before_the_body_goes_on(is_woken):
    """`asyncio.timeout` around a wait, also while it stands in line: no body without its slot."""
    held = []

    @task
    async def gate(context, handle):
        answers = iter([False])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await handle.defer_until(lambda: next(answers, is_woken), poll_interval=1)
        held.append(handle.is_slot_held())
        await handle.sleep(1)

    @task
    async def blocker(context):
        await asyncio.sleep(100)

    async with Runner("memory:", slots=1) as runner:
        with SlotWatch(runner) as slots:
            run = await runner.start(flow_of(gate, name="a"))
            await settled_down()
            other = await runner.start(flow_of(blocker, name="b"))
            await asyncio.gather(run.result(), other.result())
            slots.assert_never_more_than(1)
    assert held == [True]


@virtual_test
async def test_two_waits_one_after_the_other_and_locals_intact():
    """Several defers in one body; what it knew before it knows afterwards."""

    @task
    async def gate(context, handle):
        local = object()
        before = id(local)
        for turn in range(3):
            answers = iter([False, True])
            await handle.defer_until(lambda answers=answers: next(answers), poll_interval=1)
            assert id(local) == before, turn

    async with Runner("memory:") as runner:
        await runner.execute(flow_of(gate))


@virtual_test
async def test_a_failing_body_after_a_wait_gives_its_slot_back():
    """The slot returns on every path."""

    @task
    async def gate(context, handle):
        answers = iter([False, True])
        await handle.defer_until(lambda: next(answers), poll_interval=1)
        raise OSError("late")

    async with Runner("memory:", slots=1) as runner:
        with SlotWatch(runner) as slots:
            with pytest.raises(RunFailed, match="late"):
                await runner.execute(flow_of(gate))
            slots.assert_none_held()


@virtual_test
async def test_a_handle_of_a_slot_token_alone_needs_no_store():
    """Seed 001: `TaskHandle(slot_token)`; only durable calls are refused, with the reason."""
    pool = SlotPool(1)
    token = await pool.acquire()
    handle = TaskHandle(token)
    answers = iter([False, False, True])
    free = []

    def condition():
        free.append(pool.free)
        return next(answers)

    await handle.defer_until(condition, poll_interval=5)
    assert free == [0, 1, 1]
    assert handle.is_slot_held()
    await handle.sleep(10)
    await handle.yield_slot()
    handle.progress(0.5, "half")
    assert (handle.try_number, handle.task_execution_id, handle.is_cancelled) == (1, None, False)
    for call in (handle.wait_for("p"), handle.promise("p"), handle.checkpoint("k", int)):
        with pytest.raises(UsageError, match="no store"):
            await call
    with pytest.raises(DeferTimeout):
        await handle.defer_until(lambda: False, poll_interval=1, timeout=3)
    assert pool.held == 1
