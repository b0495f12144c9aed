"""Whose turn it is to be pushed: without sockets, without time."""

import gc

from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from layby.core.model import Message
from layby.server.push_queue import PendingPush, PushQueue


class Line:
    """Turns, with parcels that are easily made and told apart."""

    def __init__(self, concurrency, *, by_prefix=False):
        self.queue = PushQueue(concurrency, by_prefix=by_prefix)
        self.made = 0

    def add(self, origin, count=1, prefix=""):
        added = []
        for _ in range(count):
            self.made += 1
            message = Message(f"p{self.made}", "execute", f"http://{origin}/")
            host = self.queue.host(origin, prefix)
            pending = PendingPush(host, URL(message.address), message, None)
            self.queue.add(pending)
            added.append(pending)
        return added

    def take_all(self):
        return list(iter(self.queue.take, None))

    def take_origins(self):
        return [pending.host.origin for pending in self.take_all()]


def test_a_lone_host_gets_half_of_the_room():
    """The other half is for whoever comes next."""
    line = Line(256)
    line.add("a", 1_000)
    assert len(line.take_all()) == 128


def test_a_single_slot_is_enough():
    """Concurrency 1 means one after the other, not none."""
    line = Line(1)
    first, second = line.add("a", 2)
    assert line.take_all() == [first]
    line.queue.finish(first)
    assert line.take_all() == [second]


def test_hosts_that_hang_leave_room_for_another():
    """Eight hosts that never answer have taken all they may: a message for a ninth leaves."""
    line = Line(256)
    for number in range(8):
        line.add(f"hangs-{number}", 1_000)
        line.take_all()
    (other,) = line.add("other")
    assert line.take_all() == [other]


def test_hosts_that_are_there_together_share_evenly():
    """Who came first keeps no more than the others, once its first messages are done."""
    line = Line(256)
    line.add("a", 1_000)
    taken = line.take_all()
    line.add("b", 1_000)
    line.add("c", 1_000)
    for pending in taken:
        line.queue.finish(pending)
    origins = [*line.take_origins()]
    assert [origins.count(each) for each in "abc"] == [64, 64, 64]


def test_hosts_take_turns():
    """A thousand messages for one host do not stand before the one for another."""
    line = Line(4)
    line.add("a", 1_000)
    taken = line.take_all()
    line.add("b", 2)
    for pending in taken[:2]:
        line.queue.finish(pending)
    assert sorted(line.take_origins()[:2]) == ["a", "b"]


def test_messages_for_one_host_leave_in_order():
    """First come, first served."""
    line = Line(1)
    added = line.add("a", 3)
    for pending in added:
        assert line.take_all() == [pending]
        line.queue.finish(pending)


def test_what_was_removed_is_not_taken():
    """A withdrawn message has no turn; to remove it twice, or under way, changes nothing."""
    line = Line(256)
    first, second, third = line.add("a", 3)
    line.queue.remove(second)
    line.queue.remove(second)
    assert line.take_all() == [first, third]
    line.queue.remove(first)
    line.queue.finish(first)
    line.queue.finish(third)
    assert line.take_all() == []


def test_a_host_that_cannot_be_reached_rests_and_then_sends_one():
    """While it rests nothing leaves; then one probe, and no second beside it."""
    line = Line(256)
    pendings = line.add("a", 10)
    taken = line.take_all()
    assert [line.queue.back_off(each) for each in taken] == [True] + [False] * 9
    for each in taken:
        line.queue.finish(each)
        line.queue.add(each)
    assert line.take_all() == []
    host = pendings[0].host
    line.queue.end_back_off(host)
    (probe,) = line.take_all()
    assert (host.failures, host.probe) == (1, probe)


def test_only_the_probe_lengthens_the_rest():
    """Failures of messages that left before it say nothing new."""
    line = Line(256)
    line.add("a", 3)
    slow, first, _ = line.take_all()
    line.add("a", 5)
    host = slow.host
    assert line.queue.back_off(first)
    line.queue.end_back_off(host)
    (probe,) = line.take_all()
    assert not line.queue.back_off(slow)
    assert line.queue.back_off(probe)
    assert host.failures == 2


def test_all_follow_once_the_host_is_reached():
    """The connection is enough: nobody waits for the probe's answer."""
    line = Line(256)
    (first,) = line.add("a")
    line.take_all()
    line.add("a", 5)
    line.take_all()
    line.queue.back_off(first)
    line.queue.finish(first)
    line.add("a", 7)
    line.queue.end_back_off(first.host)
    assert len(line.take_all()) == 1
    assert line.queue.mark_reached(first.host)
    assert not line.queue.mark_reached(first.host)
    assert len(line.take_all()) == 6


def test_a_host_is_forgotten_with_its_last_message():
    """Addresses are made up by others: what is kept of them must not grow."""
    line = Line(256)
    pendings = line.add("a", 2)
    for pending in line.take_all():
        line.queue.finish(pending)
    assert list(line.queue._hosts) == [("", "a")]
    pendings.clear()
    del pending
    gc.collect()
    assert (list(line.queue._hosts), list(line.queue._ready)) == ([], [])
    assert list(line.queue._shares) == []


HOSTS = st.sampled_from("abcdef")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), HOSTS),
        st.tuples(st.sampled_from(["finish", "lose", "reach"]), st.integers(0, 50)),
        st.tuples(st.just("end_back_off"), HOSTS),
    ),
    max_size=120,
)


@given(st.integers(1, 12), STEPS)
def test_nothing_is_lost_and_the_room_is_never_exceeded(concurrency, steps):
    """Whatever happens in whatever order: the bound holds, and in the end every message leaves."""
    line, under_way, left = Line(concurrency), [], set()
    keep = []  # the parcels, as their owner keeps them: so hosts live on
    for act, which in steps:
        if act == "add":
            keep += line.add(which)
        elif act == "end_back_off":
            line.queue.end_back_off(line.queue.host(which))
        elif under_way:
            pending = under_way[which % len(under_way)]
            if act == "reach":
                line.queue.mark_reached(pending.host)
                continue
            under_way.remove(pending)
            if act == "lose":
                line.queue.back_off(pending)
            line.queue.finish(pending)
            if act == "lose":
                line.queue.add(pending)
            else:
                left.add(pending)
        under_way += line.take_all()
        assert len(under_way) <= concurrency
    for _ in range(len(keep) + 1):
        for pending in under_way:
            line.queue.finish(pending)
            left.add(pending)
        for host in list(line.queue._hosts.values()):
            line.queue.end_back_off(host)
        under_way = line.take_all()
    assert left == set(keep)


# --- prefixes ------------------------------------------------------------------------------------


def test_a_prefix_with_many_hosts_that_hang_leaves_room_for_another():
    """Its owner may name as many as they like: three quarters of the capacity are the most."""
    line = Line(256, by_prefix=True)
    for number in range(300):
        line.add(f"hangs-{number}", 10, prefix="greedy.")
    assert len(line.take_all()) == 192
    others = line.add("other", 3, prefix="modest.")
    assert line.take_all() == others
    (third,) = line.add("third", prefix="late.")
    assert line.take_all() == [third]


def test_prefixes_take_turns_however_many_hosts_they_name():
    line = Line(8, by_prefix=True)
    for number in range(20):
        line.add(f"many-{number}", 5, prefix="greedy.")
    line.add("one", 20, prefix="modest.")
    prefixes = [pending.host.share.prefix for pending in line.take_all()]
    assert prefixes == ["greedy.", "modest."] * 3


def test_prefixes_share_a_host_without_waiting_for_each_other():
    line = Line(8, by_prefix=True)
    line.add("a", 100, prefix="greedy.")
    line.take_all()
    (other,) = line.add("a", prefix="modest.")
    assert line.take_all() == [other]


@given(
    st.integers(4, 64),
    st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 5), st.integers(1, 40)), max_size=20),
)
def test_who_has_nothing_under_way_is_served_while_any_of_three_hang(concurrency, added):
    """Whatever hangs, up to two other prefixes find room."""
    line = Line(concurrency, by_prefix=True)
    for prefix, host, count in added:
        line.add(f"{prefix}{host}", count, prefix=prefix)
        if prefix != "z":
            line.take_all()
    under_way = dict.fromkeys("xyz", 0)
    for share in line.queue._shares.values():
        under_way[share.prefix] = share.under_way
    assert sum(under_way.values()) <= concurrency
    if concurrency >= 16 and not under_way["z"]:
        (mine,) = line.add("mine", prefix="z")
        line.take_all()
        assert mine.host.share.under_way > 0
