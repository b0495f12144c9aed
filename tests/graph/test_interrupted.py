"""Invocations that do not end, readers that are slow, runtimes that are closed: nothing is lost."""

import asyncio
import functools

import pytest

from layby.graph import Graph, GraphError, GraphTrigger
from tests.helpers.graphs import Notebook, pair
from tests.helpers.push_receivers import on_loop


def reading(function, trigger="any_input", **edge) -> Graph:
    """source.out -> sink.into; the sink is this function."""
    graph = Graph("reading")
    graph.add_component("source", lambda c: None, outputs=["out"], trigger="manual")
    graph.add_component("sink", function, inputs=["into"], trigger=trigger)
    graph.connect("source.out", "sink.into", id="wire", **edge)
    return graph


@on_loop
@pytest.mark.parametrize("kind", ["immediate", "async"])
async def test_what_a_slow_reader_holds_takes_its_room(kind):
    """It publishes to itself and raises: what was accepted is seen, and no more was accepted."""
    seen, accepted = [], []

    def publish(*payloads):
        accepted.extend(each for each in payloads if runtime.publish("source.out", each))

    async def sink(context):
        seen.append(context.payload)
        if context.payload == "m0":
            publish("x0")
        if context.payload == "m1":
            publish("x1", "x2", "x3")
            raise LookupError

    runtime = reading(sink, kind=kind, capacity=4, overflow="reject").runtime()
    publish("m0", "m1", "m2")
    with pytest.raises(LookupError):
        await runtime.drive()
    await runtime.drive()
    assert seen == accepted == ["m0", "m1", "m2", "x0"]
    assert runtime.metrics()["runtime.channel.max_depth_count"] <= 4


@on_loop
@pytest.mark.parametrize(
    "trigger", ["any_input", "all_inputs", GraphTrigger("batch", batch_size=3)], ids=str
)
async def test_what_a_cancelled_invocation_had_taken_waits_again(trigger):
    """Where it waited, so the next driver sees everything, in order, once more."""
    seen = []
    rests = True

    async def sink(context):
        if rests and context.payload >= 1:
            await asyncio.Event().wait()
        seen.extend(each.payload for each in context.messages())

    runtime = reading(sink, trigger, kind="async", capacity=9, overflow="reject").runtime()
    for number in range(6):
        runtime.publish("source.out", number)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(runtime.drive().run_until_idle(), 0.05)
    rests = False
    await runtime.drive()
    assert seen == [0, 1, 2, 3, 4, 5]
    metrics = runtime.metrics()
    assert metrics["runtime.component.interrupted_count"] == 1
    assert metrics["runtime.component.error_count"] == 0


@on_loop
async def test_a_cancelled_firing_is_still_to_come():
    """With what it had read along."""
    seen = []
    rests = True

    async def sink(context):
        if rests:
            await asyncio.Event().wait()
        seen.append((context.payload, context.input("into")))

    runtime = reading(sink, "manual", capacity=2).runtime()
    runtime.publish("source.out", "read along")
    runtime.fire("sink", "fired")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(runtime.drive().run_until_idle(), 0.05)
    rests = False
    await runtime.drive()
    assert seen == [("fired", "read along")]


@pytest.mark.parametrize("trace", [0, 10])
def test_stopped_from_the_keyboard(trace):
    """The same for a plain function, traced or not."""
    seen = []

    def sink(context):
        if context.payload == 1 and not seen.count("stopped"):
            seen.append("stopped")
            raise KeyboardInterrupt
        seen.append(context.payload)

    runtime = reading(sink, capacity=4).runtime(trace_capacity=trace)
    for number in range(3):
        runtime.publish("source.out", number)
    with pytest.raises(KeyboardInterrupt):
        runtime.run_epoch()
    runtime.run_epoch()
    assert seen == [0, "stopped", 1, 2]


def test_what_a_component_raised_about_is_gone():
    """It has had its chance: it is counted, and does not come again."""
    notebook = Notebook()

    def sink(context):
        notebook(context)
        if context.payload == 1:
            raise LookupError

    runtime = reading(sink, capacity=4).runtime()
    for number in range(3):
        runtime.publish("source.out", number)
    with pytest.raises(LookupError):
        runtime.run_epoch()
    runtime.run_epoch()
    assert notebook.payloads == [0, 1, 2]
    assert runtime.metrics()["runtime.component.error_count"] == 1


@pytest.mark.parametrize("trace", [0, 100])
def test_a_runtime_closed_in_an_epoch_runs_nothing_more(trace):
    """Neither the component's other messages nor what comes after it."""
    seen = []
    graph = Graph("g")

    @graph.component(inputs=["into"], outputs=["out"])
    def first(context):
        seen.append(context.payload)
        context.publish("out", context.payload)
        runtime.close()

    graph.add_component("source", lambda c: None, outputs=["out"], trigger="manual")
    graph.add_component("then", lambda c: seen.append("then"), inputs=["into"])
    graph.connect("source.out", "first.into", capacity=4)
    graph.connect("first.out", "then.into")
    runtime = graph.runtime(trace_capacity=trace)
    for number in range(3):
        runtime.publish("source.out", number)
    assert runtime.run_epoch() == 1
    assert seen == [0]


def test_after_close_everything_is_refused_and_counted():
    """Publications and firings; an epoch is a mistake, and so is running until idle."""
    runtime = pair(Notebook(), kind="async").runtime()
    kept = runtime.context("source")
    runtime.close()
    answers = [runtime.publish("source.out", 1), kept.publish("out", 1), runtime.fire("source")]
    assert [each.reason for each in answers] == ["graph runtime is closed"] * 3
    assert runtime.metrics()["runtime.publication.refused_count"] == 3
    for run in (runtime.run_epoch, runtime.run_until_idle):
        with pytest.raises(GraphError, match="is closed: make a new one"):
            run()


# -- functions that calling does not run


def plainly(function):
    @functools.wraps(function)
    def call(*given):
        return function(*given)

    return call


async def awaited(context): ...


def generated(context):
    yield


async def generated_async(context):
    yield


@pytest.mark.parametrize("function", [generated, generated_async])
def test_a_generator_is_no_component(function):
    """Calling it would not run it."""
    with pytest.raises(GraphError, match="component 'c': its function has a yield"):
        Graph("g").add_component("c", function, trigger="manual")


@pytest.mark.parametrize("trigger", ["manual", "any_input"])
@pytest.mark.parametrize(
    ("function", "says"),
    [
        (plainly(awaited), "returned an awaitable.*make the component itself an async def"),
        (plainly(generated), "returned a generator, which nobody runs"),
        (plainly(generated_async), "returned a generator, which nobody runs"),
    ],
)
def test_what_has_not_run_is_no_invocation(function, says, trigger):
    """Behind a plain wrapper it is seen when it is returned."""
    runtime = reading(function, trigger).runtime()
    if trigger == "manual":
        runtime.fire("sink")
    else:
        runtime.publish("source.out", 1)
    with pytest.raises(GraphError, match=says):
        runtime.run_epoch()
    assert runtime.metrics()["runtime.component.error_count"] == 1
