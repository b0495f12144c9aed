"""Owns what an embedder may configure and what each value means; knows no executor."""

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, TypeVar, get_args

OverflowPolicy = Literal["reject", "drop_newest", "block", "drop_oldest", "overwrite", "fail_fast"]
ShutdownPolicy = Literal["drain", "cancel_pending", "cancel", "discard_pending"]
StartMethod = Literal["spawn", "forkserver"]
Seconds = float | timedelta


def seconds(duration: Seconds) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


def _check_name(field: str, value: object, names: tuple[str, ...]) -> None:
    if value not in names:
        raise ValueError(f"unknown {field} {value!r}; valid names are: {', '.join(names)}")


def _check_not_negative(field: str, value: float) -> None:
    if math.isnan(value):
        raise ValueError(f"{field} must be a number, got nan")
    if value < 0:
        raise ValueError(f"{field} must not be negative, got {value}")


@dataclass(frozen=True, slots=True)
class TaskExecutorConfig:
    """How much work an executor admits, and what it does with one task too many."""

    max_inflight: int = 1
    queue_capacity: int = 0
    overflow: OverflowPolicy = "reject"
    task_budget: Seconds = 0.0
    """Counted when exceeded, never enforced. Seconds or a `timedelta`; 0 turns it off."""

    def __post_init__(self) -> None:
        _check_name("overflow", self.overflow, get_args(OverflowPolicy))
        _check_not_negative("max_inflight", self.max_inflight)
        _check_not_negative("queue_capacity", self.queue_capacity)
        _check_not_negative("task_budget", seconds(self.task_budget))
        object.__setattr__(self, "max_inflight", self.max_inflight or 1)

    @property
    def admission_capacity(self) -> int:
        return self.max_inflight + self.queue_capacity

    @property
    def concurrency(self) -> int:
        """How many tasks may run at the same time."""
        return self.max_inflight


@dataclass(frozen=True, slots=True)
class AsyncTaskExecutorConfig(TaskExecutorConfig):
    shutdown_policy: ShutdownPolicy = "drain"

    def __post_init__(self) -> None:
        TaskExecutorConfig.__post_init__(self)  # slots=True makes a new class: no bare super()
        _check_name("shutdown_policy", self.shutdown_policy, get_args(ShutdownPolicy))


@dataclass(frozen=True, slots=True)
class ThreadedTaskExecutorConfig(TaskExecutorConfig):
    max_workers: int = 1
    shutdown_policy: ShutdownPolicy = "drain"

    def __post_init__(self) -> None:
        TaskExecutorConfig.__post_init__(self)
        _check_name("shutdown_policy", self.shutdown_policy, get_args(ShutdownPolicy))
        _check_not_negative("max_workers", self.max_workers)
        object.__setattr__(self, "max_workers", self.max_workers or 1)

    @property
    def concurrency(self) -> int:
        return min(self.max_workers, self.max_inflight)


@dataclass(frozen=True, slots=True)
class ProcessTaskExecutorConfig(ThreadedTaskExecutorConfig):
    task_timeout: Seconds = 0.0
    """A task that runs longer is killed and fails. 0 turns it off."""
    start_method: StartMethod = "spawn"
    """Never plain fork: the executor has threads, and a fork would copy their locks."""

    def __post_init__(self) -> None:
        ThreadedTaskExecutorConfig.__post_init__(self)
        _check_not_negative("task_timeout", seconds(self.task_timeout))
        _check_name("start_method", self.start_method, get_args(StartMethod))


C = TypeVar("C", bound=TaskExecutorConfig)


def config_of(given: TaskExecutorConfig | None, wanted: type[C]) -> C:
    """What an executor is made with; one that lacks some of its settings is refused at once."""
    if given is None:
        return wanted()
    if isinstance(given, wanted):
        return given
    raise TypeError(f"config must be a {wanted.__name__}, got {type(given).__name__}")


def shutdown_policy_of(config: TaskExecutorConfig) -> ShutdownPolicy:
    """A plain config has no shutdown policy: its executor drains."""
    if isinstance(config, AsyncTaskExecutorConfig | ThreadedTaskExecutorConfig):
        return config.shutdown_policy
    return "drain"
