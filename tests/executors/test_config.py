from datetime import timedelta
from typing import Any

import pytest

from layby.executors import (
    AsyncTaskExecutor,
    AsyncTaskExecutorConfig,
    DeterministicTaskExecutor,
    ProcessTaskExecutor,
    ProcessTaskExecutorConfig,
    TaskExecutorConfig,
    ThreadedTaskExecutor,
    ThreadedTaskExecutorConfig,
)
from layby.executors.executor_config import seconds


def test_defaults_are_those_of_the_seed():
    """Seed 002 and the study's section 2 fix them."""
    config = ThreadedTaskExecutorConfig()
    assert (config.max_inflight, config.queue_capacity, config.overflow) == (1, 0, "reject")
    assert (config.task_budget, config.max_workers, config.shutdown_policy) == (0, 1, "drain")


def test_zero_means_one():
    """max_inflight and max_workers are normalised; queue_capacity is not, 0 is legal."""
    config = ThreadedTaskExecutorConfig(max_inflight=0, max_workers=0, queue_capacity=0)
    assert (config.max_inflight, config.max_workers, config.queue_capacity) == (1, 1, 0)


def test_admission_capacity_is_inflight_plus_queue():
    """One formula for all executors."""
    assert TaskExecutorConfig(max_inflight=3, queue_capacity=4).admission_capacity == 7
    assert TaskExecutorConfig(max_inflight=0, queue_capacity=4).admission_capacity == 5


def test_concurrency_is_the_smaller_of_workers_and_inflight():
    """Never more than min(max_workers, max_inflight) are active."""
    assert ThreadedTaskExecutorConfig(max_inflight=3, max_workers=8).concurrency == 3
    assert ThreadedTaskExecutorConfig(max_inflight=8, max_workers=3).concurrency == 3


def test_an_unknown_overflow_policy_is_refused_with_the_valid_ones():
    """A typo must not silently become `reject`."""
    with pytest.raises(
        ValueError,
        match=r"'drop_old'.*reject, drop_newest, block, drop_oldest, overwrite, fail_fast",
    ):
        TaskExecutorConfig(overflow="drop_old")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "config", [ThreadedTaskExecutorConfig, AsyncTaskExecutorConfig, ProcessTaskExecutorConfig]
)
def test_an_unknown_shutdown_policy_is_refused_with_the_valid_ones(config):
    """Nor may it silently become `drain`."""
    with pytest.raises(ValueError, match=r"'stop'.*drain, cancel_pending, cancel, discard_pending"):
        config(shutdown_policy="stop")


def test_an_unknown_start_method_is_refused():
    """Fork above all: it would copy the locks of threads that are not there."""
    with pytest.raises(ValueError, match=r"'fork'.*spawn, forkserver"):
        ProcessTaskExecutorConfig(start_method="fork")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("field", ["max_inflight", "queue_capacity", "task_budget"])
def test_negative_numbers_are_refused(field):
    """They have no meaning, so they are mistakes."""
    numbers: dict[str, Any] = {field: -1}
    with pytest.raises(ValueError, match=f"{field} must not be negative"):
        TaskExecutorConfig(**numbers)


@pytest.mark.parametrize("field", ["max_inflight", "queue_capacity", "task_budget"])
def test_nan_is_refused(field):
    """Every comparison with it is false, so it would switch a limit off in silence."""
    numbers: dict[str, Any] = {field: float("nan")}
    with pytest.raises(ValueError, match=f"{field} must be a number, got nan"):
        TaskExecutorConfig(**numbers)


def test_durations_are_seconds_or_timedelta():
    """Both ways of saying it mean the same."""
    assert seconds(timedelta(milliseconds=250)) == seconds(0.25) == 0.25


@pytest.mark.parametrize(
    ("executor", "config"),
    [
        (DeterministicTaskExecutor, {"max_inflight": 2}),
        (AsyncTaskExecutor, {"max_inflight": 2}),
        (ThreadedTaskExecutor, TaskExecutorConfig()),
        (ThreadedTaskExecutor, AsyncTaskExecutorConfig()),
        (ProcessTaskExecutor, ThreadedTaskExecutorConfig()),
    ],
)
def test_a_config_that_lacks_settings_of_its_executor_is_refused(executor, config):
    """When it is made: a threaded one with a plain config ran tasks, and failed to shut down."""
    with pytest.raises(TypeError, match=f"TaskExecutorConfig, got {type(config).__name__}"):
        executor(config)
