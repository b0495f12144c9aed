import pytest

from layby.core.commands import StartRun, Take
from layby.core.validate import problems
from layby.errors import ContextError, UsageError, WireError
from layby.wire.json_values import bytes_of, decode, text_of
from layby.workflow.context import Context
from layby.workflow.merge import View
from layby.workflow.plan import (
    NodeId,
    names,
    node_id,
    parse_node_id,
    parse_root_id,
    plan,
    read_root_param,
    root_id,
)
from layby.workflow.task import task
from layby.workflow.workflow import Workflow


@task
def submit(context): ...


@task(dependencies=[submit])
def wait_for_job(context): ...


FLOW = Workflow("order", [submit, wait_for_job])


def start(run_id="order-7", context=None, **options) -> StartRun:
    return plan(FLOW, run_id, context, "default", 99_000, **options)


def test_the_layout_of_a_run():
    take = Take(pid="p", incarnation="i", group="default", names=names(FLOW), free=1)
    command = start(context={"order": 7}, take=take)
    assert problems(command) is None
    assert (command.id, command.name, command.group) == ("run/order-7", "order", "default")
    assert (command.timeout, command.take) == (99_000, take)
    described = [(node.id, node.name, node.after, node.group) for node in command.nodes]
    assert described == [
        ("submit", "order/submit", (), None),
        ("wait_for_job", "order/wait_for_job", ("submit",), None),
    ]
    assert [command.node_id(node.id) for node in command.nodes] == [
        node_id("order-7", task_id) for task_id in FLOW.tasks
    ]


def test_what_promises_are_born_with():
    command = start(context={"order": 7})
    param = read_root_param(text_of(command.param))
    assert param.flow == "order"
    assert param.initial == View.initial({"order": b"7"})
    assert param.shape.after == {"submit": (), "wait_for_job": ("submit",)}
    params = [decode(bytes_of(text_of(node.param))) for node in command.nodes]
    assert params == [{"after": []}, {"after": ["submit"]}]


@pytest.mark.parametrize("context", [None, {}, Context()])
def test_no_context(context):
    assert read_root_param(text_of(start(context=context).param)).initial == View()


def test_a_final_context_can_start_the_next_run():
    final = Context.over(View.initial({"a": b"1"}))
    assert read_root_param(text_of(start(context=final).param)).initial == View.initial({"a": b"1"})


def test_names_a_worker_can_ask_for():
    assert names(FLOW) == ("order", "order/submit", "order/wait_for_job")


@pytest.mark.parametrize(
    ("promise_id", "run_id", "node"),
    [
        ("run/order-7", "order-7", None),
        ("run/order-7:submit", None, NodeId("order-7", "submit")),
        ("run/a:b.wait.1", None, NodeId("a", "b.wait.1")),
        ("order-7", None, None),
        ("order-7:submit", None, None),
        ("other/order-7:submit", None, None),
    ],
)
def test_ids_are_read_back(promise_id, run_id, node):
    assert parse_root_id(promise_id) == run_id
    assert parse_node_id(promise_id) == node


def test_ids_are_what_the_design_says():
    assert root_id("order-7") == "run/order-7"
    assert node_id("order-7", "submit") == "run/order-7:submit"


@pytest.mark.parametrize("text", ["{}", '{"data":"bm8="}', "x", text_of(start().nodes[0].param)])
def test_a_foreign_root_is_named(text):
    with pytest.raises(WireError, match=r"not written by layby\.run\.start"):
        read_root_param(text)


def test_bad_input():
    with pytest.raises(UsageError, match="'a:b' must not contain ':': use 'a-b'"):
        start(run_id="a:b")
    with pytest.raises(ContextError, match=r'context\["k"\]\["deep"\] is of type object'):
        start(context={"k": {"deep": object()}})
    with pytest.raises(ContextError, match="context key 7"):
        start(context={7: 1})
    with pytest.raises(ContextError, match=r"largest: 'big'"):
        start(context={"big": "x" * 1_000_001})
    with pytest.raises(ContextError, match=r"context must be a dict, got \['k'\]"):
        start(context=["k"])
