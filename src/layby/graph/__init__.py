"""A small graph in one process: components, ports, edges and epochs. Knows only executors.

Every public name is imported from here, none is defined here.
"""

from layby.graph.builder import Graph
from layby.graph.bus import ChannelBus
from layby.graph.driver import AsyncGraphDriver
from layby.graph.form import graph_from_text, load_graph
from layby.graph.graph_context import GraphContext
from layby.graph.graph_errors import GraphError, GraphFormError
from layby.graph.graph_plan import Plan
from layby.graph.messages import (
    Message,
    MessageMetadata,
    PublicationRefused,
    PublishResult,
    TaskFailed,
)
from layby.graph.policy import EdgePolicy
from layby.graph.runtime import GraphRuntime
from layby.graph.trace import TraceEvent
from layby.graph.trigger import GraphTrigger

__all__ = [
    "AsyncGraphDriver",
    "ChannelBus",
    "EdgePolicy",
    "Graph",
    "GraphContext",
    "GraphError",
    "GraphFormError",
    "GraphRuntime",
    "GraphTrigger",
    "Message",
    "MessageMetadata",
    "Plan",
    "PublicationRefused",
    "PublishResult",
    "TaskFailed",
    "TraceEvent",
    "graph_from_text",
    "load_graph",
]
