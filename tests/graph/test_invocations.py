"""Graph triggers: what each takes, when, and what the invocation is told."""

from datetime import timedelta
from typing import Any

import pytest

from layby.graph import Graph, GraphTrigger
from tests.helpers.graphs import Notebook, pair
from tests.helpers.waiting import ManualClock


def joined(seen, trigger, **edge) -> Graph:
    """left.out and right.out -> join.a and join.b."""
    graph = Graph("joined")
    for name in ("left", "right"):
        graph.add_component(name, lambda c: None, outputs=["out"], trigger="manual")
    graph.add_component("join", seen, inputs=["a", "b"], trigger=trigger)
    graph.connect("left.out", "join.a", id="A", **edge)
    graph.connect("right.out", "join.b", id="B", **edge)
    return graph


def test_manual_runs_when_fired_and_not_otherwise():
    """What has come by its inputs is there to be read."""
    seen = []
    runtime = joined(lambda c: seen.append((c.payload, c.input("a"))), "manual").runtime()
    runtime.publish("left.out", 1)
    runtime.run_epoch()
    assert seen == []
    runtime.fire("join", "now")
    runtime.run_epoch()
    assert seen == [("now", 1)]


def test_any_component_can_be_fired():
    """Then the kinds are manual, whatever its trigger."""
    notebook = Notebook()
    runtime = pair(notebook, trigger="task_ready").runtime()
    runtime.fire("sink", "by hand", correlation_id="me")
    runtime.run_epoch()
    [seen] = notebook.seen
    assert (seen.payload, seen.event_kind, seen.trigger_kind) == ("by hand", "manual", "manual")
    assert seen.metadata.correlation_id == "me"


def test_any_input_runs_for_each_message_port_by_port():
    """The oldest first; a port that has nothing gives the default."""
    seen = []
    graph = joined(
        lambda c: seen.append((c.input("a"), c.input("b", "-"))), "any_input", capacity=4
    )
    runtime = graph.runtime()
    runtime.publish("right.out", 10)
    for number in (1, 2):
        runtime.publish("left.out", number)
    runtime.run_epoch()
    assert seen == [(1, "-"), (2, "-"), (None, 10)]


def test_all_inputs_waits_for_every_port():
    """One of each, in pairs; what has no partner waits."""
    seen = []
    graph = joined(lambda c: seen.append((c.epoch, c.input("a"), c.input("b"))), "all_inputs",
                   capacity=4)  # fmt: skip
    runtime = graph.runtime()
    for number in (1, 2, 3):
        runtime.publish("left.out", number)
    runtime.run_epoch()
    assert seen == []
    for number in (10, 20):
        runtime.publish("right.out", number)
    runtime.run_epoch()
    assert seen == [(2, 1, 10), (2, 2, 20)]


def test_all_inputs_follows_from_its_first_port():
    """One history has to be chosen, and it is always the same one."""
    notebook = Notebook()
    runtime = joined(notebook, "all_inputs").runtime()
    runtime.publish("right.out", 2, correlation_id="right")
    runtime.publish("left.out", 1, correlation_id="left")
    runtime.run_epoch()
    [seen] = notebook.seen
    assert seen.metadata.correlation_id == "left"
    assert seen.metadata.causation_id == "A#1"


def test_all_inputs_with_a_latched_port():
    """What is held counts, and something must be new."""
    seen = []
    graph = joined(
        lambda c: seen.append((c.input("a"), c.input("b"))), "all_inputs", mode="latched"
    )
    runtime = graph.runtime()
    runtime.publish("left.out", "setting")
    runtime.publish("right.out", 1)
    runtime.run_epoch()
    runtime.run_epoch()
    runtime.publish("right.out", 2)
    runtime.run_epoch()
    assert seen == [("setting", 1), ("setting", 2)]


def test_ports_that_do_not_trigger_are_read_along():
    """One message of each, if there is one."""
    seen = []
    graph = joined(
        lambda c: seen.append((c.input("a"), c.input("b"))),
        GraphTrigger("any_input", inputs=["a"]), capacity=4,
    )  # fmt: skip
    runtime = graph.runtime()
    runtime.publish("right.out", 10)
    runtime.run_epoch()
    assert seen == []
    for number in (1, 2):
        runtime.publish("left.out", number)
    runtime.run_epoch()
    assert seen == [(1, 10), (2, None)]


def test_a_port_with_two_edges_reads_both():
    """Fan-in: many error ports may end in one input."""
    notebook = Notebook()
    graph = pair(notebook, capacity=4)
    graph.add_component("other", lambda c: None, outputs=["out"], trigger="manual")
    graph.connect("other.out", "sink.into", capacity=4)
    runtime = graph.runtime()
    runtime.publish("source.out", 1)
    runtime.publish("other.out", 2)
    runtime.run_epoch()
    assert notebook.payloads == [1, 2]


def batches(seen, clock=None, **fields):
    trigger = GraphTrigger("batch", **fields)
    graph = pair(
        lambda c: seen.append((c.epoch, [m.payload for m in c.messages()], c.trigger_kind)),  # pyright: ignore[reportArgumentType]
        trigger=trigger, kind="async", capacity=16,
    )  # fmt: skip
    return graph.runtime(clock=clock)


def test_a_batch_waits_until_it_is_full():
    """Three at a time, in order; the rest is kept for the next one."""
    seen = []
    runtime = batches(seen, batch_size=3)
    for epoch in range(4):
        runtime.fire("source", [(epoch, 1), (epoch, 2)])
        runtime.run_epoch()
    assert seen == [
        (3, [(0, 1), (0, 2), (1, 1)], "batch"),
        (4, [(1, 2), (2, 1), (2, 2)], "batch"),
    ]


def test_a_batch_is_taken_when_its_window_is_over():
    """Counted from the first message that waits."""
    seen, clock = [], ManualClock()
    runtime = batches(seen, clock, batch_size=3, batch_window=timedelta(seconds=10))
    runtime.fire("source", ["one"])
    runtime.run_epoch()
    runtime.run_epoch()
    clock.advance(9)
    runtime.publish("source.out", "two")
    runtime.run_epoch()
    runtime.run_epoch()
    assert seen == []
    clock.advance(1)
    runtime.run_epoch()
    assert seen == [(5, ["one", "two"], "batch")]
    assert runtime.metrics()["runtime.trigger.window_count"] == 1


def test_debounce_waits_for_quiet():
    """Each message starts the window anew; then all of them come together."""
    seen, clock = [], ManualClock()
    graph = pair(
        lambda c: seen.append(([m.payload for m in c.messages("into")], c.input("into"))),  # pyright: ignore[reportArgumentType]
        trigger=GraphTrigger("debounce", debounce_window=5), capacity=8,
    )  # fmt: skip
    runtime = graph.runtime(clock=clock)
    for number in range(3):
        runtime.publish("source.out", number)
        runtime.run_epoch()
        clock.advance(4)
        runtime.run_epoch()
    assert seen == []
    clock.advance(1)
    runtime.run_epoch()
    assert seen == [([0, 1, 2], 2)]


def test_a_batch_follows_from_its_newest_message():
    """Its correlation and causation are those of the message that made it run."""
    notebook = Notebook()
    trigger = GraphTrigger("batch", batch_size=2)
    runtime = pair(notebook, trigger=trigger, capacity=4).runtime()
    runtime.publish("source.out", 1, correlation_id="first")
    runtime.publish("source.out", 2, correlation_id="second")
    runtime.run_epoch()
    [seen] = notebook.seen
    assert (seen.metadata.correlation_id, seen.metadata.causation_id) == ("second", "wire#2")
    assert seen.event_kind == "message"


@pytest.mark.parametrize("kind", ["any_input", "task_ready", "all_inputs", "batch", "debounce"])
def test_a_message_says_by_which_trigger_it_is_read(kind):
    """In its metadata, and in those of the invocation."""
    fields: dict[str, Any] = {"batch": {"batch_size": 1}, "debounce": {"debounce_window": 0}}
    notebook = Notebook()
    runtime = pair(notebook, trigger=GraphTrigger(kind, **fields.get(kind, {}))).runtime()
    runtime.publish("source.out", 1)
    runtime.run_epoch()
    [seen] = notebook.seen
    assert (seen.metadata.trigger_kind, seen.trigger_kind) == (kind, kind)


def test_the_window_of_a_batch_is_counted_from_its_oldest_message():
    """Whenever others were taken meanwhile."""
    seen, clock = [], ManualClock()

    def sink(context):
        seen.append([message.payload for message in context.messages()])
        if len(seen) == 1:
            raise LookupError

    trigger = GraphTrigger("batch", batch_size=2, batch_window=10)
    runtime = joined(sink, trigger, capacity=8).runtime(clock=clock)
    for number in range(5):
        runtime.publish("left.out", number)
    with pytest.raises(LookupError):
        runtime.run_epoch()
    clock.advance(4)
    runtime.run_epoch()
    assert seen == [[0, 1], [2, 3]]
    clock.advance(6)
    runtime.run_epoch()
    assert seen == [[0, 1], [2, 3], [4]]


def test_a_batch_takes_the_oldest_first():
    """A busy port does not keep another one waiting for ever; the newest is the last to come."""
    seen = []
    trigger = GraphTrigger("batch", batch_size=2)
    graph = joined(
        lambda c: seen.append(([m.payload for m in c.messages()], c.payload)), trigger, capacity=8
    )
    runtime = graph.runtime()
    runtime.publish("right.out", "older")
    runtime.run_epoch()
    for number in (1, 2):
        runtime.publish("left.out", number)
    runtime.run_epoch()
    assert seen == [(["older", 1], 1)]


def test_a_latched_port_shows_the_newest_that_is_visible():
    """Also before it has been taken itself."""
    seen = []
    graph = Graph("g")
    graph.add_component("s", lambda c: None, outputs=["tick", "setting"], trigger="manual")
    graph.add_component(
        "use", lambda c: seen.append((c.input("tick"), c.input("setting"))),
        inputs=["tick", "setting"],
    )  # fmt: skip
    graph.connect("s.tick", "use.tick")
    graph.connect("s.setting", "use.setting", mode="latched")
    runtime = graph.runtime()
    for number, setting in ((1, "A"), (2, "B")):
        runtime.publish("s.setting", setting)
        runtime.publish("s.tick", number)
        runtime.run_epoch()
    assert seen == [(1, "A"), (None, "A"), (2, "B"), (None, "B")]


@pytest.mark.filterwarnings("error")
def test_a_batch_that_cannot_be_full_is_told_by_the_runtime():
    """It would wait for ever."""
    graph = pair(Notebook(), trigger=GraphTrigger("batch", batch_size=3), capacity=2)
    with pytest.warns(RuntimeWarning, match="graph 'pair': component 'sink' takes batches of 3"):
        graph.runtime()
