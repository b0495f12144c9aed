"""Several servers on one PostgreSQL database, and clients of each that all want the same ids.

What `test_histories` asks of one server is asked of all of them together: that no version of a
task is claimed twice, that nothing settled changes, that every listener hears once, and that one
order of all calls explains every answer, so that no resume was lost either. With the row locks
taken away they are not kept apart, as the last test shows.

For minutes: `make test-slow ARGS=tests/server/test_shared_histories.py`.
"""

from collections.abc import Generator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from time import monotonic

import pytest

from tests.helpers import unlocked
from tests.helpers.places import address_of, on_postgres, violations
from tests.helpers.server_process import ServerProcess
from tests.server.test_histories import NO_RETRY, complaints, hammered, worked

MINUTES_S = 300.0


@pytest.fixture
def servers(tmp_path: Path, number: int) -> Generator[list[ServerProcess]]:
    """They have nothing to complain of, and leave a sound database."""
    with on_postgres():
        with ExitStack() as stack:
            db = address_of(tmp_path / "shared")
            made = [ServerProcess(tmp_path, *NO_RETRY, db=db) for _ in range(number)]
            yield [stack.enter_context(each) for each in made]
        assert [line for each in made for line in complaints(each)] == []
        assert violations(tmp_path / "shared") == []


@pytest.mark.parametrize("number", [2])
def test_one_order_explains_the_answers_of_two_servers(servers: list[ServerProcess]) -> None:
    hammered(*servers, seed=1, families=3, times=40)


@pytest.mark.shared
@pytest.mark.parametrize("number", [2])
def test_no_word_is_lost_between_two_servers(servers: list[ServerProcess]) -> None:
    """Tasks are created, taken, suspended and settled at either; streams are cut off and return."""
    worked(*servers, seed=2, roots=100, cuts=20)


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(
    ("number", "seconds"),
    [
        pytest.param(4, 5.0, marks=pytest.mark.shared),
        pytest.param(4, MINUTES_S, marks=pytest.mark.slow),
    ],
)
def test_four_servers_for_a_while(servers: list[ServerProcess], seconds: float) -> None:
    """New families of ids again and again, until the time is over."""
    until = monotonic() + seconds
    for turn in count():
        hammered(*servers, seed=100 + turn, first=4 * turn, families=4, times=50)
        if monotonic() > until:
            break


@pytest.mark.shared
def test_four_servers_without_row_locks(tmp_path: Path) -> None:
    """They claim the same version of a task twice, or something as bad, in the first seconds."""
    program = ("-P", unlocked.__file__)
    with on_postgres(), ExitStack() as stack:
        db = address_of(tmp_path / "shared")
        made = [ServerProcess(tmp_path, *NO_RETRY, db=db, program=program) for _ in range(4)]
        servers = [stack.enter_context(each) for each in made]
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            hammered(*servers, seed=100, families=4, times=50)
