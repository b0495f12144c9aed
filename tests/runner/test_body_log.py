"""The auditor of bodies: what it must not overlook, and what it must excuse."""

from tests.helpers.body_log import Line, audit

S = 1_000_000_000


def line(what: str, pid: int, number: int, at: float, task: str = "t") -> Line:
    return Line(what, pid, task, number, round(at * S))


def test_bodies_one_after_the_other_are_as_they_should_be():
    found = audit(
        [
            line("begin", 1, 1, 0),
            line("end", 1, 1, 1),
            line("begin", 2, 2, 1),
            line("end", 2, 2, 2),
        ],
        lease_s=1,
    )
    assert (found.bodies, found.overlaps, found.excused, found.late) == (2, [], [], [])


def test_two_at_once_are_seen():
    """Also when the first never ends."""
    for ended in ([line("end", 1, 1, 5)], []):
        found = audit([line("begin", 1, 1, 0), line("begin", 2, 2, 1), *ended], lease_s=1)
        assert len(found.overlaps) == 1


def test_bodies_of_other_tasks_do_not_count():
    found = audit([line("begin", 1, 1, 0), line("begin", 2, 1, 1, task="other")], lease_s=1)
    assert found.overlaps == []


def test_a_process_that_was_killed_has_no_bodies_any_more():
    lines = [line("begin", 1, 1, 0), line("gone", 1, 0, 1, task="-"), line("begin", 2, 2, 2)]
    assert audit(lines, lease_s=1).overlaps == []


def test_a_worker_that_stood_still_for_long_is_excused():
    """For a moment is no excuse, and neither is another process that did."""
    for pid, seconds, is_excused in ((1, 2, True), (1, 0.5, False), (3, 2, False)):
        found = audit(
            [
                line("begin", 1, 1, 0),
                line("stopped", pid, 0, 1, task="-"),
                line("begin", 2, 2, 2.5),
                line("continued", pid, 0, 1 + seconds, task="-"),
                line("end", 1, 1, 9),
                line("end", 2, 2, 9),
            ],
            lease_s=1,
        )
        assert (len(found.excused), len(found.overlaps)) == (is_excused, not is_excused)


def test_a_try_that_begins_after_a_later_one_is_seen():
    lines = [line("begin", 2, 2, 0), line("end", 2, 2, 1), line("begin", 1, 1, 2)]
    assert len(audit(lines, lease_s=1).late) == 1


def test_a_body_begun_late_by_a_worker_that_stood_still_is_told_as_such():
    """It had the claim, was stopped, and began when another had it: no lease was broken unseen."""
    lines = [
        line("stopped", 1, 0, 0, task="-"),
        line("begin", 2, 2, 2),
        line("continued", 1, 0, 3, task="-"),
        line("begin", 1, 1, 4),
    ]
    found = audit(lines, lease_s=1)
    assert (found.overlaps, len(found.excused), len(found.late)) == ([], 1, 1)
