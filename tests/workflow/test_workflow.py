import pytest
from hypothesis import given

from layby.errors import UsageError, WorkflowError
from layby.workflow.shape import Shape
from layby.workflow.task import task
from layby.workflow.workflow import Workflow, check_run_id
from tests.helpers.dags import shapes


def body(context): ...


def make(task_id, *dependencies):
    return task(id=task_id, dependencies=dependencies)(body)


def test_a_workflow_knows_its_shape():
    flow = Workflow("order", tasks=[make("ship", "pay", "pack"), make("pay"), make("pack", "pay")])
    assert list(flow.tasks) == ["ship", "pay", "pack"]
    assert flow.order == ("pay", "pack", "ship")
    assert flow.leaves == ("ship",)
    assert flow.ancestors("ship") == {"pay", "pack"}
    assert flow.ancestors("pay") == frozenset()
    assert repr(flow) == "Workflow('order', ship, pay, pack)"


def test_tasks_cannot_be_changed_afterwards():
    tasks = [make("a")]
    flow = Workflow("f", tasks)
    tasks.append(make("b"))
    assert list(flow.tasks) == ["a"]
    with pytest.raises(TypeError):
        flow.tasks["b"] = make("b")  # pyright: ignore[reportIndexIssue]


@pytest.mark.parametrize(
    ("name", "tasks", "message"),
    [
        ("f", [], "workflow 'f' has no tasks"),
        ("f", [make("a"), make("a")], "has two tasks 'a'"),
        ("f", [make("submit"), make("b", "submti")], "'b' depends on 'submti'.*mean 'submit'"),
        ("f", [make("a", "zzz")], "'a' depends on 'zzz', which is not in it; add it to tasks"),
        ("f", [make("a", "a")], "workflow 'f': dependencies form a cycle: a -> a"),
        ("f", [body], "is not a task: decorate the function with @task"),
        ("f", make("a"), "tasks must be a list of tasks"),
        ("f", None, "tasks must be a list of tasks"),
        ("", [make("a")], "workflow name '' must not be empty"),
        ("a/b", [make("a")], "workflow name 'a/b' must not contain '/': use 'a-b'"),
        ("a:b", [make("a")], "must not contain ':'"),
        ("a\0", [make("a")], "control characters"),
        ("ä" * 101, [make("a")], "at most 200 bytes"),
        (7, [make("a")], "must be a string, not int"),
    ],
)
def test_bad_workflows_are_refused_with_the_remedy(name, tasks, message):
    with pytest.raises(WorkflowError, match=message):
        Workflow(name, tasks)


def test_a_cycle_is_named():
    tasks = [make("a", "c"), make("b", "a"), make("c", "b"), make("free")]
    with pytest.raises(WorkflowError) as caught:
        Workflow("f", tasks)
    assert {"a", "b", "c"} == set(str(caught.value).split("cycle: ")[1].split(";")[0].split(" -> "))


@pytest.mark.parametrize(
    ("run_id", "message"),
    [
        ("order:7", "run id 'order:7' must not contain ':': use 'order-7'"),
        ("2026.11/15", "must not contain '.' or '/': use '2026-11-15'"),
        (":", "must not contain ':'$"),
        ("", "must not be empty"),
        ("  ", "must not be empty"),
        ("a\0b", "control characters"),
        ("a\nb", "control characters"),
        ("\ud800", "broken text"),
        ("x" * 201, "too long"),
        (None, "must be a string, not NoneType"),
    ],
)
def test_bad_run_ids_are_refused_with_the_remedy(run_id, message):
    with pytest.raises(UsageError, match=message):
        check_run_id(run_id)


@pytest.mark.parametrize("run_id", ["order-7", "ü ber", "x" * 200, "a_b@c"])
def test_good_run_ids(run_id):
    assert check_run_id(run_id) == run_id


@given(shapes())
def test_ancestors_and_order_agree_with_the_naive_meaning(shape: Shape):
    def ancestors(task_id: str) -> set[str]:
        return {each for one in shape.after[task_id] for each in (one, *ancestors(one))}

    for number, task_id in enumerate(shape.order):
        assert shape.position[task_id] == number
        assert shape.ancestors(task_id) == ancestors(task_id)
        assert shape.ancestors(task_id) <= set(shape.order[:number])
        assert {each for each in shape.after if shape.precedes(each, task_id)} == ancestors(task_id)


def test_a_chain_of_ten_thousand_tasks_is_cheap():
    """Sets of names would need gigabytes, and recursion would overflow the stack."""
    shape = Shape({f"t{n}": (f"t{n - 1}",) if n else () for n in range(10_000)})
    assert shape.precedes("t0", "t9999")
    assert len(shape.ancestors("t9999")) == 9_999
