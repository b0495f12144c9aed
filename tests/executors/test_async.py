import asyncio
import gc
import threading

import pytest

from layby.executors import (
    AsyncTaskExecutor,
    AsyncTaskExecutorConfig,
    CancellationSource,
    HealthEventSink,
    SlotPool,
    TaskCompletion,
    TaskExecutorConfig,
    ThreadSlotPool,
)
from tests.helpers.waiting import PATIENCE, ManualClock, assert_identities, settled


def run(scenario):
    async def limited():
        async with asyncio.timeout(PATIENCE):
            return await scenario()

    return asyncio.run(limited())


def fail(text):
    raise RuntimeError(text)


def make(pool=None, **config):
    discards = []
    executor = AsyncTaskExecutor(
        AsyncTaskExecutorConfig(**config),
        pool=pool,
        on_discard=lambda *args: discards.append(args),
    )
    return executor, discards


class Body:
    """A body the test leads step by step: park, resume, end."""

    def __init__(self, executor, name="", **submit):
        self.name = name
        self.events = []
        self._steps = asyncio.Queue()
        self.submission = executor.submit(self.run, parks=True, **submit)

    @property
    def task_id(self):
        return self.submission.task_id

    async def run(self, token):
        self.events.append("started")
        while True:
            step = await self._steps.get()
            if step == "park":
                assert token.release()
            elif step == "resume":
                await token.reclaim()
            else:
                return step()
            self.events.append(step)

    async def tell(self, step):
        self._steps.put_nowait(step)
        await settled()

    async def end(self, payload=None):
        await self.tell(lambda: payload)


def counts(executor):
    metrics = executor.metrics()
    assert_identities(metrics)
    return metrics.queue_depth, metrics.active_count, metrics.parked_count


def test_plain_and_async_work_run_on_the_loop():
    """A coroutine function, a plain one, and one that returns an awaitable."""

    async def scenario():
        executor, _ = make(max_inflight=3)

        async def coroutine():
            await asyncio.sleep(0)
            return "a"

        executor.submit(coroutine)
        executor.submit(lambda: "b")
        executor.submit(lambda: asyncio.sleep(0, "c"))
        assert executor.metrics().active_count == 3
        assert await executor.wait_for_idle()
        assert {done.payload for done in executor.run_ready()} == {"a", "b", "c"}
        assert executor.metrics().completed_count == 3

    run(scenario)


def test_submit_runs_nothing_by_itself():
    """No user code runs inside the caller's submit."""

    async def scenario():
        executor, _ = make()
        ran = []
        executor.submit(lambda: ran.append(1))
        assert ran == []
        await executor.wait_for_idle()
        assert ran == [1]

    run(scenario)


def test_a_parked_task_is_neither_active_nor_counted_against_admission():
    """K parked tasks free K slots and K places."""

    async def scenario():
        executor, _ = make(max_inflight=2)
        parked = []
        for _ in range(6):
            body = Body(executor)
            assert body.submission.accepted
            await body.tell("park")
            parked.append(body)
        assert counts(executor) == (0, 0, 6)
        assert executor.parked_count == 6
        assert (executor.pool.held, executor.pool.free) == (0, 2)
        assert [Body(executor).submission.accepted for _ in range(3)] == [True, True, False]
        assert executor.metrics().max_inflight_count == 2
        await executor.shutdown(timeout=0)

    run(scenario)


def test_resumed_and_new_work_share_one_line():
    """First come, first served, whoever it is."""

    async def scenario():
        executor, _ = make(max_inflight=1, queue_capacity=4)
        resumed = Body(executor)
        await resumed.tell("park")
        holder = Body(executor)
        before = Body(executor)
        await settled()
        await resumed.tell("resume")
        after = Body(executor)
        assert counts(executor) == (2, 1, 1)
        await holder.end()
        assert before.events == ["started"]
        assert resumed.events == ["started", "park"]
        await before.end()
        assert resumed.events == ["started", "park", "resume"]
        assert after.events == []
        await resumed.end()
        assert after.events == ["started"]
        await after.end()
        assert counts(executor) == (0, 0, 0)

    run(scenario)


def test_a_task_waiting_for_its_slot_is_still_parked():
    """It becomes active at the moment it is granted, not one turn later."""

    async def scenario():
        executor, _ = make(max_inflight=1, queue_capacity=1)
        body = Body(executor)
        await body.tell("park")
        token = await executor.pool.acquire()
        await body.tell("resume")
        assert counts(executor) == (0, 0, 1)
        token.release()
        assert counts(executor) == (0, 1, 0)
        await settled()
        await body.end("done")
        assert executor.run_ready()[0].payload == "done"

    run(scenario)


def test_a_body_may_end_while_parked():
    """It simply leaves; there is no slot to return."""

    async def scenario():
        executor, _ = make()
        body = Body(executor)
        await body.tell("park")
        await body.end("done")
        assert counts(executor) == (0, 0, 0)
        assert executor.run_ready() == [TaskCompletion(1, True, "done")]
        assert executor.pool.free == 1

    run(scenario)


def test_the_token_of_an_ended_task_is_of_no_use():
    """Neither release nor reclaim may touch a slot that is another's by now."""

    async def scenario():
        executor, _ = make()
        tokens = []
        executor.submit(tokens.append, parks=True)
        await executor.wait_for_idle()
        assert not tokens[0].release()
        with pytest.raises(RuntimeError, match="task 1 has ended"):
            await tokens[0].reclaim()
        assert (executor.pool.held, executor.pool.free) == (0, 1)

    run(scenario)


def test_release_and_reclaim_are_idempotent():
    """As for any token."""

    async def scenario():
        executor, _ = make()
        seen = []

        async def work(token):
            seen.append((token.is_held(), executor.pool.held))
            await token.reclaim()
            seen.append((token.release(), token.release(), token.is_held()))
            await token.reclaim()
            await token.reclaim()
            seen.append((token.is_held(), executor.pool.held))

        executor.submit(work, parks=True)
        await executor.wait_for_idle()
        assert executor.run_ready()[0].ok
        assert seen == [(True, 1), (True, False, False), (True, 1)]

    run(scenario)


def test_the_callback_comes_on_the_loop_before_counters_and_record():
    """As for threads: inside it the task is active and there is nothing to drain."""

    async def scenario():
        executor, _ = make()
        seen = []

        def callback(done):
            seen.append((done, threading.get_ident(), executor.metrics(), executor.run_ready()))

        executor.submit(lambda: 1, callback)
        await executor.wait_for_idle()
        ((done, ident, metrics, drained),) = seen
        assert ident == threading.get_ident()
        assert (metrics.active_count, metrics.completed_count, drained) == (1, 0, [])
        assert executor.run_ready() == [done]

    run(scenario)


def test_undrained_records_count_against_admission():
    """With the reason and the four numbers."""

    async def scenario():
        executor, _ = make(max_inflight=1, queue_capacity=1)
        sink = HealthEventSink()
        executor.set_health_event_sink(sink)
        executor.submit(lambda: 1)
        executor.submit(lambda: 2)
        await executor.wait_for_idle()
        assert executor.submit(lambda: 3).reason == "task executor completed backlog full"
        assert sink.snapshot()[0].attributes == {
            "pending_depth": "0",
            "active_count": "0",
            "completed_backlog_depth": "2",
            "admission_capacity": "2",
        }
        assert [done.payload for done in executor.run_ready(1)] == [1]
        assert executor.submit(lambda: 3).accepted

    run(scenario)


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("reject", "task executor queue full"),
        ("drop_newest", "task executor queue full"),
        ("block", "task executor queue full"),
        ("fail_fast", "task executor capacity exceeded"),
        ("drop_oldest", ""),
        ("overwrite", ""),
    ],
)
def test_overflow_policies(policy, reason):
    """The same table as everywhere."""

    async def scenario():
        executor, discards = make(max_inflight=1, queue_capacity=1, overflow=policy)
        holder, oldest = Body(executor), Body(executor)
        await settled()
        newest = Body(executor)
        assert newest.submission.reason == reason
        assert discards == ([] if reason else [(2, "task dropped to make room")])
        await holder.end()
        assert (newest if not reason else oldest).events == ["started"]
        assert (oldest if not reason else newest).events == []
        await executor.shutdown(timeout=0)

    run(scenario)


def test_without_kept_completions_only_callbacks_tell():
    """The worker's mode: no record, no draining."""

    async def scenario():
        executor = AsyncTaskExecutor(keep_completions=False)
        told = []
        for number in range(5):
            assert executor.submit(lambda number=number: number, told.append).accepted
            await executor.wait_for_idle()
        assert executor.run_ready() == []
        assert [done.payload for done in told] == [0, 1, 2, 3, 4]
        assert executor.metrics().max_outstanding_count == 1

    run(scenario)


def test_failures_become_records():
    """Whatever the body raises, SystemExit too."""

    async def scenario():
        executor, _ = make(queue_capacity=5)
        executor.submit(lambda: fail("boom"))
        executor.submit(lambda: (_ for _ in ()).throw(SystemExit("gone")))

        async def awaits_something_cancelled():
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future

        executor.submit(awaits_something_cancelled)
        await executor.wait_for_idle()
        records = executor.run_ready()
        assert [done.error for done in records] == ["boom", "gone", "CancelledError"]
        assert executor.metrics().failed_count == 3
        assert executor.pool.free == 1

    run(scenario)


def test_a_raising_callback_is_contained(caplog):
    """The record survives."""

    async def scenario():
        executor, _ = make()
        executor.submit(lambda: 1, lambda _done: fail("callback"))
        await executor.wait_for_idle()
        assert executor.run_ready()[0].payload == 1
        assert executor.metrics().callback_error_count == 1

    run(scenario)


@pytest.mark.parametrize("state", ["queued", "not yet begun", "running", "parked", "resuming"])
def test_one_task_can_be_cancelled_wherever_it_is(state):
    """It is discarded, its slot is free again, and no callback is called."""

    async def scenario():
        executor, discards = make(max_inflight=1, queue_capacity=2)
        called = []
        other = None
        if state == "queued":
            other = Body(executor)
            await settled()
        body = Body(executor, completion=called.append)
        if state != "not yet begun":
            await settled()
        if state in ("parked", "resuming"):
            await body.tell("park")
        if state == "resuming":
            other = Body(executor)
            await body.tell("resume")
        assert executor.cancel(body.task_id)
        await settled()
        assert not executor.cancel(body.task_id)
        assert discards == [(body.task_id, "task cancelled")]
        assert called == []
        assert executor.metrics().cancelled_count == 1
        if other:
            assert counts(executor) == (0, 1, 0)
            await other.end()
        assert counts(executor) == (0, 0, 0)
        assert (executor.pool.free, executor.pool.waiting) == (1, 0)

    run(scenario)


def test_a_task_cancelled_in_the_turn_it_is_granted_returns_the_slot():
    """The slot goes to the next in line."""

    async def scenario():
        executor, discards = make(max_inflight=1, queue_capacity=3)
        resuming = Body(executor)
        await resuming.tell("park")
        holder = Body(executor)
        await settled()
        await resuming.tell("resume")
        heir = Body(executor)
        await settled()
        holder._steps.put_nowait(lambda: None)
        while executor.metrics().parked_count:  # noqa: ASYNC110 - turn by turn, on purpose
            await asyncio.sleep(0)
        assert executor.cancel(resuming.task_id)  # granted, and not yet run again
        await settled()
        assert heir.events == ["started"]
        assert discards == [(1, "task cancelled")]
        assert counts(executor) == (0, 1, 0)
        await heir.end()

    run(scenario)


def test_a_body_may_refuse_to_be_cancelled():
    """Cancellation is cooperative; then it has completed."""

    async def scenario():
        executor, discards = make()

        async def stubborn():
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return "still here"

        executor.submit(stubborn)
        await settled()
        assert executor.cancel(1)
        await settled()
        assert executor.run_ready()[0].payload == "still here"
        assert discards == []
        assert_identities(executor.metrics())

    run(scenario)


def test_a_body_cancelled_by_others_is_accounted_for():
    """Even before its first step, when nothing of it ever runs."""

    async def scenario():
        executor, discards = make(max_inflight=2)
        Body(executor)
        await settled()
        Body(executor)
        for job in list(executor._jobs.values()):
            assert job.body is not None
            job.body.cancel()
        await settled()
        assert sorted(discards) == [(1, "task cancelled"), (2, "task cancelled")]
        assert counts(executor) == (0, 0, 0)
        assert executor.pool.free == 2

    run(scenario)


def test_cancel_pending_and_the_token_spare_running_and_parked_work():
    """Only what has not started is pending."""

    async def scenario():
        executor, discards = make(max_inflight=1, queue_capacity=4)
        parked = Body(executor)
        await parked.tell("park")
        active = Body(executor)
        await settled()
        Body(executor)
        assert executor.cancel_pending() == 1
        Body(executor)
        source = CancellationSource()
        source.request_cancel()
        assert executor.run_ready(cancel_token=source.token()) == []
        assert discards == [
            (3, "pending tasks cancelled"),
            (4, "pending tasks cancelled by token"),
        ]
        assert counts(executor) == (0, 1, 1)
        assert executor.metrics().cancellation_observed_count == 1
        assert executor.pool.waiting == 0
        await active.end()
        await parked.end()

    run(scenario)


def test_the_budget_excludes_parked_time():
    """A wait of an hour costs nothing of it."""

    async def scenario():
        clock = ManualClock()
        executor = AsyncTaskExecutor(
            TaskExecutorConfig(task_budget=1.0, max_inflight=2), clock=clock
        )
        patient, slow = Body(executor), Body(executor)
        await settled()
        clock.advance(0.5)
        await slow.tell("park")
        await patient.tell("park")
        clock.advance(3600)
        await patient.tell("resume")
        await slow.tell("resume")
        clock.advance(0.5)
        await patient.end()
        assert executor.metrics().timeout_budget_exceeded_count == 0
        clock.advance(0.1)
        await slow.end()
        assert executor.metrics().timeout_budget_exceeded_count == 1

    run(scenario)


def test_shutdown_drains_and_waits_for_parked_work():
    """Drain means all accepted work."""

    async def scenario():
        executor, _ = make(max_inflight=1, queue_capacity=2)
        parked = Body(executor)
        await parked.tell("park")
        executor.submit(lambda: 2)
        closing = asyncio.create_task(executor.shutdown())
        await settled()
        assert executor.submit(lambda: 3).reason == "task executor is shutting down"
        assert not closing.done()
        await parked.tell("resume")
        await parked.end()
        assert await closing
        assert len(executor.run_ready()) == 2
        assert await executor.shutdown()

    run(scenario)


@pytest.mark.parametrize("policy", ["cancel_pending", "cancel", "discard_pending"])
def test_shutdown_can_cancel_what_is_pending(policy):
    """Three names; what runs or is parked finishes."""

    async def scenario():
        executor, discards = make(max_inflight=1, queue_capacity=2, shutdown_policy=policy)
        body = Body(executor)
        await settled()
        Body(executor)
        closing = asyncio.create_task(executor.shutdown())
        await settled()
        assert discards == [(2, "task cancelled by shutdown")]
        await body.end()
        assert await closing

    run(scenario)


def test_shutdown_out_of_time_cancels_everything():
    """Queued, running and parked alike, and says so."""

    async def scenario():
        executor, discards = make(max_inflight=1, queue_capacity=2)
        await Body(executor).tell("park")
        Body(executor)
        Body(executor)
        await settled()
        assert not await executor.shutdown(timeout=0)
        assert sorted(discards) == [(number, "task cancelled by shutdown") for number in (1, 2, 3)]
        assert counts(executor) == (0, 0, 0)
        assert executor.pool.free == 1

    run(scenario)


def test_submit_async_waits_for_room():
    """Parking, draining and cancelling make room; each wakes the one who waits."""

    async def scenario():
        for make_room in ("park", "drain", "cancel"):
            executor, _ = make(max_inflight=1, overflow="block")
            body = Body(executor)
            await settled()
            waiting = asyncio.create_task(executor.submit_async(lambda: "late"))
            await settled()
            assert not waiting.done()
            if make_room == "park":
                await body.tell("park")
            elif make_room == "cancel":
                executor.cancel(body.task_id)
                await settled()
            else:
                await body.end()
                assert not waiting.done()
                assert len(executor.run_ready()) == 1
            assert (await waiting).accepted
            await executor.shutdown(timeout=0)

    run(scenario)


def test_who_waits_is_called_where_the_oldest_gives_way():
    """Room for two that wait; the third is admitted too, in the place of the oldest."""

    async def scenario():
        config = AsyncTaskExecutorConfig(max_inflight=2, queue_capacity=2, overflow="drop_oldest")
        executor = AsyncTaskExecutor(config, keep_completions=True)
        for _ in range(4):  # a backlog that nobody drains lets nobody in
            executor.submit(lambda: 1)
            await settled()
        gate = asyncio.Event()
        waiting = [asyncio.create_task(executor.submit_async(gate.wait)) for _ in range(4)]
        await settled()
        executor.run_ready(3)
        await settled()
        assert [each.done() for each in waiting] == [True] * 4
        assert executor.metrics().cancelled_count == 1
        gate.set()
        await executor.shutdown()

    asyncio.run(scenario())


def test_submit_async_is_refused_by_shutdown_and_by_fail_fast():
    """Waiting would be for nothing."""

    async def scenario():
        executor, _ = make(overflow="block")
        body = Body(executor)
        await settled()
        waiting = asyncio.create_task(executor.submit_async(lambda: 1))
        await settled()
        closing = asyncio.create_task(executor.shutdown())
        assert (await waiting).reason == "task executor is shutting down"
        await body.end()
        await closing
        hasty, _ = make(overflow="fail_fast")
        hasty.submit(lambda: 1)
        assert (await hasty.submit_async(lambda: 1)).reason == "task executor capacity exceeded"
        await hasty.shutdown()

    run(scenario)


def test_several_executors_on_one_pool():
    """Together they never hold more than the pool has, and each its share at most."""

    async def scenario():
        pool = SlotPool(3)
        one, _ = make(pool, max_inflight=1, queue_capacity=5)
        many, _ = make(pool, max_inflight=9)
        ones = [Body(one) for _ in range(3)]
        manys = [Body(many) for _ in range(4)]
        await settled()
        assert (counts(one), counts(many)) == ((2, 1, 0), (2, 2, 0))
        assert pool.held == 3
        await manys[0].end()
        await manys[1].end()
        assert (counts(one), counts(many)) == ((2, 1, 0), (0, 2, 0))
        await manys[2].end()
        assert (counts(one), pool.held) == ((2, 1, 0), 2)
        for body in ones:
            await body.end()
        assert [done.task_id for done in one.run_ready()] == [1, 2, 3]
        await manys[3].end()
        assert pool.free == 3

    run(scenario)


def test_the_heir_of_a_share_that_leaves_is_replaced():
    """One waits for the share, one for the slot; when that one is cancelled, the other moves up."""

    async def scenario():
        pool = SlotPool(2)
        executor, _ = make(pool, max_inflight=1, queue_capacity=3)
        holder, heir, last = Body(executor), Body(executor), Body(executor)
        await settled()
        stranger = await pool.acquire()
        another = asyncio.create_task(pool.acquire())
        await settled()
        await holder.end()  # its slot goes to the heir, who stands first
        assert heir.events == ["started"]
        await heir.tell("park")  # the slot is the last one's now
        assert last.events == ["started"]
        await heir.tell("resume")
        await last.tell("park")
        assert heir.events[-1] == "resume"
        await last.tell("resume")
        executor.cancel(heir.task_id)
        await settled()
        assert last.events[-1] == "resume"
        await last.end()
        assert counts(executor) == (0, 0, 0)
        stranger.release()
        (await another).release()
        assert pool.free == 2

    run(scenario)


def test_an_heir_cancelled_in_line_leaves_its_place_to_the_next():
    """Otherwise the share would stay unused, with nobody in line for it."""

    async def scenario():
        pool = SlotPool(2)
        executor, _ = make(pool, max_inflight=1, queue_capacity=3)
        holder, heir, last = Body(executor), Body(executor), Body(executor)
        stranger = await pool.acquire()
        pool.resize(1)  # so that the holder's slot goes to nobody
        await holder.tell("park")
        assert (heir.events, pool.waiting) == ([], 1)
        executor.cancel(heir.task_id)
        await settled()
        stranger.release()
        await settled()
        assert last.events == ["started"]
        await last.end()
        await holder.end()
        assert counts(executor) == (0, 0, 0)

    run(scenario)


def test_closing_the_pool_reaches_those_who_wait_for_the_share_too():
    """They stand in no line of the pool, so the executor has to tell them."""

    async def scenario():
        pool = SlotPool(2)
        executor, discards = make(pool, max_inflight=1, queue_capacity=5)
        holder = Body(executor)
        for _ in range(3):
            Body(executor)
        await settled()
        pool.close()
        await holder.end()
        await settled()
        assert discards == [(number, "slot pool closed") for number in (2, 3, 4)]
        assert counts(executor) == (0, 0, 0)

    run(scenario)


def test_closing_the_pool_ends_waiting_and_is_told():
    """Queued work is discarded, a resuming body hears PoolClosed, new work is refused."""

    async def scenario():
        pool = SlotPool(1)
        executor, discards = make(pool, max_inflight=1, queue_capacity=5)
        resuming = Body(executor)
        await resuming.tell("park")
        holder = Body(executor)
        await settled()
        await resuming.tell("resume")
        Body(executor)
        Body(executor)
        await settled()
        pool.close()
        await settled()
        await holder.end("held it")
        await settled()
        assert discards == [(3, "slot pool closed"), (4, "slot pool closed")]
        assert counts(executor) == (0, 0, 0)
        records = {done.task_id: done for done in executor.run_ready()}
        assert "slot pool is closed" in records[1].error
        assert records[2].payload == "held it"
        assert executor.submit(lambda: 1).reason == "slot pool closed"

    run(scenario)


def test_a_slot_found_by_the_collector_starts_queued_work():
    """Also when it is lost in another thread."""

    async def scenario():
        pool = SlotPool(1)
        executor, _ = make(pool, queue_capacity=1)
        lost = [await pool.acquire()]
        executor.submit(lambda: "ran")
        await settled()
        assert counts(executor) == (1, 0, 0)
        thread = threading.Thread(target=lost.clear)
        thread.start()
        thread.join()
        assert await executor.wait_for_idle(PATIENCE)
        assert executor.run_ready()[0].payload == "ran"

    run(scenario)


def test_a_slot_released_in_a_thread_starts_queued_work_on_the_loop():
    """Threads that share the pool hand slots over to the loop."""

    async def scenario():
        pool = SlotPool(1)
        executor, _ = make(pool, queue_capacity=1)
        token = ThreadSlotPool.sharing(pool).acquire()
        assert token is not None
        idents = []
        executor.submit(lambda: idents.append(threading.get_ident()))
        thread = threading.Thread(target=token.release)
        thread.start()
        thread.join()
        assert await executor.wait_for_idle(PATIENCE)
        assert idents == [threading.get_ident()]
        assert pool.free == 1

    run(scenario)


def test_a_slot_granted_by_a_thread_to_a_cancelled_wait_is_returned():
    """The grant comes between the cancel and the body's next step, and the body stays parked."""

    async def scenario():
        pool = SlotPool(1)
        executor, _ = make(pool)
        again = asyncio.Event()

        async def stubborn(token):
            token.release()
            await again.wait()
            try:
                await token.reclaim()
            except asyncio.CancelledError:
                await asyncio.get_running_loop().create_future()

        executor.submit(stubborn, parks=True)
        await settled()
        token = ThreadSlotPool.sharing(pool).acquire()
        assert token is not None
        again.set()
        await settled()
        assert pool.waiting == 1
        executor.cancel(1)
        thread = threading.Thread(target=token.release)
        thread.start()
        thread.join()
        await settled()
        assert counts(executor) == (0, 0, 1)
        assert pool.held == 0
        await executor.shutdown(timeout=0)

    run(scenario)


def test_contexts_of_tasks_are_their_own():
    """Each body is a task of its own, so context variables do not leak between them."""
    import contextvars

    variable = contextvars.ContextVar("variable", default="clean")

    async def scenario():
        executor, _ = make(max_inflight=1, queue_capacity=1)

        async def work():
            before = variable.get()
            variable.set("dirty")
            return before

        executor.submit(work)
        executor.submit(work)
        await executor.wait_for_idle()
        assert [done.payload for done in executor.run_ready()] == ["clean", "clean"]

    run(scenario)


def test_wait_for_idle_says_when_time_ran_out():
    """False, nobody left in the queue, and it can be asked again."""

    async def scenario():
        executor, _ = make()
        body = Body(executor)
        assert not await executor.wait_for_idle(timeout=0.01)
        await body.end()
        assert await executor.wait_for_idle()
        assert len(executor._waiting_for_idle) == 0

    run(scenario)


def test_ended_tasks_leave_nothing_behind():
    """No reference cycle keeps a job, its token or its work alive."""

    async def scenario():
        executor = AsyncTaskExecutor(keep_completions=False)
        gc.collect()
        gc.disable()
        try:
            for _ in range(50):
                executor.submit(lambda token: token.release(), parks=True)
                await executor.wait_for_idle()
            await settled()
            jobs = [thing for thing in gc.get_objects() if type(thing).__name__ == "AsyncJob"]
        finally:
            gc.enable()
        assert jobs == []

    run(scenario)
