"""Child runs as tasks start them: embedded, in virtual time."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from layby import (
    BlockingRunner,
    DeferTimeout,
    ResultExpired,
    Retention,
    RetryPolicy,
    RunCancelled,
    RunFailed,
    Runner,
    UsageError,
    Workflow,
    task,
    triggers,
    waits,
)
from layby.errors import Conflict, ReplayMismatch
from layby.testing import current_clock, virtual_test
from tests.helpers.flows import flow_of, sound


@task
async def double(context):
    context["n"] *= 2


@task
async def sleeps(context, handle):
    await handle.sleep(100)
    context["slept"] = True


DOUBLE = Workflow("double", tasks=[double])
SLEEPS = Workflow("sleeps", tasks=[sleeps])


def nested(depth: int) -> Workflow[Any]:
    """A workflow whose only task starts one of the next depth; the last one doubles."""

    @task(id="call")
    async def call(context, handle):
        child = await handle.start(nested(depth - 1), {"n": context["n"] + 1})
        context["n"] = (await child.result())["n"]

    return DOUBLE if depth == 0 else Workflow(f"nested-{depth}", tasks=[call])


@virtual_test
async def test_a_child_of_a_child_of_a_child_needs_one_slot():
    """Each waits for the next without a slot, so nothing is locked up."""
    async with Runner("memory:", slots=1) as runner:
        result = await runner.execute(nested(4), {"n": 1}, run_id="r")
        assert result.to_dict() == {"n": 10}
        ids = [run.id for run in await runner.list()]
        assert ids == [f"r{'~call~1' * depth}" for depth in range(5)]
        await sound(runner)


@virtual_test
async def test_many_children_at_once_on_one_slot():
    """They are started first and awaited in any order."""

    @task
    async def calls(context, handle):
        children = [await handle.start(SLEEPS, key=f"n {n}") for n in range(5)]
        assert [child.is_new for child in children] == [True] * 5
        begun = current_clock().now()
        await asyncio.gather(*(child.result() for child in reversed(children)))
        context["took"] = (current_clock().now() - begun) / 1000

    async with Runner("memory:", slots=1) as runner:
        assert 100 <= (await runner.execute(flow_of(calls), {}))["took"] < 101


class Family:
    """A parent whose task starts a child that waits, and keeps what became of it."""

    def __init__(self, **options: Any) -> None:
        self.child: Any = None
        self.ended = asyncio.Event()

        @task
        async def call(context, handle):
            self.child = await handle.start(SLEEPS, **options)
            try:
                context["slept"] = (await self.child.result())["slept"]
            finally:
                self.ended.set()

        self.flow = flow_of(call, name="parent")

    async def parked(self, runner: Runner, **options: Any):
        run = await runner.start(self.flow, {}, run_id="p", **options)
        while (await run.status()).tasks["call"].parked_in is None:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.1)
        return run


async def priorities(runner: Runner, run_id: str) -> list[int]:
    """Of the run, and of its first task."""
    status = await (await runner.get(run_id)).status()
    return [status.priority, next(iter(status.tasks.values())).priority]


@virtual_test
async def test_a_child_has_the_priority_of_its_parent_unless_it_is_given_another():
    """Also a child of an item; what a task has of its own belongs to that task alone."""

    @task(priority=3)
    async def call(context, handle):
        for key, given in (("same", {}), ("other", {"priority": -7}), ("none", {"priority": 0})):
            child = await handle.start(DOUBLE, {"n": 1}, run_id=key, key=key, **given)
            await child.result()
        await handle.map(starts_double, ["of-item"])

    async with Runner("memory:", slots=1) as runner:
        await runner.execute(flow_of(call), {}, run_id="p", priority=5)
        assert await priorities(runner, "p") == [5, 8]
        assert await priorities(runner, "same") == [5, 5]
        assert await priorities(runner, "other") == [-7, -7]
        assert await priorities(runner, "none") == [0, 0]
        assert await priorities(runner, "of-item") == [5, 5]


@task(priority=-2)
async def starts_double(context, handle, item):
    await (await handle.start(DOUBLE, {"n": 1}, run_id=item)).result()


@virtual_test
async def test_a_wrong_option_of_a_child_is_refused():
    @task(retry=RetryPolicy(max_attempts=1))
    async def call(context, handle):
        with pytest.raises(UsageError, match="priority must be a whole number"):
            await handle.start(DOUBLE, {"n": 1}, priority=101)
        with pytest.raises(UsageError, match="detach must be True or False, got 'no'"):
            await handle.start(DOUBLE, {"n": 1}, detach="no")

    async with Runner("memory:", slots=1) as runner:
        await runner.execute(flow_of(call), {})


@virtual_test
async def test_cancelling_the_parent_cancels_the_child():
    """At once, while the caller is parked; the child says why."""
    family = Family()
    async with Runner("memory:") as runner:
        run = await family.parked(runner)
        assert await run.cancel(by="Ann")
        await family.ended.wait()
        child = await runner.get(family.child.id)
        with pytest.raises(RunCancelled, match="run/p has ended"):
            await child.result()
        assert (await child.status()).tasks["sleeps"].status == "Cancelled"
        await sound(runner)


@virtual_test
async def test_cancelling_the_task_cancels_the_child():
    family = Family()
    async with Runner("memory:") as runner:
        await family.parked(runner)
        assert await runner.cancel("p", "call")
        with pytest.raises(RunCancelled, match="which started it, was cancelled"):
            await (await runner.get(family.child.id)).result()
        await sound(runner)


@virtual_test
async def test_the_deadline_of_the_parent_is_the_childs():
    family = Family()
    async with Runner("memory:") as runner:
        run = await family.parked(runner, deadline=50)
        child = await runner.get(family.child.id)
        assert (await child.status()).deadline == (await run.status()).deadline
        with pytest.raises(RunFailed):
            await run.result()
        with pytest.raises(RunFailed):
            await child.result()
        await sound(runner)


@virtual_test
async def test_a_child_may_have_an_earlier_deadline():
    """Its parent sees that as a failure, and can go on."""

    @task
    async def call(context, handle):
        child = await handle.start(SLEEPS, deadline=10)
        with pytest.raises(RunFailed):
            await child.result()
        context["went_on"] = True

    async with Runner("memory:") as runner:
        assert (await runner.execute(flow_of(call), {}))["went_on"]


@virtual_test
async def test_a_detached_child_goes_on():
    family = Family(detach=True)
    async with Runner("memory:") as runner:
        run = await family.parked(runner, deadline=50)
        await run.cancel()
        child = await runner.get(family.child.id)
        assert (await child.status()).deadline is None
        assert (await child.result())["slept"]
        await sound(runner)


@virtual_test
async def test_a_child_that_nobody_awaits_outlives_its_parent():
    @task
    async def call(context, handle):
        context["child"] = (await handle.start(SLEEPS)).id

    async with Runner("memory:") as runner:
        result = await runner.execute(flow_of(call), {}, run_id="p")
        child = await runner.get(result["child"])
        assert (await child.status()).state in ("Pending", "Running")
        assert (await child.result())["slept"]
        await sound(runner)


@virtual_test
async def test_a_timeout_of_the_wait_leaves_the_child():
    """As any wait for a promise that others share: the child goes on, and can be awaited again."""

    @task
    async def call(context, handle):
        child = await handle.start(SLEEPS)
        with pytest.raises(DeferTimeout):
            await child.result(timeout=10)
        context["slept"] = (await child.result(timeout=200))["slept"]

    async with Runner("memory:") as runner:
        assert (await runner.execute(flow_of(call), {}))["slept"]


@virtual_test
async def test_a_wait_that_timed_out_has_timed_out_when_the_body_is_replayed(tmp_path):
    """Also when the child has ended meanwhile: a body that went one way goes the same way again."""
    went: list[str] = []

    @task
    async def call(context, handle):
        child = await handle.start(SLEEPS)
        try:
            await child.result(timeout=10)
            went.append("ended")
        except DeferTimeout:
            went.append("too late")
        await handle.sleep(1_000)

    flow = flow_of(call)
    for _ in range(2):
        async with Runner(f"sqlite:{tmp_path}/layby.db") as runner:
            runner.register(SLEEPS)
            await runner.start(flow, run_id="r")
            await asyncio.sleep(200)
    assert went == ["too late", "too late"]


@virtual_test
async def test_a_child_can_be_awaited_in_the_store():
    """`defer` until its promise settles: then nothing of the caller stays in memory."""

    @task
    async def call(context, handle):
        child = await handle.start(SLEEPS)
        await handle.defer(triggers.PromiseSettled(child.promise_id))
        context["slept"] = (await child.result())["slept"]

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(call), {})
        await asyncio.sleep(1)
        assert (await run.status()).tasks["call"].parked_in == "store"
        assert (await run.result())["slept"]
        await sound(runner)


class Shop:
    """A child with two tasks of which the second fails until it is mended; counts what runs."""

    def __init__(self, retries: int = 0, *, fails: bool = True) -> None:
        self.ran: Counter[str] = Counter()
        self.fails = fails
        self.is_open = False
        self.price = 1

        @task
        async def reserve(context):
            self.ran["reserve"] += 1

        @task(dependencies=[reserve])
        async def charge(context):
            self.ran["charge"] += 1
            if self.fails:
                raise ValueError("the card does not work")
            context["charged"] = context["price"]

        self.child = Workflow("shop", tasks=[reserve, charge])

        @task(retry=RetryPolicy(max_attempts=retries + 1, delay=10))
        async def buy(context, handle):
            self.ran["buy"] += 1
            child = await handle.start(self.child, {"price": self.price})
            context["charged"] = (await child.result())["charged"]
            if not self.is_open:
                raise ValueError("it is closed")

        self.flow = Workflow("customer", tasks=[buy])

    async def failed(self, runner: Runner):
        run = await runner.start(self.flow, {}, run_id="c")
        with pytest.raises(RunFailed):
            await run.result()
        return run


@virtual_test
async def test_a_failed_child_raises_in_its_caller_as_a_failed_run():
    shop = Shop()
    async with Runner("memory:") as runner:
        run = await runner.start(shop.flow, {}, run_id="c")
        with pytest.raises(RunFailed, match="the card does not work"):
            await run.result()
        assert "c~buy~1" in str((await run.status()).failed)


@virtual_test
async def test_a_retry_runs_a_failed_child_again():
    """As its next life: what was successful in it is not repeated."""
    shop = Shop(retries=1)
    shop.is_open = True
    async with Runner("memory:") as runner:
        run = await runner.start(shop.flow, {}, run_id="c")
        await asyncio.sleep(5)
        shop.fails = False
        assert (await run.result())["charged"] == 1
        assert shop.ran == {"buy": 2, "reserve": 1, "charge": 2}
        child = await (await runner.get("c~buy~1")).status()
        assert (child.lives, child.state) == (2, "Completed")
        await sound(runner)


@virtual_test
async def test_a_rerun_reuses_a_successful_child():
    shop = Shop(fails=False)
    async with Runner("memory:") as runner:
        run = await shop.failed(runner)
        shop.is_open = True
        await run.rerun()
        assert (await run.result())["charged"] == 1
        assert shop.ran == {"buy": 2, "reserve": 1, "charge": 1}
        await sound(runner)


@virtual_test
async def test_a_rerun_runs_a_failed_child_again():
    shop = Shop()
    shop.is_open = True
    async with Runner("memory:") as runner:
        run = await shop.failed(runner)
        shop.fails = False
        await run.rerun()
        assert (await run.result())["charged"] == 1
        assert shop.ran == {"buy": 2, "reserve": 1, "charge": 2}
        assert [each.id for each in await runner.list(flow="shop")] == ["c~buy~1"]
        await sound(runner)


@virtual_test
async def test_a_rerun_runs_a_cancelled_child_again():
    """One that was cancelled with the earlier life of its parent."""
    family = Family()
    async with Runner("memory:") as runner:
        run = await family.parked(runner)
        await run.cancel()
        await family.ended.wait()
        await run.rerun()
        assert (await run.result())["slept"]
        assert (await (await runner.get(family.child.id)).status()).lives == 2
        await sound(runner)


@virtual_test
async def test_a_rerun_with_another_context_starts_another_child():
    """A result for other values would be wrong; both children are there."""
    shop = Shop(fails=False)
    async with Runner("memory:") as runner:
        run = await shop.failed(runner)
        shop.is_open, shop.price = True, 2
        await run.rerun()
        assert (await run.result())["charged"] == 2
        ids = [each.id for each in await runner.list(flow="shop")]
        assert ids == ["c~buy~1", "c~buy~1~2"]


@virtual_test
async def test_a_child_of_a_later_life_is_reused_by_those_after_it():
    """The second life has started another child, for its own context: the third wants that one."""
    shop = Shop(fails=False)
    async with Runner("memory:") as runner:
        run = await shop.failed(runner)
        shop.price = 2
        await run.rerun()
        with pytest.raises(RunFailed):
            await run.result()
        shop.is_open = True
        await run.rerun()
        assert (await run.result())["charged"] == 2
        assert shop.ran == {"buy": 3, "reserve": 2, "charge": 2}
        shop.price = 1
        await run.rerun(from_="buy")
        assert (await run.result())["charged"] == 1
        assert shop.ran["charge"] == 2
        await sound(runner)


@virtual_test
async def test_a_rerun_that_forgets_checkpoints_forgets_children():
    shop = Shop(fails=False)
    async with Runner("memory:") as runner:
        run = await shop.failed(runner)
        shop.is_open = True
        await run.rerun(checkpoints="forget")
        await run.result()
        assert shop.ran["charge"] == 2


@virtual_test
async def test_a_child_is_found_by_every_later_run_of_the_body():
    """A deferral runs the body again: it finds the child that it started before."""
    new: list[bool] = []

    @task
    async def call(context, handle):
        child = await handle.start(DOUBLE, {"n": 2})
        new.append(child.is_new)
        await handle.defer(triggers.Delay(10))
        context["n"] = (await child.result())["n"]

    async with Runner("memory:") as runner:
        assert (await runner.execute(flow_of(call), {}))["n"] == 4
        assert new == [True, False]


@virtual_test
async def test_a_run_id_names_a_run_that_others_may_start_as_well():
    """The same id is the same run; whose it is does not change."""

    @task
    async def call(context, handle):
        child = await handle.start(SLEEPS, run_id="shared")
        context["new"] = child.is_new
        await child.result()

    async with Runner("memory:") as runner:
        other = await runner.start(SLEEPS, {}, run_id="shared")
        run = await runner.start(flow_of(call), {}, run_id="p")
        await asyncio.sleep(1)
        await run.cancel()
        assert (await other.result())["slept"]


@virtual_test
async def test_an_id_of_its_own_that_somebody_else_uses_is_refused():
    """With what to do about it: nobody waits for a stranger by accident."""

    @task
    async def call(context, handle):
        with pytest.raises(Conflict, match="give the child another run_id= or key="):
            await handle.start(DOUBLE, {"n": 1})
        context["n"] = (await (await handle.start(DOUBLE, {"n": 1}, key="mine")).result())["n"]

    async with Runner("memory:") as runner:
        await runner.execute(DOUBLE, {"n": 5}, run_id="p~call~1")
        assert (await runner.execute(flow_of(call), {}, run_id="p"))["n"] == 2


@virtual_test
async def test_other_code_under_the_same_key_does_not_fit():
    """The task is blocked, as after any call that an earlier run of the body did not make."""
    flows = [DOUBLE, SLEEPS]

    @task
    async def call(context, handle):
        await handle.start(flows.pop(0), {"n": 1}, key="child")
        await handle.defer(triggers.Delay(1))

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(call), {}, run_id="p")
        await asyncio.sleep(20)
        waiting = (await run.status()).tasks["call"].waiting_on
        assert waiting is not None
        assert waiting.kind == "code"
        assert "start" in waiting.sentence


@virtual_test
async def test_two_different_children_need_two_keys():
    @task
    async def call(context, handle):
        await handle.start(DOUBLE, {"n": 1}, key="child")
        with pytest.raises(ReplayMismatch, match="give changed calls a new key="):
            await handle.start(SLEEPS, key="child")
        context["ok"] = True

    async with Runner("memory:") as runner:
        assert (await runner.execute(flow_of(call), {}))["ok"]


@virtual_test
async def test_a_child_by_name():
    """A workflow that is registered here, or published by another worker."""

    @task
    async def call(context, handle):
        context["n"] = (await (await handle.start("double", {"n": 4})).result())["n"]

    async with Runner("memory:") as runner:
        runner.register(DOUBLE)
        assert (await runner.execute(flow_of(call), {}))["n"] == 8


@virtual_test
async def test_the_status_of_a_child():
    @task
    async def call(context, handle):
        child = await handle.start(DOUBLE, {"n": 4})
        await child.result()
        context["state"] = (await child.status()).state
        context["shown"] = repr(child)

    async with Runner("memory:") as runner:
        result = await runner.execute(flow_of(call), {}, run_id="p")
        assert result.to_dict() == {"state": "Completed", "shown": "<child run 'p~call~1'>"}


def test_a_plain_function_starts_children():
    """The same calls, blocking its thread; nested on one slot."""

    @task
    def call(context, handle):
        child = handle.start(DOUBLE, {"n": 4}, priority=-4)
        context["new"] = child.is_new
        context["id"] = child.id
        context["n"] = child.result(timeout=30)["n"]
        context["state"] = (child.status().state, child.status().priority)

    with BlockingRunner("memory:", slots=1) as runner:
        result = runner.execute(flow_of(call), {}, run_id="p", timeout=30)
        assert result.to_dict() == {
            "new": True,
            "id": "p~call~1",
            "n": 8,
            "state": ["Completed", -4],
        }


@virtual_test
async def test_what_is_refused():
    @task
    async def call(context, handle):
        with pytest.raises(UsageError, match="must not contain"):
            await handle.start(DOUBLE, {"n": 1}, run_id="a:b")
        with pytest.raises(UsageError, match="deadline"):
            await handle.start(DOUBLE, {"n": 1}, deadline=-1)
        with pytest.raises(Exception, match="is not a Workflow"):
            await handle.start(double, {"n": 1})
        context["ok"] = True

    async with Runner("memory:") as runner:
        assert (await runner.execute(flow_of(call), {}))["ok"]


@virtual_test
async def test_a_status_names_children_and_the_caller():
    family = Family()
    async with Runner("memory:") as runner:
        run = await family.parked(runner)
        (child,) = (await run.status()).children
        assert (child.run_id, child.flow, child.state) == ("p~call~1", "sleeps", "Running")
        assert (child.task, child.life, child.lives, child.detached) == ("call", 1, 1, False)
        assert (await (await runner.get("p~call~1")).status()).caller == "run/p:call"
        waiting = (await run.status()).tasks["call"].waiting_on
        assert waiting is not None
        assert (waiting.kind, waiting.sentence) == ("promise", "waiting for run 'p~call~1'")
        await run.result()
        assert (await run.status()).children[0].state == "Completed"


@virtual_test
async def test_a_child_is_kept_until_its_parent_has_ended():
    """However short runs are kept: the parent may be replayed, and asks again."""
    retention = Retention(completed=5, failed=5)

    @task
    async def call(context, handle):
        child = await handle.start(DOUBLE, {"n": 2})
        await child.result()
        await handle.sleep(1_000)
        await handle.defer(triggers.Delay(1_000))
        context["n"] = (await child.result())["n"]

    async with Runner("memory:", retention=retention) as runner:
        run = await runner.start(flow_of(call), {}, run_id="p")
        assert (await run.result())["n"] == 4
        await asyncio.sleep(100)
        with pytest.raises(ResultExpired):
            await (await runner.get("p~call~1")).result()


@virtual_test
async def test_a_pruned_child_is_started_anew_by_the_next_life_of_its_parent():
    """A parent that failed may be kept longer than its successful child."""
    shop = Shop(fails=False)
    async with Runner("memory:", retention=Retention(completed=5)) as runner:
        run = await shop.failed(runner)
        await asyncio.sleep(100)
        shop.is_open = True
        await run.rerun()
        assert (await run.result())["charged"] == 1
        assert shop.ran["charge"] == 2


@virtual_test
async def test_a_pruned_child_with_an_id_of_its_own_has_no_result_in_the_next_life():
    """With a `run_id` of your own it is always that run, as long as its id answers."""
    fails = True

    @task
    async def call(context, handle):
        child = await handle.start(DOUBLE, {"n": 2}, run_id="mine")
        context["n"] = (await child.result())["n"]
        if fails:
            raise ValueError("no")

    async with Runner("memory:", retention=Retention(completed=5)) as runner:
        run = await runner.start(flow_of(call), {}, run_id="p")
        with pytest.raises(RunFailed):
            await run.result()
        await asyncio.sleep(100)
        fails = False
        await run.rerun()
        with pytest.raises(RunFailed, match="ResultExpired: run 'mine'"):
            await run.result()


@virtual_test
async def test_a_child_that_is_still_open_is_found_by_the_next_life():
    """Its parent has failed meanwhile, and went on without it."""
    fails = True

    @task
    async def call(context, handle):
        child = await handle.start(SLEEPS)
        if fails:
            raise ValueError("no")
        context["slept"] = (await child.result())["slept"]

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(call), {}, run_id="p")
        with pytest.raises(RunFailed):
            await run.result()
        fails = False
        await run.rerun()
        await asyncio.sleep(1)
        assert (await run.status()).tasks["call"].parked_in == "memory"
        await run.cancel()
        child = await runner.get("p~call~1")
        with pytest.raises(RunCancelled):
            await child.result()
        assert (await child.status()).lives == 1
        await sound(runner)


@virtual_test
async def test_a_failure_that_was_caught_is_caught_again_after_a_hand_back():
    """Only a try after a failure of the caller runs an unsuccessful child again."""
    shop, caught = Shop(), list[str]()

    @task
    async def call(context, handle):
        child = await handle.start(shop.child, {"price": 1})
        try:
            await child.result()
        except RunFailed as failed:
            caught.append(str(failed))
        await handle.defer(triggers.Delay(10))

    async with Runner("memory:") as runner:
        await runner.execute(flow_of(call), {})
        assert (len(caught), shop.ran["charge"]) == (2, 1)


@virtual_test
async def test_a_child_with_a_clean_up_is_run_again_after_that():
    """A life does not begin beside what cleans up after the one before."""
    steps: list[str] = []

    @task
    async def work(context):
        steps.append("work")
        if steps.count("work") == 1:
            raise ValueError("no")

    @task(rule="finally", timeout=60)
    async def tidy(context, handle):
        await handle.sleep(50)
        steps.append("tidy")

    child = Workflow("tidy", tasks=[work, tidy])

    @task(retry=RetryPolicy(max_attempts=2, delay=1))
    async def call(context, handle):
        started = await handle.start(child, {}, deadline=10)
        await started.result()

    async with Runner("memory:") as runner:
        with pytest.raises(RunFailed):  # the second life ends by its deadline, too
            await runner.execute(flow_of(call), {}, run_id="p")
        await asyncio.sleep(100)
        assert steps == ["work", "tidy", "work", "tidy"]
        await sound(runner)


@virtual_test
async def test_a_later_life_of_a_child_that_is_still_open_is_found_by_the_next_life():
    """It belongs to the new life of the parent as a first one would."""
    tries: list[int] = []

    @task
    async def work(context, handle):
        if handle.try_number == 1 and not tries[1:]:
            raise ValueError("no")
        await handle.sleep(100)

    child = Workflow("child", tasks=[work])

    @task(retry=RetryPolicy(max_attempts=2, delay=1))
    async def call(context, handle):
        tries.append(handle.try_number)
        started = await handle.start(child, {})
        if len(tries) == 2:
            raise ValueError("not now")
        await started.result()

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(call), {}, run_id="p")
        with pytest.raises(RunFailed, match="not now"):
            await run.result()
        await run.rerun()
        await asyncio.sleep(1)
        assert (await run.status()).tasks["call"].parked_in == "memory"
        await run.cancel()
        found = await runner.get("p~call~1")
        with pytest.raises(RunCancelled):
            await found.result()
        assert (await found.status()).lives == 2
        await sound(runner)


@virtual_test
async def test_a_child_in_a_bundle():
    """By its promise: whoever loses patience with it does not end it."""

    @task
    async def call(context, handle):
        child = await handle.start(SLEEPS)
        context["first"] = []
        for patience in (10, 500):
            found = await handle.first_of(
                waits.wait_for(child.promise_id), waits.sleep(patience), key=f"{patience} s"
            )
            context["first"].append(found.which)
        context["slept"] = (await child.result())["slept"]

    async with Runner("memory:") as runner:
        result = await runner.execute(flow_of(call), {})
        assert result.to_dict() == {"first": [1, 0], "slept": True}
