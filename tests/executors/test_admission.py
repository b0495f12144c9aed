from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layby.executors.admission import ADMIT, ADMIT_AND_DROP_OLDEST, AdmissionDecision, Load, decide
from layby.executors.executor_config import OverflowPolicy

POLICIES = get_args(OverflowPolicy)
QUEUE_FULL = AdmissionDecision("task executor queue full")
CAPACITY_EXCEEDED = AdmissionDecision("task executor capacity exceeded")
BACKLOG_FULL = AdmissionDecision("task executor completed backlog full")


@pytest.mark.parametrize("policy", POLICIES)
def test_below_capacity_everything_is_admitted(policy):
    """No policy has a say before the capacity is reached."""
    assert decide(policy, 3, Load(1, 1, 0)) == ADMIT


@pytest.mark.parametrize(
    ("policy", "verdict"),
    [
        ("reject", QUEUE_FULL),
        ("drop_newest", QUEUE_FULL),
        ("block", QUEUE_FULL),
        ("fail_fast", CAPACITY_EXCEEDED),
        ("drop_oldest", ADMIT_AND_DROP_OLDEST),
        ("overwrite", ADMIT_AND_DROP_OLDEST),
    ],
)
def test_at_capacity_the_policy_decides(policy, verdict):
    """The table of the study's section 4, row by row."""
    assert decide(policy, 2, Load(pending=1, active=1, undrained=0)) == verdict


@pytest.mark.parametrize("policy", ["drop_oldest", "overwrite"])
def test_with_nothing_pending_there_is_nothing_to_drop(policy):
    """Active work and records cannot be dropped, so the new task is refused."""
    assert decide(policy, 2, Load(pending=0, active=1, undrained=1)) == QUEUE_FULL


@pytest.mark.parametrize("policy", POLICIES)
def test_a_backlog_of_records_outranks_every_policy(policy):
    """Only draining helps then, so that is what the reason says, to fail_fast too."""
    assert decide(policy, 2, Load(pending=0, active=0, undrained=2)) == BACKLOG_FULL
    assert decide(policy, 2, Load(pending=1, active=1, undrained=2)) == BACKLOG_FULL


@given(
    st.sampled_from(POLICIES),
    st.integers(1, 5),
    st.builds(Load, st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)),
)
def test_a_verdict_is_always_possible(policy, capacity, load):
    """Nothing is dropped that is not pending, and room is never refused."""
    verdict = decide(policy, capacity, load)
    if load.outstanding < capacity:
        assert verdict == ADMIT
    if verdict.drops_oldest:
        assert load.pending > 0
        assert not verdict.reason
