"""Parked tasks out of the garbage collector's sight."""

import gc

from layby.worker.gc_freeze import EVERY, GcFreezer


def test_a_growing_crowd_is_frozen_and_let_go_in_the_end() -> None:
    """Not before there are many, again when there are many more, and undone on close."""
    before = gc.get_freeze_count()
    sight = GcFreezer(is_on=True)
    sight.update(EVERY - 1)
    assert gc.get_freeze_count() == before
    sight.update(EVERY)
    first = gc.get_freeze_count()
    assert first > before
    grown = [[number] for number in range(1000)]
    sight.update(EVERY + 1)
    assert gc.get_freeze_count() == first
    sight.update(2 * EVERY)
    assert gc.get_freeze_count() >= first + len(grown)
    sight.close()
    assert gc.get_freeze_count() == 0


def test_a_crowd_that_has_left_counts_anew() -> None:
    """After most have gone, the next crowd is frozen at its own size."""
    sight = GcFreezer(is_on=True)
    sight.update(4 * EVERY)
    sight.update(10)
    frozen = gc.get_freeze_count()
    kept = [[number] for number in range(1000)]
    sight.update(EVERY + 10)
    assert gc.get_freeze_count() >= frozen + len(kept)
    sight.close()


def test_it_can_be_turned_off() -> None:
    """Then the collector is left alone."""
    before = gc.get_freeze_count()
    sight = GcFreezer(is_on=False)
    sight.update(10 * EVERY)
    sight.close()
    assert gc.get_freeze_count() == before
