"""What a run without a result leaves."""

from hypothesis import given
from hypothesis import strategies as st

from layby.core import values
from layby.core.model import Promise, PromiseState, Task
from layby.wire.json_values import named_error_value, text_of
from layby.workflow import plan
from layby.workflow.merge import View
from layby.workflow.outcome import encode_completed
from layby.workflow.task import task
from layby.workflow.unfinished import context_so_far, rows_of, run_failed
from layby.workflow.views import RunViews
from layby.workflow.workflow import Workflow
from tests.helpers.dags import KEYS, Naive, delta_of, deltas, shapes

NEVER = 2**53 - 1
NOW = 1_000


@given(shapes(), st.data())
def test_a_run_that_is_over_has_made_its_final_context(shape, data):
    initial = data.draw(st.dictionaries(st.sampled_from(KEYS), st.just(b"9")))
    views = RunViews(shape, View.initial(initial))
    for each in shape.after:
        views.learn(each, data.draw(deltas()), settled_at=1)
    assert views.so_far() == views.final().view


@given(shapes(), st.data())
def test_a_run_cut_short_has_made_what_a_smaller_one_would_have(shape, data):
    """As if the tasks that have not settled did not exist."""
    initial = data.draw(st.dictionaries(st.sampled_from(KEYS), st.just(b"9")))
    length = data.draw(st.integers(0, len(shape.order)))
    settled = set(shape.order[:length])
    written = {each: data.draw(deltas()) for each in shape.after if each in settled}
    views = RunViews(shape, View.initial(initial))
    for each in shape.after:
        if each in settled:
            views.learn(each, written[each], settled_at=1)
        else:
            views.leave_open(each)
    smaller = type(shape)({each: shape.after[each] for each in shape.after if each in settled})
    entries, _ = Naive(smaller, initial, written).final()
    assert views.so_far().entries() == entries


@task
def first(context): ...


@task(dependencies=[first])
def second(context): ...


@task
def third(context): ...


FLOW = Workflow("flow", tasks=[first, second, third])


def root(state: PromiseState, value: str = "{}") -> Promise:
    param = text_of(plan.plan(FLOW, "r", {"n": 1}, "default", NEVER).param)
    return Promise("run/r", "run/r", param, "{}", NOW, 0, state=state, value=value)


def row(task_id: str, state: PromiseState, value: str = "{}", error: str | None = None):
    key = f"run/r:{task_id}"
    promise = Promise(
        key, "run/r", "{}", "{}", NOW, 0, state=state, value=value, settled_at=len(state)
    )
    kept = Task(key, "", state="fulfilled", version=1, kind="node", error=error)
    return promise, kept


NO_MONEY = values.error("ValueError", "no money", stack="Traceback: pay")
DONE = text_of(encode_completed(delta_of({"k": 1}), result=b"[2]"))


def test_what_had_settled_is_in_the_context():
    rows = rows_of([row("first", "resolved", DONE), row("second", "pending")], now=0)
    context = context_so_far(root("pending"), rows)
    assert context == {"n": 1, "k": 1}
    assert [context.result(each) for each in FLOW.tasks] == [[2], None, None]


def test_what_tasks_have_recorded_is_no_task():
    promise, kept = row("first.checkpoint.x", "resolved")
    assert rows_of(
        [(promise, None), (root("pending"), kept), row("first", "pending")], 0
    ).keys() == {"first"}


def test_errors_are_those_that_the_run_names():
    """And none for what was skipped, or cancelled with the run."""
    told = named_error_value("RunFailed", "x", failed={"first": "a", "third": "cancelled by ann"})
    rows = rows_of(
        [
            row("third", "rejected_canceled", values.cancelled("ann", "")),
            row("second", "resolved"),
            row("first", "rejected", NO_MONEY),
        ],
        NOW,
    )
    failed = run_failed(root("rejected", text_of(told)), rows)
    assert list(failed.errors) == ["first", "third"]
    assert (failed.errors["first"].type, failed.errors["first"].traceback) == (
        "ValueError",
        "Traceback: pay",
    )
    assert failed.errors["third"].message == "cancelled by ann"


def test_a_deadline_has_the_errors_of_tasks_that_kept_failing():
    rows = rows_of(
        [
            row("first", "rejected", NO_MONEY),
            row("second", "rejected_timedout"),
            row("third", "rejected_timedout", error=NO_MONEY),
        ],
        NOW,
    )
    failed = run_failed(root("rejected_timedout"), rows)
    assert (failed.failed, list(failed.errors)) == ({}, ["first", "third"])
    assert "deadline passed" in failed.reason


def test_a_task_cancelled_with_its_run_has_not_failed():
    rows = rows_of([row("first", "rejected_canceled"), row("third", "rejected_timedout")], NOW)
    assert run_failed(root("rejected", values.error("Rejected", "by hand")), rows).errors == {}
