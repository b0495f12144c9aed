"""Part 6: the graph. `python benchmarks/run.py --part 6`

Ours and the bare loop alternate, several rounds, and the best of each is compared: the best is what
the code costs, the rest is what else the machine was doing. One thread, so in processor time.
"""

import gc
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from bars import Result

from layby.graph import Graph, GraphContext, GraphRuntime

ROUNDS = 25
MESSAGES = 10_000
BURST = 50
MANY = 1_000_000
CAPACITY = 64


def bare() -> None:
    """Append to a deque, take it out, call a function with it."""
    queue: deque[int] = deque()
    for _ in range(MESSAGES // BURST):
        for number in range(BURST):
            queue.append(number)
        while queue:
            _sink(queue.popleft())


def _sink(number: int) -> None:
    pass


def graph_of(reader: Callable[[GraphContext], object], **edge: Any) -> Graph:
    graph = Graph("bench")

    @graph.component(outputs=["out"], trigger="manual")
    def source(context: GraphContext) -> None:
        publish = context.publish
        for number in range(BURST):
            publish("out", number)

    graph.add_component("sink", reader, inputs=["into"], trigger="task_ready")
    graph.connect("source.out", "sink.into", kind="async", capacity=CAPACITY, **edge)
    return graph


def _read(context: GraphContext) -> None:
    context.input("into")


def through_an_edge(graph: Graph) -> Callable[[], None]:
    def run() -> None:
        runtime = graph.runtime()
        for _ in range(MESSAGES // BURST):
            runtime.fire("source")
            runtime.run_epoch()
        runtime.run_epoch()
        metrics = runtime.metrics()
        assert metrics["runtime.async.completed_count"] == MESSAGES
        assert metrics["runtime.component.invocation_count"] == MESSAGES + MESSAGES // BURST

    return run


def _best(*runs: Callable[[], None]) -> list[float]:
    """Seconds for each message, of each in its best round."""
    best = [float("inf")] * len(runs)
    for _ in range(ROUNDS):
        for index, run in enumerate(runs):
            started = time.thread_time()
            run()
            best[index] = min(best[index], (time.thread_time() - started) / MESSAGES)
    return best


def async_edge() -> Iterator[Result]:
    """Published with bounds that refuse, visible an epoch later, read by a component."""
    ours = through_an_edge(graph_of(_read, max_inflight=CAPACITY, overflow="reject"))
    reference, measured = _best(bare, ours)
    ratio = measured / reference
    yield Result(
        "publish through an async edge and trigger downstream",
        f"{ratio:.1f} x a bare deque append + call ({measured * 1e6:.3f} µs)",
        "<= 12 x",
        ratio <= 12,
        f"bare loop {reference * 1e6:.3f} µs; bursts of {BURST}, best of {ROUNDS}",
        value=ratio,
        unit="x",
    )


def full_edge() -> Iterator[Result]:
    """A million publications that nobody reads, in one epoch, under each kind of policy."""
    for overflow in ("reject", "drop_oldest"):
        runtime = graph_of(_read, overflow=overflow).runtime()
        grown = _grown_by(runtime)
        held = runtime.metrics()["runtime.async.inflight"]
        yield Result(
            f"10^6 publications against capacity {CAPACITY}, {overflow}",
            f"{grown:,} bytes more, {held} messages held",
            "grows nothing (< 4,096 bytes)",
            grown < 4_096 and held <= CAPACITY,
            f"traced memory after 1,000 and after {MANY:,} more",
            value=float(grown),
            unit="bytes",
        )


def _grown_by(runtime: GraphRuntime) -> int:
    publish = runtime.context("source").publish
    tracemalloc.start()
    for number in range(1_000):
        publish("out", number)
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(MANY):
        publish("out", number)
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return after - before


BENCHES = (async_edge, full_edge)
