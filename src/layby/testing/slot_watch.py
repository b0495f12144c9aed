"""Watches how many slots of a pool are held, from outside and without changing it."""

from collections.abc import Callable
from typing import Any, Self

from layby.clock import SystemClock, virtual_clock
from layby.core.model import Millis
from layby.executors import SlotPool
from layby.runner import Runner
from layby.testing.overrides import Overrides
from layby.worker.credit import Credit

_LEDGER_METHODS = ("take", "request", "give_back", "settle", "resize")
_CREDIT_METHODS = ("grants", "park", "leave", "step_back", "end")


class SlotWatch:
    """`with SlotWatch(runner) as slots:` then ask what was held, and when."""

    def __init__(self, watched: Runner | SlotPool) -> None:
        is_runner = isinstance(watched, Runner)
        self._counts: Any = watched.worker.credit if is_runner else watched.ledger
        self._methods = _CREDIT_METHODS if is_runner else _LEDGER_METHODS
        self._clock = virtual_clock.get() or SystemClock()
        self._overrides = Overrides()
        self.history: list[tuple[Millis, int]] = []
        """Each change: when, and how many slots were held from then on."""

    def __enter__(self) -> Self:
        self._record()
        for name in self._methods:
            self._overrides.set(self._counts, name, self._recording(getattr(self._counts, name)))
        return self

    def __exit__(self, *_: object) -> None:
        self._overrides.undo()

    @property
    def held(self) -> int:
        """How many are held now."""
        if isinstance(self._counts, Credit):
            return self._counts.held
        return self._counts._held  # noqa: SLF001 - `held` calls `settle`, which is recorded

    @property
    def peak(self) -> int:
        return max(held for _, held in self.history)

    def assert_never_more_than(self, slots: int) -> None:
        over = [(at, held) for at, held in self.history if held > slots]
        if over:
            at, held = over[0]
            since = at - self.history[0][0]
            raise AssertionError(
                f"expected at most {slots} held slots, got {held}, {since} ms after the "
                f"watch began ({len(over)} times, {self.peak} at most)"
            )

    def assert_none_held(self) -> None:
        assert self.held == 0, f"{self.held} slots are still held"

    def _recording(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = change(*args, **kwargs)
            self._record()
            return result

        return call

    def _record(self) -> None:
        if not self.history or self.history[-1][1] != self.held:
            self.history.append((self._clock.now(), self.held))
