"""Parked tasks out of the garbage collector's freezer."""

import gc

from layby.worker.gc_freeze import EVERY, GcFreezer


def test_a_growing_crowd_is_frozen_and_let_go_in_the_end() -> None:
    """Not before there are many, again when there are many more, and undone on close."""
    before = gc.get_freeze_count()
    freezer = GcFreezer(is_on=True)
    freezer.update(EVERY - 1)
    assert gc.get_freeze_count() <= before  # what was frozen may go by itself
    freezer.update(EVERY)
    first = gc.get_freeze_count()
    assert first > before
    grown = [[number] for number in range(1000)]
    freezer.update(EVERY + 1)
    assert gc.get_freeze_count() <= first
    freezer.update(2 * EVERY)
    assert gc.get_freeze_count() >= first + len(grown)
    freezer.close()
    assert gc.get_freeze_count() == 0


def test_a_crowd_that_has_left_counts_anew() -> None:
    """After most have gone, the next crowd is frozen at its own size."""
    freezer = GcFreezer(is_on=True)
    freezer.update(4 * EVERY)
    freezer.update(10)
    frozen = gc.get_freeze_count()
    kept = [[number] for number in range(1000)]
    freezer.update(EVERY + 10)
    assert gc.get_freeze_count() >= frozen + len(kept)
    freezer.close()


def test_it_can_be_turned_off() -> None:
    """Then the collector is left alone."""
    before = gc.get_freeze_count()
    freezer = GcFreezer(is_on=False)
    freezer.update(10 * EVERY)
    freezer.close()
    assert gc.get_freeze_count() <= before
