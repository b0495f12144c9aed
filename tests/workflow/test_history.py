from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layby.core.model import Task
from layby.core.replies import Resumed, TriggerEvent
from layby.core.validate import MAX_TOLD_BYTES
from layby.workflow.history import (
    MAX_SPANS,
    MAX_TRIES,
    History,
    Span,
    TaskHistory,
    Try,
    ended,
    parked,
    read_history,
    resumed,
    started,
    why_next,
)

NONE = History()
LONG_ERROR = 4_000
"""Characters, about as many as a worker keeps of a message."""


def test_a_try_that_waits():
    history = started(NONE, 1, "first", 10, queued_at=5)
    history = resumed(parked(history, 20), 30)
    history = ended(history, 40, "Completed")
    spans = (
        Span("queued", 5, 10),
        Span("running", 10, 20),
        Span("parked", 20, 30),
        Span("running", 30, 40),
    )
    assert history == History((Try(1, "first", spans, "Completed"),))
    assert read_history(history.to_text()) == history


def failed_tries(error: str, spans: int = 2) -> History:
    history = NONE
    for number in range(1, MAX_TRIES + 1):
        history = started(history, number, "retry", 10**12)
        for _ in range(spans // 2):
            history = resumed(parked(history, 10**12), 10**12)
        history = ended(history, 10**12, "Failed", error)
    return history


def test_a_history_is_kept_whole_as_long_as_the_store_takes_it():
    history = failed_tries("x" * 1_000, spans=MAX_SPANS)
    assert read_history(history.to_text()) == history


@pytest.mark.parametrize("letter", ["x", "\x1b", "\U0001f600"])
def test_a_history_fits_whatever_the_errors_are(letter):
    """The store refuses a longer one, and the report that it came with."""
    history = failed_tries(letter * LONG_ERROR, spans=MAX_SPANS)
    text = history.to_text()
    assert len(text.encode()) <= MAX_TOLD_BYTES
    kept = read_history(text)
    assert kept.tries[-1].number == MAX_TRIES
    assert kept.folded == MAX_TRIES - len(kept.tries)
    assert kept.tries[-1].error == f"{letter * 400}... (3600 characters left out)"
    assert read_history(kept.to_text()) == kept


def test_errors_are_cut_before_tries_are_left_out():
    kept = read_history(failed_tries("x" * LONG_ERROR).to_text())
    assert [each.number for each in kept.tries] == [*range(1, MAX_TRIES + 1)]


def test_a_try_left_open_was_lost():
    history = started(parked(started(NONE, 1, "first", 10), 20), 2, "recovered", 100)
    assert [(each.number, each.outcome) for each in history.tries] == [(1, "Lost"), (2, None)]
    assert history.tries[0].spans[-1] == Span("parked", 20, 100)


def test_a_lost_try_that_left_no_trace_began_like_the_one_that_takes_it_up():
    """Else a crash right after an event looks as if the second try had been the resumed one."""
    waits = ended(OPEN, 20, "Suspended")
    fired = Resumed("Event", 1, TriggerEvent("paid", "resolved", "{}", 25), "m:f")
    history = started(waits, 4, why_next(waits), 50, resumed=fired)
    told = [(each.number, each.why, each.outcome, each.event) for each in history.tries]
    assert told == [
        (1, "first", "Suspended", None),
        (2, "resumed", "Lost", "paid"),
        (3, "recovered", "Lost", "paid"),
        (4, "recovered", None, "paid"),
    ]
    assert {each.callback for each in history.tries[1:]} == {"m:f"}
    never = started(NONE, 2, why_next(NONE), 50)
    assert [each.why for each in never.tries] == ["first", "recovered"]


def test_a_failed_try_says_when_the_next_is_due():
    history = ended(started(NONE, 1, "first", 10), 20, "Failed", "ValueError: bad", retry_at=1020)
    assert history.last is not None
    assert (history.last.error, history.last.retry_at) == ("ValueError: bad", 1020)


OPEN = started(NONE, 1, "first", 10)
OVER = ended(OPEN, 20, "Completed")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (parked(NONE, 1), NONE),
        (resumed(NONE, 1), NONE),
        (ended(NONE, 1, "Completed"), NONE),
        (started(OPEN, 1, "first", 99), OPEN),
        (resumed(OPEN, 99), OPEN),
        (parked(parked(OPEN, 20), 99), parked(OPEN, 20)),
        (parked(OVER, 99), OVER),
        (ended(OVER, 99, "Failed"), OVER),
    ],
)
def test_what_comes_twice_or_too_late_changes_nothing(before, after):
    assert before == after


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        ("Failed", "retry"),
        ("Suspended", "resumed"),
        ("Halted", "continued"),
        ("Released", "recovered"),
        ("Lost", "recovered"),
        (None, "recovered"),
    ],
)
def test_why_there_is_another_try(outcome, why):
    history = OPEN if outcome is None else ended(OPEN, 20, outcome)
    assert why_next(history) == why
    assert why_next(NONE) == "first"


def test_many_waits_are_folded():
    history = OPEN
    for number in range(500):
        history = resumed(parked(history, 20 + 2 * number), 21 + 2 * number)
    last = history.last
    assert last is not None
    assert len(last.spans) == MAX_SPANS
    assert last.folded == 1 + 1000 - MAX_SPANS
    assert len(history.to_text()) < 3_000


def test_many_tries_are_folded():
    history = NONE
    for number in range(1, 101):
        history = ended(started(history, number, "retry", number), number, "Failed")
    assert [each.number for each in history.tries] == list(range(101 - MAX_TRIES, 101))
    assert history.folded == 100 - MAX_TRIES


@pytest.mark.parametrize("text", [None, "", "nonsense", '{"tries":7}', "\ud800"])
def test_what_cannot_be_read_is_no_history(text):
    assert read_history(text) == NONE


def test_a_worker_writes_it_as_it_goes():
    claimed = Task(
        "run/r:t",
        "poll://any@layby.default",
        version=2,
        tries=2,
        history=ended(OPEN, 20, "Failed").to_text(),
    )
    history = TaskHistory(claimed, 25)
    history.started(30)
    history.parked(40)
    history.resumed(50)
    history.ended(60, "Completed")
    last = read_history(history.text).last
    assert last is not None
    assert (last.number, last.why, last.outcome) == (2, "retry", "Completed")
    assert [each.kind for each in last.spans] == ["queued", "running", "parked", "running"]


STEPS = st.lists(st.sampled_from(["start", "park", "resume", "end"]), max_size=80)


@given(STEPS, st.lists(st.integers(0, 50), min_size=80, max_size=80))
def test_spans_follow_each_other_without_gaps(steps, pauses):
    """Whatever is told in whatever order, the time of a try is covered exactly once."""
    history, now, number = NONE, 0, 0
    for step, pause in zip(steps, pauses, strict=False):
        now += pause
        if step == "start":
            number += 1
            history = started(history, number, "retry", now)
        elif step == "park":
            history = parked(history, now)
        elif step == "resume":
            history = resumed(history, now)
        else:
            history = ended(history, now, "Failed")
    for each in history.tries:
        spans = each.spans
        assert all(before.end == after.start for before, after in pairwise(spans))
        assert (spans[-1].end is None) == each.is_open
        assert len(spans) <= MAX_SPANS
    assert all(not each.is_open for each in history.tries[:-1])
    assert read_history(history.to_text()) == history
