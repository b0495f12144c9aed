"""Epochs, visibility, bounds and errors of a runtime."""

from time import process_time

import pytest

from layby.graph import Graph, GraphError, GraphTrigger, PublicationRefused
from tests.helpers.graphs import Notebook, pair


def test_a_publication_between_epochs_needs_the_next_boundary():
    """Published after epoch 1 has ended, it is visible in epoch 3."""
    notebook = Notebook()
    runtime = pair(notebook, kind="async").runtime()
    runtime.run_epoch()
    assert runtime.publish("source.out", "late").accepted
    runtime.run_epoch()
    assert notebook.seen == []
    runtime.run_epoch()
    assert notebook.by_epoch == [(3, "late")]


def test_before_the_first_epoch_is_between_epochs_too():
    """There is one rule."""
    notebook = Notebook()
    runtime = pair(notebook, kind="async").runtime()
    runtime.publish("source.out", "early")
    runtime.run_epoch()
    runtime.run_epoch()
    assert notebook.by_epoch == [(2, "early")]


def test_everything_ready_becomes_visible_together():
    """Two channels into one component: both messages are there when it runs first."""
    graph = Graph("g")
    seen = []
    graph.add_component("a", lambda c: None, outputs=["out"], trigger="manual")
    graph.add_component(
        "b", lambda c: seen.append((c.epoch, c.input("x"), c.input("y"))), inputs=["x", "y"],
        trigger="all_inputs",
    )  # fmt: skip
    graph.connect("a.out", "b.x", kind="async")
    graph.connect("a.out", "b.y", kind="async")
    runtime = graph.runtime()
    runtime.publish("a.out", 1)
    for _ in range(3):
        runtime.run_epoch()
    assert seen == [(2, 1, 1)]


@pytest.mark.parametrize(
    ("overflow", "reason"),
    [
        ("reject", "channel wire is full at capacity 2"),
        ("fail_fast", "channel wire is full at capacity 2"),
        ("drop_newest", "channel wire dropped newest at capacity 2"),
        ("block", "channel wire would block producer at capacity 2"),
    ],
)
@pytest.mark.parametrize("kind", ["immediate", "async"])
def test_a_full_edge_refuses(overflow, reason, kind):
    """At the publication, so the answer is final: what was accepted will be seen."""
    notebook = Notebook()
    runtime = pair(notebook, kind=kind, capacity=2, overflow=overflow).runtime()
    answers = [runtime.publish("source.out", number) for number in range(3)]
    assert [answer.accepted for answer in answers] == [True, True, False]
    assert answers[2].reason == reason
    assert not answers[2]
    runtime.run_until_idle()
    assert notebook.payloads == [0, 1]
    metrics = runtime.metrics()
    assert metrics["runtime.channel.rejected_count"] == 1
    assert metrics["runtime.channel.dropped_count"] == (overflow == "drop_newest")
    assert metrics["runtime.publication.refused_count"] == 1


def test_what_waits_counts_against_an_edge_that_refuses():
    """A reader that waits for another port fills it; when it has read, there is room again."""
    notebook = Notebook()
    graph = Graph("g")
    for name in ("left", "right"):
        graph.add_component(name, lambda c: None, outputs=["out"], trigger="manual")
    graph.add_component("join", notebook, inputs=["a", "b"], trigger="all_inputs")
    graph.connect("left.out", "join.a", kind="async", capacity=2, overflow="reject")
    graph.connect("right.out", "join.b", kind="async", capacity=2)
    runtime = graph.runtime()
    for number in range(2):
        assert runtime.publish("left.out", number)
    runtime.run_epoch()
    runtime.run_epoch()
    assert not runtime.publish("left.out", 2)
    runtime.publish("right.out", "go")
    runtime.run_epoch()
    runtime.run_epoch()
    assert notebook.payloads == [0]
    assert runtime.publish("left.out", 3)
    assert not runtime.publish("left.out", 4)


@pytest.mark.parametrize("kind", ["immediate", "async"])
def test_latest_keeps_the_newest(kind):
    """Older ones are overwritten, and counted."""
    notebook = Notebook()
    runtime = pair(notebook, kind=kind).runtime()
    runtime.fire("source", [1, 2, 3])
    runtime.run_until_idle()
    assert notebook.payloads == [3]
    assert runtime.metrics()["runtime.channel.overwrite_count"] == 2


def test_an_edge_that_overwrites_drops_what_waits_only_at_the_boundary():
    """A reader that is visited after the writer is not robbed of what it was to see."""
    notebook = Notebook()
    graph = Graph("g")

    @graph.component(outputs=["out", "tick"], trigger="manual")
    def source(context):
        context.publish("out", context.payload)
        context.publish("tick", None)

    @graph.component(inputs=["into", "tick"])
    def sink(context):
        if context.message("into"):
            notebook(context)

    graph.connect("source.out", "sink.into", kind="async")
    graph.connect("source.tick", "sink.tick")
    assert graph.plan().order == ["source", "sink"]
    runtime = graph.runtime()
    for number in range(4):
        runtime.fire("source", number)
        runtime.run_epoch()
    assert notebook.payloads == [0, 1, 2]


@pytest.mark.parametrize("kind", ["immediate", "async"])
def test_an_edge_that_overwrites_keeps_the_newest_of_what_waits(kind):
    """Nobody reads: at each boundary the oldest go, and the sequence goes on."""
    notebook = Notebook()
    trigger = GraphTrigger("batch", batch_size=9)
    graph = pair(notebook, trigger=trigger, kind=kind, capacity=3, overflow="drop_oldest")
    with pytest.warns(RuntimeWarning, match="takes batches of 9, and its edges hold 3"):
        runtime = graph.runtime()
    for epoch in range(1, 5):
        runtime.fire("source", [(epoch, 1), (epoch, 2)])
        runtime.run_epoch()
    runtime.run_epoch()
    [channel] = runtime._publisher.channels
    assert [payload for payload, _ in channel.waiting] == [(3, 2), (4, 1), (4, 2)]
    assert channel.take()[0] == 6
    assert runtime.metrics()["runtime.channel.overwrite_count"] == 5
    assert runtime.metrics()["runtime.channel.max_depth_count"] == 3


def test_latched_goes_on_showing_its_value():
    """It triggers once, and can be read ever after."""
    graph = Graph("g")
    seen = []
    graph.add_component("config", lambda c: c.publish("out", c.payload), outputs=["out"],
                        trigger="manual")  # fmt: skip
    graph.add_component("tick", lambda c: c.publish("out", c.payload), outputs=["out"],
                        trigger="manual")  # fmt: skip
    graph.add_component(
        "use", lambda c: seen.append((c.input("setting"), c.input("tick"))),
        inputs=["setting", "tick"],
    )  # fmt: skip
    graph.connect("config.out", "use.setting", mode="latched")
    graph.connect("tick.out", "use.tick")
    runtime = graph.runtime()
    runtime.fire("config", "fast")
    runtime.run_epoch()
    for number in range(2):
        runtime.fire("tick", number)
        runtime.run_epoch()
    assert seen == [("fast", None), ("fast", 0), ("fast", 1)]


def test_fan_out_publishes_all_or_nothing():
    """One of three edges is full: the other two get nothing, and the next one reaches all."""
    books = [Notebook(), Notebook(), Notebook()]
    graph = pair(books[0], kind="async", capacity=8)
    for number, (book, kind) in enumerate(zip(books[1:], ("immediate", "async"), strict=True)):
        graph.add_component(f"sink{number}", book, inputs=["into"])
        graph.connect(
            "source.out", f"sink{number}.into", kind=kind, mode="queue",
            capacity=4 if kind == "immediate" else 1, overflow="reject",
        )  # fmt: skip
    runtime = graph.runtime()
    assert runtime.publish("source.out", "first")
    refused = runtime.publish("source.out", "second")
    assert refused.reason == "channel source.out->sink1.into is full at capacity 1"
    runtime.run_until_idle()
    assert [book.payloads for book in books] == [["first"]] * 3
    assert runtime.publish("source.out", "third")
    runtime.run_until_idle()
    assert [book.payloads for book in books] == [["first", "third"]] * 3


def test_an_error_port_hears_of_refused_publications():
    """Also of those whose answer the component did not look at."""
    errors = Notebook()
    graph = Graph("g")
    graph.add_component(
        "a", lambda c: [c.publish("out", n) for n in (1, 2)], outputs=["out"], trigger="manual",
        error_port="failed",
    )  # fmt: skip
    graph.add_component("b", lambda c: None, inputs=["into"])
    graph.add_component("alarm", errors, inputs=["failure"])
    graph.connect("a.out", "b.into", kind="async", overflow="reject", id="narrow")
    graph.connect("a.failed", "alarm.failure", kind="async", capacity=4)
    runtime = graph.runtime()
    runtime.fire("a", correlation_id="c-1")
    runtime.run_until_idle()
    [seen] = errors.seen
    reason = "channel narrow is full at capacity 1"
    assert seen.payload == PublicationRefused("a", "out", reason, 2)
    assert seen.metadata.correlation_id == "c-1"
    assert seen.metadata.source_port == "failed"
    assert runtime.metrics()["runtime.error.published_count"] == 1


def test_an_error_without_a_port_is_counted():
    """Nobody hears it, and the metrics say so."""
    runtime = pair(Notebook(), kind="async", overflow="reject").runtime()
    runtime.fire("source", [1, 2])
    runtime.run_epoch()
    metrics = runtime.metrics()
    assert metrics["runtime.error.unheard_count"] == 1
    assert metrics["runtime.error.published_count"] == 0


def test_a_full_error_port_does_not_go_round_in_circles():
    """What is refused there is counted as unheard."""
    graph = Graph("g")
    graph.add_component(
        "a", lambda c: [c.publish("out", n) for n in range(4)], outputs=["out"], trigger="manual",
        error_port="failed",
    )  # fmt: skip
    graph.add_component("b", lambda c: None, inputs=["into", "failure"])
    graph.connect("a.out", "b.into", kind="async", overflow="reject")
    graph.connect("a.failed", "b.failure", kind="async", overflow="reject")
    runtime = graph.runtime()
    runtime.fire("a")
    runtime.run_epoch()
    metrics = runtime.metrics()
    assert metrics["runtime.error.published_count"] == 1
    assert metrics["runtime.error.unheard_count"] == 2


def test_what_a_component_raises_comes_out_of_the_epoch():
    """Named, counted, and nothing that was accepted or not taken yet is lost."""
    seen = []
    graph = Graph("g")

    @graph.component(outputs=["out", "now"], trigger="manual")
    def source(context):
        for each in (1, 2, 3):
            context.publish("out", each)

    @graph.component(inputs=["into"], outputs=["out"])
    def picky(context):
        context.publish("out", context.input("into"))
        if context.input("into") == 2:
            raise LookupError("not this one")

    @graph.component(inputs=["into"])
    def after(context):
        seen.append((context.epoch, context.input("into")))

    graph.connect("source.out", "picky.into", capacity=8)
    graph.connect("picky.out", "after.into", capacity=8)
    runtime = graph.runtime()
    runtime.fire("source")
    with pytest.raises(LookupError, match="not this one") as raised:
        runtime.run_epoch()
    assert raised.value.__notes__ == ["in component 'picky' of graph 'g', epoch 1"]
    assert seen == []
    runtime.run_epoch()
    assert seen == [(2, 1), (2, 2), (2, 3)]
    assert runtime.metrics()["runtime.component.error_count"] == 1


def test_a_component_must_not_run_epochs():
    """It would be visited inside its own visit."""
    graph = Graph("g")
    graph.add_component("a", lambda c: runtime.run_epoch(), trigger="manual")
    runtime = graph.runtime()
    runtime.fire("a")
    with pytest.raises(GraphError, match="is in epoch 1: a component must not run"):
        runtime.run_epoch()
    runtime.run_epoch()


def test_a_closed_runtime_refuses_and_runs_nothing():
    """Publications and fires as values, epochs with an error; metrics can still be read."""
    runtime = pair(Notebook(), kind="async").runtime()
    with runtime:
        runtime.publish("source.out", 1)
    assert runtime.publish("source.out", 2).reason == "graph runtime is closed"
    assert runtime.fire("source").reason == "graph runtime is closed"
    with pytest.raises(GraphError, match="the runtime of graph 'pair' is closed"):
        runtime.run_epoch()
    assert runtime.metrics()["runtime.async.inflight"] == 1


def test_a_runtime_closed_by_a_component_stays_closed():
    """It was the last to run, and what it leaves makes no room for anything new."""
    answers = []
    graph = pair(lambda c: (runtime.close(), kept.append(c)), kind="async", capacity=4)  # pyright: ignore[reportArgumentType]
    runtime = graph.runtime()
    kept = []
    source = runtime.context("source")
    runtime.fire("source", [1, 2])
    runtime.run_epoch()
    runtime.run_epoch()
    answers.append(source.publish("out", 3))
    assert [answer.reason for answer in answers] == ["graph runtime is closed"]
    assert len(kept) == 1


def test_a_component_that_fires_itself_runs_once_an_epoch():
    """An epoch has an end."""
    seen = []
    graph = Graph("g")
    graph.add_component("a", lambda c: (seen.append(c.epoch), runtime.fire("a")), trigger="manual")
    runtime = graph.runtime()
    runtime.fire("a")
    for _ in range(3):
        assert runtime.run_epoch() == 1
    assert seen == [1, 2, 3]


def test_firings_are_bounded():
    """A component that is fired and never run does not grow."""
    runtime = pair(Notebook()).runtime(fire_capacity=2)
    answers = [runtime.fire("source", []) for _ in range(3)]
    assert [answer.accepted for answer in answers] == [True, True, False]
    assert "too many firings" in answers[2].reason


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda r: r.fire("sorce"), "there is no component 'sorce'; did you mean 'source'"),
        (lambda r: r.publish("source.uot", 1), "has no output 'uot'; did you mean 'out'"),
        (lambda r: r.publish("source", 1), "write 'component.port'"),
        (lambda r: r.context("source").publish("x", 1), "has no output 'x'; there are: out"),
        (lambda r: r.context("source").submit_task("x", str), "has no output 'x'"),
        (lambda r: r.context("sink").input("x"), "has no input 'x'; there are: into"),
        (lambda r: r.context("sink").messages("x"), "has no input 'x'"),
    ],
)
def test_an_unknown_name_is_an_error(call, says):
    """It is a mistake in the program, not a full queue."""
    with pytest.raises(GraphError, match=says):
        call(pair(Notebook()).runtime())


def test_an_output_without_edges_is_counted():
    """It is allowed, and can be seen."""
    graph = Graph("g")
    graph.add_component("a", lambda c: c.publish("out", 1), outputs=["out"], trigger="manual")
    runtime = graph.runtime()
    runtime.fire("a")
    runtime.run_epoch()
    assert runtime.metrics()["runtime.publication.unconnected_count"] == 1


def test_a_loop_of_async_edges_drags_nothing_along():
    """Ten thousand turns later there is one message, with the first one's correlation."""
    graph = Graph("loop")
    graph.add_component("a", lambda c: c.publish("out", c.payload + 1), inputs=["into"],
                        outputs=["out"])  # fmt: skip
    graph.connect("a.out", "a.into", kind="async", id="round")
    runtime = graph.runtime()
    runtime.publish("a.out", 0)
    with pytest.raises(GraphError, match="is not idle after 10000 epochs"):
        runtime.run_until_idle()
    channel = runtime._publisher.channels[0]
    [(payload, lineage)] = channel.ready
    assert payload == 9_999
    assert lineage.correlation_id == "round#1"


def test_the_trace_is_bounded_and_in_order():
    """The last events, numbered without gaps; none unless asked for."""
    graph = pair(Notebook(), kind="async", capacity=8)
    quiet, traced = graph.runtime(), graph.runtime(trace_capacity=4)
    for runtime in (quiet, traced):
        runtime.fire("source", [1, 2])
        runtime.run_until_idle()
    assert quiet.trace() == []
    assert [event.kind for event in traced.trace()] == [
        "published",
        "visible",
        "invoked",
        "invoked",
    ]
    assert [event.number for event in traced.trace()] == [3, 4, 5, 6]
    assert traced.trace()[-1] == (6, 2, "invoked", "sink", "any_input wire#2")


def test_metrics_of_each_channel():
    """The same names, for one channel."""
    runtime = pair(Notebook(), kind="async", capacity=8).runtime()
    runtime.fire("source", [1, 2])
    runtime.run_until_idle()
    assert runtime.channel_metrics()["wire"]["runtime.async.completed_count"] == 2


def test_a_publication_on_several_edges_begins_one_chain():
    """They carry the same message."""
    books = [Notebook(), Notebook()]
    graph = pair(books[0])
    graph.add_component("other", books[1], inputs=["into"])
    graph.connect("source.out", "other.into")
    runtime = graph.runtime()
    for number in (1, 2):
        runtime.publish("source.out", number)
        runtime.run_epoch()
    correlations = [[seen.metadata.correlation_id for seen in book.seen] for book in books]
    assert correlations == [["source.out#1", "source.out#2"]] * 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"trace_capacity": "many"}, "trace_capacity must be a whole number, 0 or more"),
        ({"trace_capacity": -1}, "trace_capacity must be a whole number, 0 or more, got -1"),
        ({"fire_capacity": 0}, "fire_capacity must be a whole number, 1 or more, got 0"),
        ({"clock": 3.0}, "clock must be a function"),
        ({"task_executor": "threads"}, r"task_executor must be an object with submit\(...\)"),
        ({"health_event_sink": print}, r"health_event_sink must be an object with emit\(...\)"),
    ],
)
def test_what_a_runtime_is_given_is_checked(options, says):
    """At once: otherwise it shows much later."""
    with pytest.raises(GraphError, match=says):
        pair(Notebook()).runtime(**options)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda r: r.fire(5), "a component's name must be a string, got 5"),
        (lambda r: r.fire(["source"]), "a component's name must be a string"),
        (lambda r: r.fire("source", correlation_id=5), "correlation_id must be a string, got 5"),
        (lambda r: r.publish("source.out", 1, transaction_id=5), "transaction_id must be a string"),
    ],
)
def test_names_and_ids_are_texts(call, says):
    """A clear error, not one from within."""
    with pytest.raises(GraphError, match=says):
        call(pair(Notebook()).runtime())


def test_a_clock_that_raises_begins_no_epoch():
    """When it works again, so does the runtime."""
    times = [OSError("no clock"), 1.0]

    def clock():
        time = times.pop(0)
        if isinstance(time, OSError):
            raise time
        return time

    runtime = pair(Notebook()).runtime(clock=clock)
    with pytest.raises(OSError, match="no clock"):
        runtime.run_epoch()
    runtime.run_epoch()
    assert runtime.epoch == 1


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("kind", ["immediate", "async"])
def test_a_large_graph_is_planned_in_proportion(kind, order):
    """Ten thousand components in a row: each step looks at what is near."""
    size = 10_000
    graph = Graph("large")
    for number in range(size):
        graph.add_component(f"c{number}", print, inputs=["i"], outputs=["o"])
    for number in range(size - 1)[::order]:
        graph.connect(f"c{number}.o", f"c{number + 1}.i", kind=kind)
    began = process_time()
    graph.runtime()
    assert process_time() - began < 3
