"""Owns what a graph is made of: components and edges, as they were written."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from layby.graph.endpoints import Endpoint
from layby.graph.policy import EdgePolicy
from layby.graph.trigger import GraphTrigger

ComponentFunction = Callable[[Any], Any]
"""Takes a GraphContext. An `async def` needs the asyncio driver."""


@dataclass(frozen=True, slots=True)
class Component:
    name: str
    function: ComponentFunction | None
    """None: only declared, for a graph that is looked at and not run."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    """The error port is one of them."""
    trigger: GraphTrigger
    error_port: str | None

    @property
    def trigger_inputs(self) -> tuple[str, ...]:
        """The ports that make it run."""
        if self.trigger.kind == "manual":
            return ()
        return self.inputs if self.trigger.inputs is None else tuple(self.trigger.inputs)


@dataclass(frozen=True, slots=True)
class Edge:
    id: str
    """Also the id of its channel, the first half of a causation id."""
    source: Endpoint
    target: Endpoint
    policy: EdgePolicy

    @property
    def is_async(self) -> bool:
        return self.policy.kind == "async"
