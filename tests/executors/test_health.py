import threading
from typing import Any

from layby.executors import HealthEvent, HealthEventSink


def test_alike_events_become_one_and_are_counted():
    """The newest details win, the number of occurrences grows."""
    sink = HealthEventSink()
    sink.emit(HealthEvent("task_reject", reason="full", depth=1, sequence=1))
    sink.emit(HealthEvent("task_reject", reason="full", depth=2, sequence=2))
    (event,) = sink.snapshot()
    assert (event.occurrence_count, event.depth, event.sequence) == (2, 2, 2)
    assert (sink.coalesced_count(), sink.dropped_count()) == (1, 0)


def test_no_reason_is_lost_by_coalescing():
    """Two reasons under one policy stay two events, however often each occurs."""
    sink = HealthEventSink()
    for reason in ("queue full", "backlog full", "queue full"):
        sink.emit(HealthEvent("task_reject", policy="reject", reason=reason))
    kept = {event.reason: event.occurrence_count for event in sink.snapshot()}
    assert kept == {"queue full": 2, "backlog full": 1}


def test_each_part_of_the_key_keeps_events_apart():
    """What happened elsewhere is another event."""
    sink = HealthEventSink()
    parts = ["kind", "source", "component_id", "lane", "channel_id", "edge_id", "policy", "reason"]
    for part in parts:
        fields: dict[str, Any] = {"kind": "k", part: "x"}
        sink.emit(HealthEvent(**fields))
    assert len(sink.snapshot()) == len(parts)
    assert sink.coalesced_count() == 0


def test_when_full_the_oldest_goes_and_is_counted():
    """The sink is bounded."""
    sink = HealthEventSink(capacity=2)
    for reason in "abc":
        sink.emit(HealthEvent("task_reject", reason=reason))
    assert [event.reason for event in sink.snapshot()] == ["b", "c"]
    assert sink.dropped_count() == 1


def test_without_capacity_everything_is_dropped_and_counted():
    """Capacity 0 is legal."""
    sink = HealthEventSink(capacity=0)
    sink.emit(HealthEvent("task_reject"))
    assert sink.snapshot() == []
    assert sink.dropped_count() == 1


def test_a_disabled_sink_ignores_everything():
    """Off is off: nothing kept, nothing counted."""
    sink = HealthEventSink(enabled=False)
    sink.emit(HealthEvent("task_reject"))
    assert (sink.snapshot(), sink.dropped_count(), sink.coalesced_count()) == ([], 0, 0)


def test_emit_never_waits_for_a_reader():
    """While the lock is taken an event is dropped at once, and the drop is counted later."""
    sink = HealthEventSink()
    emitter = threading.Thread(target=sink.emit, args=(HealthEvent("task_reject"),))
    with sink._lock:
        emitter.start()
        emitter.join(10)
        assert not emitter.is_alive()
    assert sink.snapshot() == []
    assert sink.dropped_count() == 1


def test_defaults_are_those_of_the_study():
    """Section 10 lists them."""
    event = HealthEvent("task_reject")
    assert (event.sequence, event.occurrence_count, event.attributes) == (0, 1, {})
    sink = HealthEventSink()
    for number in range(65):
        sink.emit(HealthEvent("task_reject", reason=str(number)))
    assert len(sink.snapshot()) == 64
