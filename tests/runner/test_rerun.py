"""Running a run again: a new life under the same root, embedded and in virtual time."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from layby import (
    BlockingRunner,
    RetryPolicy,
    RunCancelled,
    RunFailed,
    Runner,
    UsageError,
    Workflow,
    task,
)
from layby.core.commands import GetPromise
from layby.core.replies import PromiseData
from layby.errors import Conflict, NotFound
from layby.testing import current_clock, virtual_test
from tests.helpers.flows import flow_of, sound


class Shop:
    """A workflow whose tasks count how often they run, and fail where they are told to."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()
        self.fails = {"charge"}

        def step(context, name: str) -> None:
            self.ran[name] += 1
            if name in self.fails:
                raise ValueError(f"{name} does not work")
            context[name] = self.ran[name]

        @task
        async def reserve(context):
            step(context, "reserve")

        @task(dependencies=[reserve])
        async def charge(context):
            step(context, "charge")

        @task(dependencies=[charge])
        async def ship(context):
            step(context, "ship")

        @task(dependencies=[reserve])
        async def notify(context):
            step(context, "notify")

        self.flow = Workflow("shop", [reserve, charge, ship, notify])

    async def failed(self, runner: Runner, run_id: str = "r"):
        run = await runner.start(self.flow, {"order": 7}, run_id=run_id)
        with pytest.raises(RunFailed):
            await run.result()
        return run


@virtual_test
async def test_without_from_everything_unsuccessful_runs_again():
    """Of the failed run: the failed task and what was skipped behind it."""
    shop = Shop()
    async with Runner("memory:") as runner:
        run = await shop.failed(runner)
        shop.fails.clear()
        assert await run.rerun() is run
        result = await run.result()
        await sound(runner)
    assert result == {"order": 7, "reserve": 1, "charge": 2, "ship": 1, "notify": 1}
    assert shop.ran == {"reserve": 1, "charge": 2, "ship": 1, "notify": 1}


@virtual_test
async def test_from_runs_that_task_and_everything_after_it():
    """Successes too, and of a run that has completed as well."""
    shop = Shop()
    shop.fails.clear()
    async with Runner("memory:") as runner:
        run = await runner.start(shop.flow, {"order": 7}, run_id="r")
        await run.result()
        await run.rerun(from_="charge")
        assert await run.result() == {
            "order": 7,
            "reserve": 1,
            "charge": 2,
            "ship": 2,
            "notify": 1,
        }
        await run.rerun(from_=[shop.flow.tasks["ship"], "notify"])
        await run.result()
        await sound(runner)
    assert shop.ran == {"reserve": 1, "charge": 2, "ship": 3, "notify": 2}


@virtual_test
async def test_from_also_runs_what_was_unsuccessful_elsewhere():
    """A failure cannot be reused."""
    shop = Shop()
    async with Runner("memory:") as runner:
        run = await shop.failed(runner)
        shop.fails.clear()
        await run.rerun(from_="notify")
        await run.result()
    assert shop.ran == {"reserve": 1, "charge": 2, "ship": 1, "notify": 2}


@virtual_test
async def test_result_and_status_follow_the_latest_life():
    """And `life=1` reads the first."""
    shop = Shop()
    async with Runner("memory:") as runner:
        run = await shop.failed(runner)
        before = await run.status()
        shop.fails.clear()
        await run.rerun()
        await run.result()
        status, first = await run.status(), await run.status(life=1)
        with pytest.raises(RunFailed, match="charge does not work"):
            await run.result(life=1)
        assert await run.result(life=2) == await (await runner.get("r")).result()
        again = await runner.start(shop.flow, {"order": 7}, run_id="r")
        assert (await again.status()).state == "Completed"
    assert (status.run_id, status.state, status.life, status.lives) == ("r", "Completed", 2, 2)
    assert (first.state, first.life, first.lives) == ("Failed", 1, 2)
    assert first.tasks == before.tasks
    lives = {task_id: each.life for task_id, each in status.tasks.items()}
    assert lives == {"reserve": 1, "charge": 2, "ship": 2, "notify": 1}
    assert status.tasks["reserve"] == first.tasks["reserve"]
    assert status.tasks["charge"].task_execution_id == "run/r:life/2:charge"
    assert status.tasks["charge"].failures == 0


@virtual_test
async def test_settled_promises_never_change():
    """The rows of the first life are the same after the second as before it."""
    shop = Shop()
    async with Runner("memory:") as runner:
        run = await shop.failed(runner)
        ids = ["run/r", *(f"run/r:{each}" for each in shop.flow.tasks)]

        async def promises():
            replies = [await runner.send(GetPromise(id=each)) for each in ids]
            return [reply.data for reply in replies if isinstance(reply.data, PromiseData)]

        before = await promises()
        shop.fails.clear()
        await run.rerun()
        await run.result()
        assert await promises() == before
        assert len(before) == len(ids)


@virtual_test
async def test_whoever_awaited_the_first_life_keeps_its_outcome():
    """Even if they look at it only after the second has ended."""
    shop = Shop()
    async with Runner("memory:") as runner:
        run = await runner.start(shop.flow, {"order": 7}, run_id="r")
        early = asyncio.ensure_future(run.result())
        with pytest.raises(RunFailed):
            await (await runner.get("r")).result()
        shop.fails.clear()
        await run.rerun()
        await run.result()
        with pytest.raises(RunFailed):
            await early


@virtual_test
async def test_a_run_that_still_runs_is_not_run_again():
    """It raises `Conflict`, in the first life and in the next."""

    @task
    async def wait(context, handle):
        await handle.wait_for("event")

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(wait), run_id="r")
        with pytest.raises(Conflict, match=r"run 'r' is still running.*cancel"):
            await run.rerun()
        await run.cancel()
        await run.rerun()
        with pytest.raises(Conflict, match="still running"):
            await run.rerun(from_="wait")
        await runner.resolve("event", 1)
        await run.result()
        with pytest.raises(RunCancelled):
            await run.result(life=1)


@virtual_test
async def test_two_reruns_at_once_are_one_life():
    """Who asks for the same gets that life, too; who asks for something else gets `Conflict`."""
    shop = Shop()
    async with Runner("memory:") as runner:
        run = await shop.failed(runner)
        shop.fails.clear()
        same = await asyncio.gather(*(run.rerun() for _ in range(5)), return_exceptions=True)
        await run.result()
        assert (await run.status()).lives == 2
        other = await asyncio.gather(
            run.rerun(from_="charge"), run.rerun(from_="ship"), return_exceptions=True
        )
        await run.result()
        assert (await run.status()).lives == 3
    assert same == [run] * 5
    assert [type(each) for each in other] == [type(run), Conflict]
    assert shop.ran == {"reserve": 1, "charge": 3, "ship": 2, "notify": 1}


@virtual_test
async def test_there_is_nothing_to_run_again_in_a_completed_run():
    shop = Shop()
    shop.fails.clear()
    async with Runner("memory:") as runner:
        run = await runner.start(shop.flow, run_id="r")
        await run.result()
        with pytest.raises(UsageError, match=r"run 'r' has completed.*from_"):
            await run.rerun()
        with pytest.raises(UsageError, match="did you mean 'ship'"):
            await run.rerun(from_="shipp")
        with pytest.raises(NotFound, match=r"^run 'nope' is not known: check the id, or start it"):
            await runner.get("nope")
        with pytest.raises(NotFound, match=r"'nope': give it to runner\.register\(\), or pass the"):
            await runner.start("nope")
        for wrong in (3, ["ship", 3]):
            with pytest.raises(UsageError, match=r"from_ is a task, its id, or a list .* got .*3"):
                await run.rerun(from_=wrong)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="checkpoints"):
            await run.rerun(from_="ship", checkpoints="lose")  # type: ignore[arg-type]
        with pytest.raises(NotFound, match="run 'r' has 1 life"):
            await run.status(life=2)
        with pytest.raises(NotFound, match="run 'r' has 1 life"):
            await run.result(life=2)
        with pytest.raises(UsageError, match="life"):
            await run.result(life=0)


class Bank:
    """What a body did outside, so that it can be seen what is done again."""

    def __init__(self) -> None:
        self.paid: list[int] = []
        self.is_broken = True

    def pay(self, amount: int) -> int:
        self.paid.append(amount)
        return len(self.paid)


def paying(bank: Bank) -> Workflow:
    @task
    async def charge(context, handle):
        context["receipt"] = await handle.checkpoint("pay", bank.pay, context["amount"])
        await handle.sleep(10)
        if bank.is_broken:
            raise ValueError("the printer is broken")
        context["more"] = await handle.checkpoint("more", bank.pay, 1)

    return Workflow("paying", [charge])


@virtual_test
async def test_each_life_that_fails_is_cleaned_up_after():
    """A refund in a checkpoint is not skipped because an earlier life made one."""
    done: list[str] = []

    @task
    async def charge(context):
        done.append("charge")

    @task(dependencies=[charge])
    async def ship(context):
        raise ValueError("no lorry")

    @task(rule="finally", timeout=30)
    async def undo(context, handle):
        await handle.checkpoint("refund", done.append, "refund")

    async with Runner("memory:") as runner:
        run = await runner.start(Workflow("order", [charge, ship, undo]))
        for _ in range(3):
            await run.cleaned_up()
            await run.rerun(from_="charge")
        await run.cleaned_up()
    assert done == ["charge", "refund"] * 4


@virtual_test
async def test_a_clean_up_that_failed_goes_on_where_it_stopped():
    done: list[str] = []

    @task
    async def ship(context):
        raise ValueError("no lorry")

    @task(rule="finally", timeout=30)
    async def undo(context, handle):
        await handle.checkpoint("refund", done.append, "refund")
        if len(done) < 2:
            done.append("no mail")
            raise ValueError("no mail")

    async with Runner("memory:") as runner:
        run = await runner.start(Workflow("order", [ship, undo]))
        await run.cleaned_up()
        await run.rerun()
        await run.cleaned_up()
    assert done == ["refund", "no mail"]


@pytest.mark.parametrize(
    ("checkpoints", "paid", "receipt"), [("keep", [5, 1], 1), ("forget", [5, 5, 1], 2)]
)
def test_checkpoints_are_kept_or_forgotten(checkpoints, paid, receipt):
    """What a checkpoint stored in any earlier life is read; waits start over."""

    @virtual_test
    async def scene():
        bank = Bank()
        async with Runner("memory:") as runner:
            run = await runner.start(paying(bank), {"amount": 5}, run_id="r")
            with pytest.raises(RunFailed):
                await run.result()
            bank.is_broken = False
            began = current_clock().now()
            await run.rerun(checkpoints=checkpoints)
            result = await run.result()
            assert current_clock().now() - began >= 10_000
        assert (bank.paid, result["receipt"]) == (paid, receipt)

    scene()


@virtual_test
async def test_checkpoints_are_kept_through_several_lives():
    """Also through one in which the body did not get there; and after a try that failed."""
    bank = Bank()

    @task(retry=RetryPolicy(max_attempts=2, delay=1))
    async def charge(context, handle):
        context["receipt"] = await handle.checkpoint("pay", bank.pay, context["amount"])
        if bank.is_broken:
            raise ValueError("the printer is broken")

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(charge), {"amount": 5}, run_id="r")
        for _ in range(3):
            with pytest.raises(RunFailed):
                await run.result()
            await run.rerun()
        bank.is_broken = False
        await run.result()
        assert (await run.status()).lives == 4
    assert bank.paid == [5]


@virtual_test
async def test_a_checkpoint_of_an_earlier_life_with_other_arguments_is_made_again():
    """The code was mended in between: that is what a rerun is for, not a mismatch."""
    bank = Bank()
    mended = False

    @task
    async def charge(context, handle):
        context["receipt"] = await handle.checkpoint("pay", bank.pay, 5 if mended else 50)
        if not mended:
            raise ValueError("too much")

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(charge), run_id="r")
        with pytest.raises(RunFailed):
            await run.result()
        mended = True
        await run.rerun()
        assert await run.result() == {"receipt": 2}
    assert bank.paid == [50, 5]


@virtual_test
async def test_successful_calls_are_reused_and_others_made_again():
    """Unless checkpoints are forgotten: then every call is made again."""
    served: list[str] = []

    @task(rpc="good")
    async def good(context):
        served.append("good")
        return {"n": served.count("good")}

    @task(rpc="bad")
    async def bad(context):
        served.append("bad")
        if served.count("bad") == 1:
            raise ValueError("not today")
        return {"n": served.count("bad")}

    @task
    async def caller(context, handle):
        context["good"] = await handle.rpc("good", key="g")
        context["bad"] = await handle.rpc("bad", key="b")

    async with Runner("memory:") as runner:
        runner.register(good)
        runner.register(bad)
        run = await runner.start(flow_of(caller), run_id="r")
        with pytest.raises(RunFailed):
            await run.result()
        await run.rerun()
        await run.result()
        assert served == ["good", "bad", "bad"]
        await run.rerun(from_="caller", checkpoints="forget")
        await run.result()
    assert served == ["good", "bad", "bad", "good", "bad"]


@virtual_test
async def test_a_deadline_is_the_new_lifes_own():
    """The old one has expired; None means none."""

    @task
    async def wait(context, handle):
        await handle.wait_for("event")

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(wait), run_id="r", deadline=10)
        with pytest.raises(RunFailed, match="deadline"):
            await run.result()
        await run.rerun(deadline=20)
        assert (await run.status()).deadline == current_clock().now() + 20_000
        with pytest.raises(RunFailed, match="deadline"):
            await run.result()
        await run.rerun()
        assert (await run.status()).deadline is None
        await runner.resolve("event")
        await run.result()
        await sound(runner)


@virtual_test
async def test_a_run_is_steered_and_listed_by_its_latest_life():
    """`list`, `cancel`, `halt` and `continue_` mean the life that can still be changed."""

    @task
    async def first(context): ...

    @task(dependencies=[first])
    async def wait(context, handle):
        context["answer"] = await handle.wait_for("event")

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(first, wait), run_id="r")
        await runner.cancel("r", "wait")
        with pytest.raises(RunFailed):
            await run.result()
        assert [each.id for each in await runner.list(state="Failed")] == ["r"]
        await run.rerun()
        assert [each.id for each in await runner.list()] == ["r"]
        assert [each.id for each in await runner.list(state="Running")] == ["r"]
        assert await runner.list(state="Failed") == []
        await run.halt()
        assert (await run.status()).state == "Halted"
        await run.continue_()
        await runner.halt("r", "wait")
        assert (await run.status()).tasks["wait"].status == "Halted"
        await runner.continue_("r", "wait")
        with pytest.raises(UsageError, match="first"):
            await runner.halt("r", "first")
        await run.cancel(by="anna")
        with pytest.raises(RunCancelled, match="anna"):
            await run.result()
        await run.rerun()
        await runner.resolve("event", 1)
        assert await run.result() == {"answer": 1}
        assert [each.id for each in await runner.list(state="Completed")] == ["r"]
        await sound(runner)


@virtual_test
async def test_a_task_that_ran_after_a_failure_keeps_its_result():
    """It was successful; what runs again before it is in the final context nevertheless."""
    ran: Counter[str] = Counter()

    @task
    async def charge(context):
        ran["charge"] += 1
        if ran["charge"] == 1:
            raise ValueError("no")
        context["charged"] = True

    @task(dependencies=[charge], rule="all_done")
    async def report(context):
        ran["report"] += 1
        context["reported"] = context.get("charged", False)

    @task(dependencies=[report])
    async def archive(context):
        ran["archive"] += 1
        if ran["archive"] == 1:
            raise ValueError("no")
        context["archived"] = context["charged"]

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(charge, report, archive), run_id="r")
        with pytest.raises(RunFailed):
            await run.result()
        await run.rerun()
        result = await run.result()
    assert result == {"charged": True, "reported": False, "archived": True}
    assert ran == {"charge": 2, "report": 1, "archive": 2}


@virtual_test
async def test_a_skip_is_decided_again_after_what_runs_again():
    """No body has run, so nothing is repeated."""
    tries: Counter[str] = Counter()

    @task
    async def check(context):
        tries["check"] += 1
        context["ok"] = tries["check"] > 1

    @task(dependencies=[check], rule=lambda outcomes, context: context["ok"])
    async def go(context):
        context["gone"] = True

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(check, go), run_id="r")
        assert await run.result() == {"ok": False}
        await run.rerun(from_=check)
        assert await run.result() == {"ok": True, "gone": True}


@virtual_test
async def test_results_contexts_and_causes_are_those_of_each_life():
    """What reused tasks returned can be read in the new life, by later tasks and afterwards."""
    tries: Counter[str] = Counter()

    @task
    async def count(context):
        context["counted"] = True
        return 17

    @task(dependencies=[count])
    async def use(context):
        tries["use"] += 1
        if tries["use"] < 3:
            raise ValueError(f"not at try {tries['use']}")
        context["used"] = context.result("count")

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(count, use), run_id="r")
        with pytest.raises(RunFailed, match="try 1"):
            await run.result()
        await run.rerun()
        with pytest.raises(RunFailed, match="try 2") as second:
            await run.result()
        assert second.value.errors["use"].message == "not at try 2"
        assert second.value.context == {"counted": True} == await run.context()
        with pytest.raises(RunFailed, match="try 1") as first:
            await run.result(life=1)
        assert first.value.errors["use"].message == "not at try 1"
        await run.rerun()
        result = await run.result()
        assert (result, result.result("count")) == ({"counted": True, "used": 17}, 17)
        assert await run.context(life=2) == {"counted": True}


@virtual_test
async def test_a_pinned_run_is_run_again_on_the_code_of_today(tmp_path: Path):
    """Each life stays on the code that began it: the old code is what failed."""
    is_mended = False

    @task
    async def charge(context):
        if not is_mended:
            raise ValueError("no")

    flow = Workflow("pinned", [charge], pin=True)
    file = f"sqlite:{tmp_path / 'a.db'}"
    async with Runner(file, version="1") as runner:
        run = await runner.start(flow, run_id="r")
        with pytest.raises(RunFailed):
            await run.result()
        assert (await run.status()).pin == "1"
    is_mended = True
    async with Runner(file, version="2") as runner:
        runner.register(flow)
        run = await runner.get("r")
        await run.rerun()
        await run.result()
        assert ((await run.status()).pin, (await run.status(life=1)).pin) == ("2", "1")


@virtual_test
async def test_clean_up_comes_last_in_every_life():
    """And a run that is still being cleaned up is not run again."""
    done: list[str] = []

    @task
    async def reserve(context):
        done.append("reserve")

    @task(dependencies=[reserve])
    async def charge(context):
        done.append("charge")
        if done.count("charge") == 1:
            raise ValueError("no")

    @task(rule="finally", timeout=60)
    async def tidy(context, handle):
        await handle.sleep(5)
        done.append("tidy")

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(reserve, charge, tidy), run_id="r")
        with pytest.raises(RunFailed):
            await run.result()
        await run.rerun()
        assert (await run.cleaned_up()).life == 2
        await run.rerun(from_="tidy")
        await run.cancel()
        with pytest.raises(Conflict, match="still being cleaned up by tidy"):
            await run.rerun()
        assert (await run.status()).is_cleaning_up
        await run.cleaned_up()
        await run.rerun()
        await run.result()
        await sound(runner)
    assert done == ["reserve", "charge", "tidy", "charge", "tidy", "tidy"]


@virtual_test
async def test_clean_up_is_told_how_its_own_life_has_ended():
    """Not how an earlier one did: it would undo what has succeeded, or leave what has not."""
    endings: list[str] = []
    fails = [True, False, True]

    @task
    async def charge(context):
        if fails.pop(0):
            raise ValueError("no")

    @task(rule="finally", timeout=60)
    async def tidy(context):
        endings.append(context.ending.state)

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(charge, tidy), run_id="r")
        for _ in range(2):
            await run.cleaned_up()
            await run.rerun(from_="charge")
        await run.cleaned_up()
    assert endings == ["Failed", "Completed", "Failed"]


@virtual_test
async def test_a_body_of_the_old_life_ends_before_that_of_the_new_begins():
    """Though the run was cancelled and run again long before."""
    running: list[str] = []
    began, may_end = asyncio.Event(), asyncio.Event()

    @task
    async def stubborn(context, handle):
        running.append("begins")
        began.set()
        try:
            if len(running) == 1:
                await asyncio.Event().wait()
        finally:
            await may_end.wait()
            running.append("ends")

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(stubborn), run_id="r")
        await began.wait()
        await run.cancel()
        await run.rerun()
        await asyncio.sleep(1)
        assert running == ["begins"]
        may_end.set()
        await run.result()
    assert running == ["begins", "ends", "begins", "ends"]


@virtual_test
async def test_inside_a_task_result_follows_the_latest_life():
    shop = Shop()

    async with Runner("memory:") as runner:
        run = await shop.failed(runner)
        shop.fails.clear()

        @task
        async def parent(context):
            context["charge"] = (await run.result())["charge"]

        await run.rerun()
        assert await runner.execute(flow_of(parent)) == {"charge": 2}


def test_a_run_that_failed_before_a_restart_is_run_again(tmp_path: Path):
    """By a Runner that has never seen the first life; blocking, for once."""
    file = f"sqlite:{tmp_path / 'a.db'}"
    shop = Shop()
    with BlockingRunner(file) as runner:
        run = runner.start(shop.flow, {"order": 7}, run_id="r")
        with pytest.raises(RunFailed):
            run.result()
    shop.fails.clear()
    with BlockingRunner(file) as runner:
        runner.register(shop.flow)
        run = runner.get("r")
        assert run.rerun(from_="notify", checkpoints="forget", deadline=60) is run
        assert run.result()["ship"] == 1
        assert (run.status().lives, run.status(life=1).state) == (2, "Failed")
        with pytest.raises(RunFailed):
            run.result(life=1)
    assert shop.ran == {"reserve": 1, "charge": 2, "ship": 1, "notify": 2}
