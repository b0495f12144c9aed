"""Small graphs that many tests want, and a notebook of what their components saw."""

from typing import Any, NamedTuple

from layby.graph import Graph, GraphContext, MessageMetadata


class Seen(NamedTuple):
    epoch: int
    component: str
    payload: Any
    metadata: MessageMetadata
    event_kind: str
    trigger_kind: str


class Notebook:
    """A component function that writes down each invocation."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []

    def __call__(self, context: GraphContext) -> None:
        self.seen.append(
            Seen(
                context.epoch,
                context.component_id,
                context.payload,
                context.metadata,
                context.event_kind,
                context.trigger_kind,
            )
        )

    @property
    def payloads(self) -> list[Any]:
        return [each.payload for each in self.seen]

    @property
    def by_epoch(self) -> list[tuple[int, Any]]:
        return [(each.epoch, each.payload) for each in self.seen]


def pair(notebook: Notebook, *, trigger: Any = "any_input", **edge: Any) -> Graph:
    """source.out -> sink.into; fired, the source publishes each item of its payload."""
    graph = Graph("pair")

    @graph.component(outputs=["out"], trigger="manual")
    def source(context: GraphContext) -> None:
        for each in context.payload:
            context.publish("out", each)

    graph.add_component("sink", notebook, inputs=["into"], trigger=trigger)
    graph.connect("source.out", "sink.into", id="wire", **edge)
    return graph


def worker(notebook: Notebook, work: Any, *, errors: Notebook | None = None, **edge: Any) -> Graph:
    """start.go -> worker, whose work completes on worker.out -> join.ready (async)."""
    graph = Graph("worker")

    @graph.component(outputs=["go"], trigger="manual")
    def start(context: GraphContext) -> None:
        context.publish("go", context.payload)

    @graph.component(inputs=["into"], outputs=["out"], error_port="failed", name="worker")
    def submit(context: GraphContext) -> None:
        given = context.input("into")
        context.submit_task("out", lambda: work(given))

    graph.add_component("join", notebook, inputs=["ready"], trigger="task_ready")
    graph.connect("start.go", "worker.into", id="start_worker", mode="queue", capacity=64)
    edge = {"capacity": 64, "overflow": "reject"} | edge
    graph.connect("worker.out", "join.ready", id="worker_join_async", kind="async", **edge)
    if errors is not None:
        graph.add_component("alarm", errors, inputs=["failure"])
        graph.connect("worker.failed", "alarm.failure", id="failures", kind="async", capacity=64)
    return graph
