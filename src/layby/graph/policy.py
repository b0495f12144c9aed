"""Owns what an edge may be told: when its messages become visible, how many, and what if full."""

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from layby.executors.executor_config import OverflowPolicy
from layby.graph.arguments import check_count
from layby.graph.endpoints import hint, shown
from layby.graph.graph_errors import GraphError

EdgeKind = Literal["immediate", "async"]
ChannelMode = Literal["latest", "queue", "latched"]

OVERWRITING = ("drop_oldest", "overwrite")
"""Policies that make room; all others refuse what is new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgePolicy:
    """`mode` is `latest`, or `queue` where a capacity above 1 is given."""

    kind: EdgeKind = "immediate"
    mode: ChannelMode | None = None
    capacity: int = 1
    max_inflight: int = 0
    """Messages published on an async edge and not visible yet; 0: no limit but the capacity."""
    overflow: OverflowPolicy = "overwrite"
    health_events: bool = True

    def __post_init__(self) -> None:
        _check_choice("kind", self.kind, get_args(EdgeKind))
        check_count("capacity", self.capacity, 1)
        check_count("max_inflight", self.max_inflight, 0)
        _check_choice("overflow", self.overflow, get_args(OverflowPolicy))
        if self.mode is None:
            object.__setattr__(self, "mode", "queue" if self.capacity > 1 else "latest")
        _check_choice("mode", self.mode, get_args(ChannelMode))
        if not isinstance(self.health_events, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise GraphError(
                f"health_events must be true or false, got {shown(self.health_events)}"
            )
        self._check_together()

    def _check_together(self) -> None:
        if self.kind == "immediate" and self.max_inflight:
            raise GraphError(
                "max_inflight is for async edges, on an immediate one nothing is in flight: "
                "leave it out, or write kind='async'"
            )
        if self.mode == "queue":
            return
        if self.capacity > 1:
            raise GraphError(
                f"mode '{self.mode}' keeps one message, so capacity {self.capacity} means nothing: "
                "leave it out, or write mode='queue'"
            )
        if self.overflow in ("drop_newest", "block"):
            raise GraphError(
                f"mode '{self.mode}' is there to keep the newest message, and overflow "
                f"'{self.overflow}' refuses it: use 'overwrite', or mode='queue'"
            )

    @property
    def overwrites(self) -> bool:
        return self.overflow in OVERWRITING


POLICY_FIELDS = tuple(field.name for field in fields(EdgePolicy))


def _check_choice(field: str, value: object, names: tuple[Any, ...]) -> None:
    if not isinstance(value, str) or value not in names:
        near = hint(value, names) if isinstance(value, str) else f": it is {' or '.join(names)}"
        raise GraphError(f"unknown {field} {shown(value)}{near}")
