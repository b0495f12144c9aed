from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layby.errors import WorkflowError
from layby.workflow.retry import RetryPolicy

ERROR = ValueError("bad")


def middle() -> float:
    return 0.5


def delays(policy: RetryPolicy, upto: int = 6, random=middle) -> list[float | None]:
    return [policy.next_delay(failures, ERROR, random) for failures in range(1, upto + 1)]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (RetryPolicy(), [None, None]),
        (RetryPolicy.retries(0), [None, None]),
        (RetryPolicy.retries(2), [1.0, 2.0, None]),
        (RetryPolicy(6, max_delay=5), [1.0, 2.0, 4.0, 5.0, 5.0, None]),
        (RetryPolicy(4, "linear", delay=2), [2.0, 4.0, 6.0, None]),
        (RetryPolicy(4, "fixed", delay=timedelta(milliseconds=500)), [0.5, 0.5, 0.5, None]),
        (RetryPolicy(3, delay=0), [0.0, 0.0, None]),
        (RetryPolicy(3, max_delay=timedelta(seconds=1.5)), [1.0, 1.5, None]),
        (RetryPolicy(3, retry_on=ValueError), [1.0, 2.0, None]),
        (RetryPolicy(3, retry_on=(KeyError, ValueError)), [1.0, 2.0, None]),
        (RetryPolicy(3, retry_on=KeyError), [None]),
        (RetryPolicy(3, retry_on=lambda error: "bad" in str(error)), [1.0, 2.0, None]),
        (RetryPolicy(3, retry_on=lambda error: "good" in str(error)), [None]),
    ],
)
def test_delays(policy, expected):
    assert delays(policy, len(expected)) == expected


def test_many_failures_do_not_overflow():
    assert RetryPolicy(10**6).next_delay(10**5, ERROR, middle) == 60.0


@pytest.mark.parametrize(("drawn", "delay"), [(0.0, 3.0), (0.5, 4.0), (1.0, 5.0)])
def test_jitter_spreads_both_ways(drawn, delay):
    policy = RetryPolicy(2, delay=4, jitter=0.25)
    assert policy.next_delay(1, ERROR, lambda: drawn) == delay


@given(
    st.integers(1, 50),
    st.sampled_from(["exponential", "linear", "fixed"]),
    st.floats(0, 100),
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(1, 60),
)
def test_a_delay_is_never_negative_nor_above_its_limit(
    attempts, backoff, delay, jitter, drawn, failures
):
    policy = RetryPolicy(attempts, backoff, delay, 100, jitter)
    found = policy.next_delay(failures, ERROR, lambda: drawn)
    assert (found is None) == (failures >= attempts)
    assert found is None or 0 <= found <= 100


def test_a_retry_on_that_raises_does_not_hide_the_error():
    error = ValueError("the real one")
    policy = RetryPolicy(3, retry_on=lambda error: 1 / 0 > 1)
    assert policy.next_delay(1, error, middle) is None
    assert "retry_on raised ZeroDivisionError" in error.__notes__[0]


async def later(error):
    return True


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_attempts": 0}, "max_attempts must be a whole number of at least 1, got 0"),
        ({"max_attempts": True}, "max_attempts must be"),
        ({"max_attempts": 2.0}, "max_attempts must be"),
        ({"backoff": "exponental"}, "unknown backoff 'exponental'; use one of exponential, lin"),
        ({"delay": -1}, "delay must not be negative, got -1"),
        ({"delay": "1"}, "delay must be seconds or a timedelta"),
        ({"max_delay": float("inf")}, "max_delay must be a finite number"),
        ({"delay": 120}, "delay 120.0 s is above max_delay 60.0 s: raise max_delay"),
        ({"jitter": 1.1}, "jitter must be between 0.0 and 1.0, got 1.1"),
        ({"jitter": -0.1}, "jitter must be between"),
        ({"jitter": "0.1"}, "jitter must be between"),
        ({"retry_on": "ValueError"}, "retry_on must be error types or a function"),
        ({"retry_on": ()}, "retry_on must be error types"),
        ({"retry_on": (ValueError, int)}, "retry_on must be error types"),
        ({"retry_on": int}, "retry_on must be error types"),
        ({"retry_on": later}, "retry_on must be a plain function"),
    ],
)
def test_bad_policies_are_refused_with_the_remedy(options, message):
    with pytest.raises(WorkflowError, match=message):
        RetryPolicy(**options)
