"""Slots and bounded executors. This package depends on no other part of layby.

All public names are imported here; none is defined here.
"""

from layby.executors.asynchronous import AsyncTaskExecutor
from layby.executors.cancellation import CancellationSource, CancellationToken
from layby.executors.deterministic import DeterministicTaskExecutor
from layby.executors.executor_config import (
    AsyncTaskExecutorConfig,
    ProcessTaskExecutorConfig,
    TaskExecutorConfig,
    ThreadedTaskExecutorConfig,
)
from layby.executors.executor_metrics import TaskExecutorMetrics
from layby.executors.health import HealthEvent, HealthEventSink
from layby.executors.process import ProcessTaskExecutor
from layby.executors.protocol import TaskExecutor
from layby.executors.slot_ledger import PoolClosed
from layby.executors.slots import SlotPool, SlotToken
from layby.executors.task_records import TaskCompletion, TaskSubmission
from layby.executors.thread_slots import ThreadSlotPool, ThreadSlotToken
from layby.executors.threaded import ThreadedTaskExecutor

ITaskExecutor = TaskExecutor

__all__ = [
    "AsyncTaskExecutor",
    "AsyncTaskExecutorConfig",
    "CancellationSource",
    "CancellationToken",
    "DeterministicTaskExecutor",
    "HealthEvent",
    "HealthEventSink",
    "ITaskExecutor",
    "PoolClosed",
    "ProcessTaskExecutor",
    "ProcessTaskExecutorConfig",
    "SlotPool",
    "SlotToken",
    "TaskCompletion",
    "TaskExecutor",
    "TaskExecutorConfig",
    "TaskExecutorMetrics",
    "TaskSubmission",
    "ThreadSlotPool",
    "ThreadSlotToken",
    "ThreadedTaskExecutor",
    "ThreadedTaskExecutorConfig",
]
