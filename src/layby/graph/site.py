"""Owns a component while it runs: what it reads from, publishes on and submits work to."""

import inspect
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from layby.executors import TaskExecutor
from layby.graph.channel import Channel
from layby.graph.definition import Component, Edge
from layby.graph.desk import Desk
from layby.graph.errors import GraphError
from layby.graph.messages import Entry
from layby.graph.names import Endpoint, hint
from layby.graph.outlet import ErrorReports, Outlet, new_outlet
from layby.graph.tasks import TaskDesk


class Inlet(NamedTuple):
    """One channel into an input port; a port with several edges has several."""

    port: str
    channel: Channel


class Arrival(NamedTuple):
    """A message an invocation has taken."""

    inlet: Inlet
    sequence: int
    entry: Entry


class Site:
    def __init__(
        self,
        component: Component,
        channels: Iterable[Channel],
        desk: Desk,
        tasks: TaskDesk,
        task_executor: TaskExecutor | None,
    ) -> None:
        self.component = component
        self.name = component.name
        self.function: Any = component.function
        self.is_async = is_awaited(component.function)
        self.task_executor = task_executor
        self.desk = desk
        self.tasks = tasks
        self.fires: deque[Entry] = deque()
        self.invocation_count = self.error_count = self.flush_count = 0
        channels = list(channels)
        self.inlets = _inlets(component, channels)
        wanted = component.trigger_inputs
        self.trigger_inlets = tuple(each for each in self.inlets if each.port in wanted)
        self.sampled_inlets = tuple(each for each in self.inlets if each.port not in wanted)
        self.takes_each = (
            component.trigger.kind in ("any_input", "task_ready") and not self.sampled_inlets
        )
        """An invocation for each message, and of nothing but that message."""
        self.errors = ErrorReports(desk)
        self.outlets = {port: self._outlet(port, channels) for port in component.outputs}
        if component.error_port is not None:
            self.errors.outlet = self.outlets[component.error_port]

    def _outlet(self, port: str, channels: list[Channel]) -> Outlet:
        end = Endpoint(self.name, port)
        own = tuple(each for each in channels if each.edge.source == end)
        return new_outlet(end, own, self.desk, self.errors)

    def outlet(self, port: str) -> Outlet:
        try:
            return self.outlets[port]
        except KeyError:
            raise GraphError(
                f"component '{self.name}' has no output '{port}'{hint(port, self.outlets)}"
            ) from None

    def check_input(self, port: str) -> None:
        inputs = self.component.inputs
        if port not in inputs:
            raise GraphError(f"component '{self.name}' has no input '{port}'{hint(port, inputs)}")

    def has_waiting(self) -> bool:
        for inlet in self.trigger_inlets:  # noqa: SIM110 - asked of everybody in every epoch
            if inlet.channel.waiting:
                return True
        return False


def is_awaited(function: Any) -> bool:
    """An `async def`, or an object that is called as one."""
    called = getattr(function, "__call__", None)  # noqa: B004 - the method itself is looked at
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def new_sites(
    components: Mapping[str, Component],
    edges: Iterable[Edge],
    desk_options: Mapping[str, Any],
    tasks: TaskDesk,
    task_executor: TaskExecutor | None,
) -> tuple[dict[str, Site], Desk]:
    """A channel for each edge, a site for each component, and one desk for all."""
    channels = [Channel(edge, components[edge.target.component].trigger.kind) for edge in edges]
    desk = Desk(channels, **desk_options)
    sites = {
        name: Site(component, channels, desk, tasks, task_executor)
        for name, component in components.items()
    }
    return sites, desk


def _inlets(component: Component, channels: list[Channel]) -> tuple[Inlet, ...]:
    """By port, in the order the ports are declared."""
    return tuple(
        Inlet(port, channel)
        for port in component.inputs
        for channel in channels
        if channel.edge.target == (component.name, port)
    )
