"""The errors users catch: what they carry, what they say, and that they can be sent."""

import multiprocessing
import pickle
import traceback
from concurrent.futures import ProcessPoolExecutor
from functools import reduce

import pytest

from layby import Context, errors


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


CHARGE = errors.TaskFailed("charge", "ValueError", "no money", "Traceback: charge", 2)
PACK = errors.TaskFailed("pack", "KeyError", "'box'", "", 1)


def test_a_failed_task_says_where_in_a_note():
    """So that Python shows the traceback of a process that may be gone."""
    assert str(CHARGE) == "task 'charge' failed in try 2: ValueError: no money"
    assert CHARGE.__notes__ == ["Traceback: charge"]
    assert not hasattr(PACK, "__notes__")
    assert str(errors.TaskFailed("t", "Cancelled")) == "task 't' failed: Cancelled"


def sent(error):
    return pickle.loads(pickle.dumps(error))


@pytest.mark.parametrize("times", [0, 1, 2])
def test_the_causes_of_a_failed_run_stay_with_it(times):
    """However often it is pickled: one of them, or a group."""

    def travels(error):
        return reduce(lambda each, _: sent(each), range(times), error)

    failed = {"charge": "ValueError: no money"}
    one = errors.RunFailed("r", failed, "", {"charge": CHARGE}, {"total": 7})
    one.add_note("mine")
    one = travels(one)
    assert isinstance(one.__cause__, errors.TaskFailed)
    assert vars(one.__cause__) == vars(CHARGE)
    assert (one.context, one.failed, one.__notes__) == ({"total": 7}, failed, ["mine"])
    both = travels(errors.RunFailed("r", failed, "", {"charge": CHARGE, "pack": PACK}))
    assert isinstance(both.__cause__, ExceptionGroup)
    assert both.__cause__.message == "2 tasks of run 'r' failed"
    assert [vars(each) for each in both.__cause__.exceptions] == [vars(CHARGE), vars(PACK)]
    assert list(both.errors) == ["charge", "pack"]


def test_python_shows_the_traceback_of_the_task():
    """Whoever lets a RunFailed pass sees where it began."""
    error = errors.RunFailed("r", {}, "", {"charge": CHARGE})
    shown = "".join(traceback.format_exception(sent(error)))
    assert "in try 2: ValueError: no money\nTraceback: charge\n" in shown
    assert "direct cause of the following exception" in shown
    assert shown.endswith("layby.errors.RunFailed: run 'r' failed: no reason was given\n")


def raises_in_a_pool() -> None:
    raise errors.RunFailed("r", {}, "", {"charge": CHARGE}, Context({"total": 7}))


def returns_in_a_pool() -> errors.RunFailed:
    return errors.RunFailed("r", {}, "", {"charge": CHARGE})


def test_it_comes_back_from_a_pool_of_processes():
    """Raised there, the pool puts its own cause in front: it shows ours, and `errors` stays."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("forkserver")) as pool:
        raised = pool.submit(raises_in_a_pool).exception()
        returned = pool.submit(returns_in_a_pool).result()
    assert isinstance(raised, errors.RunFailed)
    assert raised.errors["charge"].traceback == "Traceback: charge"
    assert "Traceback: charge" in str(raised.__cause__)
    assert raised.context == {"total": 7}
    assert isinstance(returned.__cause__, errors.TaskFailed)
    assert returned.__cause__.__notes__ == ["Traceback: charge"]


def test_what_was_raised_in_a_process():
    error = sent(errors.ProcessFailed("no money", "ValueError", "Traceback: charge"))
    assert str(error) == "ValueError: no money"
    assert str(errors.ProcessFailed("killed")) == "killed"


def test_all_of_them_are_laybys():
    named = [each for each in vars(errors).values() if isinstance(each, type)]
    found = [each for each in named if issubclass(each, Exception)]
    assert len(found) > 15
    assert all(issubclass(each, errors.LaybyError) for each in found)
    assert issubclass(errors.PromiseCancelled, errors.PromiseRejected)
    assert issubclass(errors.WorkflowError, errors.UsageError)
