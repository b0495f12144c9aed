"""A writer that sleeps must wake for the thing itself, not for the next stranger."""

from concurrent.futures import Future

import pytest

from layby.clock import SystemClock
from layby.core.commands import CreatePromise, Take
from layby.core.model import NEVER
from layby.core.replies import Reply, TakeData
from layby.core.settings import Settings
from layby.engine.calendar import next_after
from layby.engine.engine import Engine
from layby.engine.items import Answer, Item
from layby.store.memory import MemoryStore

OURS = {"resonate:target": "poll://any@layby.g", "layby:name": "n"}


@pytest.fixture
def engine():
    engine = Engine(MemoryStore(Settings(), next_after), SystemClock())
    engine.start()
    yield engine
    engine.stop(timeout=10)


def waiting_take(engine: Engine) -> "Future[Answer]":
    future: Future[Answer] = Future()
    take = Take(pid="w", incarnation="1", group="g", names=("n",), free=1, wait_ms=60_000)
    engine.submit([Item(take, lambda answers: future.set_result(answers[0][1]))])
    return future


def ids_in(answer: Answer) -> list[str]:
    assert isinstance(answer, Reply)
    assert isinstance(answer.data, TakeData)
    return [claim.task.id for claim in answer.data.claims]


def test_a_waiting_take_is_served_by_the_commit_that_makes_a_task_ready(engine):
    """No other request and no deadline is needed for it: the commit alone wakes the take."""
    taken = waiting_take(engine)
    engine.call(CreatePromise(id="t", timeout_at=NEVER, tags=OURS))
    assert ids_in(taken.result(timeout=20)) == ["t"]


def test_a_waiting_take_is_served_when_a_delay_ends(engine):
    """A task that time makes ready is handed out at once, not at the next repair."""
    taken = waiting_take(engine)
    soon = engine.clock.now() + 50
    tags = {**OURS, "resonate:delay": str(soon)}
    engine.call(CreatePromise(id="t", timeout_at=NEVER, tags=tags))
    assert ids_in(taken.result(timeout=20)) == ["t"]
    assert engine.clock.now() >= soon
