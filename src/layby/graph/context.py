"""Owns the graph context: what a component sees of one invocation, and what it can do."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from layby.executors import TaskExecutor, TaskSubmission
from layby.graph.messages import (
    NO_LINEAGE,
    Entry,
    Lineage,
    Message,
    MessageMetadata,
    PublishResult,
)
from layby.graph.reasons import NO_TASK_EXECUTOR
from layby.graph.site import Arrival, Inlet, Site
from layby.graph.tasks import RunsFlows, run_work

FIRED: Entry = (None, NO_LINEAGE)


class GraphContext(Struct, eq=False):
    """One invocation of a component. It may be kept and used from any thread."""

    _site: Site
    epoch: int = 0
    _inlet: Inlet | None = None
    """Where the message came by that the invocation follows from; None: it was fired."""
    _sequence: int = 0
    _entry: Entry = FIRED
    _others: tuple[Arrival, ...] = ()
    """All messages taken, where there may be more than that one."""
    _lineage: Lineage | None = None

    # -- what it is

    @property
    def component_id(self) -> str:
        return self._site.name

    @property
    def trigger_kind(self) -> str:
        return "manual" if self._inlet is None else self._site.component.trigger.kind

    @property
    def event_kind(self) -> str:
        return "manual" if self._inlet is None else self._site.component.trigger.event_kind

    @property
    def metadata(self) -> MessageMetadata:
        """The history of the message it follows from; of a fired one, what `fire` was given."""
        if self._inlet is not None:
            return self._inlet.channel.message(self._sequence, self._entry).metadata
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
        inlet = self._inlet
        if inlet is not None and inlet[0] == port:
            return self._entry[0]
        found = self._arrival(port)
        return default if found is None else found.entry[0]

    def message(self, port: str) -> Message | None:
        """The message that came by this port, with its history; of several, the newest."""
        found = self._arrival(port)
        return None if found is None else found.inlet.channel.message(*found[1:])

    def messages(self, port: str | None = None) -> list[Message]:
        """All messages this invocation has taken, in order; a batch has several."""
        if port is not None:
            self._site.check_input(port)
        return [
            arrival.inlet.channel.message(*arrival[1:])
            for arrival in self._arrivals()
            if port is None or arrival.inlet.port == port
        ]

    def _arrivals(self) -> tuple[Arrival, ...]:
        if self._others or self._inlet is None:
            return self._others
        return (Arrival(self._inlet, self._sequence, self._entry),)

    def _arrival(self, port: str) -> Arrival | None:
        for arrival in reversed(self._arrivals()):
            if arrival.inlet.port == port:
                return arrival
        self._site.check_input(port)
        return self._held(port)

    def _held(self, port: str) -> Arrival | None:
        for inlet in self._site.inlets:
            if inlet.port == port and inlet.channel.held is not None:
                return Arrival(inlet, *inlet.channel.held)
        return None

    # -- what it can do

    def publish(self, port: str, payload: Any) -> PublishResult:
        """Publish on all edges of an output, or on none; calls nobody."""
        try:
            outlet = self._site.outlets[port]
        except KeyError:
            outlet = self._site.outlet(port)  # which says what there is
        return outlet.publish(payload, self._lineage or self._inherited())

    def submit_task(self, port: str, work: Callable[[], Any] | None) -> TaskSubmission:
        """Let the executor run `work`; what it returns is published on `port`, later.

        If it raises, that is published on the error port. The history of this invocation is
        kept: downstream sees the same correlation.
        """
        site = self._site
        outlet = site.outlet(port)
        if site.task_executor is None:
            return TaskSubmission(reason=NO_TASK_EXECUTOR)
        return site.tasks.submit(site.task_executor, outlet, site.errors, self._inherited(), work)

    def submit_run(
        self,
        port: str,
        runner: RunsFlows,
        flow: Any,
        context: Mapping[str, Any] | None = None,
    ) -> TaskSubmission:
        """As `submit_task`, with `runner.execute(flow, context)` as the work."""
        outlet = self._site.outlet(port)
        if self._site.task_executor is None:
            return TaskSubmission(reason=NO_TASK_EXECUTOR)
        work, reason = run_work(runner, flow, context)
        if work is None:
            return self._site.tasks.refuse(outlet, reason)
        return self.submit_task(port, work)

    @property
    def task_executor(self) -> TaskExecutor | None:
        """Of this component; None is allowed, and then `submit_task` is refused."""
        return self._site.task_executor

    @task_executor.setter
    def task_executor(self, executor: TaskExecutor | None) -> None:
        self._site.task_executor = executor

    def _inherited(self) -> Lineage:
        """Made when first needed, as plain texts: a loop must not drag its whole past along."""
        if self._lineage is None:
            given = self._entry[1]
            correlation = given.correlation_id
            if not correlation and self._inlet is not None:
                correlation = f"{self._inlet.channel.id}#{self._sequence}"
            self._lineage = Lineage(correlation, given.transaction_id or correlation, self.epoch)
        return self._lineage
