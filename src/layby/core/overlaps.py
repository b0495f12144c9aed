"""What an occurrence may do while earlier runs of its schedule are open.

The runs themselves are the truth: open is whatever root of the schedule has not ended, later lives
and runs that were started by hand included. So a run that is cancelled, run again or pruned needs
no bookkeeping here.
"""

from collections.abc import Sequence
from typing import Final

from layby.core import birth
from layby.core.draft import Draft
from layby.core.model import Millis, Promise
from layby.core.schedule_row import MOST_OPEN_RUNS, Overlap, Schedule

PLACES: Final[dict[Overlap, int]] = {"allow": 1, "skip": 1, "queue_one": 2}
"""How many runs the occurrences that were missed together may have, at least: a portion of them is
no smaller, so that the last place is never given away twice."""


def awaited_by(d: Draft, schedule: Schedule, at: Millis) -> Sequence[str] | None:
    """The roots that the run of this occurrence waits for; None if it is to have no run."""
    if schedule.overlap == "allow":
        return ()
    if schedule.full_until is not None and at <= schedule.full_until:
        return None
    open_runs = _open_runs(d, schedule.id)
    if not open_runs:
        return ()
    if schedule.overlap == "skip" or _has_queued(open_runs):
        return None
    return [root.id for root in open_runs[:MOST_OPEN_RUNS]]


def full_until(schedule: Schedule, by: Millis) -> Millis | None:
    """Up to when occurrences have no places left, after a portion of those due `by` then."""
    return None if schedule.overlap == "allow" or schedule.next_run_at > by else by


def _open_runs(d: Draft, schedule_id: str) -> list[Promise]:
    """The newest first."""
    found = [each for each in d.maybe_runs_of(schedule_id) if _is_open(d, each, schedule_id)]
    return sorted(found, key=lambda root: (root.created_at, root.id), reverse=True)


def _is_open(d: Draft, promise: Promise, schedule_id: str) -> bool:
    if not promise.is_pending or birth.schedule_of(promise.tags) != schedule_id:
        return False
    task = d.task(promise.id)
    return task is not None and task.is_root


def _has_queued(open_runs: Sequence[Promise]) -> bool:
    """Whether one of them still waits for another."""
    ids = {root.id for root in open_runs}
    return any(not ids.isdisjoint(birth.awaited_runs(root.tags)) for root in open_runs)
