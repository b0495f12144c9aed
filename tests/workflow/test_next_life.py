"""Which tasks run again, for any shape and any outcomes."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from layby.workflow.next_life import cleans_up_afresh, runs_again, waits_in_next_life
from layby.workflow.outcome import NodeOutcome
from layby.workflow.shape import Shape

NAMES = "abcdefg"
OUTCOMES = (
    NodeOutcome("Completed"),
    NodeOutcome("Failed", error="no"),
    NodeOutcome("Cancelled", error="no"),
    NodeOutcome("Skipped", reason="no"),
    NodeOutcome("Skipped", reason="no", blocked=True),
    None,
)


@st.composite
def lives(draw: st.DrawFn) -> Any:
    size = draw(st.integers(1, len(NAMES)))
    after = {
        name: tuple(each for each in NAMES[:at] if draw(st.booleans()))
        for at, name in enumerate(NAMES[:size])
    }
    how = {name: draw(st.sampled_from(OUTCOMES)) for name in after}
    ended = {name: each for name, each in how.items() if each is not None}
    begin = draw(st.sets(st.sampled_from(sorted(after))))
    leaves = sorted(set(after) - {each for before in after.values() for each in before})
    last = leaves[: draw(st.integers(0, 2))] if size > len(leaves) else []
    return Shape(after, last), ended, begin


@given(lives())
def test_exactly_what_should_runs_again(life: Any) -> None:
    """Everything unsuccessful, what was named and all after it; behind those skips and clean-up."""
    shape, ended, begin = life
    again = runs_again(shape, ended, begin)
    for task_id in shape.after:
        how, above = ended.get(task_id), shape.ancestors(task_id)
        is_asked_for = task_id in begin or not above.isdisjoint(begin)
        if how is None or how.status in ("Failed", "Cancelled") or how.blocked or is_asked_for:
            assert task_id in again
        elif how.status == "Completed" and task_id not in shape.cleanups:
            assert task_id not in again
        else:
            assert (task_id in again) == (not again.isdisjoint(shape.after[task_id]))


@given(lives())
def test_what_runs_again_waits_for_all_that_runs_again_before_it(life: Any) -> None:
    """Directly, or behind one that does not run again; and for nothing else."""
    shape, ended, begin = life
    again = runs_again(shape, ended, begin)
    waits = {each: waits_in_next_life(shape, again)[each] for each in shape.after if each in again}
    assert {each for awaited in waits.values() for each in awaited} <= again
    anew = Shape(waits)
    for task_id in again:
        assert anew.ancestors(task_id) == shape.ancestors(task_id) & again


@given(lives())
def test_a_clean_up_keeps_its_checkpoints_only_to_finish_what_it_began(life: Any) -> None:
    """It had not completed, and no other task that was successful runs again."""
    shape, ended, begin = life
    again = runs_again(shape, ended, begin)
    completed = {each for each, how in ended.items() if how.status == "Completed"}
    repeats = bool(again & completed - shape.cleanups)
    for task_id in shape.after:
        is_afresh = task_id in cleans_up_afresh(shape, ended, again)
        is_clean_up = task_id in shape.cleanups and task_id in again
        assert is_afresh == (is_clean_up and (repeats or task_id in completed))
