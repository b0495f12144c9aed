"""Which requests that may bring tasks are not answered yet, and what late answers bring."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layby import Runner, Workflow, task
from layby.core import commands as c
from layby.core.commands import Released
from layby.core.model import EMPTY, NEVER, Promise, Task
from layby.core.replies import Claim, DeferData, Reply, TakeData, ok, refuse
from layby.testing import virtual_test
from layby.worker.open_takes import OpenTakes
from layby.worker.worker import Worker
from layby.workflow import plan
from tests.helpers.late_answers import LateAnswers


class Request:
    """Equal to every other one: only the object itself counts."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


@given(st.lists(st.integers(0, 12)))
def test_those_before_a_mark_are_answered_when_none_of_them_is_open(script: list[int]):
    """In whatever order they end; 0 sends one, another number ends one of those that are open."""
    takes, numbered = OpenTakes(), dict[int, Request]()
    for each in script:
        if each == 0:
            request = Request()
            takes.begin(request)
            numbered[takes.sent] = request
        elif numbered:
            takes.end(numbered.pop(sorted(numbered)[each % len(numbered)]))
        for mark in range(takes.sent + 1):
            assert takes.are_answered(mark) == all(number > mark for number in numbered)


def test_one_that_is_not_known_ends_without_a_word():
    """A report that was never sent, since the worker had been stopped."""
    takes = OpenTakes()
    takes.end(Request())
    assert takes.are_answered(takes.sent)


# --- what late answers bring -----------------------------------------------------------------


def claim_of(task_id: str, version: int) -> Claim:
    row = Task(id=task_id, target="", version=version, state="acquired")
    return Claim(row, Promise(task_id, task_id, EMPTY, "{}", NEVER, 0))


def brought(reply: Reply | None) -> list[tuple[str, int]]:
    assert reply is not None
    data = reply.data
    taken = data if isinstance(data, TakeData) else getattr(data, "taken", None)
    assert isinstance(taken, TakeData)
    return [(each.task.id, each.task.version) for each in taken.claims]


def test_what_was_given_up_is_not_brought_by_answers_that_were_under_way():
    """Nor are earlier claims of it: each was over before the one that was given up began."""
    takes, first, second, third = OpenTakes(), Request(), Request(), Request()
    takes.begin(first)
    takes.begin(second)
    takes.give_up("a", 2)
    takes.begin(third)
    answer = ok(TakeData([claim_of("a", 2), claim_of("b", 2), claim_of("a", 3)]))
    assert brought(takes.end(second, answer)) == [("b", 2), ("a", 3)]
    assert brought(takes.end(third, answer)) == [("a", 2), ("b", 2), ("a", 3)]
    riding = ok(DeferData(claim_of("c", 1).task, TakeData([claim_of("a", 1), claim_of("b", 1)])))
    assert brought(takes.end(first, riding)) == [("b", 1)]


def test_nothing_is_given_up_that_no_answer_may_bring():
    """A word that comes late, or twice, says nothing about a later life of the task."""
    takes, request = OpenTakes(), Request()
    assert not takes.give_up("a", 1)
    takes.begin(request)
    assert brought(takes.end(request, ok(TakeData([claim_of("a", 1)])))) == [("a", 1)]


def test_what_a_lost_lease_covered_is_not_brought():
    takes, before, after = OpenTakes(), Request(), Request()
    takes.begin(before)
    takes.give_up_all()
    takes.begin(after)
    answer = ok(TakeData([claim_of("a", 1)]))
    assert brought(takes.end(before, answer)) == []
    assert brought(takes.end(after, answer)) == [("a", 1)]


async def given_late(runner: Runner, flow: Workflow) -> LateAnswers:
    """The only task of the run `a` is given to the worker, and that does not know it yet."""
    late = LateAnswers(runner.worker)
    runner.register(flow)
    await asyncio.sleep(1)
    await late.send(plan.plan(flow, "a", {}, "default", NEVER))
    await late.come()
    return late


def counting(bodies: list[int], lasts: float = 0) -> Workflow:
    @task
    async def body(context, handle):
        bodies.append(handle.try_number)
        await asyncio.sleep(lasts)

    return Workflow("counting", tasks=[body])


@pytest.mark.parametrize("lasts", [0, 10], ids=["it is over", "it runs"])
@virtual_test
async def test_what_a_worker_was_given_before_it_lost_its_lease_does_not_begin(lasts: float):
    """It takes tasks meanwhile, however long that answer is under way."""
    bodies: list[int] = []
    async with Runner("memory:") as runner:
        late = await given_late(runner, counting(bodies, lasts))
        worker = runner.worker
        worker.start_over(worker.incarnation, refuse(409, "gone"))
        await asyncio.sleep(5)
        held = dict(worker.holds)
        assert len(held) == (lasts > 0)
        late.may_go.set()
        await asyncio.sleep(1)
        assert worker.holds == held
        await (await runner.get("a")).result()
    assert len(bodies) == 1


@virtual_test
async def test_a_late_answer_does_not_replace_a_later_claim_whose_loss_was_never_told(monkeypatch):
    """The word that it was halted has got lost with a stream."""
    bodies: list[int] = []
    monkeypatch.setattr(Worker, "lost", lambda *_: None)
    async with Runner("memory:") as runner:
        late = await given_late(runner, counting(bodies, lasts=10))
        worker = runner.worker
        await worker.client.send(c.HaltTask(id="run/a:body"))
        said = Released("run/a:body", 1, begun=False)
        await worker.client.send(
            c.ReleaseTasks(pid=worker.config.pid, incarnation=worker.incarnation, tasks=(said,))
        )
        await worker.client.send(c.ContinueTask(id="run/a:body"))
        worker.replace_standing_take()
        await asyncio.sleep(1)
        late.may_go.set()
        await asyncio.sleep(1)
        assert worker.holds == {"run/a:body": 2}
        await (await runner.get("a")).result()
    assert len(bodies) == 1


@virtual_test
async def test_a_claim_that_is_halted_before_its_answer_came_is_no_try():
    """No body of it has begun, so the first one that does has the number 1."""
    bodies: list[int] = []
    async with Runner("memory:") as runner:
        late = await given_late(runner, counting(bodies))
        await runner.client.send(c.HaltTask(id="run/a:body"))
        await asyncio.sleep(1)
        late.may_go.set()
        await asyncio.sleep(1)
        await runner.client.send(c.ContinueTask(id="run/a:body"))
        await (await runner.get("a")).result()
    assert bodies == [1]


@virtual_test
async def test_a_word_about_an_earlier_life_does_not_hold_up_a_new_run():
    """It was told twice, or late: since then the run was deleted, and started again."""
    bodies: list[int] = []
    async with Runner("memory:") as runner:
        flow = counting(bodies)
        runner.register(flow)
        await asyncio.sleep(1)
        runner.worker.lost("run/a:body", 1)
        await asyncio.sleep(1)
        await runner.worker.client.send(plan.plan(flow, "a", {}, "default", NEVER))
        await asyncio.sleep(1)
    assert len(bodies) == 1


@virtual_test
async def test_a_claim_whose_answer_comes_while_the_worker_stops_is_no_try(tmp_path):
    """It goes back as it came before the worker leaves: afterwards nobody could tell."""
    address, bodies = f"sqlite:{tmp_path / 'a.db'}", list[int]()
    flow = counting(bodies)
    async with Runner(address) as runner:
        late = await given_late(runner, flow)
        asyncio.get_running_loop().call_later(1, late.may_go.set)
    async with Runner(address) as runner:
        runner.register(flow)
        await (await runner.get("a")).result()
    assert bodies == [1]
