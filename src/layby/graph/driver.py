"""Owns the asyncio driver: the same epochs on an event loop, with `async def` components."""

import asyncio
from collections.abc import Generator
from contextlib import suppress
from typing import Any, Self

from layby.graph.progress import MAX_EPOCHS, Progress
from layby.graph.runtime import GraphRuntime


class AsyncGraphDriver:
    """Awaited, it runs until idle. Components run on the loop, one after the other."""

    def __init__(self, runtime: GraphRuntime) -> None:
        self.runtime = runtime

    def __await__(self) -> Generator[Any, None, int]:
        return self.run_until_idle().__await__()

    async def run_epoch(self) -> int:
        """Run one epoch; how many invocations it had."""
        runtime = self.runtime
        runtime.begin_epoch()
        count = 0
        try:
            for state in runtime.order:
                if not (state.fires or state.has_waiting()):
                    continue
                if state.is_async:
                    count += await runtime.visit_async(state)
                else:
                    count += runtime.visit(state)
        finally:
            runtime.end_epoch()
        return count

    async def run_until_idle(
        self,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - says what was not idle, and why
        max_epochs: int = MAX_EPOCHS,
    ) -> int:
        """Run epochs, waiting for work, until nothing is left; how many epochs."""
        progress = Progress(self.runtime, timeout, max_epochs)
        with _Wakeup(self.runtime) as news:
            while (pause := progress.next_pause()) is not None:
                if pause > 0:
                    await news.wait(pause)
                else:
                    await self.run_epoch()
                    await asyncio.sleep(0)  # the loop has others to serve
        return progress.epochs

    async def run_until_closed(self) -> int:
        """Run epochs whenever there is something to do, until the runtime is closed."""
        epochs = 0
        with _Wakeup(self.runtime) as news:
            while not self.runtime.is_closed:
                progress = Progress(self.runtime, None, MAX_EPOCHS)
                pause = progress.next_pause()
                if pause is None and not self.runtime.is_closed:
                    await news.wait(None)
                elif pause:
                    await news.wait(pause)
                elif pause == 0:
                    await self.run_epoch()
                    await asyncio.sleep(0)
                    epochs += 1
        return epochs


class _Wakeup:
    """Wakes the loop when a completion, a fire or a publication has come, on whatever thread."""

    def __init__(self, runtime: GraphRuntime) -> None:
        self._runtime = runtime
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def __enter__(self) -> Self:
        self._runtime.listen(self._tell)
        return self

    def __exit__(self, *_: object) -> None:
        self._runtime.listen(None)

    def _tell(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, seconds: float | None) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), seconds)
        self._event.clear()
