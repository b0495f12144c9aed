"""`handle.approval`: a person answers, and the task learns what, who and why."""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any, Literal

import pytest

import layby
from layby import (
    Conflict,
    DeferTimeout,
    NoneSucceeded,
    PromiseCancelled,
    RunFailed,
    Runner,
    UsageError,
    task,
    triggers,
    waits,
)
from layby.core.commands import SettlePromise
from layby.testing import current_clock, virtual_test
from layby.wire import json_values
from layby.worker import approval_requests
from tests.helpers.workers import crashing, flow_of, look, settled_down

ID = "run/r:t.c.approval.approval-1"


@dataclass
class Price:
    amount: int
    currency: Literal["EUR", "USD"] = "EUR"


def asks(*args: Any, **options: Any) -> Any:
    """A flow whose only task asks this."""

    @task(id="t")
    async def body(context, handle):
        answer = await handle.approval(*args, **options)
        context["yes"] = bool(answer)
        context["told"] = [answer.by, answer.reason]
        value = answer.value
        context["value"] = [value.amount, value.currency] if isinstance(value, Price) else value

    return flow_of(body)


@virtual_test
async def test_a_yes_and_who_said_it():
    """The inbox shows the question until somebody answers; the body gets all of it."""
    async with Runner("memory:") as runner:
        run = await runner.start(asks("Ship it?"), run_id="r")
        await settled_down()
        (found,) = await runner.approvals()
        assert (found.id, found.prompt, found.task) == (ID, "Ship it?", "run/r:t")
        waiting = (await look(run, "t")).waiting_on
        assert waiting is not None
        assert (waiting.kind, waiting.sentence) == (
            "approval",
            "waiting for an answer to: Ship it?",
        )
        settlement = await runner.approve(ID, by="anna", reason="it is paid")
        assert settlement
        assert settlement.by == "anna"
        result = await run.result()
        assert await runner.approvals() == []
    assert (result["yes"], result["told"]) == (True, ["anna", "it is paid"])


@virtual_test
async def test_a_no_is_an_answer():
    """It raises nothing: the body decides what it means."""
    async with Runner("memory:") as runner:
        run = await runner.start(asks("Ship it?"), run_id="r")
        await settled_down()
        assert await runner.deny(ID, by="bob", reason="not today")
        assert not await runner.approve(ID, by="anna")
        result = await run.result()
    assert (result["yes"], result["told"], result["value"]) == (False, ["bob", "not today"], None)


@virtual_test
async def test_a_typed_answer_is_checked_before_it_counts():
    """A wrong one leaves the question open; a right one comes as the class."""
    async with Runner("memory:") as runner:
        run = await runner.start(asks("How much?", Price), run_id="r")
        await settled_down()
        for wrong in ({}, {"amount": "ten"}, {"amount": 1, "currency": "GBP"}, None):
            with pytest.raises(UsageError, match="Invalid answer"):
                await runner.approve(ID, wrong)
        with pytest.raises(UsageError, match="Invalid answer"):
            await runner.resolve(ID, {"amount": []})
        assert len(await runner.approvals()) == 1
        assert await runner.approve(ID, {"amount": 7})
        result = await run.result()
    assert result["value"] == [7, "EUR"]


@virtual_test
async def test_a_plain_question_takes_no_value():
    """Nobody would read it."""
    async with Runner("memory:") as runner:
        await runner.start(asks("Ship it?"), run_id="r")
        await settled_down()
        with pytest.raises(UsageError, match="must have no value"):
            await runner.approve(ID, 1)


@virtual_test
async def test_nobody_answers_in_time():
    """The question closes by itself, and the body is told."""

    @task(id="t")
    async def body(context, handle):
        with pytest.raises(DeferTimeout, match="nobody answered"):
            await handle.approval("Ship it?", timeout=60)
        context["after"] = current_clock().elapsed

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(body), run_id="r")
        assert (await run.result())["after"] == 60
        assert not await runner.approve(ID)


@virtual_test
async def test_one_question_over_crashes_and_failed_tries(tmp_path):
    """Nobody is asked twice: an answer of an earlier try counts."""
    tries: list[int] = []

    @task(id="t", retries=1)
    async def body(context, handle):
        answer = await handle.approval("Ship it?", timeout=3600)
        tries.append(handle.try_number)
        if len(tries) == 1:
            raise ValueError("once")
        context["by"] = answer.by

    address = f"sqlite:{tmp_path / 'a.db'}"
    async with crashing(address) as runner:
        await runner.start(flow_of(body), run_id="r")
        await settled_down()
    async with Runner(address) as runner:
        runner.register(flow_of(body))
        await asyncio.sleep(1)
        assert len(await runner.approvals()) == 1
        await runner.approve(ID, by="anna")
        assert (await (await runner.get("r")).result())["by"] == "anna"
    assert len(tries) == 2


@virtual_test
async def test_another_question_under_the_same_key_does_not_get_the_answer(tmp_path):
    """Changed code is noticed: a yes to one thing is not a yes to another."""

    def flow(prompt: str) -> Any:
        return asks(prompt)

    address = f"sqlite:{tmp_path / 'a.db'}"
    async with crashing(address) as runner:
        await runner.start(flow("Ship it?"), run_id="r")
        await settled_down()
    async with Runner(address) as runner:
        runner.register(flow("Delete everything?"))
        run = await runner.get("r")
        await runner.approve(ID, by="anna")
        await asyncio.sleep(10)
        assert (await look(run, "t")).status == "Pending"
        waiting = (await look(run, "t")).waiting_on
        assert waiting is not None
        assert waiting.kind == "code"


@virtual_test
async def test_withdrawn_or_without_a_task_it_cannot_be_answered():
    """Who answers too late is told that nobody asks any more."""

    @task(id="t")
    async def body(context, handle):
        asked = handle.approval("Ship it?")
        await handle.first_of(asked, waits.sleep(10))
        await asked.withdraw()
        other = handle.approval("Really?")
        await other.open()
        with pytest.raises(PromiseCancelled):
            await asked

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(body), run_id="r")
        await run.result()
        assert await runner.approvals() == []
        late = await runner.approve(ID)
        assert (late.won, late.state) == (False, "rejected_canceled")
        with pytest.raises(Conflict, match="not needed any more"):
            await runner.approve("run/r:t.c.approval.approval-2")


@virtual_test
async def test_in_bundles_a_no_is_an_answer_but_no_success():
    """all_of has all answers; any_of waits for the first yes."""

    @task(id="t")
    async def body(context, handle):
        anna, bob = handle.approval("Anna?", key="anna"), handle.approval("Bob?", key="bob")
        context["any"] = (await handle.any_of(anna, bob)).which
        context["all"] = [bool(each) for each in await handle.all_of(anna, bob)]
        try:
            await handle.any_of(anna)
        except NoneSucceeded as error:
            context["none"] = str(error.errors[0])

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(body), run_id="r")
        await settled_down()
        await runner.deny("run/r:t.c.approval.key.anna", reason="no way")
        await asyncio.sleep(1)
        await runner.approve("run/r:t.c.approval.key.bob")
        result = await run.result()
    assert (result["any"], result["all"]) == (1, [False, True])
    assert "no way" in result["none"]


@virtual_test
async def test_what_is_settled_behind_the_back_of_the_check_is_noticed():
    """The protocol knows no approvals; the body does not get nonsense as a value."""

    @task(id="t")
    async def body(context, handle):
        with pytest.raises(UsageError, match="was answered wrongly"):
            await handle.approval("How much?", Price)

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(body), run_id="r")
        await settled_down()
        value = json_values.to_value("nonsense")
        await runner.send(SettlePromise(id=ID, state="resolved", value=value))
        await run.result()


@virtual_test
async def test_questions_that_cannot_be_asked():
    """Refused at the call, with what is wrong."""

    @task(id="t")
    async def body(context, handle):
        with pytest.raises(UsageError, match="prompt"):
            handle.approval("")
        with pytest.raises(UsageError, match="'pattern', which is not supported"):
            handle.approval("x", {"type": "string", "pattern": "a"})
        with pytest.raises(UsageError, match="must be an object"):
            handle.approval("x", 7)

    async with Runner("memory:") as runner:
        await (await runner.start(flow_of(body), run_id="r")).result()


def test_a_plain_def_asks_too():
    """With `wait()` in place of `await`."""

    @task(id="t")
    def body(context: Any, handle: Any) -> None:
        asked = handle.approval("Ship it?")
        context["id"] = asked.open()
        context["yes"] = asked.wait().approved

    async def main() -> Any:
        async with Runner("memory:") as runner:
            run = await runner.start(flow_of(body), run_id="r")
            found: list[Any] = []
            while not found:
                found = await runner.approvals()
            await runner.approve(found[0].id)
            return await run.result()

    result = asyncio.run(main())
    assert (result["id"], result["yes"]) == (ID, True)


@virtual_test
async def test_a_question_that_nobody_has_answered_is_neither_true_nor_false():
    """A forgotten `await` would ship every order; it fails the task instead."""

    @task(id="t")
    async def body(context, handle):
        if handle.approval("Ship it?"):
            context["shipped"] = True

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(body), run_id="r")
        with pytest.raises(RunFailed, match=f"approval {ID} is a question.*write `await`"):
            await run.result()


def test_in_a_plain_def_a_forgotten_wait_is_not_a_yes_either():
    """The message names the call that is missing."""

    @task(id="t")
    def body(context: Any, handle: Any) -> None:
        context["shipped"] = bool(handle.approval("Ship it?"))

    with pytest.raises(RunFailed, match=r"approval run/.* is a question.*call its wait\(\)"):
        layby.run(flow_of(body))


@pytest.fixture(autouse=True)
def _told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approval_requests, "_TOLD", set())


def unasked(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if "nobody was asked" in text]


@virtual_test
async def test_a_question_that_is_made_and_never_asked_is_told_of(caplog):
    """It looks as if somebody had been asked: the log names the task, the question, its place."""

    @task(id="t")
    async def body(context, handle):
        handle.approval("Ship order 7?")
        context["shipped"] = True

    async with Runner("memory:") as runner:
        await runner.execute(flow_of(body), run_id="r")
        await runner.execute(flow_of(body), run_id="another")
    (told,) = unasked(caplog)  # once for each place
    assert "run/r:t has ended, and nobody was asked 'Ship order 7?'" in told
    assert f"(approval {ID}, made at test_approval_requests.py:" in told
    assert "write `await`" in told


def test_a_plain_def_is_told_so_too(caplog):
    """The place is that of its own code."""

    @task(id="t")
    def body(context: Any, handle: Any) -> None:
        context["id"] = handle.approval("Ship it?").id

    layby.run(flow_of(body))
    (told,) = unasked(caplog)
    assert "made at test_approval_requests.py:" in told
    assert "call its wait()" in told


@pytest.mark.parametrize("how", ["await", "open", "withdraw", "bundle", "raise", "defer", "none"])
@virtual_test
async def test_nothing_is_told_of_questions_that_were_asked_or_may_still_be(how, caplog):
    """A body that did not return may have been about to ask."""

    @task(id="t")
    async def body(context, handle):
        if how == "none" or handle.try_number > 1:
            return
        asked = handle.approval("Ship it?", timeout=5)
        match how:
            case "await":
                with pytest.raises(DeferTimeout):
                    await asked
            case "open":
                await asked.open()
            case "withdraw":
                await asked.withdraw()
            case "bundle":
                await handle.first_of(waits.sleep(1), waits.all_of(asked))
            case "raise":
                raise ValueError("first")
            case _:
                await handle.defer(triggers.Delay(1))

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(body), run_id="r")
        with contextlib.suppress(RunFailed):
            await run.result()
    assert unasked(caplog) == []


@virtual_test
async def test_a_question_that_an_earlier_run_of_the_body_has_asked(tmp_path, caplog):
    """In a checkpoint, which is not run again after a crash."""
    has_crashed = False

    @task(id="t")
    async def body(context, handle):
        asked = handle.approval("Ship it?", timeout=3600)
        await handle.checkpoint("mail", asked.open)
        await handle.sleep(60)
        assert has_crashed

    address = f"sqlite:{tmp_path / 'a.db'}"
    async with crashing(address) as runner:
        await runner.start(flow_of(body), run_id="r")
        await asyncio.sleep(1)
        assert len(await runner.approvals()) == 1
    has_crashed = True
    async with Runner(address) as runner:
        runner.register(flow_of(body))
        await (await runner.get("r")).result()
    assert unasked(caplog) == []
