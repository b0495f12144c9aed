"""Owns a component while it runs: what it reads from, publishes on and submits work to."""

import inspect
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from layby.executors import TaskExecutor
from layby.graph.channel import Channel
from layby.graph.definition import Component, Edge
from layby.graph.errors import GraphError
from layby.graph.messages import Entry
from layby.graph.names import Endpoint, hint
from layby.graph.output_port import ErrorReports, OutputPort, new_output_port
from layby.graph.publisher import Publisher
from layby.graph.tasks import SubmittedTasks


class InputChannel(NamedTuple):
    """One channel into an input port; a port with several edges has several."""

    port: str
    channel: Channel


class Arrival(NamedTuple):
    """A message an invocation has taken."""

    incoming: InputChannel
    sequence: int
    entry: Entry


class ComponentState:
    def __init__(
        self,
        component: Component,
        channels: Iterable[Channel],
        publisher: Publisher,
        tasks: SubmittedTasks,
        task_executor: TaskExecutor | None,
    ) -> None:
        self.component = component
        self.name = component.name
        self.function: Any = component.function
        self.is_async = is_awaited(component.function)
        self.task_executor = task_executor
        self.publisher = publisher
        self.tasks = tasks
        self.fires: deque[Entry] = deque()
        self.invocation_count = self.error_count = self.flush_count = 0
        channels = list(channels)
        self.input_channels = _input_channels(component, channels)
        wanted = component.trigger_inputs
        self.trigger_channels = tuple(each for each in self.input_channels if each.port in wanted)
        self.sampled_channels = tuple(
            each for each in self.input_channels if each.port not in wanted
        )
        self.takes_each = (
            component.trigger.kind in ("any_input", "task_ready") and not self.sampled_channels
        )
        """An invocation for each message, and of nothing but that message."""
        self.errors = ErrorReports(publisher)
        self.output_ports = {port: self._output_port(port, channels) for port in component.outputs}
        if component.error_port is not None:
            self.errors.output_port = self.output_ports[component.error_port]

    def _output_port(self, port: str, channels: list[Channel]) -> OutputPort:
        end = Endpoint(self.name, port)
        own = tuple(each for each in channels if each.edge.source == end)
        return new_output_port(end, own, self.publisher, self.errors)

    def output_port(self, port: str) -> OutputPort:
        try:
            return self.output_ports[port]
        except KeyError:
            raise GraphError(
                f"component '{self.name}' has no output '{port}'{hint(port, self.output_ports)}"
            ) from None

    def check_input(self, port: str) -> None:
        inputs = self.component.inputs
        if port not in inputs:
            raise GraphError(f"component '{self.name}' has no input '{port}'{hint(port, inputs)}")

    def has_waiting(self) -> bool:
        for incoming in self.trigger_channels:  # noqa: SIM110 - asked of everybody in every epoch
            if incoming.channel.waiting:
                return True
        return False


def is_awaited(function: Any) -> bool:
    """An `async def`, or an object that is called as one."""
    called = getattr(function, "__call__", None)  # noqa: B004 - the method itself is looked at
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def new_states(
    components: Mapping[str, Component],
    edges: Iterable[Edge],
    publisher_options: Mapping[str, Any],
    tasks: SubmittedTasks,
    task_executor: TaskExecutor | None,
) -> tuple[dict[str, ComponentState], Publisher]:
    """A channel for each edge, a state for each component, and one publisher for all."""
    channels = [Channel(edge, components[edge.target.component].trigger.kind) for edge in edges]
    publisher = Publisher(channels, **publisher_options)
    states = {
        name: ComponentState(component, channels, publisher, tasks, task_executor)
        for name, component in components.items()
    }
    return states, publisher


def _input_channels(component: Component, channels: list[Channel]) -> tuple[InputChannel, ...]:
    """By port, in the order the ports are declared."""
    return tuple(
        InputChannel(port, channel)
        for port in component.inputs
        for channel in channels
        if channel.edge.target == (component.name, port)
    )
