"""The switch interval of the process, while several engines open and close in it."""

import sys
from collections.abc import Iterator

import pytest

from layby.engine.switch_interval import lower_switch_interval, restore_switch_interval


@pytest.fixture(autouse=True)
def as_python_has_it() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield
    sys.setswitchinterval(before)


def test_it_stays_however_many_come_and_go_meanwhile() -> None:
    """It lost a microsecond with each of them: after 200, none was left."""
    lower_switch_interval(0.0002)
    for _ in range(300):
        lower_switch_interval(0.0005)
        restore_switch_interval(0.0005)
        assert sys.getswitchinterval() == pytest.approx(0.0002)
    restore_switch_interval(0.0002)
    assert sys.getswitchinterval() == pytest.approx(0.005)


@pytest.mark.parametrize("micros", [1, 199, 200, 4_999])
def test_what_it_was_before_is_restored_to_the_microsecond(micros: int) -> None:
    sys.setswitchinterval((micros + 0.5) * 1e-6)
    before = sys.getswitchinterval()
    for _ in range(5):
        lower_switch_interval(0.0001)
        restore_switch_interval(0.0001)
        assert sys.getswitchinterval() == before
