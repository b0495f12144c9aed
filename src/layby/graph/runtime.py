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
from layby.graph.context import GraphContext
from layby.graph.errors import GraphError
from layby.graph.messages import ACCEPTED, Lineage, PublishResult
from layby.graph.metrics import channel_metrics, runtime_metrics
from layby.graph.names import hint, parse_endpoint
from layby.graph.pace import MAX_EPOCHS, Pace
from layby.graph.reasons import CLOSED, FIRES_FULL
from layby.graph.site import Site, new_sites
from layby.graph.taking import due, invocations, is_ready, run_each
from layby.graph.tasks import TaskDesk
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
        self._tasks = TaskDesk(self._trace)
        self._sites, self._desk = new_sites(
            graph.components,
            graph.edges,
            {"sink": health_event_sink, "trace": self._trace},
            self._tasks,
            task_executor,
        )
        self._order = [self._sites[name] for name in plan.order]
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
        site = self._site(component)
        with self._desk.lock:
            if self._desk.closed:
                return PublishResult(accepted=False, reason=CLOSED)
            if len(site.fires) >= self._fire_capacity:
                self._desk.refused += 1
                return PublishResult(accepted=False, reason=FIRES_FULL)
            site.fires.append((payload, Lineage(correlation_id)))
        self.wake()
        return ACCEPTED

    def publish(
        self, source: str, payload: Any, *, correlation_id: str = "", transaction_id: str = ""
    ) -> PublishResult:
        """In the name of `component.port`, on all edges of it or on none."""
        end = parse_endpoint(source)
        outlet = self._site(end.component).outlet(end.port)
        result = outlet.publish(payload, Lineage(correlation_id, transaction_id))
        self.wake()
        return result

    def context(self, component: str, *, correlation_id: str = "") -> GraphContext:
        """To publish and submit work in the name of a component, outside an invocation."""
        site = self._site(component)
        return GraphContext(site, self.epoch, _entry=(None, Lineage(correlation_id)))

    def close(self) -> None:
        """Run nothing more. Work that completes from now on is counted, and harms nobody."""
        self._tasks.close()
        self._desk.close()
        self.wake()

    @property
    def is_closed(self) -> bool:
        return self._desk.closed

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
            for site in self._order:
                if site.fires or site.has_waiting():
                    count += self.visit(site)
        finally:
            self.end_epoch()
        return count

    def run_until_idle(self, *, timeout: float | None = None, max_epochs: int = MAX_EPOCHS) -> int:
        """Run epochs, and work that executors have, until nothing is left; how many epochs.

        Waits for work that runs in threads, and for the windows of triggers.
        """
        pace = Pace(self, timeout, max_epochs)
        news = threading.Event()
        self.listen(news.set)
        try:
            while (pause := pace.next_pause()) is not None:
                if pause > 0:
                    news.wait(pause)
                    news.clear()
                else:
                    self.run_epoch()
        finally:
            self.listen(None)
        return pace.epochs

    def drive(self) -> "AsyncGraphDriver":
        """`await runtime.drive()` does on an event loop what `run_until_idle` does here."""
        from layby.graph.driver import AsyncGraphDriver  # noqa: PLC0415 - needs a runtime

        return AsyncGraphDriver(self)

    # -- for drivers

    @property
    def order(self) -> list[Site]:
        return self._order

    def begin_epoch(self) -> None:
        if self._desk.closed:
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
        self._desk.begin_epoch(self._clock())
        self.barrier()

    def end_epoch(self) -> None:
        self._desk.end_epoch()
        self._is_running = False

    def barrier(self) -> None:
        if self._desk.staged:
            self._desk.commit_staged()

    def visit(self, site: Site) -> int:
        """Run everything its trigger takes now; how many invocations that were."""
        if site.takes_each and self._trace is None and not site.fires:
            return self._visit_each(site)
        count = 0
        with closing(invocations(site, self.epoch, self._desk.now)) as contexts:
            for context in contexts:
                count += 1
                self._note_invocation(site, context)
                try:
                    site.function(context)
                except Exception as error:
                    self._note_error(site, error)
                    raise
                finally:
                    self.barrier()
        return count

    def _visit_each(self, site: Site) -> int:
        try:
            return run_each(site, self.epoch)
        except Exception as error:
            self._note_error(site, error)
            raise
        finally:
            self.barrier()

    async def visit_async(self, site: Site) -> int:
        """The same for an `async def`, one invocation after the other."""
        count = 0
        with closing(invocations(site, self.epoch, self._desk.now)) as contexts:
            for context in contexts:
                count += 1
                self._note_invocation(site, context)
                try:
                    await site.function(context)
                except Exception as error:
                    self._note_error(site, error)
                    raise
                finally:
                    self.barrier()
        return count

    def _note_invocation(self, site: Site, context: GraphContext) -> None:
        site.invocation_count += 1
        if self._trace is not None:
            cause = context.metadata.causation_id
            self._trace.add("invoked", site.name, f"{context.trigger_kind} {cause}".rstrip())

    def _note_error(self, site: Site, error: BaseException) -> None:
        site.error_count += 1
        error.add_note(
            f"in component '{site.name}' of graph '{self.graph_name}', epoch {self.epoch}"
        )
        if self._trace is not None:
            self._trace.add("raised", site.name, type(error).__name__)

    def has_work(self) -> bool:
        """Whether an epoch would do something."""
        now = self._clock()
        return (
            bool(self._desk.staged)
            or any(channel.inflight for channel in self._desk.async_channels)
            or any(is_ready(site, now) for site in self._order)
        )

    def next_due(self) -> float | None:
        """In how many seconds the next window closes, if one is open."""
        instants = [at for at in map(due, self._order) if at is not None]
        return max(0.0, min(instants) - self._clock()) if instants else None

    def executors(self) -> list[TaskExecutor]:
        """Each once, however many components share it."""
        found = {id(site.task_executor): site.task_executor for site in self._order}
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
        return runtime_metrics(self.epoch, self._order, self._desk, self._tasks)

    def channel_metrics(self) -> dict[str, dict[str, int]]:
        return channel_metrics(self._desk)

    def trace(self) -> list[TraceEvent]:
        """What happened last, if the runtime was made with a `trace_capacity`."""
        return [] if self._trace is None else self._trace.events()

    def _site(self, component: str) -> Site:
        try:
            return self._sites[component]
        except KeyError:
            near = hint(component, self._sites)
            raise GraphError(f"there is no component '{component}'{near}") from None


def _check_functions(graph: "Graph") -> None:
    for component in graph.components.values():
        if component.function is None:
            raise GraphError(
                f"component '{component.name}' of graph '{graph.name}' has no function: "
                "it can be planned and rendered, but not run"
            )
