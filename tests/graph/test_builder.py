"""A graph that cannot be is refused where it is written, with names and a remedy."""

import re

import pytest

from layby.graph import EdgePolicy, Graph, GraphError, GraphTrigger


def noop(context):
    pass


def two() -> Graph:
    graph = Graph("two")
    graph.add_component("a", noop, outputs=["out"], trigger="manual")
    graph.add_component("b", noop, inputs=["into"], outputs=["back"])
    return graph


def test_a_decorated_function_stays_a_function():
    """It can be called and tested by itself; its name is the component's unless given."""
    graph = Graph("g")

    @graph.component(outputs=["out"], trigger="manual")
    def first(context):
        return context

    assert first("as it is") == "as it is"
    graph.component("other", outputs=["out"], trigger="manual")(first)
    assert list(graph.components) == ["first", "other"]


@pytest.mark.parametrize(
    ("add", "says"),
    [
        (lambda g: g.add_component("a", noop, trigger="manual"), "has a component 'a'"),
        (lambda g: g.add_component("x y", noop, trigger="manual"), "letters, digits"),
        (lambda g: g.add_component(7, noop, trigger="manual"), "must be a string, not int"),
        (lambda g: g.add_component("c", "noop", trigger="manual"), "'noop' is not a function"),
        (lambda g: g.add_component("c", noop), "needs inputs"),
        (lambda g: g.add_component("c", noop, inputs="into"), "must be a list of names"),
        (lambda g: g.add_component("c", noop, inputs=["x", "x"]), "given twice"),
        (lambda g: g.add_component("c", noop, inputs=["x"], outputs=["x"]), "input and an output"),
        (
            lambda g: g.add_component("c", noop, inputs=["x"], error_port="x"),
            "port 'x' is an input",
        ),
        (lambda g: g.add_component("c", noop, inputs=["x"], trigger="any_inptu"), "any_input"),
        (lambda g: g.add_component("c", noop, inputs=["x"], trigger=3), "3 is not a trigger"),
        (
            lambda g: g.add_component(
                "c", noop, inputs=["x"], trigger=GraphTrigger("all_inputs", inputs=["y"])
            ),
            "the trigger names 'y', which is not an input",
        ),
        (lambda g: g.component(noop), "with its ports in brackets"),
        (lambda g: g.connect("a.out", "b"), "'b' is not a port: write 'component.port'"),
        (lambda g: g.connect("a.out", "c.into"), "there is no component 'c'"),
        (lambda g: g.connect("a.uot", "b.into"), "did you mean 'out'?"),
        (lambda g: g.connect("a.out", "b.back"), "'b.back' is not one of the inputs: an edge goes"),
        (lambda g: g.connect("b.into", "a.out"), "'b.into' is not one of the outputs: an edge"),
        (lambda g: g.connect("a.out", "b.into", knd="async"), "unknown option 'knd'; did you mean"),
        (lambda g: g.connect("a.out", "b.into", EdgePolicy(), capacity=2), "not both"),
        (lambda g: g.connect("a.out", "b.into", id="x#y"), "without '#'"),
        (lambda g: g.connect("a.out", "b.into", kind="asink"), "unknown kind 'asink'"),
        (lambda g: g.connect("a.out", "b.into", overflow="drop"), "unknown overflow 'drop'"),
        (lambda g: g.connect("a.out", "b.into", mode="ring"), "unknown mode 'ring'"),
        (lambda g: g.connect("a.out", "b.into", capacity=0), "whole number, 1 or more, got 0"),
        (lambda g: g.connect("a.out", "b.into", capacity=True), "1 or more, got True"),
        (lambda g: g.connect("a.out", "b.into", max_inflight=2), "max_inflight is for async edges"),
        (lambda g: g.connect("a.out", "b.into", mode="latest", capacity=4), "keeps one message"),
        (lambda g: g.connect("a.out", "b.into", overflow="block"), "to keep the newest message"),
    ],
)
def test_what_cannot_be_is_refused(add, says):
    """The message says what is wrong, and names it."""
    graph = two()
    with pytest.raises(GraphError, match=re.escape(says)):
        add(graph)
    assert list(graph.components) == ["a", "b"]
    assert graph.edges == ()


def test_a_second_edge_between_two_ports_needs_an_id():
    """Two channels with one id could not be told apart in a causation id."""
    graph = two()
    graph.connect("a.out", "b.into")
    with pytest.raises(GraphError, match=r"has an edge 'a\.out->b.into': a second one needs"):
        graph.connect("a.out", "b.into")
    graph.connect("a.out", "b.into", id="again")
    assert [edge.id for edge in graph.edges] == ["a.out->b.into", "again"]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"kind": "batch"}, "needs batch_size"),
        ({"kind": "batch", "batch_size": 0}, "needs batch_size"),
        ({"kind": "any_input", "batch_size": 3}, "batch_size is for trigger 'batch'"),
        ({"kind": "debounce"}, "needs debounce_window"),
        ({"kind": "debounce", "debounce_window": -1}, "0 or more"),
        ({"kind": "debounce", "debounce_window": float("nan")}, "0 or more"),
        ({"kind": "batch", "batch_size": 2, "batch_window": "soon"}, "seconds or a timedelta"),
        ({"kind": "task_ready", "source": "future_ready"}, "has the event source task_ready"),
    ],
)
def test_a_trigger_that_cannot_be_is_refused(fields, says):
    """Fields of another trigger are not passed over."""
    with pytest.raises(GraphError, match=says):
        GraphTrigger(**fields)


def test_future_ready_can_be_said_in_two_ways():
    """As the source it is, or where people look for a kind."""
    said = GraphTrigger("any_input", source="future_ready")
    assert GraphTrigger("future_ready") == said


def test_an_edge_is_a_queue_where_a_capacity_is_given():
    """`latest` unless more than one message is wanted."""
    assert (EdgePolicy().mode, EdgePolicy(capacity=8).mode) == ("latest", "queue")


def test_an_immediate_cycle_is_refused_with_its_path():
    """An epoch would have no end."""
    graph = two()
    graph.add_component("c", noop, inputs=["into"], outputs=["out"])
    graph.connect("b.back", "c.into")
    graph.connect("c.out", "b.into")
    with pytest.raises(
        GraphError, match=r"cycle, (b -> c -> b|c -> b -> c): make one of them async"
    ):
        graph.runtime()


def test_an_async_cycle_is_allowed():
    """Each turn of it is an epoch."""
    graph = two()
    graph.connect("b.back", "b.into", kind="async")
    assert graph.plan().order == ["a", "b"]


def test_a_component_that_could_never_run_is_refused():
    """all_inputs with a port that nothing feeds."""
    graph = two()
    graph.add_component("c", noop, inputs=["left", "right"], trigger="all_inputs")
    graph.connect("a.out", "c.left")
    with pytest.raises(
        GraphError, match="'c' waits for all of its inputs, and 'right' has no edge"
    ):
        graph.plan()


def test_an_empty_graph_is_refused():
    """It says how to begin."""
    with pytest.raises(GraphError, match=r"add one with @graph\.component"):
        Graph("empty").runtime()


def test_a_component_without_a_function_can_be_planned_but_not_run():
    """As `layby graph plan` does with a YAML file."""
    graph = Graph("g")
    graph.add_component("a", trigger="manual")
    assert graph.plan().order == ["a"]
    with pytest.raises(GraphError, match="component 'a' of graph 'g' has no function"):
        graph.runtime()


def test_readers_of_async_edges_come_before_their_writers():
    """They make room before more is published; immediate edges decide first."""
    graph = two()
    graph.connect("a.out", "b.into", kind="async")
    assert graph.plan().order == ["b", "a"]
    graph.connect("a.out", "b.into", id="now")
    assert graph.plan().order == ["a", "b"]


def test_what_is_probably_not_meant_is_told():
    """Ports without edges, and batches larger than what can wait."""
    graph = two()
    graph.add_component("c", noop, inputs=["x"], trigger=GraphTrigger("batch", batch_size=3))
    graph.connect("a.out", "c.x", capacity=2)
    assert graph.warnings() == [
        "input 'b.into' has no edge",
        "output 'b.back' has no edge",
        "component 'c' takes batches of 3, and its edges hold 2: give them more capacity",
    ]


def test_the_picture():
    """Mermaid: triggers in boxes, async edges dotted with their bounds."""
    graph = two()
    graph.connect("a.out", "b.into", kind="async", capacity=4, max_inflight=2, overflow="reject")
    graph.add_component("end", noop, inputs=["back"], trigger="future_ready")
    graph.connect("b.back", "end.back")
    assert graph.mermaid().splitlines() == [
        "flowchart LR",
        '  c_a["a<br/><small>manual</small>"]',
        '  c_b["b<br/><small>any_input</small>"]',
        '  c_end["end<br/><small>future_ready</small>"]',
        '  c_a -.->|"out to into<br/>max_inflight 2, capacity 4, reject"| c_b',
        '  c_b -->|"back"| c_end',
    ]
