"""Replay keys: what a task has durably done is not done again, and changed code is told so."""

import asyncio
import re

import pytest
from msgspec.structs import replace

from layby import ConditionError, DeferTimeout, ReplayMismatch, RunFailed, Runner, UsageError, task
from layby.core.replies import AnnotateData
from layby.testing import SlotWatch, virtual_test
from tests.helpers.workers import crashing, flow_of, look, promises, settled_down, until


@virtual_test
async def test_a_crash_repeats_neither_checkpoints_nor_completed_waits(tmp_path):
    """The next life reads the records; `defer_until` that had not ended parks again."""
    address = f"sqlite:{tmp_path / 'a.db'}"
    log = []

    @task
    async def works(context, handle):
        log.append("body")
        context["kept"] = await handle.checkpoint("k", lambda: log.append("checkpoint") or 7)
        answers = iter([False, True])

        def first():
            log.append("first")
            return next(answers)

        await handle.defer_until(first, poll_interval=1)
        await handle.defer_until(lambda: log.append("at once") or True)
        context["got"] = await handle.wait_for("paid")

        def second():
            log.append("second")
            return len(log) > 20

        await handle.defer_until(second, poll_interval=1)

    flow = flow_of(works)
    async with crashing(address) as runner:
        await runner.start(flow, run_id="r")
        await asyncio.sleep(5)
        await runner.resolve("paid", 5)
        await asyncio.sleep(1.5)
    assert log == ["body", "checkpoint", "first", "first", "at once", "second", "second"]
    log.clear()
    async with Runner(address) as runner:
        runner.register(flow)
        await asyncio.sleep(1.5)
        assert log == ["body", "second", "second"]
        run = await runner.get("r")
        seen = await look(run, "works")
        assert (seen.sub_status, seen.crashes, seen.try_number) == ("Deferred", 0, 2)
        result = await run.result()
        assert result.to_dict() == {"kept": 7, "got": 5}
        assert [each.why for each in (await look(run, "works")).tries] == ["first", "recovered"]


@virtual_test
async def test_after_a_crash_a_sleep_ends_when_it_would_have_ended(tmp_path):
    """Also one whose time passed while nobody was there."""
    address = f"sqlite:{tmp_path / 'a.db'}"

    @task
    async def works(context, handle):
        await handle.sleep(10)
        ended.append(runner.now())
        await handle.sleep(100)
        ended.append(runner.now())

    ended = []
    flow = flow_of(works)
    async with crashing(address) as runner:
        begin = runner.now()
        await runner.start(flow, run_id="r")
        await asyncio.sleep(40)
    assert ended == [begin + 10_000]
    async with crashing(address) as runner:
        runner.register(flow)
        await asyncio.sleep(20)
    assert ended == [begin + 10_000, begin + 40_000]
    await asyncio.sleep(500)
    async with Runner(address) as runner:
        runner.register(flow)
        await (await runner.get("r")).result()
        assert runner.now() == begin + 560_000


@virtual_test
async def test_a_wait_that_timed_out_does_so_in_every_life(tmp_path):
    """The body took another way then; it must take it again, whatever has settled since."""
    address = f"sqlite:{tmp_path / 'a.db'}"

    def broken():
        raise OSError("no route")

    @task
    async def works(context, handle):
        way = []
        for wait, kind in (
            (handle.wait_for("paid", timeout=5), DeferTimeout),
            (handle.defer_until(lambda: False, poll_interval=1, timeout=5), DeferTimeout),
            (handle.defer_until(broken, poll_interval=1, max_errors=2), ConditionError),
        ):
            begin = runner.now()
            with pytest.raises(kind) as caught:
                await wait
            way.append(str(caught.value))
            spent.append(runner.now() - begin)
        ways.append(way)
        await handle.wait_for("go on")

    ways, spent = [], []
    flow = flow_of(works)
    async with crashing(address) as runner:
        await runner.start(flow, run_id="r")
        await asyncio.sleep(60)
        await runner.resolve("paid", 5)
    assert spent == [5_000, 5_000, 2_000]
    async with Runner(address) as runner:
        runner.register(flow)
        await asyncio.sleep(1)
        assert spent[3:] == [0, 0, 0]
        assert ways[0] == ways[1]
        await runner.resolve("go on")
        await (await runner.get("r")).result()


@virtual_test
async def test_a_failed_try_clears_waits_and_keeps_checkpoints():
    """The next try waits anew, from its own beginning; what was computed once stays."""
    log = []

    @task(retries=1)
    async def works(context, handle):
        await handle.checkpoint("k", lambda: log.append("checkpoint"))
        begin = runner.now()
        await handle.sleep(10)
        answers = iter([False, True])
        await handle.defer_until(lambda: next(answers), poll_interval=1)
        log.append(runner.now() - begin)
        if handle.try_number == 1:
            raise OSError("once")

    async with Runner("memory:") as runner:
        await runner.execute(flow_of(works))
    assert log == ["checkpoint", 11_000, 11_000]


@virtual_test
async def test_waiting_does_not_eat_the_retry_budget(tmp_path):
    """Crashes and hand-backs are tries but no failures."""
    address = f"sqlite:{tmp_path / 'a.db'}"

    @task(retries=1)
    async def works(context, handle):
        await handle.sleep(100)
        if (await look(await runner.get("r"), "works")).failures == 0:
            raise OSError("once")

    flow = flow_of(works)
    async with crashing(address) as runner:
        await runner.start(flow, run_id="r")
        await asyncio.sleep(1)
    async with Runner(address) as runner:
        runner.register(flow)
        await asyncio.sleep(1)
    async with Runner(address) as runner:
        runner.register(flow)
        run = await runner.get("r")
        await run.result()
        seen = await look(run, "works")
        assert (seen.try_number, seen.failures, seen.crashes) == (4, 1, 0)


CHANGES = {
    "sleep": (
        lambda handle: handle.sleep(60),
        lambda handle: handle.sleep(61),
        [r"sleep\(60\)", r"sleep\(61\)"],
    ),
    "key": (
        lambda handle: handle.sleep(60, key="x"),
        lambda handle: handle.wait_for("p", key="x"),
        [r"sleep\(60\)", r"wait_for\(\"p\"\)"],
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@virtual_test
async def test_changed_code_under_the_same_key_is_told_with_both_calls(change, tmp_path):
    """Instead of going on with what was meant for another call."""
    address = f"sqlite:{tmp_path / 'a.db'}"
    before, after, told = CHANGES[change]
    call = before

    @task
    async def works(context, handle):
        await call(handle)

    flow = flow_of(works)
    async with crashing(address) as runner:
        await runner.start(flow, run_id="r")
        await asyncio.sleep(1)
    call = after
    async with Runner(address) as runner:
        runner.register(flow)
        await asyncio.sleep(100)
        waiting = (await look(await runner.get("r"), "works")).waiting_on
    assert waiting is not None
    assert waiting.kind == "code"
    for each in (*told, "key="):
        assert re.search(each, waiting.sentence)


@virtual_test
async def test_a_checkpoint_with_other_arguments_is_a_mismatch():
    """Also in the same body: one key is one call."""

    @task
    async def works(context, handle):
        await handle.checkpoint("k", lambda x: x, 1)
        with pytest.raises(ReplayMismatch, match=r"checkpoint\(2\).*checkpoint\(1\)"):
            await handle.checkpoint("k", lambda x: x, 2)

    async with Runner("memory:") as runner:
        await runner.execute(flow_of(works))


@virtual_test
async def test_unkeyed_calls_at_the_same_time_raise_and_keyed_ones_may():
    """Their numbers would depend on chance; the error says what to write."""

    @task
    async def works(context, handle):
        first = asyncio.create_task(handle.sleep(10))
        await asyncio.sleep(1)
        with pytest.raises(UsageError, match=r"sleep\(\) was called while sleep\(\).*key="):
            await handle.sleep(10)
        with pytest.raises(UsageError, match=r"wait_for\(\) was called while sleep\(\).*key="):
            await handle.wait_for("p")
        await handle.sleep(1, key="mine")
        await first
        await handle.sleep(1)

    async with Runner("memory:") as runner:
        await runner.execute(flow_of(works))


@virtual_test
async def test_overlapping_waits_share_the_slot():
    """Whoever goes on has it, and it is free in between; what is shown is what still waits."""
    log = []

    @task
    async def works(context, handle):
        async def one(seconds):
            await handle.sleep(seconds, key=f"s{seconds}")
            log.append((seconds, handle.is_slot_held()))

        await asyncio.gather(*map(one, (5, 10, 15)))
        log.append(handle.is_slot_held())

    async with Runner("memory:", slots=1) as runner:
        with SlotWatch(runner) as slots:
            run = await runner.start(flow_of(works))
            begin = runner.now()
            for at, deadline in ((1, 5), (7, 10), (12, 15)):
                await asyncio.sleep(at - (runner.now() - begin) / 1000)
                seen = await look(run, "works")
                assert seen.sub_status == "Deferred"
                assert seen.waiting_on is not None
                assert seen.waiting_on.deadline == begin + deadline * 1000
                assert slots.held == 0
            await run.result()
            assert [held for _, held in slots.history] == [0, 1, 0, 1, 0, 1, 0, 1, 0]
    assert log == [(5, True), (10, True), (15, True), True]


@virtual_test
async def test_overlapping_waits_are_recorded_each_when_it_ends(tmp_path):
    """A crash while the last still waits does not bring the others back."""
    address = f"sqlite:{tmp_path / 'a.db'}"
    log = []

    @task
    async def works(context, handle):
        async def one(name, at):
            def condition():
                log.append(name)
                return runner.now() >= at * 1000 + begin

            await handle.defer_until(condition, poll_interval=10, key=name)

        await asyncio.gather(one("a", 10), one("b", 60))

    flow = flow_of(works)
    async with crashing(address) as runner:
        begin = runner.now()
        await runner.start(flow, run_id="r")
        await asyncio.sleep(15)
    log.clear()
    async with Runner(address) as runner:
        runner.register(flow)
        await (await runner.get("r")).result()
    assert set(log) == {"b"}


@virtual_test
async def test_the_first_of_two_waits_withdraws_the_loser():
    """`asyncio.wait(FIRST_COMPLETED)` and a cancel: the body goes on with its slot."""

    @task
    async def works(context, handle):
        fast = asyncio.create_task(handle.sleep(5, key="fast"))
        slow = asyncio.create_task(handle.wait_for("never", key="slow"))
        await asyncio.wait([fast, slow], return_when=asyncio.FIRST_COMPLETED)
        slow.cancel()
        await asyncio.wait([slow])
        context["held"] = handle.is_slot_held()
        await handle.sleep(1)

    async with Runner("memory:", slots=1) as runner:
        with SlotWatch(runner) as slots:
            result = await runner.execute(flow_of(works))
            slots.assert_never_more_than(1)
            slots.assert_none_held()
        watches = runner.engine._watches
        watches.drop_abandoned()  # as the engine does now and then
        assert len(watches) == 0
    assert result["held"] is True


@virtual_test
async def test_waits_that_begin_while_another_stands_in_line():
    """The token never stands in line twice, and everything ends with the slot held."""

    @task
    async def works(context, handle):
        async def chain(name, *pauses):
            for number, pause in enumerate(pauses):
                await handle.sleep(pause, key=f"{name}{number}")

        await asyncio.gather(chain("a", 1, 1, 1, 1), chain("b", 2, 2), chain("c", 1, 2, 1))
        context["held"] = handle.is_slot_held()

    @task
    async def blocker(context):
        await asyncio.sleep(1.5)

    async with Runner("memory:", slots=1) as runner:
        with SlotWatch(runner) as slots:
            runs = [await runner.start(flow_of(works, name="w")) for _ in range(3)]
            runs += [await runner.start(flow_of(blocker, name="b")) for _ in range(10)]
            results = await asyncio.gather(*(run.result() for run in runs))
            slots.assert_never_more_than(1)
    assert [result.get("held") for result in results[:3]] == [True] * 3


@virtual_test
async def test_records_stand_below_their_task_and_go_by_failures():
    """Nothing of one task is found by another with a similar name."""

    @task(id="a")
    async def one(context, handle):
        await handle.checkpoint("k", lambda: "one")
        await handle.sleep(1)

    @task(id="a.b")
    async def other(context, handle):
        context["kept"] = await handle.checkpoint("k", lambda: "other")

    async with Runner("memory:") as runner:
        result = await runner.execute(flow_of(one, other), run_id="r")
        assert result["kept"] == "other"
        assert {"run/r:a.c.checkpoint.k", "run/r:a.w0.sleep-1", "run/r:a.b.c.checkpoint.k"} < set(
            promises(runner)
        )


@virtual_test
async def test_a_store_outage_while_parked_is_waited_out(tmp_path):
    """What could not be told is told again: Deferred is seen and the end is recorded."""
    is_out, log = [], []

    @task
    async def works(context, handle):
        await asyncio.sleep(1)
        is_out.append(1)
        answers = iter([False, True])
        await handle.defer_until(lambda: next(answers), poll_interval=10)
        context["kept"] = await handle.checkpoint("k", lambda: log.append(1) or 7)
        await handle.sleep(5)

    async with Runner("memory:") as runner:
        store = runner.engine._store
        save = store.save

        def failing(*args, **kwargs):
            if is_out:
                from layby.errors import StoreUnavailable

                raise StoreUnavailable("disk full")
            return save(*args, **kwargs)

        store.save = failing
        run = await runner.start(flow_of(works), run_id="r")
        await asyncio.sleep(3)
        assert (await look(run, "works")).sub_status == "Active"
        is_out.clear()
        await asyncio.sleep(3)
        assert (await look(run, "works")).sub_status == "Deferred"
        await asyncio.sleep(2)
        is_out.append(1)
        await asyncio.sleep(10)
        assert (await look(run, "works")).sub_status == "Deferred"
        is_out.clear()
        assert (await run.result())["kept"] == 7
        assert log == [1]
        assert "run/r:works.w0.defer_until-1" in promises(runner)


@virtual_test
async def test_an_idle_handle_costs_no_write():
    """A body that never waits tells nothing: start, finish, conclude."""

    @task
    async def works(context, handle):
        await asyncio.sleep(5)

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(works))
        await settled_down()
        before = runner.engine.commits
        await until(lambda: runner.now() > 0)
        await asyncio.sleep(4)
        assert runner.engine.commits == before
        await run.result()


@virtual_test
async def test_an_answer_without_the_record_is_the_error_of_the_peer(monkeypatch):
    """Not a failed assertion in the code of a user."""

    @task
    async def works(context, handle):
        await handle.checkpoint("k", lambda: 1)

    async with Runner("memory:") as runner:
        client = runner.worker.client
        send = client.send

        async def forgetful(request):
            reply = await send(request)
            if isinstance(reply.data, AnnotateData):
                return replace(reply, data=replace(reply.data, record=None))
            return reply

        monkeypatch.setattr(client, "send", forgetful)
        run = await runner.start(flow_of(works), run_id="r")
        with pytest.raises(RunFailed, match=r"WireError.*record is missing"):
            await run.result()
