"""The judges are judged: true records pass, and each lie in one of them is noticed."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from layby.core.queries import TickDebug
from layby.core.settings import Settings
from tests.helpers import linearizability as linear
from tests.helpers import record_checks as judging
from tests.helpers.recording import Call, Data, Heard, Record, wall_ms
from tests.helpers.server_process import Answer
from tests.helpers.worlds import World
from tests.model.scripts import (
    ANY,
    acquire,
    create,
    fulfill,
    listener,
    settle,
    suspend,
    task_create,
)

MS = 1_000_000
FAR = 2**52
EAR = "poll://uni@ears/a"


class Stage:
    """Calls that were really answered so, one after the other, at times of our choice."""

    def __init__(self) -> None:
        self.record = Record()
        self._world = World(now=wall_ms(0))
        self._at = 0

    def call(self, kind: str, data: Data) -> Call:
        """It lasts a millisecond, and nothing happens in the ten that follow."""
        answer = Answer(*self._world.ask(kind, data, wall_ms(self._at)))
        call = Call("somebody", kind, data, self._at, self._at + MS, answer)
        self.record.add(call)
        self.wait(10)
        return call

    def wait(self, by_ms: int) -> None:
        self._at += by_ms * MS
        self._world.engine.call(TickDebug(time=wall_ms(self._at)))

    def hear(self, message: Data, address: str = EAR) -> None:
        self.record.add(Heard(address, message, self._at))

    def lie(self, told: Call, **otherwise: Any) -> None:
        """The record says something else about this call."""
        n = self.record.calls.index(told)
        self.record.calls[n] = told._replace(**otherwise)

    @property
    def problem(self) -> str | None:
        return linear.problem(self.record.calls, Settings())


@pytest.fixture
def stage() -> Stage:
    return Stage()


def answered(call: Call) -> Any:
    assert call.answer is not None
    return call.answer.data


def unblock(promise: Data) -> Data:
    return {"kind": "unblock", "head": {}, "data": {"promise": promise}}


def execute(task_id: str, version: int) -> Data:
    return {"kind": "execute", "head": {}, "data": {"task": {"id": task_id, "version": version}}}


def told_of(check: Callable[[Record], Any], record: Record) -> bool:
    """Whether this check finds something, and whoever judges hears of it."""
    found = list(check(record))
    with pytest.raises(AssertionError) if found else nullcontext():
        judging.judge(record)
    return bool(found)


# --- claims ----------------------------------------------------------------------------------


def claimed_three_times(stage: Stage) -> list[Call]:
    stage.call("promise.create", create("t", FAR, target=ANY))
    claims = []
    for version in range(3):
        claims.append(stage.call("task.acquire", acquire("t", version)))
        stage.call("task.release", {"id": "t", "version": version + 1})
    return claims


def test_one_claim_for_each_version_is_right(stage: Stage) -> None:
    claimed_three_times(stage)
    assert stage.problem is None
    judging.judge(stage.record)


def test_a_version_that_was_claimed_twice_is_noticed(stage: Stage) -> None:
    first, second, _ = claimed_three_times(stage)
    stage.lie(second, answer=first.answer, data=first.data)
    assert told_of(judging.claimed_twice, stage.record)
    assert stage.problem is not None


def test_a_version_that_nobody_claimed_is_noticed(stage: Stage) -> None:
    _, second, _ = claimed_three_times(stage)
    stage.lie(second, answer=Answer(409, "Version mismatch"))
    assert told_of(judging.versions_left_out, stage.record)
    assert stage.problem is not None


def test_a_version_that_was_claimed_without_an_answer_may_be_missing(stage: Stage) -> None:
    _, second, _ = claimed_three_times(stage)
    stage.lie(second, answer=None)
    assert stage.problem is None
    judging.judge(stage.record)


def test_a_version_that_falls_is_noticed(stage: Stage) -> None:
    first, second, _ = claimed_three_times(stage)
    stage.lie(first, answer=second.answer)
    stage.lie(second, answer=first.answer)
    assert told_of(judging.claimed_out_of_order, stage.record)
    assert told_of(judging.tasks_gone_back, stage.record)


# --- what never changes any more -------------------------------------------------------------


def settled_and_read(stage: Stage) -> tuple[Call, Call]:
    stage.call("promise.create", create("p", FAR))
    settled = stage.call("promise.settle", settle("p", "resolved", "one"))
    return settled, stage.call("promise.get", {"id": "p"})


def test_a_settled_promise_that_is_pending_again_is_noticed(stage: Stage) -> None:
    """Unless nobody knows that it was settled, or both were under way at once."""
    settled, read = settled_and_read(stage)
    pending = {k: v for k, v in answered(read)["promise"].items() if k != "settledAt"}
    old = Answer(200, {"promise": pending | {"state": "pending", "value": {}}})
    assert stage.problem is None
    stage.lie(read, answer=old)
    assert told_of(judging.settled_and_changed, stage.record)
    assert stage.problem is not None
    stage.record.calls[1] = settled._replace(returned_at=read.returned_at + 1)
    assert not told_of(judging.settled_and_changed, stage.record)
    assert stage.problem is None
    stage.record.calls[1] = settled._replace(answer=None)
    assert not told_of(judging.settled_and_changed, stage.record)
    assert stage.problem is None


def test_a_promise_that_is_settled_in_two_ways_is_noticed(stage: Stage) -> None:
    settled, read = settled_and_read(stage)
    other = answered(read)["promise"] | {"value": {"data": "two"}}
    stage.lie(read, answer=Answer(200, {"promise": other}))
    assert told_of(judging.settled_and_changed, stage.record)
    assert stage.problem is not None
    stage.lie(stage.record.calls[-1], answer=settled.answer)
    stage.hear(unblock(other))
    assert told_of(judging.settled_and_changed, stage.record)


def test_a_write_that_was_answered_and_is_not_there_is_noticed(stage: Stage) -> None:
    """The same without an answer is what a killed server may do."""
    created = stage.call("promise.create", create("p", FAR))
    read = stage.call("promise.get", {"id": "p"})
    stage.lie(read, answer=Answer(404, "Promise not found"))
    assert stage.problem is not None
    stage.lie(created, answer=None)
    assert stage.problem is None


def test_a_write_without_an_answer_is_done_before_its_caller_knows(stage: Stage) -> None:
    """What nobody was answered is done then or never: not when somebody looks much later."""
    created = stage.call("promise.create", create("p", FAR))
    read = stage.call("promise.get", {"id": "p"})
    stage.lie(created, answer=None)
    assert stage.problem is None
    missing = read._replace(invoked_at=2 * MS, returned_at=3 * MS)
    stage.record.calls.insert(1, missing._replace(answer=Answer(404, "Promise not found")))
    assert stage.problem is not None


def test_what_was_not_answered_may_show_much_later(stage: Stage) -> None:
    """Those who came in between need not have noticed."""
    stage.call("task.create", task_create(create("t", FAR, target=ANY)))
    halted = stage.call("task.halt", {"id": "t"})
    stage.call("task.acquire", acquire("t", 1))
    stage.call("task.get", {"id": "t"})
    stage.lie(halted, answer=None)
    assert stage.problem is None


# --- time ------------------------------------------------------------------------------------


def test_a_lease_that_ends_too_early_is_noticed(stage: Stage) -> None:
    """It may end late, or by itself when its time has come."""
    claimed = stage.call("task.create", task_create(create("t", FAR, target=ANY), ttl=50))
    stage.wait(50)
    stage.call("task.acquire", acquire("t", 1))
    assert stage.problem is None
    longer = claimed.data | {"ttl": 100}
    task = answered(claimed)["task"] | {"ttl": 100}
    stage.lie(claimed, data=longer, answer=Answer(200, answered(claimed) | {"task": task}))
    assert stage.problem is not None


def test_a_promise_that_times_out_too_early_is_noticed(stage: Stage) -> None:
    created = stage.call("promise.create", create("p", wall_ms(50 * MS)))
    stage.wait(50)
    read = stage.call("promise.get", {"id": "p"})
    assert answered(read)["promise"]["state"] == "rejected_timedout"
    assert stage.problem is None
    stage.lie(read, invoked_at=created.returned_at + 1, returned_at=created.returned_at + 2)
    assert stage.problem is not None


def test_a_promise_that_times_out_too_late_is_noticed(stage: Stage) -> None:
    created = stage.call("promise.create", create("p", wall_ms(50 * MS)))
    stage.wait(50)
    read = stage.call("promise.get", {"id": "p"})
    stage.lie(read, answer=created.answer)
    assert stage.problem is not None


def test_a_task_that_is_not_resumed_is_noticed(stage: Stage) -> None:
    stage.call("task.create", task_create(create("t", FAR, target=ANY)))
    stage.call("promise.create", create("p", FAR))
    stage.call("task.suspend", suspend("t", 1, "p"))
    before = stage.call("task.get", {"id": "t"})
    stage.call("promise.settle", settle("p"))
    after = stage.call("task.get", {"id": "t"})
    assert stage.problem is None
    stage.lie(after, answer=before.answer)
    assert stage.problem is not None


# --- messages --------------------------------------------------------------------------------


def test_who_listens_hears_what_was_settled_once(stage: Stage) -> None:
    stage.call("promise.create", create("p", FAR))
    stage.call("promise.register_listener", listener("p", EAR))
    settled = stage.call("promise.settle", settle("p"))
    assert judging.never_told(stage.record) == {(EAR, "p")}
    stage.hear(unblock(answered(settled)["promise"]))
    assert judging.never_told(stage.record) == set()
    judging.judge(stage.record)
    assert list(judging.told_twice(stage.record)) == []
    stage.hear(unblock(answered(settled)["promise"]))
    assert list(judging.told_twice(stage.record)) != []


def test_what_is_told_to_a_stranger_or_too_early_is_noticed(stage: Stage) -> None:
    created = stage.call("promise.create", create("p", FAR))
    stage.call("promise.register_listener", listener("p", EAR))
    settled = stage.call("promise.settle", settle("p"))
    stage.hear(unblock(answered(settled)["promise"]), "poll://uni@ears/b")
    assert told_of(judging.told_wrongly, stage.record)
    stage.record.heard.clear()
    stage.hear(unblock(answered(created)["promise"]))
    assert told_of(judging.told_wrongly, stage.record)


def test_a_version_that_is_dispatched_before_it_is_issued_is_noticed(stage: Stage) -> None:
    first, *_ = claimed_three_times(stage)
    for version in range(4):
        stage.hear(execute("t", version), "poll://uni@g/w")
    judging.judge(stage.record)
    stage.hear(execute("t", 4), "poll://uni@g/w")
    assert told_of(judging.dispatched_without_issue, stage.record)
    stage.record.heard.clear()
    stage.record.add(Heard("poll://uni@g/w", execute("t", 1), first.invoked_at - 1))
    assert told_of(judging.dispatched_without_issue, stage.record)


def test_a_fulfilled_task_that_runs_again_is_noticed(stage: Stage) -> None:
    stage.call("task.create", task_create(create("t", FAR, target=ANY)))
    running = stage.call("task.get", {"id": "t"})
    stage.call("task.fulfill", fulfill("t", 1))
    read = stage.call("task.get", {"id": "t"})
    assert stage.problem is None
    stage.call("task.get", {"id": "t"})
    stage.lie(stage.record.calls[-1], answer=running.answer)
    assert read.answer != running.answer
    assert told_of(judging.tasks_gone_back, stage.record)
    assert stage.problem is not None
