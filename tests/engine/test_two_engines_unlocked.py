"""Without the row locks the races of two engines are lost: so it is the locks that win them.

`tests.server.test_shared_histories` shows the same of four servers.
"""

from collections.abc import Callable

import pytest

from tests.engine import test_two_engines as races
from tests.helpers.unlocked import remove_row_locks


@pytest.mark.parametrize(
    "race",
    [
        races.test_a_wait_is_registered_while_its_promise_is_settled,
        races.test_a_promise_is_settled_while_a_wait_is_registered,
        races.test_two_siblings_end_while_each_other_ends,
        races.test_who_waited_for_a_lock_is_told_of_what_was_born_meanwhile,
    ],
)
def test_it_is_lost_without_the_locks(
    race: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait that meets its settlement, the order of a hop, a birth while somebody waits."""
    remove_row_locks(monkeypatch)
    with pytest.raises(AssertionError):
        race()
