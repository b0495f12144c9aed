"""Owns the bare channel bus: the edges of a graph without epochs and without a runtime.

What is published is visible at once, on every kind of edge. A graph context of a bus has no
runtime's publisher, so the completions of its tasks go straight to the channels.
"""

from typing import Any

from layby.executors import HealthEventSink, TaskExecutor
from layby.graph.builder import Graph
from layby.graph.component_state import ComponentState, new_states
from layby.graph.endpoints import hint, parse_endpoint
from layby.graph.graph_context import GraphContext
from layby.graph.graph_errors import GraphError
from layby.graph.messages import Lineage, Message, PublishResult
from layby.graph.submitted_tasks import SubmittedTasks


class ChannelBus:
    def __init__(self, graph: Graph, *, health_event_sink: HealthEventSink | None = None) -> None:
        self._tasks = SubmittedTasks()
        self._states, self._publisher = new_states(
            graph.components,
            graph.edges,
            {"at_once": True, "sink": health_event_sink},
            self._tasks,
            None,
        )

    def publish(self, source: str, payload: Any, *, correlation_id: str = "") -> PublishResult:
        """In the name of `component.port`, on all edges of it or on none."""
        end = parse_endpoint(source)
        output_port = self._state(end.component).output_port(end.port)
        return output_port.publish(payload, Lineage(correlation_id))

    def take(self, component: str) -> list[Message]:
        """Everything that waits for a component: port by port, the oldest first."""
        found: list[Message] = []
        with self._publisher.lock:
            for _, channel in self._state(component).input_channels:
                while channel.waiting:
                    found.append(channel.message(*channel.take()))
        return found

    def context(
        self, component: str, *, task_executor: TaskExecutor | None = None, correlation_id: str = ""
    ) -> GraphContext:
        """To publish and submit work in the name of a component."""
        state = self._state(component)
        state.task_executor = task_executor
        return GraphContext(state, _entry=(None, Lineage(correlation_id)))

    def _state(self, component: str) -> ComponentState:
        try:
            return self._states[component]
        except KeyError:
            near = hint(component, self._states)
            raise GraphError(f"there is no component '{component}'{near}") from None
