"""Owns `Graph`: components and edges, checked one by one as they are added."""

import warnings
from collections.abc import Callable, Iterable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from layby.executors import HealthEventSink, TaskExecutor
from layby.graph.checks import narrow_batches
from layby.graph.definition import Component, ComponentFunction, Edge
from layby.graph.endpoints import (
    MOST_SHOWN,
    Endpoint,
    check_name,
    check_names,
    hint,
    parse_endpoint,
    shown,
)
from layby.graph.graph_errors import GraphError
from layby.graph.graph_plan import Plan, make_plan
from layby.graph.mermaid import mermaid
from layby.graph.policy import POLICY_FIELDS, EdgePolicy
from layby.graph.returns import check_function
from layby.graph.trigger import GraphTrigger, as_trigger

if TYPE_CHECKING:
    from layby.graph.runtime import GraphRuntime

F = TypeVar("F", bound=ComponentFunction)


class Graph:
    """A definition; a runtime is one execution of it, and a graph may have many."""

    def __init__(self, name: str) -> None:
        self.name = check_name(name, "graph name")
        self._components: dict[str, Component] = {}
        self._edges: dict[str, Edge] = {}

    @property
    def components(self) -> MappingProxyType[str, Component]:
        return MappingProxyType(self._components)

    @property
    def edges(self) -> tuple[Edge, ...]:
        return tuple(self._edges.values())

    def component(
        self,
        name: str | None = None,
        *,
        inputs: Iterable[str] = (),
        outputs: Iterable[str] = (),
        trigger: str | GraphTrigger = "any_input",
        error_port: str | None = None,
    ) -> Callable[[F], F]:
        """Decorate a function that takes a GraphContext; its name is the component's."""
        if callable(name):
            raise GraphError("write @graph.component(...) with its ports in brackets")

        def add(function: F) -> F:
            own = name or getattr(function, "__name__", "")
            self.add_component(
                own, function, inputs=inputs, outputs=outputs, trigger=trigger,
                error_port=error_port,
            )  # fmt: skip
            return function

        return add

    def add_component(
        self,
        name: str,
        function: ComponentFunction | None = None,
        *,
        inputs: Iterable[str] = (),
        outputs: Iterable[str] = (),
        trigger: str | GraphTrigger = "any_input",
        error_port: str | None = None,
    ) -> None:
        check_name(name, "component name")
        if name in self._components:
            raise GraphError(f"graph '{self.name}' has a component '{name}': give one another name")
        try:
            if function is not None:
                check_function(function)
            self._components[name] = _component(
                name, function, inputs, outputs, as_trigger(trigger), error_port
            )
        except GraphError as error:
            raise GraphError(f"component '{name}': {error}") from None

    def connect(
        self, source: str, target: str, policy: EdgePolicy | None = None, *,
        id: str | None = None,  # noqa: A002 - the word for it everywhere else
        **options: Any,
    ) -> None:  # fmt: skip
        """An edge from an output to an input; `options` are the fields of EdgePolicy."""
        edge = new_edge(source, target, policy, id, options)
        try:
            self._check_port(edge.source, "outputs")
            self._check_port(edge.target, "inputs")
        except GraphError as error:
            raise GraphError(f"edge {source} -> {target}: {error}") from None
        if edge.id in self._edges:
            raise GraphError(
                f"graph '{self.name}' has an edge '{edge.id}': a second one needs another id"
            )
        self._edges[edge.id] = edge

    def _check_port(self, end: Endpoint, side: str) -> None:
        component = self._components.get(end.component)
        if component is None:
            near = hint(end.component, self._components)
            raise GraphError(f"there is no component '{end.component}'{near}")
        ports: tuple[str, ...] = getattr(component, side)
        if end.port in ports:
            return
        other = component.outputs if side == "inputs" else component.inputs
        if end.port in other:
            raise GraphError(f"'{end}' is not one of the {side}: an edge goes from output to input")
        raise GraphError(
            f"'{end.component}' has no '{end.port}' in its {side}{hint(end.port, ports)}"
        )

    def plan(self) -> Plan:
        """The order in which an epoch visits its components."""
        return make_plan(self.name, self._components, self.edges)

    def warnings(self) -> list[str]:
        """What is allowed and probably not meant."""
        return self.plan().warnings

    def mermaid(self) -> str:
        return mermaid(self.components, self.edges)

    def runtime(
        self,
        *,
        task_executor: TaskExecutor | None = None,
        health_event_sink: HealthEventSink | None = None,
        trace_capacity: int = 0,
        fire_capacity: int = 1_024,
        clock: Callable[[], float] | None = None,
    ) -> "GraphRuntime":
        """One execution of this graph as it stands now; what is added later is not part of it."""
        from layby.graph.runtime import GraphRuntime  # noqa: PLC0415 - it is built from a Graph

        for each in narrow_batches(self._components, self.edges):
            warnings.warn(f"graph '{self.name}': {each}", RuntimeWarning, stacklevel=2)
        return GraphRuntime(
            self, task_executor=task_executor, health_event_sink=health_event_sink,
            trace_capacity=trace_capacity, fire_capacity=fire_capacity, clock=clock,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"Graph('{self.name}', {', '.join(self._components)})"


def _component(
    name: str,
    function: ComponentFunction | None,
    inputs: Iterable[str],
    outputs: Iterable[str],
    trigger: GraphTrigger,
    error_port: str | None,
) -> Component:
    ins, outs = check_names(inputs, "input"), check_names(outputs, "output")
    if error_port is not None and check_name(error_port, "error port") not in outs:
        outs = (*outs, error_port)
    for port in ins:
        if port in outs:
            raise GraphError(f"port '{port}' is an input and an output: give one another name")
    for port in trigger.inputs or ():
        if port not in ins:
            raise GraphError(f"the trigger names '{port}', which is not an input{hint(port, ins)}")
    if trigger.kind != "manual" and not ins:
        raise GraphError(f"trigger '{trigger.kind}' needs inputs: name them, or use 'manual'")
    return Component(name, function, ins, outs, trigger, error_port)


def new_edge(
    source: str, target: str, policy: EdgePolicy | None, own_id: str | None, options: dict[str, Any]
) -> Edge:
    """Checked by itself; whether its ends are there only the graph knows."""
    try:
        return _edge(source, target, policy, own_id, options)
    except GraphError as error:
        ends = f"{_plain(source)} -> {_plain(target)}"
        raise GraphError(f"edge {ends}: {error}") from None


def _plain(end: object) -> str:
    return end if isinstance(end, str) and len(end) <= MOST_SHOWN else shown(end)


def _edge(
    source: str, target: str, policy: EdgePolicy | None, own_id: str | None, options: dict[str, Any]
) -> Edge:
    if policy is not None and options:
        raise GraphError("give an EdgePolicy or its fields, not both")
    if own_id is not None and (not isinstance(own_id, str) or not own_id or "#" in own_id):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise GraphError(f"id {shown(own_id)} must be a string without '#'")
    start, end = parse_endpoint(source), parse_endpoint(target)
    if unknown := [name for name in options if name not in POLICY_FIELDS]:
        raise GraphError(f"unknown option '{unknown[0]}'{hint(unknown[0], POLICY_FIELDS)}")
    chosen = policy or EdgePolicy(**options)
    return Edge(own_id or f"{start}->{end}", start, end, chosen)
