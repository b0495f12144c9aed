"""Owns the executor whose work runs in child processes, where it can be killed."""

import math
import threading
import time
from collections.abc import Callable

from layby.executors.child_process import ChildDied, ChildProcess
from layby.executors.deadline import Deadline
from layby.executors.executor_config import (
    ProcessTaskExecutorConfig,
    StartMethod,
    config_of,
    seconds,
)
from layby.executors.executor_reasons import SHUTDOWN_CANCELLED, TASK_CANCELLED
from layby.executors.task_records import Discard, DiscardCallback, Ending, PlainTask
from layby.executors.worker_backed import WorkerBackedExecutor


class _ProcessTaskRunner:
    """A worker thread's child process: started for its first task, and again after each death."""

    def __init__(self, start_method: StartMethod, task_timeout: float) -> None:
        self.task: PlainTask | None = None
        self._start_method: StartMethod = start_method
        self._task_timeout = None if task_timeout in (0, math.inf) else task_timeout
        self._child: ChildProcess | None = None
        self._kill_reason = ""
        self._lock = threading.Lock()

    def run(self, task: PlainTask) -> Ending:
        try:
            ending = self._run_in_child(task)
        except (TimeoutError, ChildDied) as error:
            self._discard_child()
            late = isinstance(error, TimeoutError)
            ending = task.failed_with(
                f"task killed after {self._task_timeout} s" if late else str(error)
            )
        except BaseException as error:  # noqa: BLE001 - work that cannot be sent has failed
            ending = task.failed(error)
        kill_reason = self._clear_task()
        return Discard(task.task_id, kill_reason) if kill_reason else ending

    def kill(self, task_id: int | None, reason: str) -> bool:
        """Kill the child if it runs this task (None: any task); the task gets no completion."""
        with self._lock:
            if self.task is None or task_id not in (None, self.task.task_id):
                return False
            self._kill_reason = reason
            if self._child is not None:
                self._child.kill()
            return True

    def stack(self, task_id: int) -> str:
        """Where this task stands in its child; the lock keeps the child from being replaced."""
        with self._lock:
            if self.task is None or self.task.task_id != task_id or self._child is None:
                return ""
            return self._child.stack()

    def close(self) -> None:
        if self._child is not None:
            self._child.close()

    def _run_in_child(self, task: PlainTask) -> Ending:
        child = self._child or self._start_child()
        if self._kill_reason:
            raise ChildDied(self._kill_reason)
        ok, payload, error = child.run(task.work, self._task_timeout)
        return task.completed(payload) if ok else task.failed_with(error)

    def _start_child(self) -> ChildProcess:
        child = ChildProcess(self._start_method)
        with self._lock:
            self._child = child  # from here on `kill` finds it
        child.wait_until_ready()
        return child

    def _clear_task(self) -> str:
        """Let `kill` no longer find the task; returns why it was killed, if it was."""
        with self._lock:
            self.task = None
            kill_reason, self._kill_reason = self._kill_reason, ""
        if kill_reason:
            self._discard_child()  # it may have answered just before it was killed
        return kill_reason

    def _discard_child(self) -> None:
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.close()


class ProcessTaskExecutor(WorkerBackedExecutor):
    """Runs picklable work (a module-level function, or a `functools.partial` of one) in processes.

    A running task can be cancelled, and one that exceeds `task_timeout` fails: its process is
    killed and replaced, and no other task is affected. Callbacks run on a thread of this process.
    """

    def __init__(
        self,
        config: ProcessTaskExecutorConfig | None = None,
        *,
        on_discard: DiscardCallback | None = None,
        keep_completions: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        config = config_of(config, ProcessTaskExecutorConfig)
        timeout = seconds(config.task_timeout)
        self._runners = [
            _ProcessTaskRunner(config.start_method, timeout) for _ in range(config.concurrency)
        ]
        super().__init__(
            config,
            self._runners,
            on_discard=on_discard,
            keep_completions=keep_completions,
            clock=clock,
        )

    def cancel(self, task_id: int) -> bool:
        """Cancel a task, even a running one. False when it has ended or was never accepted."""
        self._lock.acquire()
        try:
            return self._state.cancel(task_id, TASK_CANCELLED) or any(
                runner.kill(task_id, TASK_CANCELLED) for runner in self._runners
            )
        finally:
            self._unlock()

    def stack(self, task_id: int) -> str:
        """Where a running task stands, as `faulthandler` writes it; empty if that is not known.

        It may take a fifth of a second.
        """
        return next((found for each in self._runners if (found := each.stack(task_id))), "")

    def _give_up(self) -> None:
        super()._give_up()
        for runner in self._runners:
            runner.kill(None, SHUTDOWN_CANCELLED)
        self._join(Deadline(None))  # takes no time: nothing runs any more
