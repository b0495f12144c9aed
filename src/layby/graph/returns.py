"""Owns what a component function may be and return: it is called, and has then run."""

import asyncio
import inspect
from collections.abc import Coroutine
from typing import Any

from layby.graph.endpoints import shown
from layby.graph.graph_errors import GraphError


def check_function(function: Any) -> None:
    """A generator is not run by calling it, and nobody would go on with it."""
    if not callable(function):
        raise GraphError(f"{shown(function)} is not a function")
    for each in (function, getattr(function, "__call__", None)):  # noqa: B004 - looked at
        if inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each):
            raise GraphError(
                "its function has a yield, so calling it does not run it: "
                "call context.publish where it yields"
            )


def is_awaited(function: Any) -> bool:
    """An `async def`, or an object that is called as one."""
    called = getattr(function, "__call__", None)  # noqa: B004 - the method itself is looked at
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def check_returned(returned: object) -> None:
    """What has not begun to run is not an invocation. A Future may be returned."""
    if returned is None:
        return
    if inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        raise GraphError(
            "the component returned a generator, which nobody runs: run it in the component"
        )
    if inspect.isawaitable(returned) and not isinstance(returned, asyncio.Future):
        if isinstance(returned, Coroutine):
            returned.close()
        raise GraphError(
            "the component returned an awaitable, which nobody awaits: make the component itself "
            "an async def, so that `await runtime.drive()` awaits it"
        )
