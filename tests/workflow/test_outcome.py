import pytest

from layby.core import values
from layby.core.model import NEVER, Promise, PromiseState
from layby.errors import RunCancelled, RunFailed
from layby.wire.json_values import error_value, text_of, to_value
from layby.workflow.merge import Delta, Merge, MergeConflict, View
from layby.workflow.outcome import (
    NodeOutcome,
    RunOutcome,
    conclude,
    encode_completed,
    encode_skipped,
    read,
    read_run,
)
from layby.workflow.rules import Skip

DEADLINE = 1_794_700_800_000
CONFLICT = MergeConflict("k", "b", "a")


def promise(state: PromiseState, text: str = "{}") -> Promise:
    return Promise("run/r:t", "run/r", "{}", "{}", DEADLINE, 0, state=state, value=text)


@pytest.mark.parametrize(
    ("settled", "outcome"),
    [
        (promise("resolved", text_of(encode_completed(Delta()))), NodeOutcome("Completed")),
        (
            promise(
                "resolved",
                text_of(encode_completed(Delta({"k": b'{"x":[1]}'}, ("g",)), (CONFLICT,))),
            ),
            NodeOutcome("Completed", Delta({"k": b'{"x":[1]}'}, ("g",)), (CONFLICT,)),
        ),
        (
            promise("resolved", text_of(encode_skipped(Skip("no", blocked=True)))),
            NodeOutcome("Skipped", reason="no", blocked=True),
        ),
        (promise("resolved"), NodeOutcome("Completed")),
        (promise("resolved", text_of(to_value({"by": "hand"}))), NodeOutcome("Completed")),
        (promise("resolved", '{"data":"raw"}'), NodeOutcome("Completed")),
        (
            promise("rejected", text_of(error_value(ValueError("bad")))),
            NodeOutcome("Failed", error="ValueError: bad"),
        ),
        (
            promise("rejected", text_of(to_value("by hand"))),
            NodeOutcome("Failed", error="Error: by hand"),
        ),
        (promise("rejected"), NodeOutcome("Failed", error="Error")),
        (
            promise("rejected", values.worker_lost("run/r:t", 5)),
            NodeOutcome(
                "Failed",
                error=f"WorkerLost: {values.lost_message('run/r:t', 5)}",
            ),
        ),
        (
            promise("rejected_canceled", values.cancelled("ann", "too late")),
            NodeOutcome("Cancelled", error="cancelled by ann: too late"),
        ),
        (promise("rejected_canceled"), NodeOutcome("Cancelled", error="cancelled")),
        (
            promise("rejected_timedout"),
            NodeOutcome("Failed", error="the run's deadline passed (2026-11-15 00:00:00 UTC)"),
        ),
    ],
)
def test_what_a_settled_node_says(settled, outcome):
    assert read(settled) == outcome


def test_a_pending_promise_says_nothing():
    with pytest.raises(ValueError, match="'run/r:t' has not settled yet"):
        read(promise("pending"))
    with pytest.raises(ValueError, match="has not settled yet"):
        read_run(promise("pending"))


def concluded(outcomes: dict[str, NodeOutcome]) -> RunOutcome:
    final = Merge(View.initial({"k": b"[1]"}), (CONFLICT,))
    verdict = conclude(outcomes, final)
    return read_run(promise(verdict.state, text_of(verdict.value)))


def test_a_completed_run_has_the_final_context():
    ended = concluded({"a": NodeOutcome("Completed"), "b": NodeOutcome("Skipped", reason="no")})
    assert (ended.status, ended.conflicts) == ("Completed", (CONFLICT,))
    assert ended.result("r") == {"k": [1]}


def test_a_failed_run_names_the_failed_tasks():
    ended = concluded(
        {
            "a": NodeOutcome("Failed", error="ValueError: bad"),
            "b": NodeOutcome("Skipped", reason="all_success", blocked=True),
            "c": NodeOutcome("Cancelled", error="cancelled by ann"),
            "d": NodeOutcome("Completed"),
        }
    )
    with pytest.raises(RunFailed) as caught:
        ended.result("r")
    assert caught.value.failed == {"a": "ValueError: bad", "c": "cancelled by ann"}
    assert caught.value.run_id == "r"
    assert str(caught.value) == (
        "run 'r' failed: task 'a' failed: ValueError: bad; task 'c' failed: cancelled by ann"
    )


def test_a_cancelled_run_says_who_and_why():
    ended = read_run(promise("rejected_canceled", values.cancelled("ann", "wrong order")))
    with pytest.raises(RunCancelled, match="run 'r' was cancelled by ann: wrong order") as caught:
        ended.result("r")
    assert (caught.value.by, caught.value.reason) == ("ann", "wrong order")
    with pytest.raises(RunCancelled, match=r"run 'r' was cancelled$"):
        read_run(promise("rejected_canceled")).result("r")


@pytest.mark.parametrize(
    ("root", "message"),
    [
        (promise("rejected_timedout"), r"deadline passed \(2026-11-15 00:00:00 UTC\)"),
        (promise("rejected", values.error("Oops", "by hand")), "run 'r' failed: Oops: by hand"),
        (promise("rejected"), "run 'r' failed: Error"),
    ],
)
def test_other_failures_of_a_run_are_told(root, message):
    with pytest.raises(RunFailed, match=message):
        read_run(root).result("r")


@pytest.mark.parametrize(
    ("text", "context"),
    [("{}", {}), (text_of(to_value({"by": "hand"})), {"by": "hand"}), (text_of(to_value(7)), {})],
)
def test_a_run_somebody_resolved_by_hand_is_completed(text, context):
    assert read_run(promise("resolved", text)).result("r") == context


def test_a_deadline_that_never_comes_is_told_as_such():
    settled = Promise("run/r", "run/r", "{}", "{}", NEVER, 0, state="rejected_timedout")
    assert "the end of time" in read_run(settled).reason
