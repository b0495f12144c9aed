"""Owns the graph context: what a component sees of one invocation, and what it can do."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from layby.executors import TaskExecutor, TaskSubmission
from layby.graph.arguments import check_executor
from layby.graph.component_state import Arrival, ComponentState, InputChannel
from layby.graph.messages import (
    NO_LINEAGE,
    Entry,
    Lineage,
    Message,
    MessageMetadata,
    PublishResult,
)
from layby.graph.refusals import NO_TASK_EXECUTOR
from layby.graph.submitted_tasks import RunsFlows, run_work

FIRED: Entry = (None, NO_LINEAGE)


class GraphContext(Struct, eq=False):
    """One invocation of a component. It may be kept and used from any thread."""

    _state: ComponentState
    epoch: int = 0
    _input: InputChannel | None = None
    """Where the message came by that the invocation follows from; None: it was fired."""
    _sequence: int = 0
    _entry: Entry = FIRED
    _others: tuple[Arrival, ...] = ()
    """All messages taken, where there may be more than that one."""
    _lineage: Lineage | None = None

    # -- what it is

    @property
    def component_id(self) -> str:
        return self._state.name

    @property
    def trigger_kind(self) -> str:
        return "manual" if self._input is None else self._state.component.trigger.kind

    @property
    def event_kind(self) -> str:
        return "manual" if self._input is None else self._state.component.trigger.event_kind

    @property
    def metadata(self) -> MessageMetadata:
        """The history of the message it follows from; of a fired one, what `fire` was given."""
        if self._input is not None:
            return self._input.channel.message(self._sequence, self._entry).metadata
        lineage = self._entry[1]
        return MessageMetadata(
            correlation_id=lineage.correlation_id,
            transaction_id=lineage.transaction_id or lineage.correlation_id,
            epoch_id=self.epoch,
            trigger_kind="manual",
        )

    @property
    def payload(self) -> Any:
        """What `fire` was given, or the payload of the message it follows from."""
        return self._entry[0]

    # -- what has come

    def input(self, port: str, default: Any = None) -> Any:
        """The payload that came by this port, or `default` if none did."""
        incoming = self._input
        if incoming is not None and incoming[0] == port:
            return self._entry[0]
        found = self._arrival(port)
        return default if found is None else found.entry[0]

    def message(self, port: str) -> Message | None:
        """The message that came by this port, with its history; of several, the newest."""
        found = self._arrival(port)
        return None if found is None else found.message()

    def messages(self, port: str | None = None) -> list[Message]:
        """All messages this invocation has taken, in order; a batch has several."""
        if port is not None:
            self._state.check_input(port)
        return [
            arrival.message()
            for arrival in self._arrivals()
            if port is None or arrival.incoming.port == port
        ]

    def _arrivals(self) -> tuple[Arrival, ...]:
        if self._others or self._input is None:
            return self._others
        return (Arrival(self._input, self._sequence, self._entry),)

    def _arrival(self, port: str) -> Arrival | None:
        for arrival in reversed(self._arrivals()):
            if arrival.incoming.port == port:
                return arrival
        self._state.check_input(port)
        return self._shown(port)

    def _shown(self, port: str) -> Arrival | None:
        """What a latched edge shows: the newest that is visible, taken or not."""
        with self._state.publisher.lock:
            for incoming in self._state.input_channels:
                found = incoming.channel.shown if incoming.port == port else None
                if found is not None:
                    return Arrival(incoming, *found)
        return None

    # -- what it can do

    def publish(self, port: str, payload: Any) -> PublishResult:
        """Publish on all edges of an output, or on none; calls nobody."""
        try:
            output_port = self._state.output_ports[port]
        except KeyError:
            output_port = self._state.output_port(port)  # which says what there is
        return output_port.publish(payload, self._lineage or self._inherited())

    def submit_task(self, port: str, work: Callable[[], Any] | None) -> TaskSubmission:
        """Let the executor run `work`; what it returns is published on `port`, later.

        If it raises, that is published on the error port. The history of this invocation is
        kept: downstream sees the same correlation.
        """
        state = self._state
        output_port = state.output_port(port)
        if state.task_executor is None:
            return TaskSubmission(reason=NO_TASK_EXECUTOR)
        return state.tasks.submit(
            state.task_executor, output_port, state.errors, self._inherited(), work
        )

    def submit_run(
        self,
        port: str,
        runner: RunsFlows,
        flow: Any,
        context: Mapping[str, Any] | None = None,
    ) -> TaskSubmission:
        """As `submit_task`, with `runner.execute(flow, context)` as the work."""
        output_port = self._state.output_port(port)
        if self._state.task_executor is None:
            return TaskSubmission(reason=NO_TASK_EXECUTOR)
        work, reason = run_work(runner, flow, context)
        if work is None:
            return self._state.tasks.refuse(output_port, reason)
        return self.submit_task(port, work)

    @property
    def task_executor(self) -> TaskExecutor | None:
        """Of this component; None is allowed, and then `submit_task` is refused."""
        return self._state.task_executor

    @task_executor.setter
    def task_executor(self, executor: TaskExecutor | None) -> None:
        check_executor(executor)
        self._state.task_executor = executor

    def _inherited(self) -> Lineage:
        """Made when first needed, as plain texts: a loop must not drag its whole past along."""
        if self._lineage is None:
            given = self._entry[1]
            correlation = given.correlation_id
            if not correlation and self._input is not None:
                correlation = f"{self._input.channel.id}#{self._sequence}"
            self._lineage = Lineage(correlation, given.transaction_id or correlation, self.epoch)
        return self._lineage
