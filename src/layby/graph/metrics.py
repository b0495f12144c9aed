"""Owns the metrics of a runtime: their names, and from which counters each is made."""

from collections.abc import Iterable

from layby.graph.channel import Channel
from layby.graph.component_state import ComponentState
from layby.graph.publisher import Publisher
from layby.graph.submitted_tasks import SubmittedTasks


def runtime_metrics(
    epoch: int, states: Iterable[ComponentState], publisher: Publisher, tasks: SubmittedTasks
) -> dict[str, int]:
    """Counters never fall; names that end otherwise are gauges. Taken at one moment."""
    states = list(states)
    with publisher.lock:
        return {
            "runtime.epoch_count": epoch,
            "runtime.component.invocation_count": sum(each.invocation_count for each in states),
            "runtime.component.error_count": sum(each.error_count for each in states),
            "runtime.component.interrupted_count": sum(each.interrupted_count for each in states),
            "runtime.trigger.window_count": sum(each.flush_count for each in states),
            "runtime.publication.refused_count": publisher.refused,
            "runtime.publication.unconnected_count": publisher.unconnected,
            **_async(publisher.async_channels),
            **_channels(publisher.channels),
            "runtime.task.submitted_count": tasks.submitted,
            "runtime.task.rejected_count": tasks.rejected,
            "runtime.task.completed_count": tasks.completed,
            "runtime.task.failed_count": tasks.failed,
            "runtime.task.late_count": tasks.late,
            "runtime.error.published_count": sum(each.errors.published for each in states),
            "runtime.error.unheard_count": sum(
                each.errors.unheard + each.errors.lost for each in states
            ),
        }


def channel_metrics(publisher: Publisher) -> dict[str, dict[str, int]]:
    """The same numbers for each channel by itself."""
    with publisher.lock:
        return {
            each.id: {**(_async([each]) if each.is_async else {}), **_channels([each])}
            for each in publisher.channels
        }


def _async(channels: Iterable[Channel]) -> dict[str, int]:
    channels = list(channels)
    return {
        "runtime.async.accepted_count": sum(map(_accepted, channels)),
        "runtime.async.overwrite_count": sum(each.overwritten_inflight for each in channels),
        "runtime.async.dropped_count": sum(each.dropped_inflight for each in channels),
        "runtime.async.rejected_count": sum(each.refused_by_inflight for each in channels),
        "runtime.async.completed_count": sum(each.sequence for each in channels),
        "runtime.async.inflight": sum(each.inflight for each in channels),
        # What is in flight only grows between two boundaries, so it is looked at there, and now.
        "runtime.async.max_inflight_count": max(
            (max(each.peak_inflight, each.inflight) for each in channels), default=0
        ),
    }


def _channels(channels: Iterable[Channel]) -> dict[str, int]:
    channels = list(channels)
    return {
        "runtime.channel.visible_count": sum(each.sequence for each in channels),
        "runtime.channel.overwrite_count": sum(each.overwritten for each in channels),
        "runtime.channel.dropped_count": sum(each.dropped for each in channels),
        "runtime.channel.rejected_count": sum(each.refused_by_capacity for each in channels),
        "runtime.channel.depth": sum(len(each.waiting) for each in channels),
        "runtime.channel.max_depth_count": max((each.peak_waiting for each in channels), default=0),
    }


def _accepted(channel: Channel) -> int:
    """Not counted as they come: each is visible, in flight, or was overwritten on its way."""
    lost = channel.overwritten_inflight + channel.overwritten_early
    return channel.sequence + channel.inflight + lost
