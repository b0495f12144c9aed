"""The account of slots, without a worker: any schedule keeps its books, and each rule by example.

`credit_world` says what must hold after every event, and at the end; here chance plays the events.
"""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layby.core.queue import TaskPlace
from layby.worker.credit import (
    AHEAD,
    COOLING,
    ENDING,
    EVERY,
    HELD,
    IN_LINE_MS,
    LEND_MS,
    LINE,
    NOTHING,
    OUT,
    PARKED,
    RECENT_MS,
    Contender,
    Credit,
    Offer,
)
from tests.helpers.credit_world import CROWDED, EVENTS, FULL, MIXED, World, schedule

events = st.tuples(st.sampled_from(EVENTS), st.integers(0, 7))
full = st.tuples(st.sampled_from(FULL), st.integers(0, 7))
crowds = st.tuples(st.sampled_from(CROWDED), st.integers(0, 7))


@given(
    slots=st.integers(1, 4),
    max_parked=st.sampled_from((1, 2, 50)),
    played=st.lists(events, max_size=100)
    | st.lists(crowds, min_size=30, max_size=150)
    | st.lists(full, min_size=30, max_size=100),
    is_closed=st.booleans(),
)
def test_any_schedule_keeps_the_promises(slots, max_parked, played, is_closed):
    """Never over-claimed, nobody passed, no room offered to nobody, nothing waits for ever."""
    closing = [("close", 0)] if is_closed else []
    World(slots, max_parked).play([*played, *closing])


@pytest.mark.parametrize("part", range(4))
def test_long_schedules_keep_the_promises(part):
    """What Hypothesis rarely draws: hundreds of long ones, the same each time."""
    for seed in range(100_000 + 100 * part, 100_000 + 100 * part + 100):
        slots, max_parked, played = schedule(Random(seed))
        World(slots, max_parked).play(played)


@given(
    slots=st.integers(1, 4),
    max_parked=st.sampled_from((1, 2, 50)),
    kinds=st.lists(st.tuples(st.integers(-2, 2), st.integers(1, 3)), min_size=1, max_size=6),
    played=st.lists(events, max_size=100)
    | st.lists(crowds, min_size=30, max_size=150)
    | st.lists(full, min_size=30, max_size=100),
)
def test_any_schedule_of_priorities_and_slots_keeps_them(slots, max_parked, kinds, played):
    """Nobody of the same or a lower priority passes, but every eighth turn is the oldest's; never
    more slots than there are; whoever needs several gets them.
    """
    World(slots, max_parked, kinds=tuple(kinds)).play(played)


@pytest.mark.parametrize("kinds", MIXED)
def test_long_schedules_of_priorities_and_slots_keep_them(kinds):
    for seed in range(200_000, 200_100):
        slots, max_parked, played = schedule(Random(seed))
        World(slots + 1, max_parked, kinds=kinds).play(played)


# --- by example: who has a slot ----------------------------------------------------------


def hear(credit, left, ask):
    """An answer says since when the only task that is left has been ready."""
    place = None if left is None else TaskPlace(left)
    credit.heard(place, place, ask)


def in_line(credit, place, now=0, **kind):
    contender = Contender(**kind)
    credit.join_line(contender, place, now)
    return contender


def begun(credit, place=0, now=0):
    """A body that runs."""
    contender = in_line(credit, place, now)
    assert contender in credit.grants()
    credit.begin(contender, now)
    return contender


def parked(credit):
    contender = begun(credit)
    assert credit.park(contender)
    return contender


def test_a_free_slot_goes_to_the_oldest():
    credit = Credit(1)
    late, early = in_line(credit, 20), in_line(credit, 10)
    assert credit.grants() == [early]
    assert (early.slot_state, late.slot_state, credit.room) == (HELD, LINE, 0)
    credit.leave(early)
    assert credit.grants() == [late]


def test_equal_places_are_served_as_they_came():
    credit = Credit(3)
    contenders = [in_line(credit, 10), in_line(credit, 10, is_call=True), in_line(credit, 10)]
    assert credit.grants() == contenders


def test_a_resumed_body_a_claim_and_a_call_stand_in_one_line():
    credit = Credit(1)
    resumed, running = parked(credit), begun(credit)
    call, claim = in_line(credit, 11, is_call=True), in_line(credit, 9)
    credit.join_line(resumed, 10, 10)
    order = []
    for _ in range(3):
        credit.leave(running)
        [running] = credit.grants()
        order.append(running)
    assert order == [claim, resumed, call]


def test_who_parks_gives_its_slot_up_and_counts_as_parked_until_it_has_one_again():
    credit = Credit(1)
    body = parked(credit)
    assert (body.slot_state, credit.held, credit.parked, credit.room) == (PARKED, 0, 1, 1)
    credit.join_line(body, 5, 5)
    assert (credit.parked, credit.waiting) == (1, 1)
    assert credit.grants() == [body]
    assert (credit.held, credit.parked, credit.waiting) == (1, 0, 0)


def test_who_holds_no_slot_cannot_park():
    credit = Credit(1)
    body = parked(credit)
    assert not credit.park(body)
    assert credit.parked == 1


def test_who_steps_back_gives_up_its_place_or_the_slot_it_was_granted():
    credit = Credit(1)
    body = parked(credit)
    credit.join_line(body, 5, 5)
    credit.step_back(body)
    assert (body.slot_state, credit.waiting, credit.grants()) == (PARKED, 0, [])
    credit.join_line(body, 6, 6)
    credit.grants()
    credit.step_back(body)
    assert (body.slot_state, credit.held, credit.parked) == (PARKED, 0, 1)


def test_the_old_place_of_who_stepped_back_is_nobodys():
    credit = Credit(1)
    body, other = parked(credit), parked(credit)
    running = begun(credit)
    credit.join_line(body, 5, 5)
    credit.step_back(body)
    credit.join_line(other, 6, 6)
    credit.join_line(body, 7, 7)
    credit.leave(running)
    assert credit.grants() == [other]


def test_parked_bodies_that_are_ended_count_while_they_clean_up():
    credit = Credit(1)
    bodies = [parked(credit) for _ in range(3)]
    for body in bodies:
        credit.end(body)
    waiting = in_line(credit, 1)
    assert ({body.slot_state for body in bodies}, credit.ending, credit.room) == ({ENDING}, 3, -2)
    for body in bodies:
        assert credit.grants() == []
        assert credit.offer().free == 0
        credit.leave(body)
    assert credit.grants() == [waiting]
    assert (credit.ending, credit.parked) == (0, 0)


def test_a_body_that_is_ended_in_line_leaves_it_and_counts():
    credit = Credit(1)
    body, running = parked(credit), begun(credit)
    credit.join_line(body, 5, 5)
    credit.end(body)
    assert (body.slot_state, credit.waiting, credit.ending) == (ENDING, 0, 1)
    credit.join_line(body, 6, 6)  # its cleaning up waits for something: it has no turn any more
    credit.step_back(body)
    assert (body.slot_state, credit.waiting) == (ENDING, 0)
    credit.leave(running)
    assert credit.room == 0


def test_a_body_that_is_ended_while_it_holds_its_slot_keeps_that_until_it_has_ended():
    """Also one that was granted its slot just now, and whose reclaim is cancelled by the end."""
    credit = Credit(1)
    body = parked(credit)
    credit.join_line(body, 5, 5)
    credit.grants()
    credit.end(body)
    credit.step_back(body)
    assert not credit.park(body)
    assert (body.slot_state, credit.held, credit.room) == (HELD, 1, 0)
    credit.leave(body)
    assert (credit.held, credit.parked, credit.room) == (0, 0, 1)


def test_what_has_not_begun_is_gone_at_once_when_it_is_ended():
    credit = Credit(1)
    running, claim = begun(credit), in_line(credit, 1)
    credit.end(claim)
    assert (claim.slot_state, credit.waiting, credit.ending) == (OUT, 0, 0)
    credit.leave(running)
    assert credit.room == 1


def test_leaving_twice_frees_once():
    credit = Credit(1)
    body = begun(credit)
    credit.leave(body)
    credit.leave(body)
    assert credit.room == 1


# --- by example: questions and answers ---------------------------------------------------


def test_the_slots_of_a_question_are_kept_for_its_answer():
    credit = Credit(3)
    ask = credit.ask(2, 0)
    assert (ask.free, ask.before, credit.reserved, credit.room) == (2, None, 2, 1)
    assert credit.ask(9, 0).free == 1
    assert credit.ask(9, 0).free == 0
    assert credit.offer() == Offer(0)


def test_a_slot_kept_for_an_answer_that_brings_nothing_is_free_again():
    credit = Credit(1)
    ask = credit.ask(1, 0)
    body = in_line(credit, 5)
    assert credit.grants() == []
    credit.answered(ask)
    hear(credit, None, ask)
    assert credit.grants() == [body]


def test_a_lost_answer_frees_its_slots_and_says_nothing():
    credit = Credit(1)
    hear(credit, 3, NOTHING)
    ask = credit.ask(1, 0)
    credit.answered(ask)
    assert (credit.room, credit.oldest_left) == (1, TaskPlace(3))


def test_a_slot_waits_for_what_is_older_in_the_store():
    credit = Credit(2)
    first, head = begun(credit), in_line(credit, 20)
    hear(credit, 10, NOTHING)
    assert credit.grants() == []
    ask = credit.earlier()
    assert ask is not None
    assert (ask.free, ask.ahead, ask.before) == (1, 0, 20)
    assert credit.earlier() is None  # once
    credit.leave(first)
    assert credit.ask(1, 0).before == 20  # so does the report
    credit.answered(ask)
    hear(credit, None, ask)
    older = in_line(credit, 10)
    assert credit.grants() == [older]
    assert credit.waiting == 1
    assert head.slot_state is LINE


def test_an_answer_that_denies_it_lets_the_head_go():
    """Another worker was quicker: the slot was kept in vain, for one answer."""
    credit = Credit(1)
    head = in_line(credit, 20)
    hear(credit, 10, NOTHING)
    ask = credit.earlier()
    assert ask is not None
    credit.answered(ask)
    hear(credit, 30, ask)
    assert credit.grants() == [head]


@pytest.mark.parametrize("left", [20, 21, None])
def test_no_slot_waits_for_what_is_no_older(left):
    credit = Credit(1)
    head = in_line(credit, 20)
    hear(credit, left, NOTHING)
    assert credit.earlier() is None
    assert credit.grants() == [head]


def test_a_late_answer_denies_nothing():
    """Asked first, answered last: what it did not see may have come since."""
    credit = Credit(3)
    early, late = credit.ask(1, 0), credit.ask(1, 0)
    credit.answered(late)
    hear(credit, 10, late)
    credit.answered(early)
    hear(credit, None, early)
    assert credit.oldest_left == TaskPlace(10)


def test_a_late_answer_may_tell_of_an_older_one():
    """It costs one question, if that is gone by now."""
    credit = Credit(3)
    early, late = credit.ask(1, 0), credit.ask(1, 0)
    credit.answered(late)
    hear(credit, 30, late)
    credit.answered(early)
    hear(credit, 10, early)
    assert credit.oldest_left == TaskPlace(10)


def test_what_was_asked_before_cannot_deny_what_the_standing_take_heard():
    credit = Credit(2)
    early = credit.ask(1, 0)
    hear(credit, 10, NOTHING)
    hear(credit, None, early)
    assert credit.oldest_left == TaskPlace(10)
    late = credit.ask(1, 0)
    hear(credit, None, late)
    assert credit.oldest_left is None


def test_what_an_overtaken_answer_may_bring_is_passed_by_as_many_as_there_are_slots():
    credit = Credit(2)
    first, second = begun(credit), begun(credit)
    hear(credit, 10, NOTHING)
    credit.leave(first)
    line = [in_line(credit, 20) for _ in range(4)]
    slow = credit.earlier()  # its answer carries the task of 10
    credit.leave(second)
    quick = credit.earlier()
    assert slow is not None
    assert quick is not None
    credit.answered(quick)
    hear(credit, None, quick)
    for contender in line[:2]:
        assert credit.grants() == [contender]
        credit.leave(contender)
    assert credit.grants() == []
    credit.answered(slow)
    hear(credit, None, slow)
    older = in_line(credit, 10)
    assert credit.grants() == [older, line[2]]


# --- by example: offers, and when nothing is taken ---------------------------------------


def test_what_nobody_wants_is_offered():
    credit = Credit(3)
    begun(credit)
    assert credit.offer() == Offer(2, in_line=False)


def test_while_somebody_stands_in_line_it_wants_to_hear_of_others_until_it_has():
    credit = Credit(1)
    begun(credit)
    in_line(credit, 5)
    assert credit.offer() == Offer(0, in_line=True)
    hear(credit, 9, NOTHING)
    assert credit.offer() == Offer(0, in_line=False)


def test_while_slots_are_kept_for_somebody_in_line_it_hears_of_whatever_comes_before():
    """A gate lets one in that is older than all it knows of; it may need no more than is free."""
    credit = Credit(2)
    begun(credit)
    heavy = in_line(credit, 5, slots=2)
    hear(credit, 9, NOTHING)
    assert credit.offer() == Offer(0, in_line=True, left=TaskPlace(9))
    hear(credit, 3, NOTHING)
    asked = credit.earlier()
    assert asked is not None
    assert (credit.grants(), asked.free, asked.before) == ([], 1, heavy.place)


def test_in_the_turn_of_the_oldest_it_hears_of_whatever_is_older():
    """The one it keeps slots for is the oldest: a higher priority would be no news."""
    credit = Credit(2)
    for _ in range(EVERY - 2):
        credit.leave(begun(credit))
    begun(credit)
    in_line(credit, 5, slots=2)
    credit.heard(TaskPlace(9, 1, 2), TaskPlace(7, 0, 2), NOTHING)
    assert credit.offer() == Offer(0, in_line=True, left=TaskPlace(7), oldest=True)


def test_who_was_not_told_what_is_left_asks_before_it_grants():
    """It may be anybody's turn: also that of the oldest, which must not be missed (seed 4538)."""
    credit = Credit(1)
    for _ in range(EVERY - 1):
        credit.leave(begun(credit))
    ask = credit.ask(1)
    credit.answered(ask)
    credit.heard_in_part(ask)
    claim = in_line(credit, 5)
    assert credit.grants() == []
    asked = credit.earlier()
    assert asked is not None
    assert (asked.free, asked.before, asked.oldest) == (1, 5, True)
    credit.answered(asked)
    hear(credit, None, asked)
    assert credit.grants() == [claim]


@pytest.mark.parametrize("is_late", [False, True])
def test_an_answer_to_a_later_question_says_it(is_late):
    """It knows more than one that was cut short, whichever comes first."""
    credit = Credit(2)
    cut, whole = credit.ask(1), credit.ask(1)
    for ask in (whole, cut) if is_late else (cut, whole):
        credit.answered(ask)
        if ask is cut:
            credit.heard_in_part(cut)
        else:
            hear(credit, None, whole)
    claim = in_line(credit, 5)
    assert credit.grants() == [claim]


def test_a_worker_that_stops_takes_nothing_but_its_bodies_go_on():
    credit = Credit(1)
    body = parked(credit)
    hear(credit, 3, NOTHING)
    credit.is_open = False
    credit.join_line(body, 5, 5)
    assert (credit.offer(), credit.earlier()) == (Offer(), None)
    ask = credit.ask(1, 5)
    assert (ask.free, ask.ahead) == (0, 0)
    assert credit.grants() == [body]


# --- by example: max_parked --------------------------------------------------------------


def test_a_full_worker_takes_all_the_same():
    """Who is parked may wait for what it takes."""
    credit = Credit(1, max_parked=1)
    parked(credit)
    assert credit.is_full
    assert credit.offer() == Offer(1)
    assert credit.ask(1, 5).free == 1


def test_at_max_parked_a_slot_is_lent_once_a_second():
    credit = Credit(2, max_parked=1)
    parked(credit)
    first = begun(credit)
    assert credit.lend(now=5_000)
    credit.park(first)
    begun(credit)
    assert not credit.lend(now=5_000 + LEND_MS - 1)
    assert credit.lend(now=5_000 + LEND_MS)


def test_a_slot_is_lent_to_who_was_parked_at_any_time():
    """As many are parked as before."""
    credit = Credit(1, max_parked=1)
    waits = parked(credit)
    begun(credit)
    assert credit.lend(now=0)
    assert not credit.lend(now=1)
    in_line(credit, 5)
    assert not credit.lend(now=1), "for a new task only once a second"
    credit.join_line(waits, 1, 1)
    assert credit.lend(now=1)


def test_below_max_parked_a_slot_is_lent_whenever_it_is_asked_for():
    credit = Credit(2, max_parked=1)
    begun(credit)
    assert credit.lend(now=0)
    assert credit.lend(now=0)


# --- families: whoever waits for tasks that it started -----------------------------------


class Family:
    """One worker, whose bodies start others and wait for them all."""

    def __init__(self, parents, slots, max_parked):
        self.parents, self.max_parked = parents, max_parked
        self.credit, self.now = Credit(slots, max_parked), 0
        self.ready = [each for each, parent in enumerate(parents) if parent is None]
        self.alive, self.bodies = set(range(len(parents))), {}

    def take(self):
        for each in self.ready[: self.credit.free]:
            self.ready.remove(each)
            self.bodies[each] = in_line(self.credit, self.now, self.now)
        for granted in self.credit.grants():
            if not granted.has_begun:
                self.credit.begin(granted, self.now)
                each = next(key for key, body in self.bodies.items() if body is granted)
                self.ready += [key for key, parent in enumerate(self.parents) if parent == each]

    def go_on(self):
        for each, body in list(self.bodies.items()):
            is_waiting = any(self.parents[key] == each for key in self.alive)
            if not is_waiting and body.slot_state is HELD:
                self.credit.leave(body)
                self.alive.remove(each)
                del self.bodies[each]
            elif not is_waiting:
                self.credit.join_line(body, self.now, self.now)
            elif body.slot_state is HELD and self.credit.lend(self.now):
                self.credit.park(body)

    def live(self):
        """Returns the number of seconds in which everybody has come to an end."""
        for second in range(10 + 2 * len(self.parents)):
            for _ in range(3 * len(self.parents)):
                self.take()
                assert self.credit.parked <= self.max_parked + second + 1
                self.go_on()
            if not self.alive:
                return second
            self.now += LEND_MS
        raise AssertionError(f"waits for ever: {self.alive}")


@given(data=st.data(), slots=st.integers(1, 3), max_parked=st.integers(1, 4))
def test_families_come_to_an_end_at_any_max_parked(data, slots, max_parked):
    """No deadlock, however many generations wait; beyond the limit one more for each second."""
    count = data.draw(st.integers(1, 12))
    parents = [
        data.draw(st.none() | st.integers(0, each - 1)) if each else None for each in range(count)
    ]
    family = Family(parents, slots, max_parked)
    seconds = family.live()
    assert seconds <= max(0, count - max_parked)
    assert family.credit.room == slots


# --- by example: ahead, and back ---------------------------------------------------------


def short_bodies(credit, count, now=0):
    for _ in range(count):
        credit.leave(begun(credit, now, now))


def test_as_many_are_claimed_ahead_as_have_begun_within_a_moment():
    credit = Credit(1)
    short_bodies(credit, 3, now=0)
    short_bodies(credit, 2, now=10)
    begun(credit, now=10)
    ask = credit.ask(1, RECENT_MS - 1)
    assert (ask.free, ask.ahead) == (0, 6)
    credit.answered(ask)
    assert credit.ask(1, RECENT_MS).ahead == 3


def test_nothing_is_claimed_ahead_while_slots_are_free_or_by_who_does_not_want_that():
    credit = Credit(2)
    short_bodies(credit, 5)
    assert credit.ask(1, 0).ahead == 0
    assert credit.ask(1).ahead == 0
    assert credit.ask(1, 0).ahead == 5


def test_what_stands_in_line_or_is_on_its_way_is_not_claimed_ahead_once_more():
    credit = Credit(1)
    short_bodies(credit, 5)
    begun(credit)
    in_line(credit, 0)
    ask = credit.ask(1, 0)
    assert (ask.ahead, credit.reserved_ahead) == (5, 5)
    assert credit.ask(1, 0).ahead == 0
    credit.answered(ask)
    assert credit.ask(1, 0).ahead == 5


def test_there_is_a_bound_to_what_is_claimed_ahead():
    credit = Credit(1)
    short_bodies(credit, 2 * AHEAD)
    assert credit.ask(1, 0).ahead == AHEAD


def test_nothing_is_claimed_ahead_while_a_slot_waits_for_what_is_older():
    credit = Credit(1)
    short_bodies(credit, 5)
    in_line(credit, 20)
    hear(credit, 10, NOTHING)
    ask = credit.ask(1, 0)
    assert (ask.free, ask.ahead, ask.before) == (1, 0, 20)


def test_a_claim_that_stood_in_line_for_long_goes_back_and_keeps_its_place():
    """It is in the store then: who is later waits for it."""
    credit = Credit(1)
    running = begun(credit)
    claim, young = in_line(credit, 3, now=5), in_line(credit, 4, now=6)
    assert credit.overdue_at == 5 + IN_LINE_MS
    assert credit.overdue(5 + IN_LINE_MS - 1) == []
    assert credit.overdue(5 + IN_LINE_MS) == [claim]
    assert (claim.slot_state, claim.place, credit.overdue_at) == (OUT, 3, 6 + IN_LINE_MS)
    credit.leave(running)
    assert credit.grants() == []
    ask = credit.earlier()
    assert ask is not None
    assert ask.before == young.place


def test_what_was_asked_before_cannot_deny_what_went_back():
    credit = Credit(1)
    ask = credit.ask(1, 0)
    in_line(credit, 3)
    credit.overdue(IN_LINE_MS)
    credit.answered(ask)
    hear(credit, None, ask)
    assert credit.oldest_left == TaskPlace(3)


def test_calls_and_resumed_bodies_never_go_back():
    credit = Credit(1)
    body = parked(credit)
    begun(credit)
    credit.join_line(body, 1, 1)
    in_line(credit, 1, is_call=True)
    assert credit.overdue_at is None
    assert credit.overdue(10_000) == []
    assert credit.waiting == 2


def test_after_something_went_back_nothing_is_claimed_ahead_for_some_bodies():
    credit = Credit(1)
    running = begun(credit)
    in_line(credit, 0)
    credit.overdue(IN_LINE_MS)
    credit.leave(running)
    hear(credit, None, credit.ask(0))  # somebody else has taken it
    short_bodies(credit, COOLING - 1, now=IN_LINE_MS)
    ask = credit.ask(1, IN_LINE_MS)
    assert ask.ahead == 0
    credit.answered(ask)
    short_bodies(credit, 1, now=IN_LINE_MS)
    assert credit.ask(1, IN_LINE_MS).ahead == COOLING


def test_no_question_is_no_question():
    credit = Credit(1)
    credit.answered(NOTHING)
    assert (credit.room, credit.reserved_ahead) == (1, 0)
