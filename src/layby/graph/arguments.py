"""Owns what a runtime may be given: checked at once, since what is wrong shows much later."""

from typing import Any

from layby.graph.endpoints import shown
from layby.graph.graph_errors import GraphError


def check_count(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise GraphError(f"{name} must be a whole number, {least} or more, got {shown(value)}")


def check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise GraphError(f"{name} must be a string, got {shown(value)}")


def check_clock(clock: object) -> None:
    if clock is not None and not callable(clock):
        raise GraphError(f"clock must be a function that returns seconds, got {shown(clock)}")


def check_executor(executor: Any) -> None:
    """Of its methods, those without which nothing would ever come back."""
    _check_methods("task_executor", executor, ("submit", "run_ready"))


def check_sink(sink: Any) -> None:
    _check_methods("health_event_sink", sink, ("emit",))


def _check_methods(name: str, given: Any, methods: tuple[str, ...]) -> None:
    if given is None:
        return
    for method in methods:
        if isinstance(given, type) or not callable(getattr(given, method, None)):
            raise GraphError(f"{name} must be an object with {method}(...), got {shown(given)}")
