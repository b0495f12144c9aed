"""How `layby prune` paces itself: by what a batch took."""

from layby.cli.prune_pace import BATCH_S, LEAST_PAUSE_S, MOST_ROWS, PrunePace
from layby.core.settings import PRUNE_ROWS


def test_batches_grow_while_they_are_quick_up_to_a_bound() -> None:
    pace, rows = PrunePace(), list[int]()
    for _ in range(40):
        rows.append(pace.rows)
        assert pace.pause_after(BATCH_S / 10) == LEAST_PAUSE_S
    assert rows[0] == PRUNE_ROWS
    assert rows == sorted(rows)
    assert rows[-1] == MOST_ROWS


def test_one_that_takes_long_is_halved_at_once_and_others_get_as_long() -> None:
    pace = PrunePace()
    for _ in range(40):
        pace.pause_after(0)
    assert pace.pause_after(1.5) == 1.5
    assert pace.rows == MOST_ROWS // 2
    for _ in range(40):
        pace.pause_after(1.5)
    assert pace.rows == PRUNE_ROWS


def test_what_takes_about_as_long_as_it_may_stays() -> None:
    pace = PrunePace()
    pace.pause_after(0)
    before = pace.rows
    pace.pause_after(0.9 * BATCH_S)
    assert pace.rows == before > PRUNE_ROWS
