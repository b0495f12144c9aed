"""Owns work on its way: submitted by a component, run by an executor, published when it ends.

Of the executor only `submit` is used here, so any object with the ITaskExecutor methods will do.
"""

import asyncio
import inspect
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from layby.executors import TaskCompletion, TaskExecutor, TaskSubmission
from layby.graph.messages import Lineage, TaskFailed
from layby.graph.output_port import ErrorReports, OutputPort
from layby.graph.refusals import CLOSED, NO_LOOP, NOT_AWAITED
from layby.graph.trace import Trace


class RunsFlows(Protocol):
    """All that a graph asks of a Runner. A BlockingRunner's answer is not awaited."""

    def execute(self, flow: Any, context: Mapping[str, Any] | None = None) -> Any: ...


class SubmittedTasks:
    """Counts work and carries its completions to the ports they belong to, on any thread."""

    def __init__(self, trace: Trace | None = None) -> None:
        self.submitted = self.rejected = self.completed = self.failed = self.late = 0
        self.closed = False
        self.on_completion: Callable[[], object] | None = None
        """Called after each completion, on the thread it came on; wakes a driver."""
        self._lock = threading.Lock()
        self._trace = trace

    def submit(
        self,
        executor: TaskExecutor,
        output_port: OutputPort,
        errors: ErrorReports,
        lineage: Lineage,
        work: Callable[[], Any] | None,
    ) -> TaskSubmission:
        if self.closed:
            return self._answered(TaskSubmission(reason=CLOSED), output_port)
        completion = _Completion(partial(self._complete, output_port, errors, lineage))
        return self._answered(executor.submit(work, completion), output_port)

    @property
    def outstanding(self) -> int:
        """Accepted and not back; also what an executor has dropped, which tells nobody here."""
        return max(0, self.submitted - self.completed - self.failed - self.late)

    def refuse(self, output_port: OutputPort, reason: str) -> TaskSubmission:
        return self._answered(TaskSubmission(reason=reason), output_port)

    def close(self) -> None:
        with self._lock:
            self.closed = True

    def _answered(self, submission: TaskSubmission, output_port: OutputPort) -> TaskSubmission:
        with self._lock:
            if submission.accepted:
                self.submitted += 1
            else:
                self.rejected += 1
        if self._trace is not None:
            kind = "submitted" if submission.accepted else "not_submitted"
            self._trace.add(kind, str(output_port.end), submission.reason)
        return submission

    def _complete(
        self,
        output_port: OutputPort,
        errors: ErrorReports,
        lineage: Lineage,
        completion: TaskCompletion,
    ) -> None:
        """Counted once: as late if the runtime was closed before it could be published."""
        ended = _checked(completion)
        if self._trace is not None and not self.closed:
            kind = "task_completed" if ended.ok else "task_failed"
            self._trace.add(kind, str(output_port.end), ended.error)
        if ended.ok:
            reason = output_port.complete(ended.payload, lineage).reason
        else:
            component, port = output_port.end
            failure = TaskFailed(component, port, ended.task_id, ended.error)
            reason = errors.report(failure, lineage)
        self._count(ended, is_late=reason == CLOSED)
        if self.on_completion is not None:
            self.on_completion()

    def _count(self, ended: TaskCompletion, *, is_late: bool) -> None:
        with self._lock:
            if is_late:
                self.late += 1
            elif ended.ok:
                self.completed += 1
            else:
                self.failed += 1


class _Completion:
    """Of one submission: whoever calls it twice has published once."""

    def __init__(self, publish: Callable[[TaskCompletion], None]) -> None:
        self._publish = publish
        self._is_open = threading.Lock()

    def __call__(self, completion: TaskCompletion) -> None:
        if self._is_open.acquire(blocking=False):
            self._publish(completion)


def _checked(completion: TaskCompletion) -> TaskCompletion:
    """A coroutine nobody has awaited is not a result."""
    if not inspect.iscoroutine(completion.payload):
        return completion
    completion.payload.close()
    return TaskCompletion(completion.task_id, ok=False, error=NOT_AWAITED)


def run_work(
    runner: RunsFlows, flow: Any, context: Mapping[str, Any] | None
) -> tuple[Callable[[], Any] | None, str]:
    """Work that executes the flow, or the reason why it cannot be made here."""
    execute = partial(runner.execute, flow, context)
    if not inspect.iscoroutinefunction(runner.execute):
        return execute, ""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None, NO_LOOP
    return partial(_execute_on, loop, execute), ""


def _execute_on(loop: asyncio.AbstractEventLoop, execute: Callable[[], Any]) -> Any:
    """On the loop's own thread the executor awaits it; on any other we wait for it here."""
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    if here is loop:
        return execute()
    return asyncio.run_coroutine_threadsafe(execute(), loop).result()
