"""Random graphs, publications and executors, watched from outside.

Every payload is new, so what becomes of each can be followed: refused, seen once, overwritten or
still under way. The watcher knows only what `publish` and `submit_task` answered, what components
saw, and the numbers of the epochs.
"""

import threading
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layby.executors import (
    DeterministicTaskExecutor,
    TaskExecutorConfig,
    ThreadedTaskExecutor,
    ThreadedTaskExecutorConfig,
)
from layby.graph import Graph, GraphContext, GraphTrigger
from tests.graph.test_submitted_tasks import ForeignExecutor
from tests.helpers.waiting import PATIENCE

OVERFLOWS = ("reject", "fail_fast", "drop_newest", "block", "drop_oldest", "overwrite")
TRIGGERS = ("any_input", "task_ready", "future_ready", "all_inputs", "batch")
MOST_HOPS = 4


@dataclass
class Item:
    """A payload. `hops` keeps loops finite."""

    number: int
    root: int
    hops: int
    published_in: int
    """The epoch that ran when it was published, or had run last."""
    between: bool
    """It was published between epochs."""


@dataclass
class World:
    graph: Graph
    kinds: dict[str, str] = field(default_factory=dict)
    numbers: Any = field(default_factory=lambda: count(1))
    accepted: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    seen: list[tuple[int, str, Item]] = field(default_factory=list)
    histories: list[tuple[Item, str, str]] = field(default_factory=list)
    """Correlation and causation of each message, in the order they were seen."""
    epoch: int = 0
    is_running: bool = False
    lock: Any = field(default_factory=threading.Lock)

    def item(self, root: int | None = None, hops: int = 0) -> Item:
        with self.lock:
            number = next(self.numbers)
        return Item(number, root or number, hops, self.epoch, not self.is_running)

    roots_accepted: int = 0

    def begin_again(self) -> None:
        """As if nothing had happened, with the same graph."""
        self.numbers, self.epoch, self.roots_accepted = count(1), 0, 0
        for each in (self.accepted, self.refused, self.seen, self.histories):
            each.clear()

    def note(self, item: Item, *, accepted: bool) -> None:
        self.roots_accepted += accepted and item.hops == 0
        (self.accepted if accepted else self.refused).add(item.number)


def component(world: World, submits: bool):
    def run(context: GraphContext) -> None:
        for message in context.messages():
            item = message.payload
            meta = message.metadata
            edge = meta.causation_id.rpartition("#")[0]
            world.seen.append((context.epoch, edge, item))
            world.histories.append((item, meta.correlation_id, meta.causation_id))
        item = context.payload
        if item is None or item.hops >= MOST_HOPS:
            return
        if submits and context.task_executor is not None:
            context.submit_task("out", lambda: world.item(item.root, item.hops + 1))
            return
        new = world.item(item.root, item.hops + 1)
        world.note(new, accepted=context.publish("out", new).accepted)

    return run


@st.composite
def worlds(draw) -> World:
    world = World(Graph("random"))
    graph = world.graph
    size = draw(st.integers(2, 5))
    names = [f"c{number}" for number in range(size)]
    graph.add_component("root", lambda c: None, outputs=["out"], trigger="manual")
    for name in names:
        kind = draw(st.sampled_from(TRIGGERS))
        trigger = GraphTrigger(
            kind, batch_size=draw(st.integers(1, 6)) if kind == "batch" else None
        )
        run = component(world, draw(st.booleans()))
        graph.add_component(name, run, inputs=["into", "also"], outputs=["out"], trigger=trigger)
    for number in range(draw(st.integers(1, 8))):
        source = draw(st.integers(-1, size - 1))
        target = draw(st.integers(0, size - 1))
        kind = "async" if source >= target else draw(st.sampled_from(("async", "immediate")))
        capacity = draw(st.integers(2, 6))
        inflight = draw(st.integers(0, 4)) if kind == "async" else 0
        start = "root" if source < 0 else names[source]
        port = draw(st.sampled_from(("into", "into", "also")))
        graph.connect(
            f"{start}.out", f"{names[target]}.{port}", id=f"e{number}", kind=kind,
            capacity=capacity, max_inflight=inflight, overflow=draw(st.sampled_from(OVERFLOWS)),
        )  # fmt: skip
        world.kinds[f"e{number}"] = kind
    fed = {edge.target for edge in graph.edges}
    for name in names:  # all_inputs needs an edge on every port; lonely ones get the root's
        for port in ("into", "also"):
            kind = graph.components[name].trigger.kind
            if (name, port) in fed or (port == "also" and kind != "all_inputs"):
                continue
            own_id = f"lonely_{name}_{port}"
            graph.connect("root.out", f"{name}.{port}", id=own_id, capacity=6)
            world.kinds[own_id] = "immediate"
    return world


def executors():
    bound = st.integers(1, 6)
    policy = st.sampled_from(("reject", "drop_oldest"))
    deterministic = st.builds(
        lambda n, o: DeterministicTaskExecutor(TaskExecutorConfig(max_inflight=n, overflow=o)),
        bound, policy,
    )  # fmt: skip
    return st.one_of(st.none(), deterministic, st.builds(ForeignExecutor, bound))


MOVES = st.lists(
    st.one_of(st.integers(1, 8), st.just("epoch"), st.just("work")), min_size=1, max_size=25
)


def play(world: World, executor, moves, trace: int = 0) -> Any:
    runtime = world.graph.runtime(task_executor=executor, trace_capacity=trace)

    def epoch() -> None:
        world.epoch, world.is_running = world.epoch + 1, True
        runtime.run_epoch()
        world.is_running = False
        check_bounds(world, runtime)

    for move in moves:
        if move == "epoch":
            epoch()
        elif move == "work":
            if executor is not None:
                executor.run_ready()
        else:
            for _ in range(move):
                item = world.item()
                result = runtime.publish("root.out", item)
                world.note(item, accepted=result.accepted)
        check_bounds(world, runtime)
    for _ in range(3 * MOST_HOPS + 6):
        if executor is not None:
            executor.run_ready()
        epoch()
    return runtime


def check_bounds(world: World, runtime) -> None:
    """No edge ever holds more than it may: in flight, waiting, and together where it refuses."""
    for channel in runtime._publisher.channels:
        policy = channel.edge.policy
        assert channel.inflight <= policy.capacity
        assert len(channel.waiting) <= policy.capacity
        if policy.max_inflight:
            assert channel.inflight <= policy.max_inflight
        if not policy.overwrites:
            assert channel.inflight + len(channel.waiting) <= policy.capacity


def check_visibility(world: World) -> None:
    """On an async edge nothing is seen in the epoch it was published in, nor in the one after
    a publication between epochs.
    """
    for epoch, edge, item in world.seen:
        if world.kinds[edge] == "async":
            assert epoch >= item.published_in + (2 if item.between else 1)


def check_nothing_is_lost(world: World, runtime) -> None:
    """What an edge accepted was seen once, was overwritten, or is still there; nothing else was."""
    seen = [(edge, item.number) for _, edge, item in world.seen]
    assert len(seen) == len(set(seen))
    assert not {number for _, number in seen} & world.refused
    for channel in runtime._publisher.channels:
        taken = sum(1 for edge, _ in seen if edge == channel.id)
        assert channel.sequence == taken + len(channel.waiting) + (
            channel.overwritten - channel.overwritten_early
        )
        if not channel.edge.policy.overwrites:
            assert channel.overwritten == channel.overwritten_inflight == 0
            if channel.edge.source.component == "root":  # all or nothing: each edge got them all
                assert channel.sequence + channel.inflight == world.roots_accepted
    metrics = runtime.metrics()
    assert metrics["runtime.async.accepted_count"] == (
        metrics["runtime.async.completed_count"]
        + metrics["runtime.async.overwrite_count"]
        + metrics["runtime.async.inflight"]
        + sum(channel.overwritten_early for channel in runtime._publisher.async_channels)
    )


def check_histories(world: World) -> None:
    """A root begins one chain, on however many edges; all that follows keeps it."""
    causations = [causation for _, _, causation in world.histories]
    assert len(causations) == len(set(causations))
    begun: dict[int, str] = {}
    for item, correlation, _ in world.histories:
        assert begun.setdefault(item.root, correlation) == correlation
    assert len(set(begun.values())) == len(begun)


@pytest.mark.filterwarnings("ignore:.*takes batches of:RuntimeWarning")
@given(worlds(), executors(), MOVES)
def test_what_holds_for_every_graph(world, executor, moves):
    """Bounds hold, nothing is early, nothing accepted is lost, histories are unbroken."""
    runtime = play(world, executor, moves)
    check_visibility(world)
    check_nothing_is_lost(world, runtime)
    check_histories(world)


@pytest.mark.filterwarnings("ignore:.*takes batches of:RuntimeWarning")
@settings(max_examples=20)
@given(worlds(), st.integers(1, 40), st.integers(0, 10))
def test_what_holds_when_work_completes_in_threads(world, publications, epochs):
    """The same, with completions that come whenever they come."""
    config = ThreadedTaskExecutorConfig(max_workers=3, max_inflight=3, queue_capacity=20)
    with ThreadedTaskExecutor(config, keep_completions=False) as executor:
        runtime = world.graph.runtime(task_executor=executor)
        for number in range(publications):
            item = world.item()
            world.note(item, accepted=runtime.publish("root.out", item).accepted)
            if number < epochs:
                runtime.run_epoch()
                check_bounds(world, runtime)
        runtime.run_until_idle(timeout=PATIENCE)
    check_bounds(world, runtime)
    check_nothing_is_lost(world, runtime)
    check_histories(world)


@pytest.mark.filterwarnings("ignore:.*takes batches of:RuntimeWarning")
@settings(max_examples=50)
@given(worlds(), MOVES)
def test_tracing_changes_nothing_in_any_graph(world, moves):
    """The same messages in the same epochs, with the same histories, and the same counters."""
    played = []
    for trace in (0, 10):
        world.begin_again()
        runtime = play(world, DeterministicTaskExecutor(TaskExecutorConfig(4)), moves, trace)
        histories = [(item.number, *told) for item, *told in world.histories]
        played.append((histories, runtime.metrics(), runtime.channel_metrics()))
    assert played[0] == played[1]
