"""A Runner whose every run is the same: virtual time, a fixed start and fixed chance."""

import random
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from layby.clock import virtual_clock
from layby.core.model import Millis
from layby.runner import Runner
from layby.testing.virtual import virtual_time

NEW_YEAR: Millis = 1_767_225_600_000
"""2026-01-01 00:00 UTC, where deterministic runners begin."""


@asynccontextmanager
async def deterministic_runner(
    address: str = "memory:", *, seed: int = 0, start: Millis = NEW_YEAR, **options: Any
) -> AsyncGenerator[Runner]:
    """`async with deterministic_runner(slots=4) as runner:`, options as for `Runner`.

    Turns virtual time on, unless it is on already, and seeds the `random` module for the
    duration. Bodies in threads and processes run when they run; all else repeats itself.
    """
    chance = random.getstate()
    random.seed(seed)
    try:
        async with AsyncExitStack() as stack:
            if virtual_clock.get() is None:
                await stack.enter_async_context(virtual_time(start=start))
            yield await stack.enter_async_context(Runner(address, **options))
    finally:
        random.setstate(chance)
