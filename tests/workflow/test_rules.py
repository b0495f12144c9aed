import pytest

from layby.errors import RuleError
from layby.workflow.context import Context
from layby.workflow.outcome import NodeOutcome
from layby.workflow.rules import RUN, Run, Skip, decide

OUTCOMES = {
    "C": NodeOutcome("Completed"),
    "F": NodeOutcome("Failed"),
    "S": NodeOutcome("Skipped"),
    "B": NodeOutcome("Skipped", blocked=True),
    "X": NodeOutcome("Cancelled"),
}


def outcomes(letters: str) -> dict[str, NodeOutcome]:
    """Dependencies d0, d1, … that ended so; B is skipped because something before it failed."""
    return {f"d{number}": OUTCOMES[letter] for number, letter in enumerate(letters)}


# "": no dependencies. Runs or does not, for each rule.
TABLE = [
    # dependencies, all_success, all_done, one_success, one_failed, none_failed
    ("", True, True, True, True, True),
    ("C", True, True, True, False, True),
    ("CC", True, True, True, False, True),
    ("F", False, True, False, True, False),
    ("S", False, True, False, False, True),
    ("B", False, True, False, True, False),
    ("X", False, True, False, True, False),
    ("CF", False, True, True, True, False),
    ("FC", False, True, True, True, False),
    ("CS", False, True, True, False, True),
    ("CB", False, True, True, True, False),
    ("CX", False, True, True, True, False),
    ("SS", False, True, False, False, True),
    ("FS", False, True, False, True, False),
    ("FFX", False, True, False, True, False),
    ("CCCS", False, True, True, False, True),
]
RULES = ("all_success", "all_done", "one_success", "one_failed", "none_failed")
CASES = [
    (rule, letters, runs)
    for letters, *answers in TABLE
    for rule, runs in zip(RULES, answers, strict=True)
]


@pytest.mark.parametrize(("rule", "letters", "runs"), CASES)
def test_named_rules(rule, letters, runs):
    assert isinstance(decide(rule, outcomes(letters), Context()), Run) == runs


@pytest.mark.parametrize(
    ("rule", "letters", "skip"),
    [
        ("all_success", "CFS", Skip("all_success: 'd1' is Failed, 'd2' is Skipped", blocked=True)),
        ("all_success", "CS", Skip("all_success: 'd1' is Skipped", blocked=False)),
        ("all_success", "B", Skip("all_success: 'd0' is Skipped", blocked=True)),
        (
            "one_success",
            "SX",
            Skip("one_success: 'd0' is Skipped, 'd1' is Cancelled", blocked=True),
        ),
        ("one_failed", "CS", Skip("one_failed: 'd0' is Completed, 'd1' is Skipped", blocked=False)),
        ("none_failed", "CF", Skip("none_failed: 'd1' is Failed", blocked=True)),
    ],
)
def test_a_skip_says_why_and_whether_a_failure_is_behind_it(rule, letters, skip):
    assert decide(rule, outcomes(letters), Context()) == skip


def test_a_failure_reaches_a_handler_behind_a_skipped_task():
    """As Airflow's upstream_failed: a → b (skipped) → handler with one_failed runs."""
    skipped = decide("all_success", {"a": NodeOutcome("Failed")}, Context())
    assert isinstance(skipped, Skip)
    b = NodeOutcome("Skipped", reason=skipped.reason, blocked=skipped.blocked)
    assert decide("one_failed", {"b": b}, Context()) == RUN
    assert decide("none_failed", {"b": b}, Context()) != RUN


def large_order(outcomes, context):
    return outcomes["d0"] == "Completed" and context["total"] > 100


@pytest.mark.parametrize(
    ("letters", "total", "decision"),
    [
        ("C", 101, RUN),
        ("C", 5, Skip("rule large_order said no")),
        ("F", 101, Skip("rule large_order said no")),
    ],
)
def test_a_function_decides_by_outcomes_and_context(letters, total, decision):
    assert decide(large_order, outcomes(letters), Context({"total": total})) == decision


@pytest.mark.parametrize(("answer", "runs"), [(1, True), ("yes", True), ([], False), (None, False)])
def test_truthiness_counts(answer, runs):
    assert (decide(lambda outcomes, context: answer, {}, Context()) == RUN) == runs


def test_a_function_that_raises_is_named():
    with pytest.raises(RuleError, match="rule large_order raised KeyError: 'total'") as caught:
        decide(large_order, outcomes("C"), Context())
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_function_that_gives_an_awaitable_is_named():
    class Later:
        def __await__(self): ...

    def later(outcomes, context):
        return Later()

    with pytest.raises(RuleError, match=r"rule .*later raised TypeError: it returned an awaitable"):
        decide(later, {}, Context())
