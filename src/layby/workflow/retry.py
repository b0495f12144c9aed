"""When a failed task is tried again, and after how long."""

import inspect
from collections.abc import Callable
from typing import Any, Literal, cast, get_args

from msgspec import Struct

from layby.core.pauses import Pauses, spread
from layby.errors import WorkflowError
from layby.wire.durations import whole_number
from layby.workflow.duration_checks import Duration, nonnegative_seconds

Backoff = Literal["exponential", "linear", "fixed"]
RetryOn = type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool]


class RetryPolicy(Struct, frozen=True):
    """`max_attempts` counts failures only: waiting, crashes and hand-backs cost nothing.

    `retry_on` says which errors are worth another attempt: a type, several, or a function of
    the error; None means every error. `jitter` spreads a delay by up to that fraction of it.
    """

    max_attempts: int = 1
    backoff: Backoff = "exponential"
    delay: Duration = 1.0
    max_delay: Duration = 60.0
    jitter: float = 0.0
    retry_on: RetryOn | None = None

    def __post_init__(self) -> None:
        whole_number(self.max_attempts, "max_attempts", 1, WorkflowError)
        _check_backoff(self.backoff)
        _check_jitter(self.jitter)
        _check_retry_on(self.retry_on)
        _check_delays(self.first_delay, self.longest_delay)

    @classmethod
    def retries(cls, count: int) -> "RetryPolicy":
        """`count` retries after the first attempt."""
        return cls(max_attempts=whole_number(count, "retries", 0, WorkflowError) + 1)

    @property
    def first_delay(self) -> float:
        return nonnegative_seconds(self.delay, "delay")

    @property
    def longest_delay(self) -> float:
        return nonnegative_seconds(self.max_delay, "max_delay")

    def next_delay(
        self, failures: int, error: BaseException, random: Callable[[], float]
    ) -> float | None:
        """Seconds until the next attempt after that many failures; None when there is none."""
        if failures >= self.max_attempts or not self._is_worth_retrying(error):
            return None
        first, longest = self.first_delay, self.longest_delay
        match self.backoff:
            case "exponential":
                delay = Pauses(first, longest).after(failures)
            case "linear":
                delay = min(first * failures, longest)
            case "fixed":
                delay = first
        return min(spread(delay, self.jitter, random), longest)

    def _is_worth_retrying(self, error: BaseException) -> bool:
        retry_on: Any = self.retry_on
        if retry_on is None:
            return True
        if isinstance(retry_on, type | tuple):
            return isinstance(error, cast("type[BaseException]", retry_on))
        try:
            return bool(retry_on(error))
        except Exception as broken:  # noqa: BLE001 - the task's own error matters more
            error.add_note(f"not retried: retry_on raised {broken!r}")
            return False


def _check_backoff(backoff: str) -> None:
    if backoff not in get_args(Backoff):
        names = ", ".join(get_args(Backoff))
        raise WorkflowError(f"unknown backoff {backoff!r}; use one of {names}")


def _check_jitter(jitter: Any) -> None:
    if isinstance(jitter, bool) or not isinstance(jitter, int | float) or not 0 <= jitter <= 1:
        raise WorkflowError(f"jitter must be between 0.0 and 1.0, got {jitter!r}")


def _check_retry_on(retry_on: Any) -> None:
    listed = cast("tuple[object, ...]", retry_on) if isinstance(retry_on, tuple) else (retry_on,)
    if retry_on is None or (listed and all(map(_is_error_type, listed))):
        return
    if isinstance(retry_on, type | tuple) or not callable(retry_on):
        raise WorkflowError(f"retry_on must be error types or a function, got {retry_on!r}")
    if inspect.iscoroutinefunction(retry_on):
        raise WorkflowError("retry_on must be a plain function, not async")


def _is_error_type(each: object) -> bool:
    return isinstance(each, type) and issubclass(each, BaseException)


def _check_delays(first: float, longest: float) -> None:
    if first > longest:
        raise WorkflowError(
            f"delay {first} s is above max_delay {longest} s: raise max_delay or lower delay"
        )
