"""Owns one execution of a graph: epochs on the caller's thread, the same order every time.

An epoch shows what was ready, visits each component once in the order of the plan, and ends.
Only this thread runs components; completions and `fire` may come from any other.
"""

import threading
import time
from collections.abc import Callable
from contextlib import closing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from layby.executors import HealthEventSink, TaskExecutor
from layby.graph.component_state import ComponentState, new_states
from layby.graph.context import GraphContext
from layby.graph.errors import GraphError
from layby.graph.invocations import due, invocations, is_ready, run_each
from layby.graph.messages import ACCEPTED, Lineage, PublishResult
from layby.graph.metrics import channel_metrics, runtime_metrics
from layby.graph.names import hint, parse_endpoint
from layby.graph.progress import MAX_EPOCHS, Progress
from layby.graph.reasons import CLOSED, FIRES_FULL
from layby.graph.tasks import SubmittedTasks
from layby.graph.trace import Trace, TraceEvent

if TYPE_CHECKING:
    from layby.graph.builder import Graph
    from layby.graph.driver import AsyncGraphDriver


class GraphRuntime:
    def __init__(
        self,
        graph: "Graph",
        *,
        task_executor: TaskExecutor | None = None,
        health_event_sink: HealthEventSink | None = None,
        trace_capacity: int = 0,
        fire_capacity: int = 1_024,
        clock: Callable[[], float] | None = None,
    ) -> None:
        plan = graph.plan()
        _check_functions(graph)
        self.graph_name = graph.name
        self.epoch = 0
        """Of the epoch that runs, or ran last; 0 before the first."""
        self._clock = clock or time.monotonic
        self._trace = Trace(trace_capacity) if trace_capacity > 0 else None
        self._tasks = SubmittedTasks(self._trace)
        self._states, self._publisher = new_states(
            graph.components,
            graph.edges,
            {"sink": health_event_sink, "trace": self._trace},
            self._tasks,
            task_executor,
        )
        self._order = [self._states[name] for name in plan.order]
        self._awaited = next((each.name for each in self._order if each.is_async), None)
        self._fire_capacity = fire_capacity
        self._is_running = False
        self._listener: Callable[[], object] | None = None
        self._tasks.on_completion = self.wake

    # -- from outside, on any thread

    def fire(
        self, component: str, payload: Any = None, *, correlation_id: str = ""
    ) -> PublishResult:
        """Let a component run once, whatever its trigger is: in the next epoch, or in the one
        that runs if that has not visited it yet.
        """
        state = self._state(component)
        with self._publisher.lock:
            if self._publisher.closed:
                return PublishResult(accepted=False, reason=CLOSED)
            if len(state.fires) >= self._fire_capacity:
                self._publisher.refused += 1
                return PublishResult(accepted=False, reason=FIRES_FULL)
            state.fires.append((payload, Lineage(correlation_id)))
        self.wake()
        return ACCEPTED

    def publish(
        self, source: str, payload: Any, *, correlation_id: str = "", transaction_id: str = ""
    ) -> PublishResult:
        """In the name of `component.port`, on all edges of it or on none."""
        end = parse_endpoint(source)
        output_port = self._state(end.component).output_port(end.port)
        result = output_port.publish(payload, Lineage(correlation_id, transaction_id))
        self.wake()
        return result

    def context(self, component: str, *, correlation_id: str = "") -> GraphContext:
        """To publish and submit work in the name of a component, outside an invocation."""
        state = self._state(component)
        return GraphContext(state, self.epoch, _entry=(None, Lineage(correlation_id)))

    def close(self) -> None:
        """Run nothing more. Work that completes from now on is counted, and harms nobody."""
        self._tasks.close()
        self._publisher.close()
        self.wake()

    @property
    def is_closed(self) -> bool:
        return self._publisher.closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- epochs

    def run_epoch(self) -> int:
        """Run one epoch; how many invocations it had.

        What a component raises comes out here, once the epoch has been ended in order: what was
        accepted before is kept, and what was not taken is taken in the next epoch.
        """
        if self._awaited is not None:
            raise GraphError(
                f"component '{self._awaited}' is an async def, which needs an event loop: "
                "use `await runtime.drive()`"
            )
        self.begin_epoch()
        count = 0
        try:
            for state in self._order:
                if state.fires or state.has_waiting():
                    count += self.visit(state)
        finally:
            self.end_epoch()
        return count

    def run_until_idle(self, *, timeout: float | None = None, max_epochs: int = MAX_EPOCHS) -> int:
        """Run epochs, and work that executors have, until nothing is left; how many epochs.

        Waits for work that runs in threads, and for the windows of triggers.
        """
        progress = Progress(self, timeout, max_epochs)
        news = threading.Event()
        self.listen(news.set)
        try:
            while (pause := progress.next_pause()) is not None:
                if pause > 0:
                    news.wait(pause)
                    news.clear()
                else:
                    self.run_epoch()
        finally:
            self.listen(None)
        return progress.epochs

    def drive(self) -> "AsyncGraphDriver":
        """`await runtime.drive()` does on an event loop what `run_until_idle` does here."""
        from layby.graph.driver import AsyncGraphDriver  # noqa: PLC0415 - needs a runtime

        return AsyncGraphDriver(self)

    # -- for drivers

    @property
    def order(self) -> list[ComponentState]:
        return self._order

    def begin_epoch(self) -> None:
        if self._publisher.closed:
            raise GraphError(f"the runtime of graph '{self.graph_name}' is closed: make a new one")
        if self._is_running:
            raise GraphError(
                f"graph '{self.graph_name}' is in epoch {self.epoch}: a component must not run "
                "epochs, and two drivers must not share a runtime"
            )
        self._is_running = True
        self.epoch += 1
        if self._trace is not None:
            self._trace.epoch = self.epoch
        self._publisher.begin_epoch(self._clock())
        self.barrier()

    def end_epoch(self) -> None:
        self._publisher.end_epoch()
        self._is_running = False

    def barrier(self) -> None:
        if self._publisher.staged:
            self._publisher.commit_staged()

    def visit(self, state: ComponentState) -> int:
        """Run everything its trigger takes now; how many invocations that were."""
        if state.takes_each and self._trace is None and not state.fires:
            return self._visit_each(state)
        count = 0
        with closing(invocations(state, self.epoch, self._publisher.now)) as contexts:
            for context in contexts:
                count += 1
                self._note_invocation(state, context)
                try:
                    state.function(context)
                except Exception as error:
                    self._note_error(state, error)
                    raise
                finally:
                    self.barrier()
        return count

    def _visit_each(self, state: ComponentState) -> int:
        try:
            return run_each(state, self.epoch)
        except Exception as error:
            self._note_error(state, error)
            raise
        finally:
            self.barrier()

    async def visit_async(self, state: ComponentState) -> int:
        """The same for an `async def`, one invocation after the other."""
        count = 0
        with closing(invocations(state, self.epoch, self._publisher.now)) as contexts:
            for context in contexts:
                count += 1
                self._note_invocation(state, context)
                try:
                    await state.function(context)
                except Exception as error:
                    self._note_error(state, error)
                    raise
                finally:
                    self.barrier()
        return count

    def _note_invocation(self, state: ComponentState, context: GraphContext) -> None:
        state.invocation_count += 1
        if self._trace is not None:
            cause = context.metadata.causation_id
            self._trace.add("invoked", state.name, f"{context.trigger_kind} {cause}".rstrip())

    def _note_error(self, state: ComponentState, error: BaseException) -> None:
        state.error_count += 1
        error.add_note(
            f"in component '{state.name}' of graph '{self.graph_name}', epoch {self.epoch}"
        )
        if self._trace is not None:
            self._trace.add("raised", state.name, type(error).__name__)

    def has_work(self) -> bool:
        """Whether an epoch would do something."""
        now = self._clock()
        return (
            bool(self._publisher.staged)
            or any(channel.inflight for channel in self._publisher.async_channels)
            or any(is_ready(state, now) for state in self._order)
        )

    def next_due(self) -> float | None:
        """In how many seconds the next window closes, if one is open."""
        instants = [at for at in map(due, self._order) if at is not None]
        return max(0.0, min(instants) - self._clock()) if instants else None

    def executors(self) -> list[TaskExecutor]:
        """Each once, however many components share it."""
        found = {id(state.task_executor): state.task_executor for state in self._order}
        return [each for each in found.values() if each is not None]

    def listen(self, listener: Callable[[], object] | None) -> None:
        """Have a driver told when something has come from outside."""
        self._listener = listener

    def wake(self) -> None:
        """Tell the driver, on whatever thread the news came; one that does not wait looks."""
        listener = self._listener
        if listener is not None:
            listener()

    # -- looking

    def metrics(self) -> dict[str, int]:
        return runtime_metrics(self.epoch, self._order, self._publisher, self._tasks)

    def channel_metrics(self) -> dict[str, dict[str, int]]:
        return channel_metrics(self._publisher)

    def trace(self) -> list[TraceEvent]:
        """What happened last, if the runtime was made with a `trace_capacity`."""
        return [] if self._trace is None else self._trace.events()

    def _state(self, component: str) -> ComponentState:
        try:
            return self._states[component]
        except KeyError:
            near = hint(component, self._states)
            raise GraphError(f"there is no component '{component}'{near}") from None


def _check_functions(graph: "Graph") -> None:
    for component in graph.components.values():
        if component.function is None:
            raise GraphError(
                f"component '{component.name}' of graph '{graph.name}' has no function: "
                "it can be planned and rendered, but not run"
            )
