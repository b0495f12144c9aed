"""Why a task has no permit, in words, and who can do something about it."""

from layby.core.replies import LimitStanding
from layby.workflow.limit_reasons import no_permit, who_gives_permit


def standing(**fields) -> LimitStanding:
    given = {"name": "api", "rule": "api", "concurrency": 2, "rate": None, "burst": 1}
    rest = {"count_parked": False, "held": 0, "holders": (), "waiting": 1, "next_at": None}
    return LimitStanding(**(given | rest | fields))


def test_who_holds_them_all():
    full = standing(held=2, holders=("run/a:t", "run/b:t"))
    told = no_permit("api", full, 0)
    assert told == "waits for a permit of 'api' (2 of 2 held by run/a:t, run/b:t)"
    assert who_gives_permit(full) == "whoever holds a permit"


def test_permits_that_are_free_are_not_said_to_be_held():
    """Those that came earlier were let in, and no worker has taken them."""
    free = standing()
    told = no_permit("api", free, 0)
    assert told.startswith("waits for a permit of 'api': ")
    assert "came earlier" in told
    assert "no worker has taken them yet" in told
    assert who_gives_permit(free) == "a worker that takes those before it"


def test_a_limit_of_0_is_held_by_nobody():
    closed = standing(concurrency=0)
    assert no_permit("api", closed, 0) == "waits for a permit of 'api', but its concurrency is 0"
    assert who_gives_permit(closed) == "whoever raises the limit"
