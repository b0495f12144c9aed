"""People end or prolong the waits of parked bodies, which go on in place, or in a later run."""

import asyncio
from functools import partial
from typing import Any

import pytest

from layby import (
    ConditionError,
    Conflict,
    DeferTimeout,
    PromiseRejected,
    RunFailed,
    Runner,
    UsageError,
    task,
    triggers,
    waits,
)
from layby.core.commands import WakeTask
from layby.core.model import NEVER
from layby.testing import current_clock, virtual_test
from layby.wire.records import PromiseRecord
from layby.worker.annotations import Annotations
from layby.worker.wait_deadlines import WaitDeadlines
from layby.worker.worker import Worker
from tests.helpers.late_answers import LateAnswers
from tests.helpers.workers import crashing, flow_of, look, promises, settled_down

began: list[str] = []


@pytest.fixture(autouse=True)
def nothing_began() -> None:
    began.clear()


@task
async def naps(context: Any, handle: Any) -> None:
    began.append("naps")
    await handle.sleep(3600)
    context["woke_at"] = current_clock().elapsed


@task
async def polls(context: Any, handle: Any) -> None:
    began.append("polls")
    await handle.defer_until(lambda: False, poll_interval=60)
    context["woke_at"] = current_clock().elapsed


@task
def plain(context: Any, handle: Any) -> None:
    began.append("plain")
    handle.defer_until(lambda: False, poll_interval=60)
    context["woke_at"] = current_clock().elapsed


WAITING = {"sleep": naps, "defer_until": polls, "in a thread": plain}


@pytest.mark.parametrize("kind", WAITING)
@virtual_test
async def test_a_parked_body_goes_on_in_place(kind):
    """Its local variables are there: it does not begin again."""
    waiting = WAITING[kind]
    async with Runner("memory:", slots=1) as runner:
        run = await runner.start(flow_of(waiting))
        await asyncio.sleep(7)
        await runner.wake(run.id, waiting.id, by="ann", reason="enough")
        assert (await run.result())["woke_at"] == 7
    assert len(began) == 1


@pytest.mark.parametrize("kind", WAITING)
@virtual_test
async def test_if_its_holder_dies_meanwhile_the_decision_counts_for_the_next(tmp_path, kind):
    waiting, path = WAITING[kind], f"sqlite:{tmp_path / 'a.db'}"
    async with crashing(path) as runner:
        run = await runner.start(flow_of(waiting))
        await asyncio.sleep(7)
        task_id = f"run/{run.id}:{waiting.id}"
        assert runner.engine.call(WakeTask(id=task_id, exit_id="x")).is_ok
    async with Runner(path) as runner:
        runner.register(flow_of(waiting))
        again = await runner.get(run.id)
        assert (await again.result())["woke_at"] < 60
    assert len(began) == 2


@virtual_test
async def test_a_failure_is_raised_where_the_body_waits():
    @task
    async def tries(context, handle):
        try:
            await handle.defer_until(lambda: False)
        except ConditionError as error:
            context["first"] = str(error)
        try:
            await handle.sleep(3600)
        except PromiseRejected as error:
            context["second"] = error.message

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(tries))
        await asyncio.sleep(5)
        await runner.wake(run.id, "tries", error="no")
        await asyncio.sleep(5)
        await runner.wake(run.id, "tries", error="never")
        assert await run.result() == {"first": "no", "second": "never"}


async def until_true(handle: Any) -> None:
    await handle.defer_until(lambda: False, poll_interval=1, timeout=60)


async def for_a_promise(handle: Any) -> None:
    await handle.wait_for("p", timeout=60)


async def for_a_bundle(handle: Any) -> None:
    await handle.all_of(waits.wait_for("p"), waits.wait_for("q"), timeout=60)


async def for_an_answer(handle: Any) -> None:
    await handle.approval("ship?", timeout=60)


async def for_a_call(handle: Any) -> None:
    await handle.rpc("f", target="poll://any@elsewhere", timeout=60)


async def for_a_time(handle: Any) -> None:
    """It does not give up: it is over."""
    await handle.sleep(60)
    raise DeferTimeout("slept")


TIMED = [until_true, for_a_promise, for_a_bundle, for_an_answer, for_a_call, for_a_time]


def gives_up(wait: Any) -> Any:
    @task
    async def timed(context, handle):
        with pytest.raises(DeferTimeout):
            await wait(handle)
        context["gave_up_at"] = current_clock().elapsed

    return flow_of(timed)


@pytest.mark.parametrize("wait", TIMED)
@pytest.mark.parametrize("length", [10, 600])
@virtual_test
async def test_a_deadline_moves_sooner_or_later(wait, length):
    async with Runner("memory:") as runner:
        run = await runner.start(gives_up(wait))
        await asyncio.sleep(5)
        await runner.extend(run.id, "timed", length, by="ann")
        await settled_down()
        told = (await look(run, "timed")).waiting_on
        assert told is not None
        assert told.deadline == runner.now() + length * 1000
        assert (await run.result())["gave_up_at"] == 5 + length


@pytest.mark.parametrize("wait", TIMED)
@virtual_test
async def test_a_moved_deadline_outlives_its_worker(tmp_path, wait):
    path = f"sqlite:{tmp_path / 'a.db'}"
    async with crashing(path) as runner:
        run = await runner.start(gives_up(wait))
        await asyncio.sleep(5)
        await runner.extend(run.id, "timed", 600)
    async with Runner(path) as runner:
        runner.register(gives_up(wait))
        again = await runner.get(run.id)
        assert (await again.result())["gave_up_at"] == 605


KEPT_WITH_THE_TASK = [until_true, for_a_promise, for_a_bundle]


def says_why(wait: Any) -> Any:
    @task
    async def timed(context, handle):
        try:
            await wait(handle)
        except DeferTimeout as error:
            context["why"] = str(error)

    return flow_of(timed)


@pytest.mark.parametrize("away", [0, 900], ids=["in time", "too late"])
@pytest.mark.parametrize("is_moved", [True, False], ids=["moved", "as it was"])
@pytest.mark.parametrize("wait", KEPT_WITH_THE_TASK)
@virtual_test
async def test_the_error_of_a_later_run_names_no_length_that_was_changed(
    tmp_path, wait, is_moved, away
):
    """Whether the body is there when the time is up, or begins again after that."""
    path = f"sqlite:{tmp_path / 'a.db'}"
    async with crashing(path) as runner:
        run = await runner.start(says_why(wait))
        await asyncio.sleep(5)
        if is_moved:
            await runner.extend(run.id, "timed", 600)
    await asyncio.sleep(away)
    async with Runner(path) as runner:
        runner.register(says_why(wait))
        why = (await (await runner.get(run.id)).result())["why"]
    assert ("by its deadline, which was moved" in why, "60 s" in why) == (is_moved, not is_moved)


@pytest.mark.parametrize("wait", [for_a_promise, for_a_bundle])
@virtual_test
async def test_the_error_says_whose_wait_it_was_though_its_deadline_was_moved(wait):
    """As it does when nobody has moved it."""
    async with Runner("memory:") as runner:
        run = await runner.start(says_why(wait), run_id="r")
        await asyncio.sleep(5)
        await runner.extend("r", "timed", 600)
        why = (await run.result())["why"]
    assert why.startswith("run/r:timed: ")
    assert why.endswith(" by its deadline, which was moved")


@pytest.mark.parametrize("wait", KEPT_WITH_THE_TASK)
@virtual_test
async def test_a_body_that_was_not_told_asks_before_it_gives_up(wait, monkeypatch):
    """The message may be lost with a connection; what the store has said counts."""
    monkeypatch.setattr(Worker, "told", lambda *_: None)
    async with Runner("memory:") as runner:
        run = await runner.start(gives_up(wait))
        await asyncio.sleep(5)
        await runner.extend(run.id, "timed", 600)
        assert (await run.result())["gave_up_at"] == 605


@pytest.mark.parametrize("wait", [for_a_promise, for_a_bundle])
@virtual_test
async def test_what_is_settled_by_a_moved_deadline_is_in_time(wait, monkeypatch):
    """Though the body did not know yet that it was moved."""

    @task
    async def waits_on(context, handle):
        await wait(handle)
        context["went_on_at"] = current_clock().elapsed

    monkeypatch.setattr(Worker, "told", lambda *_: None)
    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(waits_on))
        await asyncio.sleep(5)
        await runner.extend(run.id, "waits_on", 600)
        await asyncio.sleep(95)
        for each in "pq":
            await runner.resolve(each)
        assert (await run.result())["went_on_at"] == 100


@virtual_test
async def test_a_condition_that_was_woken_unheard_does_not_give_up(monkeypatch):
    @task
    async def polled(context, handle):
        await until_true(handle)
        context["met_at"] = current_clock().elapsed

    monkeypatch.setattr(Worker, "told", lambda *_: None)
    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(polled))
        await asyncio.sleep(5)
        await runner.wake(run.id, "polled")
        assert (await run.result())["met_at"] == 60


@pytest.mark.parametrize("wait", KEPT_WITH_THE_TASK)
@virtual_test
async def test_who_comes_after_the_deadline_is_told_so(wait, monkeypatch):
    """The body has not given up yet: its question to the store is on its way."""
    asked, answer = asyncio.Event(), asyncio.Event()
    ask = Annotations.later_deadline

    async def asks_slowly(*args: Any) -> Any:
        asked.set()
        await answer.wait()
        return await ask(*args)

    monkeypatch.setattr(Annotations, "later_deadline", asks_slowly)
    async with Runner("memory:") as runner:
        run = await runner.start(gives_up(wait))
        await asked.wait()
        with pytest.raises(Conflict, match="Its deadline has passed"):
            await runner.extend(run.id, "timed", 600)
        answer.set()
        assert (await run.result())["gave_up_at"] == 60


@pytest.mark.parametrize("wait", TIMED)
@virtual_test
async def test_without_end_it_does_not_end_by_itself(wait):
    async with Runner("memory:") as runner:
        run = await runner.start(gives_up(wait))
        await asyncio.sleep(5)
        await runner.extend(run.id, "timed", None)
        await asyncio.sleep(10_000)
        assert (await look(run, "timed")).sub_status == "Deferred"
        await runner.extend(run.id, "timed", 3)
        assert (await run.result())["gave_up_at"] == 10_008


@virtual_test
async def test_a_wait_for_a_promise_says_what_to_settle_instead():
    @task
    async def asks(context, handle):
        await handle.wait_for("paid-7")

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(asks))
        await asyncio.sleep(5)
        with pytest.raises(Conflict, match=r"'paid-7'.*resolve that promise"):
            await runner.wake(run.id, "asks")
        with pytest.raises(Conflict, match="without a deadline"):
            await runner.extend(run.id, "asks", 5)
        await runner.resolve("paid-7")
        await run.result()


# --- what moves with a deadline --------------------------------------------------------------

APPROVAL = "run/r:asks.c.approval.approval-1"


@task
async def asks(context: Any, handle: Any) -> None:
    context["answer"] = (await handle.approval("ship?", timeout=60)).by


@virtual_test
async def test_who_is_asked_may_answer_until_the_moved_deadline():
    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(asks), run_id="r")
        await asyncio.sleep(5)
        await runner.extend("r", "asks", 600, by="ann")
        await asyncio.sleep(300)
        (still_open,) = await runner.approvals()
        assert still_open.deadline == runner.now() + 300_000
        assert await runner.approve(APPROVAL, by="bob")
        assert await run.result() == {"answer": "bob"}


@virtual_test
async def test_nobody_answers_after_a_deadline_that_was_moved_forward():
    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(asks), run_id="r")
        await asyncio.sleep(5)
        await runner.extend("r", "asks", 1)
        with pytest.raises(RunFailed, match="nobody answered"):
            await run.result()
        late = promises(runner)[APPROVAL]
        assert (late.is_timed_out, late.settled_at) == (True, late.timeout_at)
        assert not await runner.approve(APPROVAL)


@virtual_test
async def test_what_the_protocol_tells_of_its_time_never_changes():
    """Nor is anything told to have timed out at another time than was told."""
    async with Runner("memory:") as runner:
        await runner.start(flow_of(asks), run_id="r")
        await asyncio.sleep(5)
        told = [PromiseRecord.of(promises(runner)[APPROVAL])]
        await runner.extend("r", "asks", 10)
        told.append(PromiseRecord.of(promises(runner)[APPROVAL]))
        await asyncio.sleep(20)
        told.append(PromiseRecord.of(promises(runner)[APPROVAL]))
        assert {each.timeout_at for each in told} == {NEVER}
        assert [each.state for each in told] == ["pending", "pending", "rejected_canceled"]
        assert [each.row().timeout_at for each in told[1:]] == [told[-1].settled_at] * 2


@virtual_test
async def test_a_deadline_does_not_outlast_the_run():
    async with Runner("memory:") as runner:
        await runner.start(flow_of(asks), run_id="r", deadline=100)
        await asyncio.sleep(5)
        await runner.extend("r", "asks", None)
        assert promises(runner)[APPROVAL].timeout_at == runner.now() + 95_000


@pytest.mark.parametrize("wait", TIMED)
@virtual_test
async def test_while_it_is_halted_its_wait_is_prolonged_by_name(wait):
    """No worker has it then, and its deadline passes all the same."""
    async with Runner("memory:") as runner:
        run = await runner.start(gives_up(wait), run_id="r")
        await asyncio.sleep(5)
        told = (await look(run, "timed")).waiting_on
        assert told is not None
        await runner.halt("r", "timed")
        with pytest.raises(Conflict, match="it is halted: continue it"):
            await runner.extend("r", "timed", 600)
        await runner.extend("r", "timed", 600, wait=told.record_id or "")
        await asyncio.sleep(100)
        await runner.continue_("r", "timed")
        assert (await run.result())["gave_up_at"] == 605


@pytest.mark.parametrize("wait", KEPT_WITH_THE_TASK)
@virtual_test
async def test_a_deadline_that_moves_while_the_task_is_under_way_to_its_worker_counts(wait):
    """The word overtakes the answer that brings the task, and that says where it was before."""
    async with Runner("memory:") as runner:
        run = await runner.start(gives_up(wait), run_id="r")
        await asyncio.sleep(5)
        told = (await look(run, "timed")).waiting_on
        assert told is not None
        await runner.halt("r", "timed")
        await asyncio.sleep(1)
        late = LateAnswers(runner.worker)
        runner.worker.replace_standing_take()
        await asyncio.sleep(1)
        await runner.continue_("r", "timed")
        await late.come()
        await runner.extend("r", "timed", 10, wait=told.record_id or "")
        await asyncio.sleep(2)
        late.may_go.set()
        assert (await run.result())["gave_up_at"] == 17


def test_an_older_answer_does_not_take_back_what_was_heard() -> None:
    """Answers and words come by different ways: only what was never heard of is learned so."""
    deadlines = WaitDeadlines({"a": 60, "b": 60}, lambda: None)
    assert deadlines.moved_unheard({"a": 10, "b": 60, "c": 5}) == [("a", 10)]
    deadlines.heard("a")
    assert deadlines.move("a", 5)
    assert deadlines.moved_unheard({"a": 60, "b": 20}) == [("b", 20)]
    deadlines.end("b")
    assert deadlines.moved_unheard({"a": 10, "b": 20}) == []


@virtual_test
async def test_one_of_several_is_prolonged_and_shown_so():
    @task
    async def asks_two(context, handle):
        first = waits.sleep(60), handle.approval("ship?", timeout=30)
        context["which"] = (await handle.first_of(*first)).which
        context["at"] = current_clock().elapsed

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(asks_two), run_id="r")
        await asyncio.sleep(5)
        told = (await look(run, "asks_two")).waiting_on
        assert told is not None
        assert [each.kind for each in told.members] == ["sleep", "approval"]
        assert told.deadline == runner.now() + 25_000
        with pytest.raises(Conflict, match=r"no timeout of its own.*name one of"):
            await runner.extend("r", "asks_two", 600)
        await runner.extend("r", "asks_two", 600, wait=told.members[1].record_id or "", by="ann")
        await settled_down()
        told = (await look(run, "asks_two")).waiting_on
        assert told is not None
        assert told.deadline == runner.now() + 55_000
        assert "moved by ann" in told.members[1].sentence
        assert await run.result() == {"which": 0, "at": 60}


@virtual_test
async def test_who_did_what_is_kept_with_the_task():
    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(naps), run_id="r")
        await asyncio.sleep(5)
        begun_at = runner.now()
        await runner.extend("r", "naps", 60, by="ann", reason="later")
        await asyncio.sleep(1)
        await runner.wake("r", "naps", by="bob")
        await run.result()
        first, last = (await look(run, "naps")).exits
        assert (first.what, first.by, first.reason) == ("extended", "ann", "later")
        assert (first.at, first.until) == (begun_at, begun_at + 60_000)
        assert (last.what, last.by, last.wait) == ("ended", "bob", "run/r:naps.w0.sleep-1")


@virtual_test
async def test_a_halted_condition_says_that_it_is_halted_by_its_id_too():
    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(polls))
        await asyncio.sleep(5)
        await runner.halt(run.id, "polls")
        record = f"run/{run.id}:polls.w0.defer_until-1"
        with pytest.raises(Conflict, match="it is halted: continue it"):
            await runner.wake(run.id, "polls", wait=record)


@pytest.mark.parametrize("kind", ["sleep", "defer_until"])
@virtual_test
async def test_whoever_comes_second_is_told_who_was_first(kind):
    @task
    async def goes_on_working(context, handle):
        await (handle.sleep(3600) if kind == "sleep" else handle.defer_until(lambda: False))
        await asyncio.sleep(60)

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(goes_on_working))
        await asyncio.sleep(5)
        told = (await look(run, "goes_on_working")).waiting_on
        assert told is not None
        ends = partial(runner.wake, run.id, "goes_on_working", wait=told.record_id or "")
        await ends(by="ann")
        with pytest.raises(Conflict, match="ended by ann"):
            await ends(error="no", by="bob")


@virtual_test
async def test_a_wait_is_ended_with_a_value_or_an_error():
    async with Runner("memory:") as runner:
        with pytest.raises(UsageError, match="not both"):
            await runner.wake("r", "naps", 1, error="no")


# --- a person, and the condition itself ------------------------------------------------------


def unheard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of what a person has decided about a condition are lost."""
    monkeypatch.setattr(Worker, "ended_by_hand", lambda *_: None)


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("how", ["alone", "in a bundle"])
@virtual_test
async def test_what_a_person_has_stored_first_counts_though_the_condition_holds(
    monkeypatch, how, slots
):
    """waiting.md: "Of two that come at once the first to be stored counts"."""
    unheard(monkeypatch)

    @task
    async def polls_for_more(context, handle):
        def is_there() -> bool:
            return current_clock().elapsed >= 10

        try:
            if how == "alone":
                await handle.defer_until(is_there)
            else:
                await handle.first_of(waits.defer_until(is_there), waits.sleep(3600))
            context["end"] = "met"
        except ConditionError as error:
            context["end"] = str(error)

    @task
    async def works(context):
        await asyncio.sleep(20)

    async with Runner("memory:", slots=slots) as runner:
        run = await runner.start(flow_of(polls_for_more))
        await asyncio.sleep(5)
        other = await runner.start(flow_of(works, name="other"))
        member = f"run/{run.id}:polls_for_more.w0.of.first_of-1.0" if how != "alone" else ""
        await runner.wake(run.id, "polls_for_more", error="stop it", by="ann", wait=member)
        assert (await run.result())["end"] == "stop it"
        await other.result()


@pytest.mark.parametrize("how", ["alone", "in a bundle"])
@virtual_test
async def test_a_person_who_lets_it_count_as_met_is_before_its_last_error(monkeypatch, how):
    unheard(monkeypatch)

    @task
    async def polls_in_vain(context, handle):
        def breaks() -> bool:
            raise OSError("gone")

        if how == "alone":
            await handle.defer_until(breaks, max_errors=10)
        else:
            await handle.all_of(waits.defer_until(breaks, max_errors=10))

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(polls_in_vain))
        await asyncio.sleep(5)
        member = f"run/{run.id}:polls_in_vain.w0.of.all_of-1.0" if how != "alone" else ""
        await runner.wake(run.id, "polls_in_vain", wait=member)
        assert await run.result() == {}


@virtual_test
async def test_a_condition_that_held_first_is_not_ended_by_a_person():
    """Whoever comes while the body stands in line for its slot is told that it goes on."""

    @task
    async def polls_for_more(context, handle):
        await handle.defer_until(lambda: current_clock().elapsed >= 10)
        context["end"] = "met"

    @task
    async def works(context):
        await asyncio.sleep(20)

    async with Runner("memory:", slots=1) as runner:
        run = await runner.start(flow_of(polls_for_more))
        await asyncio.sleep(5)
        await runner.start(flow_of(works, name="other"))
        await asyncio.sleep(10)
        with pytest.raises(Conflict, match="over"):
            await runner.wake(run.id, "polls_for_more", error="stop it")
        record = f"run/{run.id}:polls_for_more.w0.defer_until-1"
        with pytest.raises(Conflict):
            await runner.wake(run.id, "polls_for_more", error="stop it", wait=record)
        assert (await run.result())["end"] == "met"


@virtual_test
async def test_a_deferral_that_may_last_for_ever_has_no_deadline():
    """However that is said."""

    @task
    async def defers(context, handle):
        await handle.defer(triggers.Event("paid"), timeout=60)

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(defers))
        await asyncio.sleep(5)
        for length in (float("inf"), None):
            await runner.extend(run.id, "defers", length)
            told = (await look(run, "defers")).waiting_on
            assert told is not None
            assert told.deadline is None


@virtual_test
async def test_the_deadline_of_a_call_is_moved_by_the_name_of_its_caller():
    """The id of the call means the wait of the function that serves it, while that is in one."""

    @task
    async def calls(context, handle):
        await handle.rpc("f", target="poll://any@elsewhere", timeout=60)

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(calls), run_id="r")
        await asyncio.sleep(5)
        commands = (await look(run, "calls")).by_hand
        assert "layby extend r:calls --timeout 1h" in commands
        assert not [each for each in commands if each.startswith("layby extend r:calls.x")]


@virtual_test
async def test_the_command_for_an_approval_gives_a_value_where_one_is_asked():
    """docs/waiting.md: "`layby approve order-7:ask`, with `--value` if it asks for one"."""

    @task
    async def asks(context, handle):
        await handle.approval("which price?", int)

    @task
    async def asks_two(context, handle):
        await handle.all_of(handle.approval("ship?", key="a"), handle.approval("to?", str, key="b"))

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(asks, asks_two), run_id="r")
        await asyncio.sleep(5)
        name = "layby approve r:asks"
        assert f"{name}.c.approval.approval-1 --value JSON" in (await look(run, "asks")).by_hand
        commands = (await look(run, "asks_two")).by_hand
        assert f"{name}_two.c.approval.key.a" in commands
        assert f"{name}_two.c.approval.key.b --value JSON" in commands


ENDLESS = {
    "condition": lambda handle: handle.defer_until(lambda: False, poll_interval=60, timeout=60),
    "promise": lambda handle: handle.wait_for("nothing", timeout=60),
    "bundle": lambda handle: handle.first_of(waits.wait_for("nothing"), timeout=60),
    "member": lambda handle: handle.first_of(waits.defer_until(lambda: False, 60, timeout=60)),
    "approval": lambda handle: handle.approval("ship?", timeout=60),
    "rpc": lambda handle: handle.rpc("f", target="poll://any@elsewhere", timeout=60),
}


@pytest.mark.parametrize("kind", ENDLESS)
@virtual_test
async def test_a_wait_without_end_shows_no_deadline_after_a_restart_either(tmp_path, kind):
    """Whoever makes a date of it could not. The command that gives it one again is still named."""
    path = f"sqlite:{tmp_path / 'a.db'}"

    @task(id="t")
    async def waits_long(context, handle):
        await ENDLESS[kind](handle)

    wait = "run/r:t.w0.of.first_of-1.0" if kind == "member" else ""
    for is_restarted in (False, True):
        async with Runner(path) as runner:
            run = await runner.start(flow_of(waits_long), run_id="r")
            await asyncio.sleep(5)
            if not is_restarted:
                await runner.extend("r", "t", None, wait=wait)
            told = (await look(run, "t")).waiting_on
            assert told is not None
            shown = [each.deadline for each in (told, *told.members)]
            assert shown == [None] * len(shown)
            assert any("layby extend" in each for each in (await look(run, "t")).by_hand)
            if is_restarted:
                await runner.extend("r", "t", 3, wait=wait)
                with pytest.raises(RunFailed, match=r"DeferTimeout|is over"):
                    await run.result()
