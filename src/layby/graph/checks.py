"""Owns what must hold for a graph as a whole, before it is planned or run."""

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from layby.graph.definition import Component, Edge
from layby.graph.errors import GraphError


def check_graph(name: str, components: Mapping[str, Component], edges: Sequence[Edge]) -> None:
    problems = problems_of(components, edges)
    if problems:
        raise GraphError(f"graph '{name}': {'; '.join(problems)}")


def problems_of(components: Mapping[str, Component], edges: Sequence[Edge]) -> list[str]:
    """Everything that keeps it from running."""
    if not components:
        return ["it has no components: add one with @graph.component(...)"]
    return [*_cycles(components, edges), *_starved(components, edges)]


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
    return [*unused, *_narrow_batches(components, edges)]


def visiting_order(components: Mapping[str, Component], edges: Sequence[Edge]) -> list[str]:
    """Components after all that feed them within an epoch; otherwise as they were added.

    Where that leaves a choice, the reader of an async edge comes before the writer: it makes room
    by taking what became visible, before more is published.
    """
    before: dict[str, set[str]] = {name: set() for name in components}
    for edge in edges:
        if not edge.is_async:
            before[edge.target.component].add(edge.source.component)
    TopologicalSorter(before).prepare()  # raises if that alone is a cycle
    for edge in edges:
        writer, reader = edge.source.component, edge.target.component
        if edge.is_async and not _precedes(before, writer, reader):
            before[writer].add(reader)
    return _sorted(before)


def _precedes(before: Mapping[str, set[str]], first: str, then: str) -> bool:
    """Also of a component and itself."""
    seen, to_see = {then}, [then]
    while to_see:
        if (name := to_see.pop()) == first:
            return True
        to_see += before[name] - seen
        seen |= before[name]
    return False


def _sorted(before: Mapping[str, set[str]]) -> list[str]:
    sorter = TopologicalSorter(before)
    sorter.prepare()
    rank = {name: number for number, name in enumerate(before)}
    order: list[str] = []
    ready = list(sorter.get_ready())
    while ready:
        ready.sort(key=rank.__getitem__)
        name = ready.pop(0)
        order.append(name)
        sorter.done(name)
        ready.extend(sorter.get_ready())
    return order


def _cycles(components: Mapping[str, Component], edges: Sequence[Edge]) -> list[str]:
    try:
        visiting_order(components, edges)
    except CycleError as error:
        path = " -> ".join(reversed(error.args[1]))
        remedy = "make one of them async, so that an epoch has an end"
        return [f"immediate edges form a cycle, {path}: {remedy}"]
    return []


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


def _narrow_batches(components: Mapping[str, Component], edges: Sequence[Edge]) -> list[str]:
    """Batches that can never be full, since the channels hold less."""
    found: list[str] = []
    for component in components.values():
        size = component.trigger.batch_size
        room = sum(
            edge.policy.capacity
            for edge in edges
            if edge.target.component == component.name
            and edge.target.port in component.trigger_inputs
        )
        if size is not None and room < size:
            found.append(
                f"component '{component.name}' takes batches of {size}, and its edges hold {room}: "
                "give them more capacity"
            )
    return found
