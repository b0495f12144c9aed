"""Workers with limits, rates, weights, priorities, deaths and changes of limits, all together.

The engine and its store are real, and so is the `Credit` of each worker; bodies are entries in a
book. Time passes when told to. What must hold is checked against that book, after every event:

- no worker runs more than its slots, and no limit has more bodies or begins than it allows;
- what a dead worker held is free when its lease is over;
- when everything has come to rest, nothing waits that may begin and has a slot;
- of tasks with the same name and limits the oldest is let in first, whatever the priorities, and
  of those of one priority the oldest begins first; every eighth turn is that of the oldest of all.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from random import Random
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from layby.core import commands as c
from layby.core.invariants import check as violations
from layby.core.limit import Limit
from layby.core.model import Millis, Task
from layby.core.replies import Claim, TakeData
from layby.core.state import State
from layby.engine.items import Item
from layby.worker.credit import EVERY, NOTHING, Ask, Contender, Credit, Offer
from tests.helpers.begins import most_begins
from tests.helpers.worlds import Backend, World, resolve

NAMES = ("f", "g")
OWN = ("api", "db")
"""Limits that have numbers of their own."""
PATTERN = "t-*"
UNDER = ("t-1", "t-2")
"""Limits that have those of a pattern, until they get their own."""
LIMITS = (*OWN, *UNDER)
TTL: Millis = 6_000
BEAT: Millis = 2_000
STEP: Millis = 500
"""An engine that does not look for longer gives every lease more time."""
TOLD = '{"kind":"sleep","sentence":"sleeps"}'
At = Literal["ready", "line", "runs", "parked", "regains", "over"]
Event = tuple[str, int]


class Broken(AssertionError):
    """A property does not hold."""


def demand(holds: bool, why: str) -> None:
    if not holds:
        raise Broken(why)


class Job(Struct, eq=False):
    """A task, as its starter and its worker know it."""

    id: str
    name: str
    limits: tuple[str, ...]
    priority: int
    slots: int
    at: At = "ready"
    place: Millis = 0
    version: int = 0
    worker: "FleetWorker | None" = None
    contender: Contender | None = None
    is_ahead: bool = False
    regain_at: Millis = 0
    holds: set[str] = field(default_factory=set)
    """The limits of which it has a permit."""
    passed: dict[str, int] = field(default_factory=dict)
    """By process: begins while this was the oldest of all that might begin. A process that is
    started again counts its turns anew.
    """

    @property
    def lane(self) -> object:
        """Those with the same one are let in by age. A lane is one name's."""
        return (self.limits, self.name if self.limits else "")

    @property
    def turn(self) -> tuple[int, Millis]:
        return (-self.priority, self.place)


class FleetWorker:
    """One process: it takes, runs, parks and reports as a `Worker` does, but at once."""

    def __init__(self, fleet: "Fleet", pid: str, slots: int) -> None:
        self.fleet = fleet
        self.pid = pid
        self.slots = slots
        self.lives = 0
        self.begin_anew()

    def begin_anew(self) -> None:
        """The process is started, again or for the first time."""
        self.lives += 1
        self.is_alive = True
        self.credit = Credit(self.slots)
        self.heard_at = self.fleet.now
        self.standing: Offer | None = None
        self.asked: list[Future[Any]] = []
        self.begun: list[c.TaskVersion] = []

    @property
    def incarnation(self) -> str:
        return str(self.lives)

    @property
    def process(self) -> str:
        return f"{self.pid}/{self.incarnation}"

    def jobs(self, *at: At) -> list[Job]:
        return [job for job in self.fleet.jobs if job.worker is self and job.at in at]

    def needs(self, job: Job) -> int:
        return min(job.slots, self.slots)

    # --- takes ---------------------------------------------------------------------------

    def take(self, ask: Ask, wait_ms: int = 0, offer: Offer | None = None) -> c.Take:
        self.heard_at = self.fleet.now
        begun, self.begun = tuple(self.begun), []
        return c.Take(
            pid=self.pid,
            incarnation=self.incarnation,
            group="g",
            names=(*NAMES, "root"),
            free=ask.free,
            ttl=TTL,
            wait_ms=wait_ms,
            ahead=ask.ahead,
            before=ask.before,
            before_priority=ask.before_priority,
            oldest=ask.oldest,
            slots=self.slots,
            in_line=offer is not None and offer.in_line,
            left=None if offer is None else offer.left,
            begun=begun,
        )

    def dispatch(self) -> None:
        """Something has changed: begin or go on where it is somebody's turn, and ask for more."""
        while True:
            for contender in self.credit.grants():
                self._granted(self.fleet.by_contender[id(contender)])
            ask = self.credit.earlier()
            if ask is None:
                break
            self.answered(self.fleet.ok(self.take(ask)), ask)
        self._stand()

    def _stand(self) -> None:
        """Let the take that waits at the store offer what is free now."""
        offer = self.credit.offer()
        if self.standing == offer:
            return
        self.standing = offer
        take = self.take(Ask(offer.free, oldest=offer.oldest), 10**9, offer)
        self.asked.append(self.fleet.submit(take))

    @property
    def is_told(self) -> bool:
        return any(each.done() for each in self.asked)

    def look(self) -> bool:
        """Whether the store has told something since."""
        done = [each for each in self.asked if each.done()]
        for future in done:
            is_latest = future is self.asked[-1]
            self.asked.remove(future)
            self.standing = None if is_latest else self.standing
            data = future.result().data
            if isinstance(data, TakeData) and (is_latest or data.claims):
                self._accept(data, NOTHING)
        if done and self.is_alive:
            self.dispatch()
        return bool(done)

    def answered(self, data: Any, ask: Ask) -> None:
        self.credit.answered(ask)
        self._accept(data if isinstance(data, TakeData) else data.taken, ask)

    def _accept(self, data: TakeData, ask: Ask) -> None:
        if data.again:
            self.credit.heard_in_part(ask)
        else:
            self.credit.heard(data.next_place, data.oldest_place, ask)
        nodes = [claim for claim in data.claims if claim.task.kind == "node"]
        for claim in nodes:
            self._arrive(self.fleet.by_id[claim.task.id], claim)
        for claim in nodes:
            self.fleet.check_order(self.fleet.by_id[claim.task.id])

    def _arrive(self, job: Job, claim: Claim) -> None:
        self.heard_at = max(self.heard_at, self.fleet.now)
        job.worker, job.version, job.place = self, claim.task.version, claim.ready_at
        job.is_ahead = claim.task.ahead
        job.contender = Contender(priority=job.priority, slots=job.slots)
        self.fleet.by_contender[id(job.contender)] = job
        if not claim.task.ahead:
            self.fleet.began_under_limits(job)
        job.at = "line"
        self.credit.join_line(job.contender, claim.ready_at, self.fleet.now)

    def _granted(self, job: Job) -> None:
        assert job.contender is not None
        self.fleet.count_turn(self, job)
        is_new = not job.contender.has_begun
        job.at = "runs"
        if is_new:
            self.credit.begin(job.contender, self.fleet.now)
        if is_new and job.is_ahead:
            self.begun.append(c.TaskVersion(job.id, job.version))
        elif not is_new:
            self.fleet.ok(c.AnnotateTask(id=job.id, version=job.version))

    # --- bodies --------------------------------------------------------------------------

    def report(self, job: Job, retry_in: Millis | None = None) -> None:
        """Its body has ended, or failed and is tried again."""
        assert job.contender is not None
        self.credit.leave(job.contender)
        job.at, job.holds = "over" if retry_in is None else "ready", set()
        ask = self.credit.ask(1, self.fleet.now)
        verdict = c.RootVerdict("resolved", c.NOTHING)
        report: c.Command = c.FinishTask(
            id=job.id, version=job.version, take=self.take(ask), root=verdict
        )
        if retry_in is not None:
            report = c.FailTask(
                id=job.id, version=job.version, retry_in=retry_in, take=self.take(ask)
            )
        job.worker = None
        self.answered(self.fleet.ok(report), ask)

    def park(self, job: Job) -> None:
        assert job.contender is not None
        parked = c.AnnotateTask(
            id=job.id, version=job.version, sub_status="Deferred", waiting_on=TOLD
        )
        self.fleet.ok(parked)
        demand(self.credit.park(job.contender), "a body may not park")
        job.at = "parked"
        job.holds = {name for name in job.holds if self.fleet.rules[name].count_parked}

    def go_on(self, job: Job) -> None:
        """What it waited for is there: with its permits, it stands in line for its slots."""
        if job.limits:
            job.regain_at = max(self.fleet.now, job.regain_at + 1)
            regain = c.RegainPermits(id=job.id, version=job.version, place=job.regain_at)
            promise = self.fleet.ok(regain).promise
            if promise is not None:
                job.at = "regains"
                return
        self.regained(job)

    def regained(self, job: Job) -> None:
        assert job.contender is not None
        job.at, job.place = "line", self.fleet.now
        got, job.holds = set(job.limits) - job.holds, set(job.limits)
        self.fleet.check_permits(got)
        self.credit.join_line(job.contender, self.fleet.now, self.fleet.now)

    def give_back(self) -> None:
        """Claims ahead that have waited too long for their slots: all of them in one step."""
        released = list[c.Released]()
        for contender in self.credit.overdue(self.fleet.now):
            job = self.fleet.by_contender[id(contender)]
            released.append(c.Released(job.id, job.version, ready_at=job.place, begun=False))
            job.at, job.worker, job.holds = "ready", None, set()
        if released:
            self.fleet.ok(
                c.ReleaseTasks(pid=self.pid, incarnation=self.incarnation, tasks=tuple(released))
            )

    def beat(self) -> None:
        self.fleet.ok(c.HeartbeatWorker(pid=self.pid, incarnation=self.incarnation))
        self.heard_at = self.fleet.now


class Fleet:
    """All of them, one store, and the book of what has happened."""

    def __init__(self, sizes: tuple[int, ...], backend: Backend = "memory") -> None:
        self.world = World(backend, paused=False, now=1_000_000)
        self._read: tuple[int, State] | None = None
        self._checked = (-1, 0)
        self.jobs: list[Job] = []
        self.by_id: dict[str, Job] = {}
        self.by_contender: dict[int, Job] = {}
        self.begins: defaultdict[str, list[tuple[Millis, int]]] = defaultdict(list)
        """By limit: when, and by which of its rules."""
        self.rules: dict[str, Limit] = {}
        self.changes: defaultdict[str, list[Limit]] = defaultdict(list)
        """By limit: whose numbers counted for it, one after the other."""
        self.defined: dict[str, Limit] = {}
        for name in ("api", "db", PATTERN):
            self._define(name, concurrency=1, count_parked=name == "db")
        self.workers = [FleetWorker(self, f"w{at}", size) for at, size in enumerate(sizes)]

    @property
    def now(self) -> Millis:
        return self.world.now

    @property
    def state(self) -> State:
        """What is in the store; read once for each commit."""
        commits = self.world.engine.commits
        if self._read is None or self._read[0] != commits:
            self._read = (commits, self.world.dump())
        return self._read[1]

    @property
    def alive(self) -> list[FleetWorker]:
        return [worker for worker in self.workers if worker.is_alive]

    def play(self, events: list[Event]) -> None:
        try:
            for worker in self.workers:
                worker.dispatch()
            for name, number in events:
                getattr(self, f"on_{name}")(number)
                self.rest()
            self.drain()
        finally:
            self.world.engine.stop()

    # --- what happens --------------------------------------------------------------------

    def on_start(self, number: int) -> None:
        self._start(number, ((), ("api",), ("api",), ("db",), ("api", "db"))[number % 5])

    def on_start_under(self, number: int) -> None:
        self._start(number, (("t-1",), ("t-1",), ("t-2",), ("t-1", "api"), ("t-1",))[number % 5])

    def _start(self, number: int, limits: tuple[str, ...]) -> None:
        for at in range(1 + number % 3):
            job_id = f"run/{len(self.jobs):03}"
            priority, slots = (0, 0, 0, 1, -1, 5)[number % 6], (1, 1, 1, 2, 3)[(number + at) % 5]
            job = Job(f"{job_id}:a", NAMES[number % 2], limits, priority, slots, place=self.now)
            node = c.Node(id="a", name=job.name, limits=limits, priority=priority, slots=slots)
            self.jobs.append(job)
            self.by_id[job.id] = job
            self.ok(c.StartRun(id=job_id, name="root", group="g", nodes=(node,)))
            self.rest()
            self._pass(1)

    def on_finish(self, number: int) -> None:
        self._end(number, None)

    def on_fail(self, number: int) -> None:
        self._end(number, (0, 300, 2_000)[number % 3])

    def _end(self, number: int, retry_in: Millis | None) -> None:
        job = self._pick("runs", number)
        if job is not None and job.worker is not None:
            job.worker.report(job, retry_in)

    def on_park(self, number: int) -> None:
        job = self._pick("runs", number)
        if job is not None and job.worker is not None:
            job.worker.park(job)

    def on_go_on(self, number: int) -> None:
        job = self._pick("parked", number)
        if job is not None and job.worker is not None:
            job.worker.go_on(job)

    def on_time(self, number: int) -> None:
        self._pass((1, 20, 30, 300, 1_000, 2_500, 7_000)[number % 7])

    def on_die(self, number: int) -> None:
        """Killed: nothing more is heard from it. One at least goes on."""
        if len(self.alive) > 1:
            self.alive[number % len(self.alive)].is_alive = False

    def on_revive(self, number: int) -> None:
        dead = [worker for worker in self.workers if not worker.is_alive]
        if dead:
            worker = dead[number % len(dead)]
            self._lose(worker)
            worker.begin_anew()
            worker.dispatch()

    def on_define(self, number: int) -> None:
        name = ("api", "db")[number % 2]
        self._redefine(name, number, count_parked=name == "db")

    def on_define_pattern(self, number: int) -> None:
        self._redefine(PATTERN, number, count_parked=number % 4 == 1)

    def on_define_under(self, number: int) -> None:
        """A limit gets its own numbers, or those of the pattern count for it again."""
        if "t-1" in self.defined and number % 2:
            del self.defined["t-1"]
            self._note_changes()
            self.ok(c.DeleteLimit(name="t-1"))
        else:
            self._redefine("t-1", number, count_parked=number % 3 == 0)

    def on_define_often(self, number: int) -> None:
        """Several changes in a row, and at the end the first numbers again."""
        name, before = ("api", PATTERN)[number % 2], self.defined[("api", PATTERN)[number % 2]]
        for at in range(1 + number % 3):
            self._redefine(name, number + 7 * at + 1, count_parked=before.count_parked)
            self.rest()
            self._pass(number % 4)
        self._apply(before)

    def on_burst(self, number: int) -> None:
        """As many begin at once as may, as far as there are slots; then the rate changes."""
        name, under = (("api", "api"), (PATTERN, "t-1"), (PATTERN, "t-1"))[number % 3]
        is_counted = self.defined[name].count_parked
        self._define(name, None, ("3/s", "1/s")[number % 2], 3, count_parked=is_counted)
        self._start(number, (under,))
        self._start(number + 1, (under,))
        for at in range(1 + number % 2):
            rate, burst = (("20/min", 3), ("20/min", 1), ("1/s", 2))[(number // 3 + at) % 3]
            self._define(name, None, rate, burst, count_parked=is_counted)
            self.rest()
        if number % 4 < 2:
            self._define(name, None, "3/s", 3, count_parked=is_counted)

    def on_recount(self, number: int) -> None:
        """Parked bodies count from now on, or no longer."""
        before = self.defined[("api", "db", PATTERN)[number % 3]]
        self._apply(replace(before, count_parked=not before.count_parked))

    def _redefine(self, name: str, number: int, *, count_parked: bool) -> None:
        rate = (None, None, "1/s", "3/s", "20/min")[number % 5]
        concurrency = (1, 2, 3, 0, 4, None)[number % 6]
        if rate is None and concurrency is None:
            concurrency = 2
        burst = 1 if rate is None else 1 + number % 3
        self._define(name, concurrency, rate, burst, count_parked=count_parked)

    def _define(
        self,
        name: str,
        concurrency: int | None,
        rate: str | None = None,
        burst: int = 1,
        *,
        count_parked: bool,
    ) -> None:
        self._apply(
            Limit(
                name,
                defined=True,
                pattern=name == PATTERN,
                concurrency=concurrency,
                rate=rate,
                burst=burst,
                count_parked=count_parked,
            )
        )

    def _apply(self, limit: Limit) -> None:
        self.defined[limit.name] = limit
        self._note_changes()
        self.ok(
            c.SetLimit(
                name=limit.name,
                concurrency=limit.concurrency,
                rate=limit.rate,
                burst=limit.burst,
                count_parked=limit.count_parked,
            )
        )

    def _note_changes(self) -> None:
        """What counts for each limit from now on. Parked bodies that no longer count give their
        permits up; those that count from now on have none yet.
        """
        for name in LIMITS:
            rule = self.defined.get(name) or self.defined.get(PATTERN)
            if rule is None or self.rules.get(name) == rule:
                continue
            self.rules[name] = rule
            self.changes[name].append(rule)
            for job in self.jobs if not rule.count_parked else ():
                if job.at in ("parked", "regains"):
                    job.holds.discard(name)

    def _pick(self, at: At, number: int) -> Job | None:
        found = [job for worker in self.alive for job in worker.jobs(at)]
        return found[number % len(found)] if found else None

    # --- time ----------------------------------------------------------------------------

    def _pass(self, by: Millis) -> None:
        """From one instant at which something is due to the next."""
        end = self.now + by
        while self.now < end:
            due = [at for at in self._instants() if self.now < at < end]
            due.append(self.now + STEP)
            self.world.clock.advance(min(*due, end) - self.now)
            for worker in self.alive:
                if self.now - worker.heard_at >= BEAT:
                    worker.beat()
                worker.give_back()
            self.world.engine.pump()
            self.rest()

    def _instants(self) -> Iterator[Millis]:
        state = self.state
        yield from (each.next_at for each in state.limits.values() if each.next_at is not None)
        yield from (each.expires_at for each in state.holders.values() if each.is_alive)
        for task in state.tasks.values():
            yield task.ready_at or 0
        for worker in self.alive:
            yield worker.heard_at + BEAT
            yield worker.credit.overdue_at or 0

    def _lose(self, worker: FleetWorker) -> None:
        for job in worker.jobs("line", "runs", "parked", "regains"):
            job.at, job.worker, job.holds = "ready", None, set()

    # --- the store -----------------------------------------------------------------------

    def ok(self, command: c.Command) -> Any:
        return self.world.ok(command)

    def submit(self, take: c.Take) -> "Future[Any]":
        future: Future[Any] = Future()
        self.world.engine.submit([Item(take, resolve, future)])
        self.world.engine.pump()
        return future

    # --- the book ------------------------------------------------------------------------

    def users(self, name: str) -> list[Job]:
        """Whoever has a permit, as far as the book knows."""
        return [job for job in self.jobs if name in job.holds]

    def began_under_limits(self, job: Job) -> None:
        job.at, job.holds = "runs", set(job.limits)
        for name in job.limits:
            self.begins[name].append((self.now, len(self.changes[name]) - 1))
            self.check_rate(name)
        self.check_permits(job.limits)

    def check_rate(self, name: str) -> None:
        """Not one too many has begun in any window that ends now, by the largest rate and the
        largest burst of those that counted in it.
        """
        changes = self.changes[name]
        for count, (since, rule) in enumerate(reversed(self.begins[name]), start=1):
            most = most_begins(changes[rule:], self.now - since)
            if most is None:
                return
            demand(count <= most, f"{count} begins since {since} under {changes[rule:]}")

    def check_permits(self, got: Iterable[str]) -> None:
        """Whoever has got permits of these just now was not one too many."""
        for name in got:
            most, users = self.rules[name].concurrency, self.users(name)
            demand(most is None or len(users) <= most, f"{len(users)} under {self.rules[name]}")

    def check_order(self, job: Job) -> None:
        """None of its lane that is older, with as high a priority, is still in the store."""
        for other in self.jobs:
            has_turn = other.at == "ready" and other.priority >= job.priority
            if has_turn and other.lane == job.lane and other is not job:
                place = _place_of(self.state.tasks[other.id])
                is_older = place is not None and place < job.place
                demand(not is_older, f"{job.id} has passed {other.id}")

    def check_lanes(self, state: State) -> None:
        """Of each name as many of the oldest as may begin under their limits were let in, before
        any younger ones with the same limits: whatever the priorities, which decide among those.
        """
        ahead = defaultdict[tuple[str, str], int](int)
        last = defaultdict[object, Millis](Millis)
        waiting = [(_place_of(state.tasks[job.id]), job) for job in self.jobs if job.at == "ready"]
        placed = [(place, job) for place, job in waiting if place is not None and job.limits]
        by_age = [
            (place, job)
            for place, job in sorted(placed, key=_first)
            if place <= self.now and self._free(job.limits, state) > 0
        ]
        for place, job in by_age:
            if state.tasks[job.id].gate is None:
                last[job.lane] = place
        for place, job in by_age:
            lanes = [(name, job.name) for name in job.limits]
            is_next = all(ahead[lane] < self._free(lane[:1], state) for lane in lanes)
            is_passed = state.tasks[job.id].gate is not None and place < last[job.lane]
            demand(not (is_next and is_passed), f"younger ones were let in before {job.id}")
            for lane in lanes:
                ahead[lane] += 1

    def _free(self, limits: Iterable[str], state: State) -> int:
        """How many with these limits may begin now."""
        free = len(self.jobs)
        for name in limits:
            rule, stored = self.rules[name], state.limits.get(name)
            most = free if rule.concurrency is None else rule.concurrency - len(self.users(name))
            free = min(free, most, rule.free_begins(stored or Limit(name), self.now))
        return max(0, free)

    def count_turn(self, worker: FleetWorker, job: Job) -> None:
        """Every eighth turn is that of the oldest: nobody passes it more often than that."""
        waiting = [each for each in self._may_begin(worker) if each is not job]
        oldest = min(waiting, key=lambda each: (each.place, each.id), default=None)
        for each in self.jobs:
            if each is not oldest or each.place >= job.place:
                each.passed.pop(worker.process, None)
        if oldest is not None and oldest.place < job.place:
            passed = oldest.passed[worker.process] = oldest.passed.get(worker.process, 0) + 1
            demand(passed < EVERY, f"{oldest.id} was passed {passed} times")

    def _may_begin(self, worker: FleetWorker) -> list[Job]:
        """Whoever lacks nothing but slots of this worker. In a lane the turn is that of the oldest,
        whatever the priorities: so of those behind a gate, only if nobody else may begin.
        """
        state = self.state
        shown, gated = worker.jobs("line"), list[Job]()
        for job in (job for job in self.jobs if job.at == "ready"):
            task = state.tasks[job.id]
            place = _place_of(task)
            if place is None or place > self.now:
                continue
            job.place = place
            if self._free(job.limits, state) > 0:
                (shown if task.gate is None else gated).append(job)
        return shown or gated

    # --- when everything has come to rest ------------------------------------------------

    def rest(self) -> None:
        for _ in range(200):
            self._hear_of_losses()
            moved = [worker.look() for worker in self.workers]
            moved += [self._hear_regained(job) for job in self.jobs if job.at == "regains"]
            for worker in self.alive:
                worker.dispatch()
            if not any(moved) and not any(worker.is_told for worker in self.workers):
                break
        else:
            raise Broken("questions without end")
        self.check()

    def _hear_regained(self, job: Job) -> bool:
        """As its worker does that watches the promise. One that is dead has the permit as well,
        until its lease is over.
        """
        worker = job.worker
        if worker is None:
            return False
        task = self.state.tasks[job.id]
        if task.gate is not None or set(task.permit_names) != set(job.limits):
            return False
        worker.regained(job)
        return True

    def _hear_of_losses(self) -> None:
        """Of the dead whose lease is over."""
        holders = self.state.holders
        for worker in (each for each in self.workers if not each.is_alive):
            holder = holders.get((worker.pid, worker.incarnation))
            if holder is None or not holder.is_alive:
                self._lose(worker)

    def check(self) -> None:
        state = self.state
        if self._checked != (self.world.engine.commits, self.now):
            self._checked = (self.world.engine.commits, self.now)
            demand(not (wrong := violations(state, self.now)), f"{wrong}")
        for worker in self.workers:
            used = sum(worker.needs(job) for job in worker.jobs("runs"))
            demand(used <= worker.slots, f"{worker.pid} uses {used} of {worker.slots} slots")
            if not worker.is_alive and self.now >= worker.heard_at + TTL:
                held = [
                    task.id
                    for task in state.tasks.values()
                    if task.permits and (task.pid, task.holder) == (worker.pid, worker.incarnation)
                ]
                demand(not held, f"{worker.pid} is dead, and has permits of {held}")
        self._check_holders(state)
        self.check_lanes(state)
        for worker in self.alive:
            self._check_nothing_waits(worker)
        for job in self.jobs:
            if job.at == "regains" and job.worker is not None and job.worker.is_alive:
                held = state.tasks[job.id].permit_names
                missing = [name for name in job.limits if name not in held]
                is_short = any(self._is_full(name) for name in missing)
                demand(is_short, f"{job.id} waits for permits that are free")

    def _check_holders(self, state: State) -> None:
        """Whoever runs has its permits, and those who have one are those in the book."""
        for job in self.jobs:
            held = set(state.tasks[job.id].permit_names)
            demand(held == job.holds, f"{job.id} is {job.at}, has {held}, not {job.holds}")

    def _is_full(self, name: str) -> bool:
        most = self.rules[name].concurrency
        return most is not None and len(self.users(name)) >= most

    def _check_nothing_waits(self, worker: FleetWorker) -> None:
        waiting, room = self._may_begin(worker), worker.credit.room
        if not waiting or room <= 0:
            return
        first = min(job.turn for job in waiting)
        oldest = min(job.place for job in waiting)
        next_ones = [job for job in waiting if job.turn == first or job.place == oldest]
        fits = all(worker.needs(job) <= room for job in next_ones)
        demand(not fits, f"{next_ones[0].id} waits, and {worker.pid} has {room} free")

    # --- the end -------------------------------------------------------------------------

    def drain(self) -> None:
        """With room for all, everything ends."""
        for name in ("api", "db", *self.defined.keys() - set(OWN)):
            self._define(name, concurrency=4, count_parked=name == "db")
            self.rest()
        for _ in self.workers:
            self.on_revive(0)
            self.rest()
        for _ in range(8 * len(self.jobs) + 40):
            if all(job.at == "over" for job in self.jobs):
                return
            self.on_finish(0)
            self.rest()
            self.on_go_on(0)
            self.rest()
            if not any(job.at == "runs" for job in self.jobs):
                self._pass(500)
        left = [(job.id, job.at) for job in self.jobs if job.at != "over"]
        raise Broken(f"does not end: {left}")


def _place_of(task: Task) -> Millis | None:
    if task.state != "pending":
        return None
    return task.ready_at if task.gate is None else task.gate_at


def _first(pair: tuple[Millis, Job]) -> Millis:
    return pair[0]


EVENTS = (
    *("start",) * 5,
    *("finish",) * 5,
    *("fail", "park", "park", "go_on", "go_on", "time", "time", "time"),
    *("die", "revive", "define", "define"),
)
MORE_EVENTS = (
    *EVENTS,
    *("start_under",) * 5,
    *("define_pattern", "define_pattern", "define_under", "define_often", "define_often"),
    *("recount", "recount", "burst", "burst"),
)
"""With limits under a pattern, several changes in a row and changes of what counts as running."""


def schedule(
    random: Random, events: Sequence[str] = MORE_EVENTS
) -> tuple[tuple[int, ...], list[Event]]:
    """Sizes of workers, and events, as chance has it."""
    sizes = tuple(random.choice((1, 2, 3)) for _ in range(random.choice((1, 2, 3))))
    length = random.randint(10, 60)
    return sizes, [(random.choice(events), random.randrange(60)) for _ in range(length)]
