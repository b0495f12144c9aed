"""rule="finally": what a definition may say, and what such a task sees."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layby import Context, Workflow, task
from layby.core.model import NEVER, Promise
from layby.errors import WorkflowError
from layby.workflow import outcome, plan
from layby.workflow.merge import Delta, View
from layby.workflow.outcome import NodeOutcome
from layby.workflow.rules import RUN, decide
from layby.workflow.shape import Shape
from layby.workflow.views import RunViews


def named(task_id: str, *before: str, cleans_up: bool = False):
    options = {"rule": "finally", "timeout": 5} if cleans_up else {}

    @task(id=task_id, dependencies=before, **options)
    async def body(context): ...

    return body


def test_it_must_have_a_timeout():
    with pytest.raises(WorkflowError, match="task 'clean' has rule='finally' but no timeout"):

        @task(rule="finally")
        async def clean(context): ...


def test_an_ordinary_task_may_not_depend_on_one():
    tasks = [named("a", "clean"), named("clean", cleans_up=True)]
    with pytest.raises(
        WorkflowError, match="task 'a' depends on 'clean', which has rule='finally'"
    ):
        Workflow("f", tasks=tasks)


def test_one_may_depend_on_others_and_on_ordinary_tasks():
    """The latter says nothing new."""
    tasks = [named("a"), named("x", "a", cleans_up=True), named("y", "x", cleans_up=True)]
    flow = Workflow("f", tasks=tasks)
    assert flow.shape.after == {"a": (), "x": ("a",), "y": ("a", "x")}
    assert flow.leaves == ("y",)


def test_they_may_not_wait_for_each_other_in_a_circle():
    tasks = [named("a"), named("x", "y", cleans_up=True), named("y", "x", cleans_up=True)]
    with pytest.raises(WorkflowError, match="cycle"):
        Workflow("f", tasks=tasks)


def test_there_must_be_something_to_clean_up_after():
    with pytest.raises(WorkflowError, match="only tasks with rule='finally'"):
        Workflow("f", tasks=[named("x", cleans_up=True)])


def test_a_hundred_are_enough():
    cleanups = [named(f"x{number}", cleans_up=True) for number in range(101)]
    with pytest.raises(WorkflowError, match="101 tasks with rule='finally', more than 100"):
        Workflow("f", tasks=[named("a"), *cleanups])


def test_a_misspelt_rule_is_named():
    with pytest.raises(WorkflowError, match="did you mean 'finally'"):
        task(id="x", rule="finaly", timeout=5)(lambda context: None)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("status", ["Completed", "Failed", "Skipped", "Cancelled"])
def test_it_runs_whatever_happened(status):
    outcomes = {"a": NodeOutcome(status, blocked=status == "Skipped")}
    assert decide("finally", outcomes, Context()) == RUN


# --- what is stored --------------------------------------------------------------------------


def started(flow: Workflow) -> Promise:
    command = plan.plan(flow, "r", {"n": 1}, "default", NEVER)
    return Promise(command.id, command.id, outcome.encoded(command.param), "{}", NEVER, 0)


def test_the_shape_of_a_run_is_read_again():
    flow = Workflow("f", tasks=[named("x", cleans_up=True), named("a"), named("b", "a")])
    root = started(flow)
    read = plan.read_root_param(root.param)
    assert read.shape.after == flow.shape.after
    assert read.shape.cleanups == {"x"}
    assert plan.read_root_param(root.param, lambda _: flow.shape).shape is flow.shape
    assert plan.cleanups_of(root) == ("x",)


def test_a_flow_that_says_otherwise_now_does_not_change_a_run():
    ordinary = Workflow("f", tasks=[named("a"), named("x", "a")])
    cleaning = Workflow("f", tasks=[named("a"), named("x", "a", cleans_up=True)])
    root = started(ordinary)
    assert plan.read_root_param(root.param, lambda _: cleaning.shape).shape.cleanups == frozenset()


def test_of_ordinary_tasks_the_same_is_written_as_ever():
    """Schedules compare what they stored."""
    flow = Workflow("f", tasks=[named("a")])
    assert b"cleanup" not in plan.layout_of(flow).tasks


# --- what it sees ----------------------------------------------------------------------------


def test_it_sees_what_was_made_although_a_later_task_was_cancelled_before():
    """A run that is cancelled settles its tasks in portions, in any order."""
    shape = Shape({"a": (), "b": ("a",), "c": ("b",), "x": ()}, ["x"])
    views = RunViews(shape, View.initial({"n": b"1"}))
    views.learn("c", settled_at=5)
    views.learn("a", Delta({"a": b"2"}), settled_at=6)
    views.learn("b", settled_at=7)
    assert dict(views.before("x").view.items()) == {"n": b"1", "a": b"2"}


@given(
    st.permutations(["a", "b", "c", "d"]),
    st.sets(st.sampled_from(["a", "b", "c", "d"])),
    st.sampled_from(
        [
            {"a": (), "b": ("a",), "c": ("b",), "d": ("c",)},
            {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")},
            {"a": (), "b": (), "c": ("a", "b"), "d": ()},
        ]
    ),
)
def test_it_sees_everything_that_any_task_made(order, made, after):
    """Whoever settled first: keys of their own are all there."""
    views = RunViews(Shape({**after, "x": ()}, ["x"]), View())
    for at, each in enumerate(order):
        views.learn(each, Delta({each: b"1"}) if each in made else Delta(), settled_at=at)
    assert dict(views.before("x").view.items()) == dict.fromkeys(made, b"1")


def test_the_ending_of_a_run():
    root = started(Workflow("f", tasks=[named("a")]))
    done, failed = NodeOutcome("Completed"), NodeOutcome("Failed", error="E: no")
    assert outcome.ending(root, {"a": done}).state == "Completed"
    told = outcome.ending(root, {"a": done, "b": failed})
    assert (told.state, told.failed, told.reason) == ("Failed", {"b": "E: no"}, "")
    assert told.outcomes == {"a": "Completed", "b": "Failed"}
    late = outcome.ending(root.timed_out(), {"a": done})
    assert late.state == "Failed"
    assert "deadline passed" in late.reason
    assert pickle.loads(pickle.dumps(told)) == told


def test_other_tasks_are_told_nothing():
    assert Context({"n": 1}).ending is None
