"""Decides whose turn it is: everything that claims a slot of this worker is counted here.

Pure: no clock, no loop, no client. Events come in as calls, with the time where it matters;
decisions come out as values, and the worker carries them out.

A contender is what may hold slots, one or several: a claimed task that is being loaded, a body, or
a call that has been announced. Resumed bodies, claimed tasks and calls stand in one line, each with
the time since when it is ready: its place. Free slots go to those of the highest priority, and of
these to the oldest; but every eighth time to the oldest of all, so that nobody waits for ever.
That one may stand behind a gate, where no answer names it: so when tasks with limits begin, every
eighth question is for the oldest, whatever is known to be left.
Tasks in the store take part: every answer to a take says which one there has the first turn, and
which is the oldest, and while that one comes before the head of the line, free slots are reserved
for it and ask for it (`before`). An answer that cannot say it leaves `ANYBODY` there.

Whoever has the turn but needs more slots than are free waits for them, and nobody passes: what
becomes free is kept for it. That also holds for a task in the store, until we hear that it is gone.

Three numbers say what slots are used for: `held` by bodies and by tasks that are about to begin,
`reserved` for questions whose answer may bring a task, and `ending`, bodies that are being ended
while they hold none: their cleaning up is code that runs, so it counts, and nothing new begins
meanwhile. What the standing take offers is not subtracted: the offer may be out of date for a
moment, and a claim that finds its slot used stands in line. Tasks are also claimed ahead of their
slots while bodies are short. A claim that stands in line for long goes back, and keeps its place.

Answers may be late, lost, or overtake each other, so questions are numbered (commands reach the
store in the order they were sent). A late answer can add a task that is left in the store, but not
remove one. When a task we knew of is no longer there while an earlier question is open, that answer
may be bringing it: until it has come, at most `slots` later ones are granted. Every question must
be `answered`.

`max_parked` bounds memory, but what a parked body waits for may have to run here, so tasks are
taken all the same. A wait that begins when the limit is reached keeps its slot for a while, and
then lends it: to a parked body that wants to go on, or else, once a second, to whatever comes.
"""

from collections import deque
from enum import Enum, auto
from heapq import heapify, heappop, heappush
from typing import Final

from msgspec import Struct

from layby.core.model import NEVER, Millis
from layby.core.queue import TaskPlace

AHEAD: Final = 64
"""How many tasks are claimed ahead of their slots at most."""
RECENT_MS: Final[Millis] = 20
"""No more are claimed ahead than have begun within this time: as many will begin as soon."""
IN_LINE_MS: Final[Millis] = 25
"""A claimed task that has stood in line this long goes back: another worker may have a slot."""
COOLING: Final = 32
"""How many bodies begin after a task went back before tasks are claimed ahead again."""

EVERY: Final = 8
"""Once in so many turns it is that of the oldest, whatever its priority."""
STALE: Final = 64
"""So many entries of those who have left may stay in the line beside one for each who stands."""

LEND_MS: Final[Millis] = 1_000
"""Once in this time a body more than `max_parked` may be parked."""


class SlotState(Enum):
    OUT = auto()
    LINE = auto()
    HELD = auto()
    PARKED = auto()
    ENDING = auto()


OUT, LINE, HELD, PARKED, ENDING = SlotState


class Contender:
    """What may hold slots. Only `Credit` changes it."""

    __slots__ = (
        "has_begun",
        "is_call",
        "is_ending",
        "is_limited",
        "joined_at",
        "number",
        "place",
        "priority",
        "slot_state",
        "slots",
    )

    def __init__(
        self,
        *,
        is_call: bool = False,
        priority: int = 0,
        slots: int = 1,
        is_limited: bool = False,
    ) -> None:
        self.slot_state = OUT
        self.has_begun = False
        """Whether its code has started."""
        self.is_ending = False
        """It is being ended while it holds its slot: it keeps the slot, whatever its code does."""
        self.is_call = is_call
        """A call that has been announced: it is not ours until it has been acquired."""
        self.priority = priority
        self.slots = slots
        """How many it holds when it runs: all there are, if it needs more."""
        self.is_limited = is_limited
        """Others may wait for the permits that it holds."""
        self.place: Millis = 0
        """Since when it is ready."""
        self.number = 0
        """Breaks ties between equal places: first come, first served."""
        self.joined_at: Millis = 0
        """Since when it stands in this line."""


class Ask(Struct, frozen=True):
    """What a take may bring. The slots of `free` are reserved for its answer."""

    free: int = 0
    ahead: int = 0
    before: Millis | None = None
    """Only what has been ready for longer than this: the place of the head of the line."""
    before_priority: int = 0
    """The priority of the head: what has a higher one comes before it, whatever its place."""
    oldest: bool = False
    """Only the oldest of all, whatever its priority."""
    number: int = 0
    """Questions are numbered: a late answer knows less than one to a later question."""


class Offer(Struct, frozen=True):
    """What the take that waits at the store offers."""

    free: int = 0
    in_line: bool = False
    """Somebody stands in line: we want to know what else is ready."""
    left: TaskPlace | None = None
    """What we know to be left: we want to hear of what comes before it, or that it is gone."""
    oldest: bool = False
    """It is the turn of the oldest of all, and slots are kept: for that one, or for the head."""


class TaskInTransit(Struct):
    """A task we knew of is no longer in the store: an earlier answer may be bringing it to us."""

    place: TaskPlace
    number: int
    """It comes with the answer to a question before this one, or not at all."""
    is_oldest: bool = False
    """We knew it as the oldest of all: then its priority is not known."""
    passed: int = 0
    """Later ones that have been granted a slot meanwhile."""


NOTHING: Final = Ask()
ANYBODY: Final = TaskPlace(-NEVER, priority=NEVER)
"""What is left in the store when we were not told: it may be anybody, so it comes before all."""


class Credit:
    def __init__(self, slots: int, max_parked: int = 2**31) -> None:
        self.slots = slots
        self.max_parked = max_parked
        self.is_open = True
        """Whether tasks are taken at all; a worker that stops takes none."""
        self.held = 0
        self.reserved = 0
        self.reserved_ahead = 0
        """How many tasks to claim ahead have been asked for in questions not answered yet."""
        self.ending = 0
        self.parked = 0
        """Bodies that have begun and hold no slot."""
        self.next_left: TaskPlace | None = None
        """The place of the task left in the store whose turn is first, as far as we know."""
        self.oldest_left: TaskPlace | None = None
        """And of the oldest there; its priority is not known."""
        self._line: list[tuple[int, Millis, int, Contender]] = []
        self._by_age: list[tuple[Millis, int, Contender]] | None = None
        """The same line, by place alone; only while somebody looks at it."""
        self._waiting = 0
        self._slots_waited_for = 0
        self._prior_waiting = 0
        """How many in line have a priority."""
        self._turns = 0
        self._limited_at = -EVERY
        """Which turn was the last of a task with limits."""
        self._is_in_doubt = False
        """Something has happened since we were told that a task is left which needs more slots than
        are free: it may be gone.
        """
        self._claims: dict[Contender, None] = {}
        """Claimed tasks in line, in the order in which they joined it."""
        self._numbers = 0
        self._questions = 0
        self._open: dict[int, None] = {}
        """The numbers of unanswered questions that may bring something, in order."""
        self._in_transit: list[TaskInTransit] = []
        self._told = 0
        """Answers to questions up to this number remove nothing: something later is known."""
        self._begun: deque[Millis] = deque(maxlen=AHEAD)
        self._cooling = 0
        self._lent_at: Millis | None = None

    # --- what there is -------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Unused slots; below 0 while more bodies clean up than there are slots."""
        return self.slots - self.held - self.reserved - self.ending

    @property
    def waiting(self) -> int:
        """How many stand in line."""
        return self._waiting

    @property
    def free(self) -> int:
        """Slots that a new task could have now."""
        return max(0, self.room - self._slots_waited_for) if self.is_open else 0

    @property
    def is_full(self) -> bool:
        """A wait that begins now keeps its slot, unless it may `lend` it."""
        return self.parked >= self.max_parked

    # --- events: contenders --------------------------------------------------------------

    def join_line(self, contender: Contender, place: Millis, now: Millis) -> None:
        """It has been ready since `place` and wants a slot."""
        if contender.slot_state in (LINE, HELD, ENDING):
            return
        self._numbers += 1
        contender.place, contender.number, contender.joined_at = place, self._numbers, now
        contender.slot_state = LINE
        contender.slots = min(contender.slots, self.slots)
        self._waiting += 1
        self._slots_waited_for += contender.slots
        self._prior_waiting += contender.priority != 0
        self._is_in_doubt = True
        self._push(contender)
        if not (contender.has_begun or contender.is_call):
            self._claims[contender] = None

    def begin(self, contender: Contender, now: Millis) -> None:
        """Its code starts: the contender holds its slot."""
        contender.has_begun = True
        self._begun.append(now)
        self._cooling = max(0, self._cooling - 1)

    def park(self, contender: Contender) -> bool:
        """It releases its slot, to stand in line again later. False when it keeps what it has."""
        if contender.slot_state is not HELD or contender.is_ending:
            return False
        self.held -= contender.slots
        self.parked += 1
        contender.slot_state = PARKED
        return True

    def lend(self, now: Millis) -> bool:
        """Whether one that waits in its slot may park now, whatever the limit; then it must."""
        if not self.is_full:
            return True
        head, unused = self._head(), self.slots - self.held - self.ending
        if head is not None and head.has_begun and unused < head.slots:
            return True  # one is parked, and one goes on
        if self._lent_at is not None and now - self._lent_at < LEND_MS:
            return False
        self._lent_at = now
        return True

    def step_back(self, contender: Contender) -> None:
        """A body that stood in line, or was just granted a slot, waits again."""
        if contender.slot_state is LINE:
            self._leave_line(contender)
            contender.slot_state = PARKED
        else:
            self.park(contender)

    def end(self, contender: Contender) -> None:
        """It is being ended from outside: what has begun counts until it has ended."""
        contender.is_ending = True
        if contender.slot_state is LINE:
            self._leave_line(contender)
        elif contender.slot_state is not PARKED:
            return
        if contender.has_begun:
            contender.slot_state = ENDING
            self.ending += contender.slots
        else:
            contender.slot_state = OUT

    def leave(self, contender: Contender) -> None:
        """It has ended, or is no longer ours: whatever it held is free."""
        if contender.slot_state is LINE:
            self._leave_line(contender)
        elif contender.slot_state is HELD:
            self.held -= contender.slots
        elif contender.slot_state is ENDING:
            self.ending -= contender.slots
        if contender.has_begun and contender.slot_state in (LINE, PARKED, ENDING):
            self.parked -= 1
        contender.slot_state = OUT

    # --- events: questions and answers ---------------------------------------------------

    def answered(self, ask: Ask) -> None:
        """The answer is here, or will never come: the slots reserved for it are free again."""
        self.reserved -= ask.free
        self.reserved_ahead -= ask.ahead
        self._open.pop(ask.number, None)
        if self._in_transit:
            first = next(iter(self._open), self._questions + 1)
            self._in_transit = [task for task in self._in_transit if first < task.number]

    def heard(self, next_left: TaskPlace | None, oldest_left: TaskPlace | None, ask: Ask) -> None:
        """What an answer said about the tasks it left: whose turn is first, and the oldest.

        Answers overtake each other. One to the standing take (`ask` is `NOTHING`), or to a
        question asked before something later was known, may be out of date: it can add a task,
        but not remove one.
        """
        if ask.number > self._told:
            self._told = ask.number
            self._note_missing(next_left, oldest_left, ask)
            self.next_left, self.oldest_left = next_left, oldest_left
        elif next_left is not None and oldest_left is not None:
            self._note_left(next_left, oldest_left, is_news=ask.number == 0)
        if ask.number == 0:
            self._is_in_doubt = True

    def heard_in_part(self, ask: Ask) -> None:
        """The queue changed under the take, so its answer does not say what is left: whoever has
        the next turn, we ask before we grant it.
        """
        if ask.number == 0 or ask.number > self._told:
            self._note_left(ANYBODY, ANYBODY, is_news=ask.number == 0)
            self._told = max(self._told, ask.number)

    # --- decisions -----------------------------------------------------------------------

    def grants(self) -> list[Contender]:
        """Those whose turn it is; they hold their slots from now on."""
        granted: list[Contender] = []
        while self.room > 0:
            head = self._head()
            if head is None or head.slots > self.room:
                break
            if self._is_earlier_left(head) or self._must_wait_for_transit(head):
                break
            for task in self._in_transit:
                task.passed += self._is_passed(task, head)
            self._leave_line(head)
            if head.has_begun:
                self.parked -= 1
            head.slot_state = HELD
            self.held += head.slots
            self._turns += 1
            if head.is_limited:
                self._limited_at = self._turns
            granted.append(head)
        return granted

    def ask(self, most: int, now: Millis | None = None) -> Ask:
        """What a command sent now may bring back; tasks ahead of slots too if `now` is given."""
        wanted = max(most, self._needed()) if most > 0 else 0
        free = max(0, min(wanted, self.room)) if self.is_open else 0
        head, is_for_oldest = self._head(), self._seeks_oldest
        if free and (head is not None or is_for_oldest):
            return self._asked(free, before=head, oldest=is_for_oldest)
        if now is None or self.room > free:
            return self._asked(free)
        return self._asked(free, self._ahead(now))

    def earlier(self) -> Ask | None:
        """A separate question for what comes before the head, when slots are free for that.

        If they are not enough, it is asked only when in doubt whether that task is still there.
        """
        head, is_for_oldest = self._head(), self._is_turn_of_oldest
        if self.room <= 0 or (head is None and not is_for_oldest):
            return None
        if not self._is_earlier_left(head):
            return None
        if self._needed() > self.room and not self._is_in_doubt:
            return None
        self._is_in_doubt = False
        return self._asked(self.room, before=head, oldest=is_for_oldest)

    def offer(self) -> Offer:
        """What the take that waits at the store should offer.

        While slots are kept for the head of the line, a gate may let in a task that comes before
        it, and needs no more than is free: we want to hear of that.
        """
        is_for_oldest = self._is_turn_of_oldest and self.room > 0
        left = self.oldest_left if is_for_oldest else self.next_left
        is_kept_for = self._needed() > self.room > 0 and self._is_earlier_left(self._head())
        if is_kept_for and is_for_oldest:
            return Offer(self.room, in_line=True, left=left, oldest=True)
        if not self.is_open or self._waiting == 0:
            return Offer(self.free, oldest=self._seeks_oldest and self.free > 0)
        if left is None or is_kept_for:
            return Offer(self.free, in_line=True, left=left)
        if self._is_mixed or self.room > 0:
            known = TaskPlace(left.ready_at, left.priority)
            return Offer(self.free, in_line=True, left=known, oldest=is_for_oldest)
        return Offer(self.free)

    def overdue(self, now: Millis) -> list[Contender]:
        """Claimed tasks that have stood in line for too long; they go back."""
        found: list[Contender] = []
        for contender in self._claims:
            if now - contender.joined_at < IN_LINE_MS:
                break
            found.append(contender)
        for contender in found:
            self.leave(contender)
            place = TaskPlace(contender.place, contender.priority, contender.slots)
            self._note_left(place, place, is_news=True)
        if found:
            self._cooling = COOLING
        return found

    @property
    def overdue_at(self) -> Millis | None:
        """When the next claimed task in line goes back, if nothing happens before."""
        first = next(iter(self._claims), None)
        return None if first is None else first.joined_at + IN_LINE_MS

    # --- inside --------------------------------------------------------------------------

    def _asked(
        self, free: int, ahead: int = 0, before: Contender | None = None, *, oldest: bool = False
    ) -> Ask:
        self.reserved += free
        self.reserved_ahead += ahead
        self._questions += 1
        if free or ahead:
            self._open[self._questions] = None
        if before is None:
            return Ask(free, ahead, oldest=oldest, number=self._questions)
        return Ask(free, ahead, before.place, before.priority, oldest, self._questions)

    def _note_left(self, first: TaskPlace, oldest: TaskPlace, *, is_news: bool) -> None:
        """Tasks are in the store. If news, answers to what was asked so far may not know them."""
        if is_news:
            self._told = self._questions
        if self.next_left is None or first.turn < self.next_left.turn:
            self.next_left = first
        if self.oldest_left is None or oldest.ready_at < self.oldest_left.ready_at:
            self.oldest_left = oldest

    def _note_missing(self, first: TaskPlace | None, oldest: TaskPlace | None, ask: Ask) -> None:
        """Only when answers overtake each other: that to an earlier question is still to come."""
        if next(iter(self._open), ask.number) >= ask.number:
            return
        before = self.next_left
        if before is not None and (first is None or first.turn > before.turn):
            self._in_transit.append(TaskInTransit(before, ask.number))
        before = self.oldest_left
        if before is not None and (oldest is None or oldest.ready_at > before.ready_at):
            self._in_transit.append(TaskInTransit(before, ask.number, is_oldest=True))

    def _must_wait_for_transit(self, head: Contender) -> bool:
        return any(
            self._is_passed(task, head) and task.passed >= self.slots for task in self._in_transit
        )

    def _is_passed(self, task: TaskInTransit, head: Contender) -> bool:
        is_meant = task.is_oldest == self._is_turn_of_oldest
        return is_meant and self._is_before(task.place, head)

    # --- inside: whose turn it is --------------------------------------------------------

    @property
    def _is_mixed(self) -> bool:
        """Whether priorities matter at all: somebody in line, or in the store, has one."""
        first, oldest = self.next_left, self.oldest_left
        if self._prior_waiting or first is None or oldest is None:
            return self._prior_waiting > 0
        return first.priority != 0 or first.ready_at != oldest.ready_at

    @property
    def _is_turn_of_oldest(self) -> bool:
        return self._turns % EVERY == EVERY - 1 and self._is_mixed

    @property
    def _seeks_oldest(self) -> bool:
        """Whether the next question is for the oldest of all. Where priorities are not known to
        matter it is still every eighth while tasks with limits begin; those that were asked for
        already begin before its answer.
        """
        if self._is_mixed or self._turns - self._limited_at >= EVERY:
            return self._is_turn_of_oldest
        return (self._turns + self.reserved) % EVERY == EVERY - 1

    @property
    def _left(self) -> TaskPlace | None:
        """The task in the store that would be next."""
        return self.oldest_left if self._is_turn_of_oldest else self.next_left

    def _needed(self) -> int:
        """How many slots that task needs; as many as there are, if it needs more."""
        left = self._left
        return 0 if left is None else min(left.slots, self.slots)

    def _is_before(self, place: TaskPlace, head: Contender) -> bool:
        if self._is_turn_of_oldest:
            return place.ready_at < head.place
        return place.turn < (-head.priority, head.place)

    def _is_earlier_left(self, head: Contender | None) -> bool:
        """Whether a task in the store comes before everybody in line."""
        left = self._left if self.is_open else None
        return left is not None and (head is None or self._is_before(left, head))

    def _push(self, contender: Contender) -> None:
        if len(self._line) > 2 * self._waiting + STALE:
            self._line = [entry for entry in self._line if _is_in_line(entry[3], entry[2])]
            heapify(self._line)
        place, number = contender.place, contender.number
        heappush(self._line, (-contender.priority, place, number, contender))
        if self._by_age is not None:
            heappush(self._by_age, (place, number, contender))

    def _ahead(self, now: Millis) -> int:
        """As many as have begun recently, less those in line or asked for."""
        while self._begun and now - self._begun[0] >= RECENT_MS:
            self._begun.popleft()
        if self._cooling or not self.is_open:
            return 0
        return max(0, min(AHEAD, len(self._begun)) - self._waiting - self.reserved_ahead)

    def _head(self) -> Contender | None:
        """Who has the first turn in line; entries of those who have left are dropped."""
        if self._prior_waiting and self._is_turn_of_oldest:
            return self._oldest_in_line()
        while self._line:
            _, _, number, contender = self._line[0]
            if _is_in_line(contender, number):
                return contender
            heappop(self._line)
        return None

    def _oldest_in_line(self) -> Contender | None:
        ages = self._by_age
        if ages is None or len(ages) > 2 * self._waiting + STALE:
            ages = [
                (place, number, contender)
                for _, place, number, contender in self._line
                if _is_in_line(contender, number)
            ]
            heapify(ages)
            self._by_age = ages
        while ages:
            _, number, contender = ages[0]
            if _is_in_line(contender, number):
                return contender
            heappop(ages)
        return None

    def _leave_line(self, contender: Contender) -> None:
        """Its entry stays in the heap until it comes to the front."""
        self._waiting -= 1
        self._slots_waited_for -= contender.slots
        self._prior_waiting -= contender.priority != 0
        if self._prior_waiting == 0:
            self._by_age = None
        self._claims.pop(contender, None)


def _is_in_line(contender: Contender, number: int) -> bool:
    """Whether this entry is the one with which it stands in line now."""
    return contender.slot_state is LINE and contender.number == number
