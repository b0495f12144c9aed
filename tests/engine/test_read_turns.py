"""Whose read begins next: every one gets its turn, and nobody takes all of them."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from layby.core.queries import ExplainPromise, SearchPromises
from layby.engine.items import Item
from layby.engine.read_turns import ReadTurns, is_quick

THREADS = 3


def read(caller: str, *, quick: bool) -> Item:
    request = ExplainPromise(id="x") if quick else SearchPromises()
    return Item(request, lambda _: None, caller=caller)


steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("abc"), st.booleans()),  # a read comes
        st.integers(0, THREADS - 1),  # one of those that run ends
    ),
    max_size=60,
)


@given(steps)
def test_turns_are_fair_and_nothing_is_lost(script) -> None:
    """Threads are never idle for a quick read, long ones leave one free, and all begin once."""
    turns, waiting, running = ReadTurns(THREADS), list[Item](), list[Item]()
    begun = Counter[Item]()

    def begin_all() -> None:
        while len(running) < THREADS and (item := turns.begin()) is not None:
            waiting.remove(item)
            running.append(item)
            begun[item] += 1
        long = [each.caller for each in running if not is_quick(each)]
        assert len(long) == len(set(long)) <= THREADS - 1
        if len(running) < THREADS:
            assert not any(map(is_quick, waiting))
            free = {each.caller for each in waiting} - set(long)
            assert not free or len(long) == THREADS - 1

    for step in script:
        if isinstance(step, int):
            if step < len(running):
                turns.end(running.pop(step))
        else:
            item = read(step[0], quick=step[1])
            waiting.append(item)
            turns.add(item)
        begin_all()
    while running:
        turns.end(running.pop(0))
        begin_all()
    assert not waiting
    assert set(begun.values()) <= {1}


def test_callers_take_turns() -> None:
    """One that asks for a hundred things is not served before one that asks for one."""
    turns = ReadTurns(THREADS)
    for _ in range(100):
        turns.add(read("many", quick=True))
    turns.add(read("one", quick=True))
    first, second = turns.begin(), turns.begin()
    assert first is not None
    assert second is not None
    assert [first.caller, second.caller] == ["many", "one"]


def test_long_reads_get_turns_between_quick_ones() -> None:
    """However many of those there are."""
    turns = ReadTurns(THREADS)
    for number in range(10):
        turns.add(read(f"q{number}", quick=True))
    turns.add(read("long", quick=False))
    begun = [turns.begin() for _ in range(2)]
    assert "long" in [each.caller for each in begun if each is not None]


def test_what_has_not_begun_can_be_taken_back() -> None:
    """All of it, whoever asked."""
    turns = ReadTurns(THREADS)
    items = [read(caller, quick=quick) for caller in "aab" for quick in (True, False)]
    for item in items:
        turns.add(item)
    begun = turns.begin()
    assert {*turns.drain(), begun} == set(items)
    assert turns.begin() is None
