"""Owns health events and the bounded sink that keeps them; observes, and changes nothing."""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class HealthEvent:
    kind: str
    source: str = ""
    component_id: str = ""
    lane: str = ""
    channel_id: str = ""
    edge_id: str = ""
    policy: str = ""
    reason: str = ""
    sequence: int = 0
    depth: int = 0
    capacity: int = 0
    occurrence_count: int = 1
    attributes: Mapping[str, str] = field(default_factory=dict[str, str])
    observed_at: float = field(default_factory=time.monotonic)

    @property
    def coalescing_key(self) -> tuple[str, ...]:
        """Events that agree in all of these are counted as one. No reason is lost that way."""
        return (
            self.kind,
            self.source,
            self.component_id,
            self.lane,
            self.channel_id,
            self.edge_id,
            self.policy,
            self.reason,
        )


class HealthEventSink:
    """Keeps the newest events. `emit` never blocks: what it cannot keep at once, it counts."""

    def __init__(self, capacity: int = 64, *, enabled: bool = True) -> None:
        self._capacity = capacity
        self._enabled = enabled
        self._lock = threading.Lock()
        self._events: OrderedDict[tuple[str, ...], HealthEvent] = OrderedDict()
        self._dropped = 0
        self._coalesced = 0
        # An emitter that finds the lock taken leaves a mark here; the next holder counts it.
        self._missed: deque[None] = deque()

    def emit(self, event: HealthEvent) -> None:
        if not self._enabled:
            return
        if not self._lock.acquire(blocking=False):
            self._missed.append(None)
            return
        try:
            self._count_missed()
            self._keep(event)
        finally:
            self._lock.release()

    def snapshot(self) -> list[HealthEvent]:
        with self._lock:
            return list(self._events.values())

    def dropped_count(self) -> int:
        with self._lock:
            self._count_missed()
            return self._dropped

    def coalesced_count(self) -> int:
        return self._coalesced

    def _keep(self, event: HealthEvent) -> None:
        if self._capacity <= 0:
            self._dropped += 1
            return
        key = event.coalescing_key
        known = self._events.get(key)
        if known is not None:
            count = known.occurrence_count + event.occurrence_count
            self._events[key] = replace(event, occurrence_count=count)
            self._coalesced += 1
            return
        if len(self._events) >= self._capacity:
            self._events.popitem(last=False)
            self._dropped += 1
        self._events[key] = event

    def _count_missed(self) -> None:
        while self._missed:
            self._missed.popleft()
            self._dropped += 1
