"""Owns the picture of a graph: a Mermaid flowchart."""

from collections.abc import Mapping, Sequence

from layby.graph.definition import Component, Edge


def mermaid(components: Mapping[str, Component], edges: Sequence[Edge]) -> str:
    """Components as boxes with their triggers; async edges are dotted."""
    boxes = [
        f'  {_node(each.name)}["{each.name}<br/><small>{_label(each)}</small>"]'
        for each in components.values()
    ]
    return "\n".join(["flowchart LR", *boxes, *map(_arrow, edges), ""])


def _node(name: str) -> str:
    """Some names, `end` for one, mean something else to Mermaid."""
    return f"c_{name}"


def _label(component: Component) -> str:
    source = component.trigger.event_kind
    return source if source == "future_ready" else component.trigger.kind


def _arrow(edge: Edge) -> str:
    line = "-.->" if edge.is_async else "-->"
    ports = edge.source.port
    if edge.target.port != ports:
        ports = f"{ports} to {edge.target.port}"
    label = f"{ports}<br/>{_bounds(edge)}" if edge.is_async else ports
    return f'  {_node(edge.source.component)} {line}|"{label}"| {_node(edge.target.component)}'


def _bounds(edge: Edge) -> str:
    policy = edge.policy
    inflight = f"max_inflight {policy.max_inflight}, " if policy.max_inflight else ""
    return f"{inflight}capacity {policy.capacity}, {policy.overflow}"
