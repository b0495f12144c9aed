"""Runs of workflows from a graph: the user's Runner executes them, the result is a completion."""

import subprocess
import sys

import pytest

from layby import BlockingRunner, Runner, Workflow, task
from layby.executors import (
    AsyncTaskExecutor,
    DeterministicTaskExecutor,
    TaskExecutorConfig,
    ThreadedTaskExecutor,
)
from layby.graph import Graph
from tests.helpers.graphs import Notebook
from tests.helpers.push_receivers import on_loop
from tests.helpers.waiting import PATIENCE


@task
async def double(context):
    context["n"] = context["n"] * 2


@task
async def fail(context):
    raise LookupError("no such order")


doubling = Workflow("doubling", tasks=[double])
failing = Workflow("failing", tasks=[fail])


def ordering(notebook, errors, runner, flow: object = doubling, answers=None) -> Graph:
    graph = Graph("ordering")

    @graph.component(outputs=["done"], trigger="manual", error_port="failed")
    def order(context):
        answer = context.submit_run("done", runner, flow, {"n": context.payload})
        if answers is not None:
            answers.append(answer)

    graph.add_component("join", notebook, inputs=["done"], trigger="task_ready")
    graph.add_component("alarm", errors, inputs=["failure"])
    graph.connect("order.done", "join.done", kind="async", capacity=8)
    graph.connect("order.failed", "alarm.failure", kind="async", capacity=8)
    return graph


@pytest.mark.parametrize("executor_kind", ["async", "threaded"])
@on_loop
async def test_a_run_comes_back_as_a_completion(executor_kind):
    """With a Runner on this loop: awaited by an AsyncTaskExecutor, or waited for in a thread."""
    notebook, errors = Notebook(), Notebook()
    executor = AsyncTaskExecutor() if executor_kind == "async" else ThreadedTaskExecutor()
    async with Runner("memory:") as runner:
        runtime = ordering(notebook, errors, runner).runtime(task_executor=executor)
        runtime.fire("order", 21, correlation_id="order-7")
        await runtime.drive().run_until_idle(timeout=PATIENCE)
    [seen] = notebook.seen
    assert seen.payload["n"] == 42
    assert seen.metadata.correlation_id == "order-7"
    assert seen.metadata.causation_id == "order.done->join.done#1"
    assert errors.seen == []
    if isinstance(executor, ThreadedTaskExecutor):
        executor.shutdown()


@on_loop
async def test_a_run_that_fails_comes_to_the_error_port():
    """With what the Runner says of it."""
    notebook, errors = Notebook(), Notebook()
    async with Runner("memory:") as runner:
        graph = ordering(notebook, errors, runner, failing)
        runtime = graph.runtime(task_executor=AsyncTaskExecutor())
        runtime.fire("order", 1)
        await runtime.drive().run_until_idle(timeout=PATIENCE)
    assert notebook.seen == []
    [seen] = errors.seen
    assert "no such order" in seen.payload.error


def test_a_blocking_runner_needs_no_loop():
    """Its execute returns the result, so any executor will do."""
    notebook, errors = Notebook(), Notebook()
    with BlockingRunner("memory:") as runner:
        graph = ordering(notebook, errors, runner)
        runtime = graph.runtime(task_executor=DeterministicTaskExecutor())
        runtime.fire("order", 4)
        runtime.run_until_idle()
    assert notebook.payloads[0]["n"] == 8


class FakeRunner:
    """All that a graph may use of a Runner."""

    async def execute(self, flow, context=None):
        return {"flow": flow, **(context or {})}


def test_without_a_loop_an_async_runner_is_refused():
    """At the submission, with the way out."""
    answers = []
    graph = ordering(Notebook(), Notebook(), FakeRunner(), "f", answers)
    runtime = graph.runtime(task_executor=DeterministicTaskExecutor())
    runtime.fire("order", 1)
    runtime.run_until_idle()
    [answer] = answers
    assert not answer.accepted
    assert "pass a BlockingRunner" in answer.reason


@on_loop
async def test_an_executor_that_does_not_await_fails_the_task():
    """The coroutine is not passed off as a result, and leaves no warning behind."""
    notebook, errors = Notebook(), Notebook()
    graph = ordering(notebook, errors, FakeRunner(), "f")
    runtime = graph.runtime(task_executor=DeterministicTaskExecutor(TaskExecutorConfig()))
    runtime.fire("order", 1)
    await runtime.drive()
    assert notebook.seen == []
    assert "attach an AsyncTaskExecutor" in errors.seen[0].payload.error


def test_without_an_executor_it_is_refused_like_any_work():
    """The seed's reason."""
    answers = []
    runtime = ordering(Notebook(), Notebook(), FakeRunner(), "f", answers).runtime()
    runtime.fire("order", 1)
    runtime.run_until_idle()
    assert answers[0].reason == "graph context has no task executor"


def test_the_graph_imports_nothing_of_a_runner():
    """Importing it brings in executors, and no other part of layby below the front door."""
    code = (
        "import sys, types, layby.executors\n"
        "before = {name for name in sys.modules if name.startswith('layby.')}\n"
        "import layby.graph\n"
        "after = {name for name in sys.modules if name.startswith('layby.')}\n"
        "print(sorted({name.split('.')[1] for name in after - before}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['graph']"
