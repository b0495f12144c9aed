"""Owns the admission rule: what to do with new work, given a load. Pure; holds no state."""

from typing import NamedTuple

from layby.executors.executor_config import OverflowPolicy
from layby.executors.executor_reasons import CAPACITY_EXCEEDED, COMPLETED_BACKLOG_FULL, QUEUE_FULL


class Load(NamedTuple):
    """What counts against the admission capacity. Parked tasks are not part of it."""

    pending: int
    active: int
    undrained: int

    @property
    def outstanding(self) -> int:
        return self.pending + self.active + self.undrained


class AdmissionDecision(NamedTuple):
    """With a reason the task is refused; else it is admitted, perhaps in place of another."""

    reason: str = ""
    drops_oldest: bool = False


ADMIT = AdmissionDecision()
ADMIT_AND_DROP_OLDEST = AdmissionDecision(drops_oldest=True)


def decide(overflow: OverflowPolicy, capacity: int, load: Load) -> AdmissionDecision:
    if load.outstanding < capacity:
        return ADMIT
    if load.undrained >= capacity:
        # Outranks every policy: only draining helps, and the embedder has to be told so.
        return AdmissionDecision(COMPLETED_BACKLOG_FULL)
    if overflow in ("drop_oldest", "overwrite") and load.pending:
        return ADMIT_AND_DROP_OLDEST
    return AdmissionDecision(CAPACITY_EXCEEDED if overflow == "fail_fast" else QUEUE_FULL)


def may_wait_for_room(overflow: OverflowPolicy, capacity: int, load: Load) -> bool:
    """Whether a submitter that can wait should: there is no room, and the policy lets it wait."""
    return overflow != "fail_fast" and bool(decide(overflow, capacity, load).reason)
