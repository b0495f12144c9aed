"""Schedules of the SDKs, every second so that nobody waits for a minute."""

import pytest

from tests.sdk.conftest import Peers

pytestmark = pytest.mark.sdk


def test_a_schedule_calls_again_and_again_until_it_is_deleted(peers: Peers):
    """Each call is a promise of its own, named after its time."""
    worker = peers.worker()
    worker.order("schedule", id="ticks", cron="* * * * * *", name="step", args=["tick"])
    worker.hear("scheduled")
    worker.hear("effect", times=2, what="tick")
    worker.order("unschedule", id="ticks")
    worker.hear("unscheduled")
    assert peers.server.ask("schedule.get", id="ticks").status == 404
    assert_named_after_their_times(peers)


def assert_named_after_their_times(peers: Peers) -> None:
    tags = {"resonate:schedule": "ticks"}
    promises = peers.server.ask("promise.search", tags=tags).data["promises"]
    assert len(promises) >= 2
    for promise in promises:
        assert promise["createdAt"] % 1_000 == 0
        assert promise["id"] in {f"ticks{mark}{promise['createdAt']}" for mark in ".-"}
