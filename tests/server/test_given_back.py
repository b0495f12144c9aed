"""A task that is given back again and again is offered less and less often."""

from layby.server.given_back import LONGEST_PAUSE, REMEMBERED, GivenBack


def pauses(given_back: GivenBack, times: int, workers: int = 1) -> list[float]:
    """Taken and given back so often, from version 1 on."""
    found: list[float] = []
    for version in range(1, times + 1):
        given_back.note("t", version)
        found.append(given_back.pause_before("t", version, workers))
    return found


def test_the_pause_grows_up_to_a_second():
    """The first time there is none: whoever was there for a moment only is no reason to wait."""
    assert pauses(GivenBack(), 9) == [0, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1]
    assert pauses(GivenBack(), 5_000)[-1] == LONGEST_PAUSE


def test_every_worker_may_be_asked_before_anybody_waits():
    """Most may have no such function, and one may."""
    assert pauses(GivenBack(), 8, workers=4) == [0] * 7 + [0.01]


def test_a_task_that_has_waited_begins_anew():
    """It was taken more than once since it was given back, so it got on."""
    given_back = GivenBack()
    pauses(given_back, 9)
    given_back.note("t", 11)
    assert given_back.pause_before("t", 11, 1) == 0


def test_only_the_message_of_the_release_has_to_wait():
    """A resume comes with another version."""
    given_back = GivenBack()
    pauses(given_back, 9)
    assert given_back.pause_before("t", 10, 1) == 0
    assert given_back.pause_before("u", 9, 1) == 0


def test_what_is_remembered_is_bounded():
    """Whoever comes back last is known."""
    given_back = GivenBack()
    for number in range(REMEMBERED + 1):
        given_back.note(f"t{number}", 1)
    assert "t0" not in given_back
    assert "t1" in given_back
    assert f"t{REMEMBERED}" in given_back
