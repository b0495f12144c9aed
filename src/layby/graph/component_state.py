"""Owns a component while it runs: what it reads from, publishes on and submits work to."""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from layby.executors import TaskExecutor
from layby.graph.channel import Channel, Moment
from layby.graph.definition import Component, Edge
from layby.graph.endpoints import Endpoint, hint
from layby.graph.graph_errors import GraphError
from layby.graph.messages import Entry, Message
from layby.graph.output_port import ErrorReports, OutputPort, new_output_port
from layby.graph.publisher import Publisher
from layby.graph.returns import is_awaited
from layby.graph.submitted_tasks import SubmittedTasks


class InputChannel(NamedTuple):
    """One channel into an input port; a port with several edges has several."""

    port: str
    channel: Channel


class Arrival(NamedTuple):
    """A message an invocation has taken, or is shown."""

    incoming: InputChannel
    sequence: int
    entry: Entry
    moment: Moment = Moment()
    is_shown: bool = False
    """A latched channel goes on showing it: it was not taken, and is not given back."""

    def message(self) -> Message:
        return self.incoming.channel.message(self.sequence, self.entry)

    def give_back(self) -> None:
        if not self.is_shown:
            self.incoming.channel.give_back(self.sequence, self.entry, self.moment)


class ComponentState:
    def __init__(
        self,
        component: Component,
        wiring: "Wiring",
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
        self.interrupted_count = 0
        self.is_interrupted = False
        """The invocation that runs was cancelled, or stopped from the keyboard: it did not end."""
        self.input_channels = wiring.inputs_of(component)
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
        self.output_ports = {port: self._output_port(port, wiring) for port in component.outputs}
        if component.error_port is not None:
            self.errors.output_port = self.output_ports[component.error_port]

    def _output_port(self, port: str, wiring: "Wiring") -> OutputPort:
        end = Endpoint(self.name, port)
        return new_output_port(end, tuple(wiring.outgoing[end]), self.publisher, self.errors)

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


class Wiring:
    """Which channels begin and end at each port."""

    def __init__(self, channels: Iterable[Channel]) -> None:
        self.outgoing: defaultdict[Endpoint, list[Channel]] = defaultdict(list)
        self.incoming: defaultdict[Endpoint, list[Channel]] = defaultdict(list)
        for channel in channels:
            self.outgoing[channel.edge.source].append(channel)
            self.incoming[channel.edge.target].append(channel)

    def inputs_of(self, component: Component) -> tuple[InputChannel, ...]:
        """By port, in the order the ports are declared."""
        return tuple(
            InputChannel(port, channel)
            for port in component.inputs
            for channel in self.incoming[Endpoint(component.name, port)]
        )


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
    wiring = Wiring(channels)
    states = {
        name: ComponentState(component, wiring, publisher, tasks, task_executor)
        for name, component in components.items()
    }
    return states, publisher
