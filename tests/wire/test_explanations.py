"""Over the wire people are told the same as in the process."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layby.core import queries as q
from layby.core.model import NEVER, Promise, Task
from layby.core.replies import Explanation
from layby.core.waits import WAIT_KINDS, WaitingOn, waiting_of
from layby.wire.answers import read
from layby.wire.encode import encode
from layby.wire.records import ExplanationRecord, PairRecord
from layby.workflow.reasons import reason_of
from layby.workflow.status import NodeRow, task_execution
from tests.store.test_by_time import NOW, prepared

times = st.integers(0, 2 * NOW)
reports = st.builds(
    WaitingOn,
    kind=st.sampled_from(WAIT_KINDS),
    sentence=st.text(max_size=5),
    since=times,
    deadline=st.none() | times,
).map(WaitingOn.to_text)
promises = st.builds(
    Promise,
    id=st.sampled_from(("run/r:t", "run/r", "p")),
    root=st.just(""),
    param=st.just("{}"),
    tags=st.just("{}"),
    timeout_at=times | st.just(NEVER),
    created_at=times,
)


@st.composite
def tasks(draw: Any) -> Task:
    """Any task that its rules allow, and some more; who holds it has a pid and an incarnation."""
    state = draw(st.sampled_from(("pending", "acquired", "suspended", "halted", "fulfilled")))
    is_kept = state in ("pending", "halted") and draw(st.booleans())
    has_holder = is_kept or (state == "acquired" and draw(st.booleans()))
    group = draw(st.sampled_from((None, "g")))
    told = draw(st.none() | reports)
    is_blocked = state == "pending" and told is not None and draw(st.booleans())
    return Task(
        "run/r:t",
        "poll://any@g",
        group,
        draw(st.sampled_from((None, "flow/t"))),
        draw(st.sampled_from((None, "node"))),
        draw(st.sampled_from((0, 3, -2))),
        draw(st.sampled_from((1, 2))),
        state,
        pid="w1" if has_holder or state == "acquired" else None,
        holder="1" if has_holder else None,
        wake_at=draw(st.none() | times),
        ready_at=draw(st.none() | times),
        waits_left=draw(st.integers(0, 2)),
        sub_status=draw(st.sampled_from((None, "Active", "Deferred"))),
        waiting_on=told,
        refused='["flow/t",["v1"]]' if is_blocked else None,
        pin=draw(st.sampled_from((None, "v1"))) if is_blocked else None,
        waiting_since=draw(st.none() | times),
        tries=draw(st.integers(0, 2)),
        ahead=draw(st.booleans()),
    )


def across(record: Any, row: Any) -> Any:
    """As a client reads what the server shows."""
    return msgspec.json.decode(msgspec.json.encode(record.of(row)), type=record).row()


@given(promises, st.none() | tasks())
def test_a_wait_is_classified_alike_on_both_sides(promise: Promise, task: Task | None) -> None:
    """Its form, kind, times and sentence; a status also says whether an old body still runs."""
    about = Explanation(promise, task)
    told = across(ExplanationRecord, about)
    shown, shown_task = across(PairRecord, (promise, task))
    waiting = waiting_of(promise, task, NOW)
    assert waiting_of(told.promise, told.task, NOW) == waiting
    assert waiting_of(shown, shown_task, NOW) == waiting
    assert reason_of(told, NOW) == reason_of(about, NOW)
    if task is not None:
        status = task_execution(NodeRow(promise, task), NOW)
        assert task_execution(NodeRow(shown, shown_task), NOW) == status


@pytest.mark.parametrize("seed", range(5))
def test_every_reason_survives_the_wire(seed: int) -> None:
    """Whatever the state, kind, times, sentence and next steps are alike."""
    world, _ = prepared(seed)
    for key in world.dump().promises:
        request = q.ExplainPromise(id=key)
        reply: Any = world.engine.call(request, NOW)
        told: Any = read(request, encode(request.kind, "0", reply)).data
        assert reason_of(told, NOW) == reason_of(reply.data, NOW)
        assert (told.workers, told.able_workers) == (
            reply.data.workers,
            reply.data.able_workers,
        )


@pytest.mark.parametrize("seed", range(5))
def test_every_page_of_what_waits_survives_the_wire(seed: int) -> None:
    """In its order, with its cursor."""
    world, _ = prepared(seed)
    request = q.ListWaiting(limit=7)
    reply: Any = world.engine.call(request, NOW)
    told: Any = read(request, encode(request.kind, "0", reply)).data
    assert told.cursor == reply.data.cursor
    assert [reason_of(each, NOW) for each in told.entries] == [
        reason_of(each, NOW) for each in reply.data.entries
    ]


def test_a_refusal_stays_a_refusal() -> None:
    """404 with its text."""
    world, _ = prepared(0)
    request = q.ExplainPromise(id="nowhere")
    reply = world.engine.call(request, NOW)
    assert read(request, encode(request.kind, "0", reply)) == reply
