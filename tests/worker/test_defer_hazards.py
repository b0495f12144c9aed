"""What goes wrong elsewhere when tasks are deferred, one test for each; the source is in it.

A13: hazards of Leoflow's ADR 0016, and B4: what users of Airflow complain about, both in
leoflow-and-airflow.md. A2: lost triggers and races, in users-and-reliability.md. What happens to
killed processes is in tests/runner/test_defer_chaos.py.
"""

import asyncio
import time
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any, ClassVar

import pytest

from layby import Retention, RunCancelled, RunFailed, Runner, Workflow, task, triggers
from layby.core import commands as c
from layby.core.invariants import check
from layby.core.queries import ExplainPromise
from layby.core.stats import GetStats
from layby.core.waits import shown_state
from layby.errors import UsageError
from layby.testing import virtual_test
from layby.trigger_manager.trigger_access import TriggerAccess
from layby.trigger_manager.trigger_manager import CAPACITY
from layby.workflow.why import find_why, told
from tests.helpers import requests as r
from tests.helpers.triggers import trigger_world
from tests.helpers.workers import crashing, flow_of, look, promises, rows, settled_down, until
from tests.helpers.worlds import World

DAY = 86_400
NODE = "run/a:a"
OWN = f"{NODE}.defer.1"

seen: list[Any] = []
"""What the functions below were given: they are found by their names."""


class Job(triggers.Trigger, frozen=True):
    """A job elsewhere: it ends when its number is in `done`."""

    number: int
    begun: ClassVar[list[int]] = []
    killed: ClassVar[list[int]] = []
    done: ClassVar[set[int]] = set()

    async def run(self) -> Any:
        self.begun.append(self.number)
        while self.number not in self.done:  # noqa: ASYNC110 - it asks elsewhere
            await asyncio.sleep(1)
        return {"job": self.number}

    async def on_cancel(self) -> None:
        self.killed.append(self.number)


class Unregistered(triggers.Trigger, frozen=True):
    async def run(self) -> Any:
        return True


class Broken(triggers.Trigger, frozen=True):
    async def run(self) -> Any:
        raise OSError("the service is off")


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    for each in (seen, Job.begun, Job.killed, Job.done):
        each.clear()


async def note(context: Any, handle: Any, event: Any) -> None:
    seen.append((handle.try_number, event))
    context["got"] = event


async def fail_once(context: Any, handle: Any, event: Any) -> None:
    seen.append((handle.try_number, event))
    if len(seen) == 1:
        raise ValueError("once")


def waiting_for(trigger: Any, **options: Any) -> Workflow:
    @task(id="job")
    async def job(context: Any, handle: Any) -> None:
        await handle.defer(trigger, resume=note, **options)

    return flow_of(job, name=f"waits-{repr(trigger).encode().hex()}")


async def why(runner: Runner, promise_id: str) -> str:
    """What `layby why` says."""

    async def ask(about: str) -> Any:
        return (await runner.send(ExplainPromise(id=about))).data

    found = await find_why(ask, promise_id, runner.now())
    assert found is not None
    return told(found, runner.now())


# --- A13: hazards of ADR 0016 ----------------------------------------------------------------


@virtual_test
async def test_a_resumed_try_uses_up_no_retry():
    """Leoflow: with retries=1, defer once, fail in try 2: no retry was left."""

    @task(retries=1)
    async def job(context, handle):
        await handle.defer(triggers.Delay(5), resume=fail_once)

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(job))
        await run.result()
        found = await look(run, "job")
    assert [number for number, _ in seen] == [2, 4]
    assert (found.try_number, found.failures) == (4, 1)


@virtual_test
async def test_a_resume_is_a_row_of_tries_and_not_another_task(tmp_path):
    """Leoflow: a new row for each resume, and updates by run and task that hit all of them."""
    file = tmp_path / "a.db"

    @task
    async def job(context, handle):
        for _ in range(3):
            await handle.defer(triggers.Delay(60))

    async with Runner(f"sqlite:{file}") as runner:
        run = await runner.start(flow_of(job), run_id="r")
        await run.result()
    assert len(rows(file, "SELECT * FROM task_executions WHERE id = 'run/r:job'")) == 1
    tries = rows(file, "SELECT number, why, outcome FROM task_tries ORDER BY number")
    assert [tuple(each.values()) for each in tries] == [
        (1, "first", "Suspended"),
        (2, "resumed", "Suspended"),
        (3, "resumed", "Suspended"),
        (4, "resumed", "Completed"),
    ]


@virtual_test
async def test_nobody_reaps_a_run_that_only_waits():
    """Leoflow: a run whose only task was deferred had nothing active, and failed after 5 min."""
    async with Runner("memory:") as runner:
        run = await runner.start(waiting_for(triggers.Event("paid")))
        await asyncio.sleep(2 * DAY)
        assert (await run.status()).state == "Running"
        await runner.resolve("paid", 1)
        assert await run.result() == {"got": 1}


@virtual_test
async def test_a_deferred_task_can_be_ended_and_run_again():
    """Leoflow: only failed tasks could be cleared, so nobody could do anything about one."""
    async with Runner("memory:") as runner:
        run = await runner.start(waiting_for(triggers.Event("paid")), run_id="r")
        await asyncio.sleep(5)
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result()
        await runner.resolve("paid", 1)
        again = await run.rerun()
        assert await again.result() == {"got": 1}


@virtual_test
async def test_a_payload_is_kept_as_long_as_its_task():
    """Leoflow: payloads lived for 7 days and credentials for one; people answer after weeks."""
    keep = Retention(completed=3600, failed=3600, ids=3600)
    async with Runner("memory:", retention=keep) as runner:
        run = await runner.start(waiting_for(triggers.Event("paid")), run_id="r")
        await asyncio.sleep(DAY)
        await run.halt()
        await runner.resolve("paid", {"amount": 7})
        await asyncio.sleep(DAY)
        await run.continue_()
        assert await run.result() == {"got": {"amount": 7}}


def test_state_payload_and_wake_are_one_step(world: World) -> None:
    """Leoflow: three tables, updated one after the other; a crash between them lost the event.

    The store has seen one transaction; whoever claims the task next has the payload.
    """
    world.ok(r.run(a="", with_take=r.take()))
    world.ok(r.defer(NODE, 1, r.trigger("Poll"), None, "go_on"))
    world.ok(r.take_triggers())
    world.ok(c.FinishTask(id=OWN, version=1, value=c.Value(data="cGFpZA==")))
    task_ = world.task(NODE)
    assert (task_.state, task_.version) == ("pending", 1)
    assert task_.resumption is not None
    assert task_.resumption.won == OWN
    (claim,) = world.ok(r.take()).claims
    assert claim.resumed.event.value == '{"data":"cGFpZA=="}'
    assert world.send(c.FinishTask(id=OWN, version=1)).status == 409, "it fires once"


@virtual_test
async def test_no_leader_is_needed_to_run_triggers():
    """Leoflow: only the leader ran them, with a gap of seconds when it died."""
    async with trigger_world() as world, AsyncExitStack() as first:
        manager = await first.enter_async_context(world.manager([Job]))
        await world.put("t", Job(1))
        await until(lambda: manager.running == 1)
        async with world.manager([Job]) as other:
            now = world.runner.now()
            await first.aclose()
            await until(lambda: other.running == 1)
            assert world.runner.now() - now < 100
            Job.done.add(1)
            assert await world.outcome("t") == ("resolved", {"job": 1})


@virtual_test
async def test_nothing_is_polled_in_the_name_of_others_unless_allowed():
    """Leoflow: URLs of users polled inside the control plane (SSRF)."""
    url = "http://169.254.169.254/latest/meta-data"
    async with trigger_world() as world:
        async with world.manager(access=TriggerAccess()):
            await world.put("off", triggers.HttpPoll(url))
            await asyncio.sleep(60)
            assert (await world.look("off")).is_pending
        async with world.manager(access=TriggerAccess(hosts=("*",))):
            await asyncio.sleep(60)
            assert (await world.look("off")).is_pending


@virtual_test
async def test_a_wait_has_a_timeout_an_end_and_a_bound():
    """Leoflow had none: timeout, cancel, capacity, repeated deferral, back-off, sharing."""
    async with Runner("memory:") as runner:
        run = await runner.start(waiting_for(triggers.Event("never"), timeout=90))
        began = runner.now()
        with pytest.raises(RunFailed, match="DeferTimeout"):
            await run.result()
        assert runner.now() - began == 90_000
    assert CAPACITY == 50_000
    with pytest.raises(UsageError):
        triggers.HttpPoll("http://example.org", backoff=0.5)


# --- B4: what users of Airflow complain about ------------------------------------------------


@virtual_test
async def test_a_trigger_waits_for_code_that_comes_later():
    """The triggerer must have the code: with an older one, tasks failed or hung."""
    async with trigger_world() as world:
        await world.put("t", Job(1))
        async with world.manager([Broken]):
            await asyncio.sleep(600)
            assert (await world.look("t")).is_pending
        Job.done.add(1)
        async with world.manager([Job]):
            assert await world.outcome("t") == ("resolved", {"job": 1})


@virtual_test
async def test_triggers_are_tested_where_they_are_written():
    """No way to run a trigger in a test; here with the real Runner, in no time."""
    triggers.register(Job)
    began = time.perf_counter()
    async with Runner("memory:") as runner:
        run = await runner.start(waiting_for(Job(3)))
        await asyncio.sleep(DAY / 10)
        Job.done.add(3)
        assert await run.result() == {"got": {"job": 3}}
    assert time.perf_counter() - began < 30


@virtual_test
async def test_code_need_not_be_split_in_two():
    """`execute` and `execute_complete`, with all state passed by hand."""

    @task
    async def job(context, handle):
        total = await handle.checkpoint("read", lambda: 40)
        for name in ("a", "b"):
            total += await handle.defer(triggers.Event(name))
        context["sum"] = total

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(job))
        for value, name in enumerate("ab", 1):
            await asyncio.sleep(10)
            await runner.resolve(name, value)
        assert (await run.result())["sum"] == 43


@pytest.mark.parametrize("fires", [True, False])
def test_neither_events_nor_timeouts_wait_for_a_sweep(fires: bool):
    """A loop of 1 s for events, a sweep of 15 s for timeouts."""
    late: list[int] = []

    async def measured() -> None:
        @task
        async def job(context, handle):
            try:
                await handle.defer(triggers.Event("e"), timeout=61.234)
            except BaseException as error:
                if type(error).__name__ == "DeferTimeout":
                    late.append(runner.now() - began - 61_234)
                    return
                raise
            late.append(runner.now() - began - 7_000)

        async with Runner("memory:") as runner:
            began = runner.now()
            run = await runner.start(flow_of(job))
            if fires:
                await asyncio.sleep(7)
                await runner.resolve("e")
            await run.result()

    virtual_test(measured)()
    assert late == [0]


@virtual_test
async def test_a_resumed_task_does_not_queue_behind_new_work():
    """The resumed task was put at the end of the queue, behind everything new."""
    log: list[str] = []

    @task
    async def waits(context, handle):
        await handle.defer(triggers.Event("p"))
        log.append("resumed")

    @task
    async def works(context):
        await asyncio.sleep(1)
        log.append("new")

    async with Runner("memory:", slots=1) as runner:
        first = await runner.start(flow_of(waits, name="w"))
        await asyncio.sleep(1)
        runs = [await runner.start(flow_of(works, name="n")) for _ in range(3)]
        await asyncio.sleep(0.5)
        await runner.resolve("p")
        await asyncio.sleep(0.1)
        runs += [await runner.start(flow_of(works, name="n")) for _ in range(50)]
        await asyncio.gather(first.result(), *(run.result() for run in runs))
    assert log.index("resumed") <= 3


@virtual_test
async def test_each_trigger_has_a_pace_of_its_own_and_equal_ones_are_asked_once():
    """No back-off for a trigger, no limits, and the same question asked a thousand times."""
    asked: list[float] = []

    class Asks(triggers.PolledTrigger, frozen=True):
        async def poll(self) -> Any:
            asked.append(asyncio.get_running_loop().time())

    async with trigger_world() as world, world.manager([Asks]) as manager:
        for number in range(50):
            await world.put(f"t{number}", Asks(every=10, backoff=2, max_interval=40, jitter=0))
        await asyncio.sleep(145)
        assert manager.shared_polls == 1
    first, *others = [round(after - before) for before, after in pairwise(asked)]
    assert 5 <= first <= 10, "those that began together are asked apart"
    assert others == [20, 40, 40]


# --- A2: lost triggers, stuck waits, races ---------------------------------------------------


def test_a_manager_that_stalls_loses_its_triggers_to_others(world: World) -> None:
    """15, airflow#65286, #52247: a stalled triggerer kept its triggers until it was restarted."""
    world.ok(r.run(a="", with_take=r.take()))
    world.ok(r.defer(NODE, 1, r.trigger("Poll"), None))
    assert len(world.ok(r.take_triggers()).claims) == 1
    world.tick(120_000)
    (claim,) = world.ok(r.take_triggers(pid="n")).claims
    assert claim.task.id == OWN
    assert world.send(c.FinishTask(id=OWN, version=1)).status == 409
    world.ok(c.FinishTask(id=OWN, version=2))


@virtual_test
async def test_one_bad_row_stops_no_other_trigger():
    """16, airflow#69841: one stale row raised, and blocked all triggers of its batch."""
    async with trigger_world() as world:
        await world.put("args", ("Job", {"number": "not one"}))
        await world.put("class", ("NobodyHasIt", {}))
        await world.put("code", Broken())
        for number in range(20):
            await world.put(f"t{number}", Job(number))
        Job.done.update(range(20))
        async with world.manager([Job, Broken]):
            found = [await world.outcome(f"t{number}") for number in range(20)]
            assert await world.outcome("code") == (
                "rejected",
                "Broken raised OSError: the service is off",
            )
        assert found == [("resolved", {"job": number}) for number in range(20)]
        assert (await world.look("args")).is_pending
        assert (await world.look("class")).is_pending


@virtual_test
async def test_a_trigger_that_fires_before_the_defer_is_answered_fails_nobody():
    """17, airflow#66374: "finished because it deferred" came late and failed the resumed task."""
    async with Runner("memory:", slots=4) as runner:
        for number in range(50):
            await runner.resolve(f"e{number}", number)
        runs = [
            await runner.start(waiting_for(triggers.Event(f"e{number}"))) for number in range(50)
        ]
        assert [(await run.result())["got"] for run in runs] == list(range(50))
        assert {(await look(run, "job")).failures for run in runs} == {0}


def test_what_the_old_claim_says_late_changes_nothing(world: World) -> None:
    """17 and 28, hatchet#4969: each report carries the version of its claim."""
    world.ok(r.run(a="", with_take=r.take()))
    world.ok(r.defer(NODE, 1, r.trigger("Event", name="e"), None))
    world.ok(r.settle("e"))
    (claim,) = world.ok(r.take()).claims
    late: list[c.Command] = [
        r.fail(NODE, 1),
        r.finish(NODE, 1),
        r.defer(NODE, 1, r.trigger("Delay", ms=5), None),
    ]
    assert [world.send(each).status for each in late] == [409, 409, 409]
    assert (world.task(NODE).state, claim.task.version) == ("acquired", 2)


@virtual_test
async def test_two_managers_never_run_the_same_trigger():
    """18, airflow#21616."""
    async with trigger_world() as world, world.manager([Job]) as one, world.manager([Job]) as two:
        for number in range(100):
            await world.put(f"t{number}", Job(number))
        await until(lambda: one.running + two.running == 100)
        await asyncio.sleep(DAY / 24)
        assert sorted(Job.begun) == list(range(100))


@virtual_test
async def test_moving_a_trigger_does_not_kill_the_job():
    """19, airflow#41231, #36090: cleanup on hand-over cancelled the job elsewhere."""
    async with trigger_world() as world:
        for _ in range(5):
            async with world.manager([Job]) as manager:
                if not Job.begun:
                    await world.put("t", Job(1))
                await until(lambda manager=manager: manager.running == 1)
        assert Job.begun == [1] * 5
        assert Job.killed == []
        async with world.manager([Job]):
            await world.cancel("t")
            await until(lambda: Job.killed == [1])


@virtual_test
async def test_a_trigger_that_nobody_runs_says_so(caplog):
    """20, airflow#34906: without a triggerer tasks stayed deferred, and only a banner said so."""
    async with Runner("memory:") as runner:
        await runner.start(waiting_for(Unregistered()), run_id="r")
        await asyncio.sleep(5)
        said = await why(runner, "run/r:job")
        stats: Any = (await runner.send(GetStats())).data
    assert "no process has the class Unregistered" in said
    assert "@triggers.register on Unregistered" in said
    assert stats.triggers_untaken == 1
    (told,) = [each for each in caplog.messages if "not registered" in each]
    assert "run/r:job waits for trigger Unregistered" in told
    assert "write @triggers.register above class Unregistered" in told


@pytest.mark.parametrize("before_s", [0.0, 0.001, 2 * DAY])
def test_an_event_that_comes_first_is_not_lost(before_s: float):
    """21 and 22, inngest#1433, hatchet PR#3442: no window in which it has to come."""

    async def waited() -> None:
        async with Runner("memory:") as runner:
            await runner.resolve("e", "early")
            await asyncio.sleep(before_s)
            run = await runner.start(waiting_for(triggers.Event("e")))
            assert await run.result() == {"got": "early"}

    virtual_test(waited)()


@virtual_test
async def test_nobody_gets_the_payload_of_another():
    """23, hatchet#4714: an event in one scope woke a waiter in another, with its payload."""
    names = ["a", "a.", "a.b", "A", "a ", "a/b", "a:b", "ab", "ä", "a%", "a_", "_a", "é", "e\u0301"]
    async with Runner("memory:") as runner:
        runs = {name: await runner.start(waiting_for(triggers.Event(name))) for name in names}
        await asyncio.sleep(1)
        for name in reversed(names):
            await runner.resolve(name, {"for": name})
        assert {name: (await run.result())["got"]["for"] for name, run in runs.items()} == {
            name: name for name in names
        }


@virtual_test
async def test_whoever_sees_it_resumed_sees_the_value(tmp_path):
    """24, trigger.dev#2295: wake and value were two commits; a reader between them gave up."""
    file = tmp_path / "a.db"
    async with crashing(f"sqlite:{file}") as runner:
        await runner.start(waiting_for(triggers.Event("e")), run_id="r")
        await asyncio.sleep(1)
        runner.worker.credit.is_open = False
        await runner.resolve("e", "value")
        assert promises(runner)["e"].state == "resolved"
        (row,) = rows(file, "SELECT state FROM task_executions WHERE id = 'run/r:job'")
        assert row["state"] in {"pending", "acquired"}
    async with Runner(f"sqlite:{file}") as runner:
        runner.register(waiting_for(triggers.Event("e")))
        assert await (await runner.get("r")).result() == {"got": "value"}


def test_a_deferred_task_without_a_waker_is_found(world: World) -> None:
    """25, restate#5196: suspended on something that never comes, for ever, and nobody sees it."""
    world.ok(r.run(a="", with_take=r.take()))
    world.ok(r.defer(NODE, 1, r.trigger("Event", name="e"), 5_000))
    state = world.dump()
    assert list(check(state, world.now)) == []
    state.waits.clear()
    names = {each.invariant for each in check(state, world.now)}
    assert "suspended_no_callback" in names


def test_a_resumed_try_whose_worker_died_is_taken_by_others(world: World) -> None:
    """26 and 27, dbos#716, #453: owned by a dead process until somebody restarted it."""
    world.ok(r.run(a="", with_take=r.take()))
    world.ok(r.defer(NODE, 1, r.trigger("Event", name="e"), None))
    world.ok(r.settle("e"))
    assert len(world.ok(r.take(pid="dies")).claims) == 1
    world.tick(120_000)
    (claim,) = world.ok(r.take(pid="heir")).claims
    assert (claim.task.id, claim.resumed.event.id) == (NODE, "e")


@virtual_test
async def test_a_long_delay_runs_once():
    """29, kombu#337: longer than the visibility timeout, it ran again and again."""
    async with Runner("memory:") as runner:
        run = await runner.start(waiting_for(triggers.Delay(DAY / 2)))
        await run.result()
        await asyncio.sleep(DAY / 4)
    assert seen == [(2, None)]


@virtual_test
async def test_delays_outlive_a_stop_and_cancels_do_so_too(tmp_path):
    """30, kombu#533, celery#4300: lost on TERM; revoked ones ran after a restart."""
    file = f"sqlite:{tmp_path / 'a.db'}"
    flow = waiting_for(triggers.Delay(3600))
    async with Runner(file) as runner:
        await runner.start(flow, run_id="kept")
        await runner.start(flow, run_id="revoked")
        await asyncio.sleep(60)
    async with Runner(file, slots=0) as runner:
        await runner.cancel("revoked")
    async with Runner(file) as runner:
        runner.register(flow)
        await (await runner.get("kept")).result()
        await asyncio.sleep(3600)
        assert (await (await runner.get("revoked")).status()).state == "Cancelled"
    assert len(seen) == 1


def test_what_settles_late_wakes_no_task_that_is_dead(world: World) -> None:
    """31, resonate C1-C12: the drain of resumes must skip an awaiter that is itself dead."""
    world.ok(r.run(a="", with_take=r.take()))
    world.ok(r.defer(NODE, 1, r.trigger("Event", name="e"), None))
    world.ok(c.CancelPromise(id=NODE))
    world.ok(r.settle("e"))
    world.tick()
    assert shown_state(world.task(NODE)) == "fulfilled"
    assert [each.task.id for each in world.ok(r.take()).claims] in ([], ["run/a"])
    world.check()


@virtual_test
async def test_settling_needs_no_promise_that_is_there_already():
    """32, resonate-sdk-ts#525: 404 for a promise that was created a moment before."""
    async with Runner("memory:") as runner:
        run = await runner.start(waiting_for(triggers.Event("e")))
        assert (await runner.resolve("e", 1)).won
        await settled_down()
        assert await run.result() == {"got": 1}
