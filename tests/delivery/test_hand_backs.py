"""Who gives a task back is asked last; when all have, they are asked less and less often."""

from layby.delivery.hand_backs import PAUSES, REMEMBERED, HandBacks


def hand_backs(*workers: str, since: int = 0) -> HandBacks:
    """By these, one after the other; the first who took it made it the version after `since`."""
    known = HandBacks()
    for version, worker in enumerate(workers, since + 1):
        known.note_taken("t", worker)
        known.note("t", version)
    return known


def test_who_has_given_it_back_is_known():
    """For the message that follows, and for no other."""
    known = hand_backs("a", "b")
    assert known.tried("t", 2) == {"a", "b"}
    assert known.tried("t", 1) == known.tried("t", 3) == known.tried("u", 2) == set()


def test_the_pause_grows_up_to_a_second():
    """And in the next round everybody is asked again."""
    known = hand_backs("a")
    pauses = [known.next_round("t") for _ in range(5_000)]
    assert pauses[:8] == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, PAUSES.longest]
    assert pauses[-1] == PAUSES.longest
    assert known.tried("t", 1) == set()


def test_a_round_ends_where_the_next_begins():
    """The pauses go on from the last one."""
    known = hand_backs("a")
    known.next_round("t")
    known.note_taken("t", "b")
    known.note("t", 2)
    assert known.tried("t", 2) == {"b"}
    assert known.next_round("t") == 0.02


def test_a_task_that_has_waited_begins_anew():
    """It was taken more than once since it was given back, so it got on."""
    known = hand_backs("a", "b")
    known.next_round("t")
    known.note_taken("t", "c")
    known.note("t", 4)
    assert known.tried("t", 4) == {"c"}
    assert known.next_round("t") == 0.01


def test_who_took_it_may_be_unknown():
    """Then at least it is known that somebody did."""
    known = HandBacks()
    known.note("t", 1)
    assert known.tried("t", 1) == {""}


def test_what_is_remembered_is_bounded():
    """Whoever came last is known."""
    known = HandBacks()
    for number in range(REMEMBERED + 1):
        known.note_taken(f"t{number}", "a")
        known.note(f"t{number}", 1)
    assert known.tried("t0", 1) == set()
    assert known.tried("t1", 1) == known.tried(f"t{REMEMBERED}", 1) == {"a"}
