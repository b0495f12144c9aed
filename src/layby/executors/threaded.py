"""Owns the executor whose work runs in threads of this process."""

import time
from collections.abc import Callable

from layby.executors.executor_config import ThreadedTaskExecutorConfig, config_of
from layby.executors.task_records import DiscardCallback, PlainTask, TaskCompletion
from layby.executors.worker_backed import WorkerBackedExecutor


class _ThreadTaskRunner:
    task: PlainTask | None = None

    def run(self, task: PlainTask) -> TaskCompletion:
        return task.perform()

    def close(self) -> None:
        pass


class ThreadedTaskExecutor(WorkerBackedExecutor):
    """Runs up to `min(max_workers, max_inflight)` tasks at once, started in the order submitted.

    Callbacks run on the worker's thread, before the record can be drained.
    """

    def __init__(
        self,
        config: ThreadedTaskExecutorConfig | None = None,
        *,
        on_discard: DiscardCallback | None = None,
        keep_completions: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        config = config_of(config, ThreadedTaskExecutorConfig)
        super().__init__(
            config,
            [_ThreadTaskRunner() for _ in range(config.concurrency)],
            on_discard=on_discard,
            keep_completions=keep_completions,
            clock=clock,
        )
