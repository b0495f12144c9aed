"""Owns graph triggers: when a component runs, and the kinds an invocation is labelled with."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Literal, cast, get_args

from layby.executors.executor_config import Seconds, seconds
from layby.graph.endpoints import check_names, hint, shown
from layby.graph.graph_errors import GraphError

TriggerKind = Literal["manual", "any_input", "all_inputs", "task_ready", "batch", "debounce"]
EventKind = Literal["manual", "message", "task_ready", "future_ready"]

FUTURE_READY = "future_ready"
_SOURCES: dict[str, EventKind] = {
    "manual": "manual",
    "any_input": "message",
    "all_inputs": "message",
    "task_ready": "task_ready",
    "batch": "message",
    "debounce": "message",
}
_BELONGS_TO = {
    "batch_size": "batch",
    "batch_window": "batch",
    "debounce_window": "debounce",
}


@dataclass(frozen=True, slots=True)
class GraphTrigger:
    """When a component runs. `inputs` are the ports that count; all of them unless given."""

    kind: str = "any_input"
    """One of TriggerKind; `future_ready` is short for `any_input` with that source."""
    inputs: Sequence[str] | None = None
    source: EventKind | None = None
    """What kind of event it is: follows from the kind, except `future_ready` with `any_input`."""
    batch_size: int | None = None
    batch_window: Seconds | None = None
    """Seconds after which an incomplete batch is taken; without it, it waits until it is full."""
    debounce_window: Seconds | None = None
    """Seconds without a new message after which what has come is taken together."""

    def __post_init__(self) -> None:
        if self.kind == FUTURE_READY:
            object.__setattr__(self, "kind", "any_input")
            object.__setattr__(self, "source", self.source or FUTURE_READY)
        if not isinstance(self.kind, str) or self.kind not in get_args(TriggerKind):  # pyright: ignore[reportUnnecessaryIsInstance]
            known = (*get_args(TriggerKind), FUTURE_READY)
            near = hint(self.kind, known) if isinstance(self.kind, str) else ""  # pyright: ignore[reportUnnecessaryIsInstance]
            raise GraphError(f"unknown trigger {shown(self.kind)}{near}")
        if self.inputs is not None:
            object.__setattr__(self, "inputs", check_names(self.inputs, "trigger input"))
        self._check_source()
        self._check_fields()

    def _check_source(self) -> None:
        own = _SOURCES[self.kind]
        if self.source is None:
            object.__setattr__(self, "source", own)
        allowed = (own, FUTURE_READY) if self.kind == "any_input" else (own,)
        if self.source not in allowed:
            raise GraphError(
                f"trigger '{self.kind}' has the event source {' or '.join(allowed)}, "
                f"not {shown(self.source)}"
            )

    def _check_fields(self) -> None:
        for field, kind in _BELONGS_TO.items():
            if getattr(self, field) is not None and kind != self.kind:
                raise GraphError(f"{field} is for trigger '{kind}', not for '{self.kind}'")
        for field in ("batch_window", "debounce_window"):
            _check_window(field, getattr(self, field))
        if self.kind == "batch":
            _check_batch_size(self.batch_size)
        if self.kind == "debounce" and self.debounce_window is None:
            raise GraphError("trigger 'debounce' needs debounce_window: seconds without a message")

    @property
    def event_kind(self) -> EventKind:
        assert self.source is not None
        return self.source

    @property
    def window_s(self) -> float | None:
        """How long it waits by the clock, if it does."""
        window = self.debounce_window if self.kind == "debounce" else self.batch_window
        return None if window is None else seconds(window)


TRIGGER_FIELDS = tuple(field.name for field in fields(GraphTrigger))


def as_trigger(given: object) -> GraphTrigger:
    """A trigger, or the kind of one."""
    if isinstance(given, GraphTrigger):
        return given
    if isinstance(given, str):
        return GraphTrigger(given)
    raise GraphError(f"{shown(given)} is not a trigger: give its kind, or a GraphTrigger")


def _check_batch_size(size: object) -> None:
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise GraphError(
            f"trigger 'batch' needs batch_size, a whole number above 0, got {shown(size)}"
        )


def _check_window(field: str, window: object) -> None:
    if window is None:
        return
    is_length = isinstance(window, int | float | timedelta) and not isinstance(window, bool)
    length = seconds(cast("Seconds", window)) if is_length else -1.0
    if not math.isfinite(length) or length < 0:
        raise GraphError(f"{field} must be seconds or a timedelta, 0 or more, got {shown(window)}")
