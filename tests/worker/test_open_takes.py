"""Which requests that may bring tasks are not answered yet."""

from hypothesis import given
from hypothesis import strategies as st

from layby.worker.open_takes import OpenTakes


class Request:
    """Equal to every other one: only the object itself counts."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


@given(st.lists(st.integers(0, 12)))
def test_those_before_a_mark_are_answered_when_none_of_them_is_open(script: list[int]):
    """In whatever order they end; 0 sends one, another number ends one of those that are open."""
    takes, numbered = OpenTakes(), dict[int, Request]()
    for each in script:
        if each == 0:
            request = Request()
            takes.begin(request)
            numbered[takes.sent] = request
        elif numbered:
            takes.end(numbered.pop(sorted(numbered)[each % len(numbered)]))
        for mark in range(takes.sent + 1):
            assert takes.are_answered(mark) == all(number > mark for number in numbered)


def test_one_that_is_not_known_ends_without_a_word():
    """A report that was never sent, since the worker had been stopped."""
    takes = OpenTakes()
    takes.end(Request())
    assert takes.are_answered(takes.sent)
