"""One worker that does only what its `Credit` decides, against a store of a few lines.

Commands reach the store in the order they were sent; everything else may be late: answers come in
any order or never, offers are out of date, and other workers take from the same queue. The world
keeps its own books from the events alone, and compares them with those of `Credit` after each.
"""

from dataclasses import dataclass, field
from itertools import cycle
from random import Random
from typing import Any

from msgspec.structs import replace

from layby.core.commands import Take
from layby.core.queue import TaskPlace
from layby.worker import credit as real_credit

IN_LINE_MS, RECENT_MS, LEND_MS, AHEAD, COOLING, EVERY = 25, 20, 1_000, 64, 32, 8
"""Written down again, so that a wrong number in the module is found."""


Kinds = tuple[tuple[int, int], ...]
"""Priorities and slots of the tasks that arrive, one after the other."""
PLAIN: Kinds = ((0, 1),)
MIXED: tuple[Kinds, ...] = (
    ((0, 1), (5, 1), (0, 1), (-2, 1), (0, 1)),
    ((0, 1), (0, 2), (0, 1), (0, 1), (0, 3)),
    ((0, 1), (5, 2), (-1, 1), (0, 1), (2, 1), (0, 3), (5, 1)),
    ((1, 1), (1, 1), (1, 1), (0, 2), (1, 1)),
)


class Broken(AssertionError):
    """A property that does not hold."""


def demand(holds: object, why: str) -> None:
    if not holds:
        raise Broken(why)


@dataclass(eq=False)
class Job:
    """A task or a call, from its birth to its end."""

    place: int
    priority: int = 0
    slots: int = 1
    at: str = "ready"
    """ready, coming (in an answer), line, held, parked, ending, returning (in a release), gone."""
    contender: Any = None
    is_call: bool = False
    has_begun: bool = False
    is_known: bool = False
    """Whether the worker has heard of it: in line here, or named as the first that is left."""
    is_known_oldest: bool = False
    """Or as the oldest that is left."""
    passed: int = 0
    """How many later ones have been granted a slot while it was on its way."""
    is_ending: bool = False
    order: int = 0
    joined_at: int = 0


@dataclass(eq=False)
class Answer:
    ask: Any
    """None for the standing take."""
    claims: list[Job]
    left: Job | None
    """The one left that has the first turn."""
    oldest: Job | None
    """The oldest that was left."""

    def __post_init__(self) -> None:
        self.first_place = None if self.left is None else place_of(self.left)
        self.oldest_place = None if self.oldest is None else place_of(self.oldest)
        if self.oldest_place is not None and self.first_place != TaskPlace(
            self.oldest_place.ready_at
        ):
            self.oldest_place = replace(self.oldest_place, priority=0)  # it is not told


@dataclass(eq=False)
class Standing:
    offer: Any
    is_there: bool = False


@dataclass
class Books:
    """What the world itself counts."""

    asks: list[Any] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)
    cooling: int = 0
    orders: int = 0
    turns: int = 0
    """How many have been granted a slot."""
    lent_at: int = -LEND_MS
    """When one more than `max_parked` was last parked."""
    heard: int = 0
    """The number of the latest question that has been answered."""


def place_of(job: Job) -> TaskPlace:
    return TaskPlace(job.place, job.priority, job.slots)


def is_early(job: Job, asked: Any) -> bool:
    return (-job.priority, job.place) < (-asked.before_priority, asked.before)


class World:
    def __init__(
        self, slots: int, max_parked: int, module: Any = real_credit, kinds: Kinds = PLAIN
    ) -> None:
        self.module = module
        self.kinds = cycle(kinds)
        self.credit = module.Credit(slots, max_parked)
        self.slots, self.max_parked = slots, max_parked
        self.now = 1_000
        self.is_mixed = False
        """Whether some have had a priority, or needed several slots."""
        self.is_open = True
        self.jobs: list[Job] = []
        self.inbox: list[Any] = []
        """On the way to the store, in order."""
        self.answers: list[Answer] = []
        self.standing: Standing | None = None
        self.books = Books()
        self.look()

    # --- running -------------------------------------------------------------------------

    def play(self, events: "list[tuple[str, int]]") -> None:
        for name, number in events:
            self.now += number % 2
            getattr(self, name)(number)
            self.look()
            self.check()
        self.drain()

    def at(self, *places: str) -> list[Job]:
        return [job for job in self.jobs if job.at in places]

    def pick(self, jobs: list[Job], number: int) -> Job | None:
        return jobs[number % len(jobs)] if jobs else None

    # --- the worker's part, as `Worker` and `StandingTake` do it -------------------------

    def look(self) -> None:
        self.grant()
        earlier = self.credit.earlier()
        if earlier is not None:
            demand(earlier.oldest or self.head() is not None, "asks for nobody")
            self.check_before(earlier)
            demand(earlier.ahead == 0, "claims ahead beside what is older")
            demand(0 < earlier.free <= self.room(), "asks for more than there is room for")
            demand(self.is_open, "asks though it takes nothing")
            self.send_ask(earlier)
        wanted, standing = self.credit.offer(), self.standing
        if standing is None or (standing.offer.free == 0 and wanted.free > 0):
            self.tell()

    def check_before(self, ask: Any) -> None:
        head = self.head()
        wanted = (None, 0) if head is None else (head.place, head.priority)
        demand((ask.before, ask.before_priority) == wanted, "asks for the wrong ones")
        demand(self.is_turn_of_oldest() or not ask.oldest, "asks for the oldest out of turn")

    def is_turn_of_oldest(self) -> bool:
        return self.books.turns % EVERY == EVERY - 1

    def grant(self) -> None:
        before = self.room()
        granted = self.credit.grants()
        slots = sum(each.slots for each in granted)
        demand(slots <= max(0, before), "granted more than there was room for")
        for contender in granted:
            job = next((each for each in self.at("line") if each.contender is contender), None)
            demand(job is not None, "granted a slot to what did not stand in line")
            assert job is not None
            self.check_turn(job)
            self.books.turns += 1
            job.at = "held"

    def check_turn(self, granted: Job) -> None:
        """At most `slots` later ones are granted a slot before a task that the worker knows.

        Known is what stands in line, and what an answer has named as the first or the oldest left,
        from the hearing of that answer on. Later is who has a later turn: every eighth time, who
        has a later place. While the known one stands in line, or is ready in the store and tasks
        are taken at all (it is open), not one later contender is granted. While an answer to a
        question brings it, `slots` are, at most, in either order: another answer may overtake that
        one and say that it is gone. Not counted is its way in the answer to the standing take
        (nobody knows of that) and in a release; and what got lost with an answer is new when it
        comes back.
        """
        for job in self.at("line", "ready", "coming"):
            is_known = job.is_known or job.is_known_oldest
            if is_known and self.is_earlier(job, granted):
                is_coming = any(job in each.claims for each in self.answers if each.ask)
                is_meant = job.is_known_oldest if self.is_turn_of_oldest() else job.is_known
                job.passed += is_coming and is_meant
                most = self.slots * (1 + self.is_mixed)
                demand(job.passed <= most, f"passed by many: {job} by {granted}")
                is_here = job.at == "line" or (job.at == "ready" and self.is_open)
                demand(not is_here, f"passed: {job} by {granted}")

    def is_earlier(self, job: Job, granted: Job) -> bool:
        if job.at == "line":
            return (*self.turn(job), job.order) < (*self.turn(granted), granted.order)
        return self.turn(job) < self.turn(granted)

    def turn(self, job: Job) -> tuple[int, int]:
        return (0 if self.is_turn_of_oldest() else -job.priority, job.place)

    def tell(self) -> None:
        if self.standing is not None:
            self.standing.is_there = False
        self.standing = Standing(self.credit.offer())
        self.inbox.append(self.standing)

    def send_ask(self, ask: Any) -> None:
        self.books.asks.append(ask)
        self.inbox.append(ask)

    def ask(self, most: int, *, is_ahead: bool = True) -> None:
        """Rides on a report or on the start of a run, after `grants`."""
        self.grant()
        head, room = self.head(), self.room()
        free = max(0, min(most, room)) if self.is_open else 0
        ask = self.credit.ask(most, self.now if is_ahead else None)
        is_more = self.is_mixed and free < ask.free <= room and free > 0
        demand(ask.free == free or is_more, f"free {ask.free}, not {free}")
        ahead = self.ahead() if is_ahead and room <= ask.free else 0
        is_older = free > 0 and (head is not None or ask.oldest)
        if is_older:
            self.check_before(ask)
        else:
            demand(ask.before is None, "wrong before")
        demand(ask.ahead == (0 if is_older else ahead), f"ahead {ask.ahead}, not {ahead}")
        self.send_ask(ask)

    # --- events: the queue ---------------------------------------------------------------

    def arrive(self, number: int) -> None:
        """Some are older than others: they were given back elsewhere."""
        for _ in range(1 + number % 3):
            self.jobs.append(self.born(self.now - 5 * (number // 3)))

    def born(self, place: int) -> Job:
        priority, slots = next(self.kinds)
        self.is_mixed = self.is_mixed or (priority, slots) != PLAIN[0]
        return Job(place, priority, slots)

    def other(self, number: int) -> None:
        for job in self.in_turn()[: 1 + number % 2]:
            job.at = "gone"

    def serve(self, number: int) -> None:
        for _ in range(1 + number % 4):
            if self.inbox:
                self.served(self.inbox.pop(0))

    def served(self, sent: Any) -> None:
        if isinstance(sent, Standing):
            sent.is_there = sent is self.standing
        elif isinstance(sent, list):
            for job in sent:
                job.at = "ready"
        else:
            self.answers.append(self.taken(sent, sent))

    def wake(self, _: int = 0) -> None:
        """The store looks whether the standing take can be answered."""
        standing = self.standing
        if standing is None or not standing.is_there:
            return
        offer = standing.offer
        answer = self.taken(None, real_credit.Ask(offer.free, oldest=offer.oldest))
        take = Take("", "", "", (), 0, in_line=offer.in_line, left=offer.left, oldest=offer.oldest)
        if answer.claims or take.has_news(answer.first_place, answer.oldest_place):
            self.answers.append(answer)
            self.standing = None  # the worker asks anew when it hears; here: at once

    def taken(self, ask: Any, asked: Any) -> Answer:
        claims = self.oldest_for(asked) if asked.oldest else self.first_for(asked)
        for job in claims:
            job.at = "coming"
        return Answer(ask, claims, *(next(iter(each), None) for each in self.left()))

    def left(self) -> tuple[list[Job], list[Job]]:
        return self.in_turn(), self.oldest()

    def oldest_for(self, asked: Any) -> list[Job]:
        found = self.oldest()[:1]
        fits = [job for job in found if min(job.slots, self.slots) <= asked.free]
        return [job for job in fits if asked.before is None or job.place < asked.before]

    def first_for(self, asked: Any) -> list[Job]:
        """Nobody passes one that needs more than is free."""
        free, ahead, claims = asked.free, 0 if asked.before is not None else asked.ahead, []
        for job in self.in_turn():
            slots = min(job.slots, self.slots)
            if slots <= free and (asked.before is None or is_early(job, asked)):
                free -= slots
            else:
                free, ahead = 0, 0 if slots > 1 else ahead - 1
                if ahead < 0 or slots > 1:
                    break
            claims.append(job)
        return claims

    def in_turn(self) -> list[Job]:
        """In the order of turns; whatever is told of the oldest."""
        return sorted(self.at("ready"), key=lambda job: (-job.priority, job.place))

    def oldest(self) -> list[Job]:
        return sorted(self.at("ready"), key=lambda job: job.place)

    def hear(self, number: int) -> None:
        if self.answers:
            self.heard(self.answers.pop(number % len(self.answers)))

    def heard(self, answer: Answer) -> None:
        left = answer.first_place, answer.oldest_place
        if answer.ask is not None:
            self.books.asks.remove(answer.ask)
            self.credit.answered(answer.ask)
            self.credit.heard(*left, answer.ask)
            self.books.heard = max(self.books.heard, answer.ask.number)
        else:
            self.credit.heard(*left, self.module.NOTHING)
        if answer.left is not None and place_of(answer.left) == answer.first_place:
            answer.left.is_known = True
        if answer.oldest is not None and answer.oldest_place is not None:
            is_same = answer.oldest.place == answer.oldest_place.ready_at
            answer.oldest.is_known_oldest = answer.oldest.is_known_oldest or is_same
        for job in answer.claims:
            kind = {"priority": job.priority, "slots": job.slots}
            self.stand(job, job.place, self.module.Contender(**kind))

    def lose(self, number: int) -> None:
        """The answer never comes; the store finds out, and the tasks are ready again."""
        if not self.answers:
            return
        answer = self.answers.pop(number % len(self.answers))
        if answer.ask is not None:
            self.books.asks.remove(answer.ask)
            self.credit.answered(answer.ask)
        for job in answer.claims:
            job.at, job.place, job.passed = "ready", self.now, 0
            job.is_known = job.is_known_oldest = False

    def start_run(self, number: int) -> None:
        self.ask(number % 4, is_ahead=number > 3)

    def moment(self, _: int = 0) -> None:
        if self.standing is not None and self.standing.offer != self.credit.offer():
            self.tell()

    # --- events: contenders -------------------------------------------------------------------

    def stand(self, job: Job, place: int, contender: Any) -> None:
        self.books.orders += 1
        job.contender, job.place, job.order, job.joined_at = (
            contender,
            place,
            self.books.orders,
            self.now,
        )
        job.at, job.is_known, job.passed = "line", True, 0
        self.credit.join_line(contender, place, self.now)

    def call(self, _: int) -> None:
        job = Job(self.now, is_call=True)
        self.jobs.append(job)
        self.stand(job, self.now, self.module.Contender(is_call=True))

    def begin(self, number: int) -> None:
        """It was granted its slot, is loaded, and a call has been acquired."""
        job = self.pick([job for job in self.at("held") if not job.has_begun], number)
        if job is not None:
            self.begun(job)

    def begun(self, job: Job) -> None:
        job.has_begun = True
        self.books.begun.append(self.now)
        self.books.cooling = max(0, self.books.cooling - 1)
        self.credit.begin(job.contender, self.now)

    def drop(self, number: int) -> None:
        """A claim is taken away, a call is acquired by somebody else: before it has begun."""
        unbegun = [job for job in self.at("line", "held") if not job.has_begun]
        job = self.pick(unbegun, number)
        if job is not None:
            self.leave(job)

    def leave(self, job: Job) -> None:
        job.at = "gone"
        self.credit.leave(job.contender)

    def park(self, number: int) -> None:
        """At the limit the wait keeps its slot, or lends it."""
        job = self.pick([job for job in self.at("held") if job.has_begun], number)
        if job is None or (self.is_full() and not self.lend(job)):
            return
        demand(self.credit.park(job.contender) is not job.is_ending, "parked, or not, wrongly")
        if not job.is_ending:
            job.at = "parked"

    def lend(self, job: Job) -> bool:
        if job.is_ending:
            return False
        head = self.head()
        unused = self.slots - self.used()
        is_no_more = head is not None and head.has_begun and unused < self.needs(head)
        may = is_no_more or self.now - self.books.lent_at >= LEND_MS
        demand(self.credit.lend(self.now) is may, "lends its slot, or not, wrongly")
        if may and not is_no_more:
            self.books.lent_at = self.now
        return may

    def resume(self, number: int) -> None:
        job = self.pick(self.at("parked"), number)
        if job is not None:
            self.stand(job, self.now, job.contender)

    def step_back(self, number: int) -> None:
        """Its wait goes on after all."""
        jobs = [job for job in self.at("line", "held") if job.has_begun]
        job = self.pick(jobs, number)
        if job is not None:
            self.stepped_back(job)

    def stepped_back(self, job: Job) -> None:
        self.credit.step_back(job.contender)
        if not job.is_ending:
            job.at = "parked"

    def finish(self, number: int) -> None:
        """A body ends, however it does, and its report asks for the next task."""
        jobs = self.at("held", "ending") * 3 + self.at("parked", "line")
        job = self.pick([job for job in jobs if job.has_begun], number)
        if job is not None:
            self.leave(job)
            self.ask(1)

    def cancel(self, number: int) -> None:
        """Ended from outside; it cleans up for a while, and may try to wait."""
        job = self.pick([job for job in self.at("line", "held", "parked") if job.contender], number)
        if job is None:
            return
        self.credit.end(job.contender)
        job.is_ending = True
        if job.at in ("line", "parked"):
            job.at = "ending" if job.has_begun else "gone"
        elif not job.has_begun:
            self.leave(job)  # as the worker drops what has not begun
        if job.at != "gone" and number % 2:
            self.stepped_back(job)
            self.credit.join_line(job.contender, self.now, self.now)

    def burst(self, number: int) -> None:
        """Many short bodies, one after the other, on a slot that nobody else wants."""
        if self.room() <= 0 or self.at("line") or self.credit.oldest_left is not None:
            return
        for _ in range(5 + 9 * number):
            job = Job(self.now)
            self.jobs.append(job)
            self.stand(job, self.now, self.module.Contender())
            self.grant()
            demand(job.at == "held", "a slot that nobody wants is not granted")
            self.begun(job)
            self.leave(job)
        self.ask(1)
        self.jobs = [job for job in self.jobs if job.at != "gone"]

    # --- events: time --------------------------------------------------------------------

    def time(self, number: int) -> None:
        self.now += (1, 2, 5, 10, 19, 20, 24, 25)[number % 8]

    def second(self, number: int) -> None:
        self.now += LEND_MS - number % 2

    def give_back(self, _: int = 0) -> None:
        in_line = [job for job in self.at("line") if not (job.has_begun or job.is_call)]
        due = [job for job in in_line if self.now - job.joined_at >= IN_LINE_MS]
        found = self.credit.overdue(self.now)
        demand(
            {id(each) for each in found} == {id(job.contender) for job in due}, "wrong ones go back"
        )
        for job in due:
            job.at = "returning"
        if due:
            self.books.cooling = COOLING
            self.inbox.append(due)

    def close(self, _: int = 0) -> None:
        self.is_open = self.credit.is_open = False

    # --- the books -----------------------------------------------------------------------

    def needs(self, job: Job) -> int:
        return min(job.slots, self.slots)

    def used(self, *places: str) -> int:
        return sum(map(self.needs, self.at(*(places or ("held", "ending")))))

    def room(self) -> int:
        return self.slots - self.used() - sum(a.free for a in self.books.asks)

    def is_full(self) -> bool:
        return self.parked() >= self.max_parked

    def parked(self) -> int:
        return sum(job.has_begun for job in self.at("line", "parked", "ending"))

    def head(self) -> Job | None:
        in_line = self.at("line")
        return min(in_line, key=lambda job: (*self.turn(job), job.order), default=None)

    def ahead(self) -> int:
        """What may be claimed ahead now, whatever is on its way counted."""
        if self.books.cooling or not self.is_open:
            return 0
        recent = sum(self.now - each < RECENT_MS for each in self.books.begun)
        taken = len(self.at("line")) + sum(ask.ahead for ask in self.books.asks)
        return max(0, min(AHEAD, recent) - taken)

    def check(self) -> None:
        credit = self.credit
        claims = [job for job in self.at("line") if not (job.has_begun or job.is_call)]
        first = min((job.joined_at + IN_LINE_MS for job in claims), default=None)
        free = max(0, self.room() - self.used("line")) if self.is_open else 0
        mine = {
            "held": self.used("held"),
            "ending": self.used("ending"),
            "parked": self.parked(),
            "waiting": len(self.at("line")),
            "reserved": sum(ask.free for ask in self.books.asks),
            "reserved_ahead": sum(ask.ahead for ask in self.books.asks),
            "room": self.room(),
            "free": free,
            "overdue_at": first,
            "is_full": self.is_full(),
        }
        its = {name: getattr(credit, name) for name in mine}
        demand(its == mine, f"{its} instead of {mine}")
        offer = credit.offer()
        demand(offer.oldest or offer.free == free, "offers something else than what is free")
        demand(credit.held <= self.slots, "more bodies than slots")
        for job in self.jobs:
            stand = "out" if job.at == "gone" else job.at
            if job.contender is not None and job.at not in ("ready", "coming", "returning"):
                demand(
                    job.contender.slot_state.name.lower() == stand,
                    f"{job.contender.slot_state}, not {stand}",
                )
        self.check_offered()

    def check_offered(self) -> None:
        """No room that is offered to nobody; only an answer that was overtaken is waited for."""
        if self.credit.room <= 0:
            return
        head, left = self.head(), self.credit.next_left
        if self.is_turn_of_oldest():
            left = self.credit.oldest_left
        is_kept = left is not None and min(left.slots, self.slots) > self.credit.room
        if head is not None:
            is_kept = is_kept or self.needs(head) > self.credit.room
            is_right = is_kept or self.is_overtaken()
            demand(is_right, "a slot is free, and who stands in line has to wait")
        elif self.is_open:
            demand(self.credit.offer().free > 0, "a slot is free and offered to nobody")

    def is_overtaken(self) -> bool:
        """Whether a question is not answered that was asked before one that is."""
        bringing = [ask.number for ask in self.books.asks if ask.free or ask.ahead]
        return min(bringing, default=self.books.heard) < self.books.heard

    # --- the end -------------------------------------------------------------------------

    def settle(self, _: int = 0) -> None:
        """Everything on its way arrives: then nothing is left that has a slot, or is unheard."""
        for _ in range(500):
            if not self.arriving():
                break
        else:
            raise Broken("questions without end")
        ready, is_open = self.oldest(), self.is_open
        room = self.credit.room
        waiting = [*(ready if is_open else ()), *self.at("line")]
        first = min(waiting, key=lambda job: (*self.turn(job), job.at != "line"), default=None)
        demand(first is None or self.needs(first) > room, "ready, and its slots are free")
        demand(
            not (ready and is_open and self.at("line")) or self.credit.oldest_left is not None,
            "somebody stands in line, and nobody has heard of what is left",
        )

    def arriving(self) -> bool:
        """One turn of that; False when nothing was on its way."""
        self.look()
        self.moment()
        before = len(self.inbox) + len(self.answers)
        while self.inbox:
            self.served(self.inbox.pop(0))
        self.wake()
        is_busy = bool(self.answers)
        while self.answers:
            self.heard(self.answers.pop(0))
            self.look()
            self.check()
        return is_busy or before > 0

    def drain(self) -> None:
        """Bodies end one by one: then everybody has had a slot, and every number is 0."""
        for _ in range(20 + 8 * len(self.jobs)):
            if self.is_done():
                break
            self.drained()
        else:
            left = [job for job in self.jobs if job.at != "gone"]
            raise Broken(f"waits for ever: {left}")
        credit = self.credit
        numbers = (credit.held, credit.reserved, credit.reserved_ahead, credit.ending)
        demand((*numbers, credit.parked, credit.waiting) == (0,) * 6, "a number is not 0")
        demand(credit.room == self.slots, "a slot is missing")

    def is_done(self) -> bool:
        is_quiet = not (self.inbox and self.is_open) and not self.answers and not self.books.asks
        left = ("coming", "line", "held", "parked", "ending")
        return is_quiet and not self.at(*left, *(("ready", "returning") if self.is_open else ()))

    def drained(self) -> None:
        self.settle()
        self.now += 1
        self.give_back()
        while any(not job.has_begun for job in self.at("held")):
            self.begin(0)
        if self.at("held", "ending"):
            self.finish(0)
        else:
            self.resume(0)
        self.look()
        self.check()


EVENTS = (
    *("arrive", "arrive", "other", "serve", "serve", "wake", "hear", "hear", "lose"),
    *("start_run", "moment", "call", "begin", "begin", "drop", "park", "park", "resume"),
    *("resume", "step_back", "finish", "finish", "cancel", "burst", "time", "time"),
    *("give_back", "settle"),
)
CROWDED = (
    *("arrive", "other", "serve", "serve", "serve", "wake", "wake", "hear", "hear", "hear"),
    *("start_run", "moment", "call", "begin", "begin", "begin", "park", "park", "resume"),
    *("resume", "finish", "finish", "cancel", "time", "give_back"),
)
"""Where answers overtake each other, and the line is long."""
FULL = (
    *("arrive", "serve", "wake", "hear", "call", "begin", "begin", "park", "park", "park", "park"),
    *("resume", "finish", "second", "settle"),
)
"""Where more want to park than may."""


def schedule(random: Random) -> "tuple[int, int, list[tuple[str, int]]]":
    """Slots, max_parked and events, as chance has it."""
    slots, max_parked = random.choice((1, 1, 2, 3)), random.choice((1, 2, 50, 50))
    names = random.sample(EVENTS, random.randint(6, len(EVENTS)))
    if random.random() < 0.5:
        names, max_parked = random.sample(CROWDED, random.randint(16, len(CROWDED))), 50
    length = random.randint(10, 120)
    events = [(random.choice(names), random.randrange(8)) for _ in range(length)]
    if random.random() < 0.1:
        events.append(("close", 0))
    if random.random() < 0.3:
        max_parked = random.choice((1, 2))
        events = [(random.choice(FULL), random.randrange(8)) for _ in range(120)]
    return slots, max_parked, events
