"""The errors users catch: what they carry, what they say, and that they can be sent."""

import pickle

import pytest

from layby import errors


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            errors.RunFailed("r", {"a": "ValueError: bad", "b": "late"}),
            "run 'r' failed: task 'a' failed: ValueError: bad; task 'b' failed: late",
        ),
        (errors.RunFailed("r", {}, "deadline"), "run 'r' failed: deadline"),
        (errors.RunFailed("r", {}), "run 'r' failed: no reason was given"),
        (errors.RunCancelled("r"), "run 'r' was cancelled"),
        (errors.RunCancelled("r", "ann", "why"), "run 'r' was cancelled by ann: why"),
        (errors.PromiseRejected("p"), "promise 'p' was rejected"),
        (
            errors.PromiseRejected("p", "Oops", "bad", {"x": 1}),
            "promise 'p' was rejected: Oops: bad",
        ),
        (errors.PromiseCancelled("p", message="by ann"), "promise 'p' was cancelled: by ann"),
        (errors.PromiseTimedOut("p"), "promise 'p' timed out"),
        (errors.TaskTimeout("too long"), "too long"),
    ],
)
def test_errors_speak_and_travel(error, text):
    assert str(error) == text
    sent = pickle.loads(pickle.dumps(error))
    assert type(sent) is type(error)
    assert str(sent) == text
    assert vars(sent) == vars(error)


def test_all_of_them_are_laybys():
    named = [each for each in vars(errors).values() if isinstance(each, type)]
    found = [each for each in named if issubclass(each, Exception)]
    assert len(found) > 15
    assert all(issubclass(each, errors.LaybyError) for each in found)
    assert issubclass(errors.PromiseCancelled, errors.PromiseRejected)
    assert issubclass(errors.WorkflowError, errors.UsageError)
