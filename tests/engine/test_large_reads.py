"""Large promises are loaded no faster than their answers may leave, and not for who hangs up."""

import queue
from collections.abc import Sequence

from layby.core.commands import CreatePromise, GetPromise
from layby.core.replies import PromiseData, Reply
from layby.core.values import Value
from layby.engine import large_reads
from layby.engine.items import Allowance, Answer, Item
from layby.engine.large_reads import CHARS_PER_S, LargeReads
from tests.helpers.worlds import World

LARGE = CHARS_PER_S // 16  # leaves within a sixteenth of a second


def read(caller: str, *, is_gone: bool = False) -> Item:
    return Item(GetPromise(id="p"), lambda _: None, caller=caller, is_gone=lambda: is_gone)


def test_the_next_begins_when_the_one_before_may_have_left() -> None:
    reads, first, second = LargeReads(), read("a"), read("a")
    for each in (first, second):
        reads.add(each, LARGE)
    assert reads.begin(10.0) is first
    reads.end(first)
    assert reads.begin(10.0) is None
    assert reads.pause_s(10.0) == 1 / 16
    assert reads.begin(10.0 + 1 / 16) is second


def test_one_is_under_way_at_a_time() -> None:
    """However long it takes; its end lets the next one begin."""
    reads, first, second = LargeReads(), read("a"), read("b")
    for each in (first, second):
        reads.add(each, LARGE)
    assert reads.begin(0.0) is first
    assert (reads.begin(60.0), reads.pause_s(60.0)) == (None, None)
    reads.end(first)
    assert reads.begin(60.0) is second


def test_who_has_hung_up_holds_up_nobody() -> None:
    reads, gone, waiting = LargeReads(), read("a", is_gone=True), read("b")
    for each in (gone, waiting):
        reads.add(each, LARGE)
    assert [reads.begin(0.0), reads.begin(0.0)] == [gone, waiting]


def test_callers_take_turns_and_what_is_left_can_be_drained() -> None:
    reads = LargeReads()
    many, one = [read("many") for _ in range(3)], read("one")
    for each in (*many, one):
        reads.add(each, LARGE)
    assert reads.begin(0.0) is many[0]
    reads.end(many[0])
    assert reads.begin(1.0) is one
    assert reads.drain() == many[1:]
    assert reads.pause_s(9.0) is None


def test_what_this_process_asks_for_itself_has_no_such_bound(monkeypatch) -> None:
    """Not even when it comes in one batch with requests of others: those leave over sockets."""
    monkeypatch.setattr(large_reads, "CHARS_PER_S", 1)
    answers: queue.SimpleQueue[tuple[Item, Answer]] = queue.SimpleQueue()

    def asked(name: str, allowance: Allowance | None) -> Item:
        def sink(told: Sequence[tuple[Item, Answer]]) -> None:
            for each in told:
                answers.put(each)

        return Item(GetPromise(id=name), sink, caller=name, allowance=allowance)

    with World("sqlite", threaded=True) as world:
        for name in ("first", "second", "of a peer"):
            param = Value(data="x" * 2**21)
            world.ok(CreatePromise(id=name, timeout_at=9**15, param=param, tags={}))
        of_a_peer = asked("of a peer", Allowance(2**22))
        world.engine.submit([asked("first", None), asked("second", None), of_a_peer])
        found = [answers.get(timeout=20)[1] for _ in range(3)]
    assert all(isinstance(each, Reply) and isinstance(each.data, PromiseData) for each in found)
