"""Who is there and who is gone, as far as others on one database can see."""

from layby.engine.elsewhere import GONE_MS, LOOK_MS, Vouched

A, B = ("a", "1"), ("b", "1")


def test_who_is_not_seen_for_a_while_is_gone() -> None:
    """Once, and not before."""
    vouched = Vouched()
    assert vouched.gone([A, B], LOOK_MS * 10) == []
    assert vouched.gone([B], LOOK_MS * 11) == []
    assert vouched.gone([B], LOOK_MS * 10 + GONE_MS) == [A]
    assert vouched.gone([B], LOOK_MS * 13) == []


def test_who_comes_back_is_not_gone() -> None:
    """Its connection was reset."""
    vouched = Vouched()
    assert vouched.gone([A], LOOK_MS * 10) == []
    assert vouched.gone([], LOOK_MS * 11) == []
    assert vouched.gone([A], LOOK_MS * 12) == []
    assert vouched.gone([], LOOK_MS * 13) == []


def test_nobody_is_gone_after_a_time_in_which_nobody_looked() -> None:
    """The database was away, for all of them."""
    vouched = Vouched()
    assert vouched.gone([A], LOOK_MS * 10) == []
    assert vouched.gone([], LOOK_MS * 20) == []
    assert vouched.gone([], LOOK_MS * 21) == []


def test_nobody_is_gone_after_a_short_time_without_the_database() -> None:
    """Everybody's lock went with its connection, and not all are back at the same moment."""
    vouched = Vouched()
    assert vouched.gone([A], LOOK_MS * 10) == []
    vouched.begin_anew()
    assert vouched.gone([], LOOK_MS * 11) == []
    assert vouched.gone([], LOOK_MS * 12) == []


def test_who_was_never_seen_is_not_gone() -> None:
    """A worker that is connected to a server has no lock: its lease alone counts."""
    vouched = Vouched()
    assert vouched.gone([], LOOK_MS * 10) == []
    assert vouched.gone([], LOOK_MS * 12) == []
