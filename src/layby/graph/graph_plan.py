"""Owns the plan of a graph: what an epoch does, in order, in words for people and programs."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from layby.graph.checks import checked_order, warnings_of
from layby.graph.definition import Component, Edge


class PlannedComponent(NamedTuple):
    name: str
    trigger: str
    event: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    error_port: str | None


class PlannedEdge(NamedTuple):
    id: str
    source: str
    target: str
    kind: str
    mode: str
    capacity: int
    max_inflight: int
    overflow: str
    visible: str


class Plan(NamedTuple):
    graph: str
    components: list[PlannedComponent]
    """In the order an epoch visits them."""
    edges: list[PlannedEdge]
    warnings: list[str]

    @property
    def order(self) -> list[str]:
        return [component.name for component in self.components]


def make_plan(name: str, components: Mapping[str, Component], edges: Sequence[Edge]) -> Plan:
    order = checked_order(name, components, edges)
    return Plan(
        graph=name,
        components=[_planned(components[each]) for each in order],
        edges=[_planned_edge(each) for each in edges],
        warnings=warnings_of(components, edges),
    )


def _planned(component: Component) -> PlannedComponent:
    trigger = component.trigger
    return PlannedComponent(
        component.name,
        trigger.kind,
        trigger.event_kind,
        component.inputs,
        component.outputs,
        component.error_port,
    )


def _planned_edge(edge: Edge) -> PlannedEdge:
    policy = edge.policy
    return PlannedEdge(
        edge.id,
        str(edge.source),
        str(edge.target),
        policy.kind,
        policy.mode or "",
        policy.capacity,
        policy.max_inflight,
        policy.overflow,
        "next epoch" if edge.is_async else "same epoch",
    )
