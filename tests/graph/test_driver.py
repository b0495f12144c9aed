"""The asyncio driver: the same epochs, `async def` components, and waiting without polling."""

import asyncio
import selectors
import threading

import pytest

from layby.executors import (
    AsyncTaskExecutor,
    DeterministicTaskExecutor,
    TaskExecutorConfig,
    ThreadedTaskExecutor,
)
from layby.graph import Graph, GraphError, GraphTrigger
from tests.helpers.graphs import Notebook, pair, worker
from tests.helpers.push_receivers import on_loop
from tests.helpers.waiting import PATIENCE, Gate


def awaiting(notebook) -> Graph:
    graph = Graph("awaiting")

    @graph.component(outputs=["out"], trigger="manual")
    async def source(context):
        await asyncio.sleep(0)
        context.publish("out", context.payload)

    @graph.component(inputs=["into"])
    async def sink(context):
        await asyncio.sleep(0)
        notebook(context)

    graph.connect("source.out", "sink.into", kind="async", capacity=8)
    return graph


@on_loop
async def test_a_driver_can_be_awaited():
    """It runs until nothing is left, and says how many epochs that took."""
    notebook = Notebook()
    runtime = awaiting(notebook).runtime()
    runtime.fire("source", 7)
    assert await runtime.drive() == 2
    assert notebook.by_epoch == [(2, 7)]


def test_the_deterministic_driver_refuses_async_components():
    """It names the component and the way out."""
    runtime = awaiting(Notebook()).runtime()
    with pytest.raises(GraphError, match=r"'sink' is an async def.*await runtime\.drive\(\)"):
        runtime.run_epoch()


@on_loop
async def test_both_drivers_do_the_same():
    """Plain components: equal traces."""
    traces = []
    for is_async in (False, True):
        graph = worker(Notebook(), lambda n: 6 // n)
        runtime = graph.runtime(task_executor=DeterministicTaskExecutor(), trace_capacity=100)
        runtime.fire("start", 2)
        if is_async:
            await runtime.drive()
        else:
            runtime.run_until_idle()
        traces.append(runtime.trace())
    assert traces[0] == traces[1]


@on_loop
async def test_work_on_the_loop():
    """An AsyncTaskExecutor awaits it while the driver waits for news."""
    notebook = Notebook()
    loop_gate = asyncio.Event()

    async def work(given):
        loop_gate.set()
        await asyncio.sleep(0)
        return given * 2

    executor = AsyncTaskExecutor(TaskExecutorConfig(max_inflight=2))
    runtime = worker(notebook, work).runtime(task_executor=executor)
    runtime.fire("start", 21)
    await runtime.drive().run_until_idle(timeout=PATIENCE)
    assert notebook.payloads == [42]


@on_loop
async def test_a_thread_wakes_the_driver():
    """The loop goes on meanwhile; the completion comes from a worker's thread."""
    notebook = Notebook()
    gate = Gate(payload="done")
    with ThreadedTaskExecutor() as executor:
        runtime = worker(notebook, lambda _: gate()).runtime(task_executor=executor)
        runtime.fire("start", 1)
        driving = asyncio.create_task(runtime.drive().run_until_idle(timeout=PATIENCE))
        await asyncio.to_thread(gate.wait_until_started)
        assert not driving.done()
        gate.open()
        await driving
    assert notebook.payloads == ["done"]


@on_loop
async def test_a_driver_that_runs_until_closed():
    """It serves what comes, and ends when the runtime is closed."""
    notebook = Notebook()
    seen = asyncio.Event()
    graph = awaiting(lambda context: (notebook(context), seen.set()))
    runtime = graph.runtime()
    driving = asyncio.create_task(runtime.drive().run_until_closed())
    for number in range(3):
        seen.clear()
        runtime.fire("source", number)
        await asyncio.wait_for(seen.wait(), PATIENCE)
    runtime.close()
    await asyncio.wait_for(driving, PATIENCE)
    assert notebook.payloads == [0, 1, 2]


class TellingSelector(selectors.DefaultSelector):
    """Says when the loop goes to sleep for longer than a moment."""

    def __init__(self):
        super().__init__()
        self.resting = threading.Event()

    def select(self, timeout=None):
        if timeout is None or timeout > 1:
            self.resting.set()
        return super().select(timeout)


def test_a_fire_from_another_thread_wakes_a_driver_at_rest():
    """The loop is asleep with no timer of ours; only a proper wake-up reaches it."""
    selector = TellingSelector()

    async def scenario():
        seen = asyncio.Event()
        runtime = awaiting(lambda context: seen.set()).runtime()
        driving = asyncio.create_task(runtime.drive().run_until_closed())

        def fire_when_at_rest():
            assert selector.resting.wait(PATIENCE)
            runtime.fire("source", 1)

        thread = threading.Thread(target=fire_when_at_rest)
        thread.start()
        await asyncio.wait_for(seen.wait(), 20)
        thread.join()
        runtime.close()
        await asyncio.wait_for(driving, PATIENCE)

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        runner.run(scenario())


@on_loop
async def test_a_cancelled_driver_leaves_the_runtime_usable():
    """What was not taken is taken by the next driver; so is what it was about to finish."""
    notebook = Notebook()
    started, go_on = asyncio.Event(), asyncio.Event()
    graph = Graph("g")
    graph.add_component("source", lambda c: None, outputs=["out"], trigger="manual")

    @graph.component(inputs=["into"])
    async def sink(context):
        started.set()
        await go_on.wait()
        notebook(context)

    graph.connect("source.out", "sink.into", capacity=8)
    runtime = graph.runtime()
    for number in (1, 2, 3):
        runtime.publish("source.out", number)
    driving = asyncio.create_task(runtime.drive().run_until_idle())
    await started.wait()
    driving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await driving
    go_on.set()
    await runtime.drive()
    assert notebook.payloads == [1, 2, 3]
    assert runtime.metrics()["runtime.component.interrupted_count"] == 1


@on_loop
async def test_what_an_async_component_raises():
    """Comes out of the driver with the component's name."""
    graph = Graph("g")

    @graph.component(trigger="manual")
    async def broken(context):
        raise LookupError("no")

    runtime = graph.runtime()
    runtime.fire("broken")
    with pytest.raises(LookupError) as raised:
        await runtime.drive()
    assert raised.value.__notes__ == ["in component 'broken' of graph 'g', epoch 1"]


@on_loop
async def test_a_window_is_waited_for():
    """A debounce without further messages fires by itself."""
    notebook = Notebook()
    trigger = GraphTrigger("debounce", debounce_window=0.01)
    runtime = pair(notebook, trigger=trigger).runtime()
    runtime.publish("source.out", 1)
    await runtime.drive().run_until_idle(timeout=PATIENCE)
    assert notebook.payloads == [1]


@on_loop
async def test_two_drivers_must_not_share_a_runtime():
    """An epoch is run by one of them."""
    graph = awaiting(Notebook())
    runtime = graph.runtime()
    runtime.fire("source", 1)
    driver = runtime.drive()
    first = asyncio.create_task(driver.run_epoch())
    await asyncio.sleep(0)
    with pytest.raises(GraphError, match="two drivers must not share a runtime"):
        await driver.run_epoch()
    await first


@on_loop
@pytest.mark.parametrize("kind", ["immediate", "async"])
async def test_a_kept_context_wakes_the_driver(kind):
    """Whatever is accepted does, from any thread."""
    seen = asyncio.Event()
    graph = pair(lambda context: seen.set(), kind=kind, capacity=4)  # pyright: ignore[reportArgumentType]
    runtime = graph.runtime()
    driving = asyncio.create_task(runtime.drive().run_until_closed())
    await asyncio.sleep(0.02)
    assert await asyncio.to_thread(runtime.context("source").publish, "out", 7)
    await asyncio.wait_for(seen.wait(), PATIENCE)
    runtime.close()
    await asyncio.wait_for(driving, PATIENCE)


@on_loop
async def test_a_second_driver_is_refused_and_the_first_goes_on():
    """It hears what comes, and ends when the runtime is closed."""
    notebook = Notebook()
    seen = asyncio.Event()
    runtime = awaiting(lambda context: (notebook(context), seen.set())).runtime()
    driving = asyncio.create_task(runtime.drive().run_until_closed())
    await asyncio.sleep(0)
    with pytest.raises(GraphError, match="graph 'awaiting' has a driver already"):
        await runtime.drive()
    runtime.fire("source", 1)
    await asyncio.wait_for(seen.wait(), PATIENCE)
    runtime.close()
    await asyncio.wait_for(driving, PATIENCE)
    assert notebook.payloads == [1]


def endless() -> Graph:
    graph = Graph("endless")
    graph.add_component("a", lambda c: c.publish("out", 1), inputs=["into"], outputs=["out"])
    graph.connect("a.out", "a.into", kind="async")
    return graph


@on_loop
@pytest.mark.parametrize("is_async", [False, True])
async def test_time_is_looked_at_while_there_is_work(is_async):
    """Between epochs."""
    runtime = endless().runtime()
    runtime.fire("a")
    limits = {"timeout": 0.05, "max_epochs": 10**9}
    driver = runtime.drive() if is_async else runtime
    with pytest.raises(TimeoutError, match=r"after 0\.05 s; what is left: messages on their way"):
        await asyncio.gather(driver.run_until_idle(**limits))  # pyright: ignore[reportArgumentType, reportCallIssue]


@on_loop
async def test_time_is_looked_at_while_a_component_is_awaited():
    """It is cancelled, and what it had taken is not lost; its own TimeoutError stays its own."""
    graph = Graph("slow")

    @graph.component(trigger="manual")
    async def slow(context):
        if context.payload == "raise":
            raise TimeoutError("my own")
        await asyncio.Event().wait()

    runtime = graph.runtime()
    runtime.fire("slow")
    with pytest.raises(TimeoutError, match=r"graph 'slow' is not idle.*something to do for slow"):
        await runtime.drive().run_until_idle(timeout=0.05)
    other = graph.runtime()
    other.fire("slow", "raise")
    with pytest.raises(TimeoutError, match="my own"):
        await other.drive().run_until_idle(timeout=PATIENCE)
