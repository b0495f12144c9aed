"""Owns what must hold for a graph as a whole, before it is planned or run."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from heapq import heapify, heappop, heappush

from layby.graph.definition import Component, Edge
from layby.graph.graph_errors import GraphError


def checked_order(
    name: str, components: Mapping[str, Component], edges: Sequence[Edge]
) -> list[str]:
    """The order of an epoch, of a graph that can run."""
    order, problems = order_and_problems(components, edges)
    if problems:
        raise GraphError(f"graph '{name}': {'; '.join(problems)}")
    return order


def order_and_problems(
    components: Mapping[str, Component], edges: Sequence[Edge]
) -> tuple[list[str], list[str]]:
    """The order of an epoch, and everything that keeps it from running."""
    if not components:
        return [], ["it has no components: add one with @graph.component(...)"]
    starved = _starved(components, edges)
    try:
        return visiting_order(components, edges), starved
    except CycleError as error:
        path = " -> ".join(reversed(error.args[1]))
        remedy = "make one of them async, so that an epoch has an end"
        return [], [f"immediate edges form a cycle, {path}: {remedy}", *starved]


def warnings_of(components: Mapping[str, Component], edges: Sequence[Edge]) -> list[str]:
    """What can run, and is probably not meant."""
    used = {edge.source for edge in edges} | {edge.target for edge in edges}
    unused = [
        f"{side} '{component.name}.{port}' has no edge"
        for component in components.values()
        for side, ports in (("input", component.inputs), ("output", component.outputs))
        for port in ports
        if (component.name, port) not in used
    ]
    return [*unused, *narrow_batches(components, edges)]


def visiting_order(components: Mapping[str, Component], edges: Sequence[Edge]) -> list[str]:
    """Components after all that feed them within an epoch; otherwise as they were added.

    Where that leaves a choice, the reader of an async edge comes before the writer: it makes room
    by taking what became visible, before more is published.
    """
    links = _Links(components)
    for edge in edges:
        if not edge.is_async:
            links.add(edge.source.component, edge.target.component)
    TopologicalSorter(links.before).prepare()  # raises if that alone is a cycle
    for edge in edges:
        writer, reader = edge.source.component, edge.target.component
        if edge.is_async and not links.precedes(writer, reader):
            links.add(reader, writer)
    return _sorted(links.before)


class _Links:
    """Which component comes before which."""

    def __init__(self, names: Iterable[str]) -> None:
        self.before: dict[str, set[str]] = {name: set() for name in names}
        self.after: dict[str, set[str]] = {name: set() for name in self.before}

    def add(self, first: str, then: str) -> None:
        self.before[then].add(first)
        self.after[first].add(then)

    def precedes(self, first: str, then: str) -> bool:
        """Also of a component and itself.

        Looked for from both ends in turn: where either is near an end of the graph, as most are,
        that is over at once, however large the graph.
        """
        seen_after, seen_before = {first}, {then}
        to_see_after, to_see_before = [first], [then]
        while to_see_after and to_see_before:
            if to_see_before[-1] in seen_after or to_see_after[-1] in seen_before:
                return True
            _go_on(self.after, seen_after, to_see_after)
            _go_on(self.before, seen_before, to_see_before)
        return False


def _go_on(links: Mapping[str, set[str]], seen: set[str], to_see: list[str]) -> None:
    new = links[to_see.pop()] - seen
    seen |= new
    to_see += new


def _sorted(before: Mapping[str, set[str]]) -> list[str]:
    sorter = TopologicalSorter(before)
    sorter.prepare()
    rank = {name: number for number, name in enumerate(before)}
    order: list[str] = []
    ready = [(rank[name], name) for name in sorter.get_ready()]
    heapify(ready)
    while ready:
        _, name = heappop(ready)
        order.append(name)
        sorter.done(name)
        for each in sorter.get_ready():
            heappush(ready, (rank[each], each))
    return order


def _starved(components: Mapping[str, Component], edges: Sequence[Edge]) -> list[str]:
    """Ports that `all_inputs` would wait for in vain."""
    fed = {edge.target for edge in edges}
    return [
        f"component '{component.name}' waits for all of its inputs, and '{port}' has no edge: "
        "connect it, or name the others in GraphTrigger('all_inputs', inputs=...)"
        for component in components.values()
        if component.trigger.kind == "all_inputs"
        for port in component.trigger_inputs
        if (component.name, port) not in fed
    ]


def narrow_batches(components: Mapping[str, Component], edges: Sequence[Edge]) -> list[str]:
    """Batches that can never be full, since the channels hold less."""
    rooms: defaultdict[str, int] = defaultdict(int)
    for edge in edges:
        component = components[edge.target.component]
        if component.trigger.batch_size and edge.target.port in component.trigger_inputs:
            rooms[component.name] += edge.policy.capacity
    found: list[str] = []
    for component in components.values():
        size, room = component.trigger.batch_size, rooms[component.name]
        if size is not None and room < size:
            found.append(
                f"component '{component.name}' takes batches of {size}, and its edges hold {room}: "
                "give them more capacity"
            )
    return found
