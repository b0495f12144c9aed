"""Replaces attributes of single objects for a while, and restores them exactly."""

from typing import Any

_MISSING = object()


class Overrides:
    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def set(self, target: Any, name: str, value: Any) -> None:
        own: dict[str, Any] = target.__dict__  # without what is of its class
        self._before.append((target, name, own.get(name, _MISSING)))
        setattr(target, name, value)

    def undo(self) -> None:
        while self._before:
            target, name, before = self._before.pop()
            if before is _MISSING:
                delattr(target, name)
            else:
                setattr(target, name, before)
