"""Decides whose turn it is: everything that claims a slot of this worker is counted here.

Pure: no clock, no loop, no client. Events come in as calls, with the time where it matters;
decisions come out as values, and the worker carries them out.

A contender is what may hold one slot: a claimed task that is being loaded, a body, or a call that
has been announced. Resumed bodies, claimed tasks and calls stand in one line, each with the time
since when it is ready: its place. A free slot goes to the oldest. Tasks in the store take part:
every answer to a take says how old the oldest task there is, and while that one is older than the
head of the line, a free slot is reserved for it and asks for it (`before`).

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
from heapq import heappop, heappush
from typing import Final

from msgspec import Struct

from layby.core.model import Millis

AHEAD: Final = 64
"""How many tasks are claimed ahead of their slots at most."""
RECENT_MS: Final[Millis] = 20
"""No more are claimed ahead than have begun within this time: as many will begin as soon."""
IN_LINE_MS: Final[Millis] = 25
"""A claimed task that has stood in line this long goes back: another worker may have a slot."""
COOLING: Final = 32
"""How many bodies begin after a task went back before tasks are claimed ahead again."""

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
    """What may hold one slot. Only `Credit` changes it."""

    __slots__ = ("has_begun", "is_call", "is_ending", "joined_at", "number", "place", "slot_state")

    def __init__(self, *, is_call: bool = False) -> None:
        self.slot_state = OUT
        self.has_begun = False
        """Whether its code has started."""
        self.is_ending = False
        """It is being ended while it holds its slot: it keeps the slot, whatever its code does."""
        self.is_call = is_call
        """A call that has been announced: it is not ours until it has been acquired."""
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
    number: int = 0
    """Questions are numbered: a late answer knows less than one to a later question."""


class Offer(Struct, frozen=True):
    """What the take that waits at the store offers."""

    free: int = 0
    in_line: bool = False
    """Somebody stands in line: we want to know what else is ready."""


class TaskInTransit(Struct):
    """A task we knew of is no longer in the store: an earlier answer may be bringing it to us."""

    place: Millis
    number: int
    """It comes with the answer to a question before this one, or not at all."""
    passed: int = 0
    """Later ones that have been granted a slot meanwhile."""


NOTHING: Final = Ask()


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
        self.oldest_left: Millis | None = None
        """The place of the oldest task left in the store, as far as we know."""
        self._line: list[tuple[Millis, int, Contender]] = []
        self._waiting = 0
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
        return max(0, self.room - self._waiting) if self.is_open else 0

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
        self._waiting += 1
        heappush(self._line, (place, contender.number, contender))
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
        self.held -= 1
        self.parked += 1
        contender.slot_state = PARKED
        return True

    def lend(self, now: Millis) -> bool:
        """Whether one that waits in its slot may park now, whatever the limit; then it must."""
        if not self.is_full:
            return True
        head, is_last = self._head(), self.held + self.ending >= self.slots
        if is_last and head is not None and head.has_begun:  # one is parked, and one goes on
            return True
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
            self.ending += 1
        else:
            contender.slot_state = OUT

    def leave(self, contender: Contender) -> None:
        """It has ended, or is no longer ours: whatever it held is free."""
        if contender.slot_state is LINE:
            self._leave_line(contender)
        elif contender.slot_state is HELD:
            self.held -= 1
        elif contender.slot_state is ENDING:
            self.ending -= 1
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

    def heard(self, oldest_left: Millis | None, ask: Ask) -> None:
        """What an answer said about the tasks it left.

        Answers overtake each other. One to the standing take (`ask` is `NOTHING`), or to a
        question asked before something later was known, may be out of date: it can add a task,
        but not remove one.
        """
        if ask.number > self._told:
            self._told = ask.number
            self._note_missing(self.oldest_left, oldest_left, ask)
            self.oldest_left = oldest_left
        elif oldest_left is not None:
            self._note_left(oldest_left, is_news=ask.number == 0)

    # --- decisions -----------------------------------------------------------------------

    def grants(self) -> list[Contender]:
        """Those whose turn it is; they hold their slots from now on."""
        granted: list[Contender] = []
        while self.room > 0:
            head = self._head()
            if head is None or self._is_older_left(head) or self._must_wait_for_transit(head):
                break
            heappop(self._line)
            self._leave_line(head)
            if head.has_begun:
                self.parked -= 1
            for task in self._in_transit:
                task.passed += task.place < head.place
            head.slot_state = HELD
            self.held += 1
            granted.append(head)
        return granted

    def ask(self, most: int, now: Millis | None = None) -> Ask:
        """What a command sent now may bring back; tasks ahead of slots too if `now` is given."""
        free = max(0, min(most, self.room)) if self.is_open else 0
        head = self._head()
        if head is not None and free:
            return self._asked(free, before=head.place)
        if now is None or self.room > free:
            return self._asked(free)
        return self._asked(free, self._ahead(now))

    def older(self) -> Ask | None:
        """A separate question for what is older than the head, when slots are free for that."""
        head = self._head()
        if head is None or self.room <= 0 or not self._is_older_left(head):
            return None
        return self._asked(self.room, before=head.place)

    def offer(self) -> Offer:
        """What the take that waits at the store should offer."""
        return Offer(self.free, self.is_open and self._waiting > 0 and self.oldest_left is None)

    def overdue(self, now: Millis) -> list[Contender]:
        """Claimed tasks that have stood in line for too long; they go back."""
        found: list[Contender] = []
        for contender in self._claims:
            if now - contender.joined_at < IN_LINE_MS:
                break
            found.append(contender)
        for contender in found:
            self.leave(contender)
            self._note_left(contender.place, is_news=True)
        if found:
            self._cooling = COOLING
        return found

    @property
    def overdue_at(self) -> Millis | None:
        """When the next claimed task in line goes back, if nothing happens before."""
        first = next(iter(self._claims), None)
        return None if first is None else first.joined_at + IN_LINE_MS

    # --- inside --------------------------------------------------------------------------

    def _asked(self, free: int, ahead: int = 0, before: Millis | None = None) -> Ask:
        self.reserved += free
        self.reserved_ahead += ahead
        self._questions += 1
        if free or ahead:
            self._open[self._questions] = None
        return Ask(free, ahead, before, self._questions)

    def _note_left(self, ready_at: Millis, *, is_news: bool) -> None:
        """A task is in the store. If news, answers to what was asked so far may not know of it."""
        if is_news:
            self._told = self._questions
        if self.oldest_left is None or ready_at < self.oldest_left:
            self.oldest_left = ready_at

    def _note_missing(self, before: Millis | None, after: Millis | None, ask: Ask) -> None:
        """Only when answers overtake each other: that to an earlier question is still to come."""
        if before is None or (after is not None and after <= before):
            return
        if next(iter(self._open), ask.number) < ask.number:
            self._in_transit.append(TaskInTransit(before, ask.number))

    def _must_wait_for_transit(self, head: Contender) -> bool:
        return any(
            task.place < head.place and task.passed >= self.slots for task in self._in_transit
        )

    def _ahead(self, now: Millis) -> int:
        """As many as have begun recently, less those in line or asked for."""
        while self._begun and now - self._begun[0] >= RECENT_MS:
            self._begun.popleft()
        if self._cooling or not self.is_open:
            return 0
        return max(0, min(AHEAD, len(self._begun)) - self._waiting - self.reserved_ahead)

    def _is_older_left(self, head: Contender) -> bool:
        return self.is_open and self.oldest_left is not None and self.oldest_left < head.place

    def _head(self) -> Contender | None:
        """The oldest in line; entries of those who have left are dropped."""
        while self._line:
            _, number, contender = self._line[0]
            if contender.slot_state is LINE and contender.number == number:
                return contender
            heappop(self._line)
        return None

    def _leave_line(self, contender: Contender) -> None:
        """Its entry stays in the heap until it comes to the front."""
        self._waiting -= 1
        self._claims.pop(contender, None)
