"""Owns one execution of a graph: epochs on the caller's thread, the same order every time.

An epoch shows what was ready, visits each component once in the order of the plan, and ends.
Only this thread runs components; completions and `fire` may come from any other.
"""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from layby.executors import HealthEventSink, TaskExecutor
from layby.graph.arguments import (
    check_clock,
    check_count,
    check_executor,
    check_sink,
    check_text,
)
from layby.graph.component_state import ComponentState, new_states
from layby.graph.endpoints import MOST_LISTED, hint, parse_endpoint
from layby.graph.graph_context import GraphContext
from layby.graph.graph_errors import GraphError
from layby.graph.invocations import due, invocations, is_ready, run_each
from layby.graph.messages import ACCEPTED, Lineage, PublishResult
from layby.graph.metrics import channel_metrics, runtime_metrics
from layby.graph.progress import MAX_EPOCHS, DriverProgress
from layby.graph.refusals import CLOSED, FIRES_FULL
from layby.graph.returns import check_returned
from layby.graph.submitted_tasks import SubmittedTasks
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
        check_count("trace_capacity", trace_capacity, 0)
        check_count("fire_capacity", fire_capacity, 1)
        check_clock(clock)
        check_executor(task_executor)
        check_sink(health_event_sink)
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
        self._running = threading.Lock()
        """Held while an epoch runs."""
        self._driver = threading.Lock()
        """Held by the one that waits between them."""
        self._tasks.on_completion = self._publisher.wake

    # -- from outside, on any thread

    def fire(
        self, component: str, payload: Any = None, *, correlation_id: str = ""
    ) -> PublishResult:
        """Let a component run once, whatever its trigger is: in the next epoch, or in the one
        that runs if that has not visited it yet.
        """
        state = self._state(component)
        check_text("correlation_id", correlation_id)
        publisher = self._publisher
        with publisher.lock:
            if publisher.closed or len(state.fires) >= self._fire_capacity:
                publisher.refused += 1
                reason = CLOSED if publisher.closed else FIRES_FULL
                return PublishResult(accepted=False, reason=reason)
            state.fires.append((payload, Lineage(correlation_id)))
        publisher.wake()
        return ACCEPTED

    def publish(
        self, source: str, payload: Any, *, correlation_id: str = "", transaction_id: str = ""
    ) -> PublishResult:
        """In the name of `component.port`, on all edges of it or on none."""
        end = parse_endpoint(source)
        output_port = self._state(end.component).output_port(end.port)
        check_text("correlation_id", correlation_id)
        check_text("transaction_id", transaction_id)
        return output_port.publish(payload, Lineage(correlation_id, transaction_id))

    def context(self, component: str, *, correlation_id: str = "") -> GraphContext:
        """To publish and submit work in the name of a component, outside an invocation."""
        state = self._state(component)
        check_text("correlation_id", correlation_id)
        return GraphContext(state, self.epoch, _entry=(None, Lineage(correlation_id)))

    def close(self) -> None:
        """Run nothing more: the invocation that runs, if one does, is the last. Work that completes
        from now on is counted, and harms nobody.
        """
        self._tasks.close()
        self._publisher.close()
        self._publisher.wake()

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
        accepted before is kept, and what was not taken is taken in the next epoch. The message it
        raised about is gone; that of an invocation that was interrupted is not.
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
                if (state.fires or state.has_waiting()) and not self._publisher.closed:
                    count += self.visit(state)
        finally:
            self.end_epoch()
        return count

    def run_until_idle(self, *, timeout: float | None = None, max_epochs: int = MAX_EPOCHS) -> int:
        """Run epochs, and work that executors have, until nothing is left; how many epochs.

        Waits for work that runs in threads, and for the windows of triggers. Time is looked at
        between epochs: a component that runs is not stopped.
        """
        self.check_open()
        progress = DriverProgress(self, timeout, max_epochs)
        news = threading.Event()
        with self.driving():
            while (pause := self.next_pause(progress, news.set)) is not None:
                if pause > 0:
                    news.wait(pause)
                    news.clear()
                else:
                    self.run_epoch()
        return progress.epochs

    def drive(self) -> "AsyncGraphDriver":
        """`await runtime.drive()` does on an event loop what `run_until_idle` does here."""
        from layby.graph.driver import AsyncGraphDriver  # noqa: PLC0415 - needs a runtime

        return AsyncGraphDriver(self)

    # -- for drivers

    @property
    def order(self) -> list[ComponentState]:
        return self._order

    def check_open(self) -> None:
        if self._publisher.closed:
            raise GraphError(f"the runtime of graph '{self.graph_name}' is closed: make a new one")

    @contextmanager
    def driving(self) -> Generator[None]:
        """One at a time: what wakes one driver would leave the other asleep."""
        if not self._driver.acquire(blocking=False):
            raise GraphError(
                f"graph '{self.graph_name}' has a driver already, which runs its epochs: "
                "wait until that has ended, or make a runtime for each"
            )
        try:
            yield
        finally:
            self._publisher.sleepers.clear()
            self._driver.release()

    def next_pause(self, progress: DriverProgress, wake: Callable[[], object]) -> float | None:
        """What the driver does next. `wake` is called if anything comes after it was asked."""
        self._publisher.sleepers[:] = [wake]
        pause = progress.next_pause()
        if pause == 0:
            self._publisher.sleepers.clear()  # an epoch looks by itself
        return pause

    def begin_epoch(self) -> None:
        self.check_open()
        now = self._clock()
        if not self._running.acquire(blocking=False):
            raise GraphError(
                f"graph '{self.graph_name}' is in epoch {self.epoch}: a component must not run "
                "epochs, and two drivers must not share a runtime"
            )
        self.epoch += 1
        if self._trace is not None:
            self._trace.epoch = self.epoch
        try:
            self._publisher.begin_epoch(now)
            self.barrier()
        except BaseException:
            self.end_epoch()
            raise

    def end_epoch(self) -> None:
        self._publisher.end_epoch()
        self._running.release()

    def barrier(self) -> None:
        if self._publisher.staged:
            self._publisher.commit_staged()

    def visit(self, state: ComponentState) -> int:
        """Run everything its trigger takes now; how many invocations that were.

        What it publishes on immediate edges becomes visible when it is through.
        """
        state.is_interrupted = False
        try:
            if state.takes_each and self._trace is None and not state.fires:
                return run_each(state, self.epoch, self._note_end)
            return self._run_all(state)
        finally:
            if self._publisher.staged:
                self.barrier()

    def _run_all(self, state: ComponentState) -> int:
        count = 0
        with closing(invocations(state, self.epoch, self._publisher.now)) as contexts:
            for context in contexts:
                count += 1
                self._note_invocation(state, context)
                try:
                    check_returned(state.function(context))
                except BaseException as error:
                    self._note_end(state, error)
                    raise
                if self._publisher.closed:
                    break
        return count

    async def visit_async(self, state: ComponentState) -> int:
        """The same for an `async def`, one invocation after the other."""
        state.is_interrupted = False
        count = 0
        try:
            with closing(invocations(state, self.epoch, self._publisher.now)) as contexts:
                for context in contexts:
                    count += 1
                    self._note_invocation(state, context)
                    try:
                        check_returned(await state.function(context))
                    except BaseException as error:
                        self._note_end(state, error)
                        raise
                    if self._publisher.closed:
                        break
        finally:
            self.barrier()
        return count

    def _note_invocation(self, state: ComponentState, context: GraphContext) -> None:
        state.invocation_count += 1
        if self._trace is not None:
            cause = context.metadata.causation_id
            self._trace.add("invoked", state.name, f"{context.trigger_kind} {cause}".rstrip())

    def _note_end(self, state: ComponentState, error: BaseException) -> None:
        """It raised, or it was interrupted: cancelled, or stopped from the keyboard."""
        state.is_interrupted = not isinstance(error, Exception)
        if state.is_interrupted:
            state.interrupted_count += 1
        else:
            state.error_count += 1
            error.add_note(
                f"in component '{state.name}' of graph '{self.graph_name}', epoch {self.epoch}"
            )
        if self._trace is not None:
            kind = "interrupted" if state.is_interrupted else "raised"
            self._trace.add(kind, state.name, type(error).__name__)

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

    @property
    def outstanding(self) -> int:
        """Work that was accepted and has not come back, by the graph's own counters."""
        return self._tasks.outstanding

    def what_is_left(self) -> str:
        """Why it is not idle, in words."""
        now = self._clock()
        ready = [each.name for each in self._order if is_ready(each, now)]
        waiting = [each.name for each in self._order if due(each) is not None]
        coming = {each.edge.target.component for each in self._publisher.channels if each.inflight}
        return "; ".join(
            told
            for told in (
                _listed("something to do for {}", ready),
                _listed("messages on their way to {}", sorted(coming)),
                _listed("an open window of {}", [each for each in waiting if each not in ready]),
                _counted(self.outstanding),
            )
            if told
        )

    # -- looking

    def metrics(self) -> dict[str, int]:
        return runtime_metrics(self.epoch, self._order, self._publisher, self._tasks)

    def channel_metrics(self) -> dict[str, dict[str, int]]:
        return channel_metrics(self._publisher)

    def trace(self) -> list[TraceEvent]:
        """What happened last, if the runtime was made with a `trace_capacity`."""
        return [] if self._trace is None else self._trace.events()

    def _state(self, component: str) -> ComponentState:
        check_text("a component's name", component)
        try:
            return self._states[component]
        except KeyError:
            near = hint(component, self._states)
            raise GraphError(f"there is no component '{component}'{near}") from None


def _counted(outstanding: int) -> str:
    return f"{outstanding} work item{'s' * (outstanding != 1)} not back" if outstanding else ""


def _listed(words: str, names: list[str]) -> str:
    shown = [*names[:MOST_LISTED], *(["..."] if len(names) > MOST_LISTED else [])]
    return words.format(", ".join(shown)) if names else ""


def _check_functions(graph: "Graph") -> None:
    for component in graph.components.values():
        if component.function is None:
            raise GraphError(
                f"component '{component.name}' of graph '{graph.name}' has no function: "
                "it can be planned and rendered, but not run"
            )
