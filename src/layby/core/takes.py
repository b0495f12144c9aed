"""Handing out ready tasks: to free slots, and some ahead of slots that will soon be free.

Those of higher priority are handed out first, and of these the oldest; what this very step made
ready only comes first among equals. A take may also ask for the oldest of all. A task that needs
more slots than are free is left, and so is everything after it: slots become free for it.
Roots need a lease but no slot, so they come on top of what there is room for.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Final

from msgspec import Meta

from layby.core import permits, validate
from layby.core.draft import Draft
from layby.core.fields import MAX_CLAIMS, MAX_NAMES, Int64
from layby.core.footprint import Footprint
from layby.core.ids import life_root_of
from layby.core.kinds import Command, Ids, Problems, Sender, declare, handles
from layby.core.model import Codes, HeldKey, Holder, Millis, Promise, Task, later
from layby.core.queue import (
    Entry,
    Queue,
    TakeKey,
    TaskPlace,
    Turn,
    by_age,
    entry_of,
    is_early,
    is_for,
    place_of,
)
from layby.core.replies import Claim, Reply, TakeData, ok, refuse
from layby.core.tasks import TaskVersion, resumed

MAX_FREE: Final = 100_000
MAX_AHEAD: Final = 64
RETRY_REFUSED_MS: Final[Millis] = 100
"""A worker is handed a task that other code has refused at most once in this time."""
CONTENDED_MS: Final[Millis] = 5
"""When a take looks again that found tasks which another process was about to change."""
MAX_ROOT_PARAM: Final = 4_096
"""Characters of a root's param that come with a claim."""


@declare("layby.worker.take", sender=Sender.WORKER, answer=TakeData, unqueues=False)
class Take(Command, frozen=True):
    """Register or renew the holder and hand it up to `free` ready tasks, already acquired.

    With `wait_ms` the engine keeps the request until something is ready for it.
    """

    pid: str
    incarnation: str
    group: str
    names: Annotated[tuple[str, ...], Meta(max_length=MAX_NAMES)]
    free: Int64
    ttl: Int64 = 60_000
    embedded: bool = False
    wait_ms: Int64 = 0
    prefix: str = ""
    """Only ids with this prefix: what the caller's token allows."""
    ahead: Int64 = 0
    """How many more to acquire without beginning them, of those nobody has a slot for."""
    before: Int64 | None = None
    """Only nodes that were ready before this instant, and none ahead."""
    before_priority: Int64 = 0
    """With `before`: nodes of a higher priority too, however young; of a lower one, none."""
    oldest: bool = False
    """Only the oldest node of all, whatever its priority, if it was ready `before`; none ahead."""
    slots: Int64 = 0
    """How many slots this worker has: a node that needs more than that needs all of them.

    0 if it does not say.
    """
    in_line: bool = False
    """Somebody is in line at this worker: it wants to hear of nodes that are left."""
    left: TaskPlace | None = None
    """With `in_line`: what it knows to be left. It wants to hear of what comes before that; and if
    that needs several slots, which are kept for it, that it is gone.
    """
    begun: Annotated[tuple[TaskVersion, ...], Meta(max_length=MAX_CLAIMS)] = ()
    """Claims that were ahead, and whose bodies run now."""
    codes: Annotated[Codes, Meta(max_length=MAX_NAMES)] = ()
    """Names of the codes it has for its workflows, so that it is not handed what they refused."""
    renews: bool = True
    """Whether its sender has just been heard. Not if it has waited in the engine meanwhile: then it
    does not renew the lease of a process that may be dead by now.
    """

    def footprint(self, into: Footprint) -> None:
        into.pids.add(self.pid)
        into.ids.update(claim.id for claim in self.begun)
        into.expect(self.key, max(0, self.free), max(0, self.ahead), oldest=self.oldest)
        into.root_params = into.root_params or not self.embedded

    @property
    def asks(self) -> "Take":
        return self

    @property
    def holder(self) -> HeldKey:
        return (self.pid, self.incarnation)

    @property
    def key(self) -> TakeKey:
        return (self.group, self.names, self.prefix, self.codes)

    @property
    def first_not(self) -> Turn | None:
        """The first turn that is too late for it, unless it asks for the oldest."""
        return None if self.before is None else (-self.before_priority, self.before)

    def slots_for(self, task: Task) -> int:
        return min(task.slots, self.slots) if self.slots > 0 else task.slots

    def has_news(self, left: TaskPlace | None, oldest: TaskPlace | None) -> bool:
        """Whether it is to be told what is left now."""
        if not self.in_line or self.left is None:
            return self.in_line and left is not None
        first = oldest if self.oldest else left
        if first is not None and self._is_earlier(first, self.left):
            return True
        return self.left.slots > 1 and first != self.left

    def _is_earlier(self, place: TaskPlace, other: TaskPlace) -> bool:
        """In the order that it asks in."""
        if self.oldest:
            return place.ready_at < other.ready_at
        return place.turn < other.turn

    def named_ids(self) -> Ids:
        return (claim.id for claim in self.begun)

    def problems(self) -> Problems:
        yield from _taker_problems(self.pid, self.incarnation, self.ttl, self.group)
        yield from validate.names(self.names)
        if not 0 <= self.free <= MAX_FREE:
            yield f"free must be between 0 and {MAX_FREE}"
        if not 0 <= self.ahead <= MAX_AHEAD:
            yield f"ahead must be between 0 and {MAX_AHEAD}"
        yield from validate.claims(self.begun)
        yield from validate.codes(self.codes)


@lru_cache(maxsize=256)
def _taker_problems(pid: str, incarnation: str, ttl: Millis, group: str) -> Sequence[str]:
    """Every take of a worker says the same of it: that is checked once."""
    return (
        *validate.claim(pid, ttl),
        *validate.identifier(incarnation, "Incarnation"),
        *validate.group(group),
    )


@handles(Take)
def take(d: Draft, c: Take) -> Reply:
    holder = _registered(d, c)
    if d.holder(c.pid, c.incarnation) is None:
        return refuse(409, f"Holder '{c.pid}' {PID_IN_USE}")
    if not holder.is_alive:
        return gone(d, c.pid, c.incarnation)
    return ok(_take(d, c, holder, replaced=c.holder))


def take_next(d: Draft, c: Take | None) -> TakeData:
    """The take that another command carries."""
    if c is None:
        return TakeData()
    holder = _registered(d, c)
    return _take(d, c, holder, replaced=None) if holder.is_alive else TakeData()


PID_IN_USE: Final = (
    "cannot register: another living process uses the same pid, and this token may not end it. "
    "Give each worker a pid of its own, or wait until the other's lease is over"
)


def gone(d: Draft, pid: str, incarnation: str) -> Reply:
    """Says what became of it, and names no incarnation: that is a worker's proof of identity."""
    return refuse(409, f"Holder '{pid}' {_why_gone(d, pid, incarnation)}")


def _why_gone(d: Draft, pid: str, incarnation: str) -> str:
    holder = d.holder(pid, incarnation)
    others = [each for each in d.holders_of(pid) if each.is_alive]
    again = "drop its tasks and register a new incarnation"
    if others:
        return (
            "was replaced: another process has registered with the same pid. Give each worker a "
            f"pid of its own; if the other one is its successor, stop this one, or {again}"
        )
    if holder is None:
        return f"is not known here: it has not registered, or the store is another one; {again}"
    if holder.standing == "left":
        return f"is gone: it has left; {again}"
    return (
        f"is gone: nothing was heard from it for the length of its lease, {holder.ttl / 1000:g} s, "
        f"so its tasks are free for others; {again}"
    )


def _take(d: Draft, c: Take, holder: Holder, replaced: HeldKey | None) -> TakeData:
    for claim in c.begun:
        _begin(d, holder, claim)
    hand = _Hand(d, c, holder)
    hand.give_nodes(d.rows.spoken_for(c.key, replaced) if c.ahead > 0 else 0)
    hand.give_roots()
    return hand.data()


def _begin(d: Draft, holder: Holder, claim: TaskVersion) -> None:
    task = d.task(claim.id)
    if task is None or not task.ahead:
        return
    if task.is_claim_of(holder.pid, holder.incarnation, claim.version):
        d.put_task(task.begun())


class _Hand:
    """What one take is given."""

    def __init__(self, d: Draft, c: Take, holder: Holder) -> None:
        self.claims: list[Claim] = []
        self.again = False
        self.left: TaskPlace | None = None
        """Of those left, the one whose turn is first."""
        self.look_at: Millis | None = None
        """When it may try the next task that other code has refused; None if there is none."""
        self._d = d
        self._c = c
        self._holder = holder
        self._ready = d.rows.ready[c.key]
        self._own = _readied(d) if d.readied else ()

    def data(self) -> TakeData:
        left = self.left
        if left is None:
            return TakeData(self.claims, self.again, None, self.look_at)
        oldest = self._oldest_left(left)
        is_plain = left == TaskPlace(oldest.ready_at)
        return TakeData(
            self.claims,
            self.again,
            oldest.ready_at,
            self.look_at,
            oldest.slots if oldest.slots > 1 else None,
            None if is_plain else left,
        )

    def give_nodes(self, spoken_for: int) -> None:
        """Fill its free slots first; ahead, only what is left once all with room are served."""
        if self._c.oldest:
            self._give_oldest()
            free, ahead = 0, 0
        else:
            free, ahead = self._c.free, 0 if self._c.before is not None else self._c.ahead
        before = self._c.first_not
        queue = self._ready.nodes
        for ready_at, task, promise in self._usable(queue, is_root=False):
            slots = self._c.slots_for(task)
            has_room = slots <= free and is_early((-task.priority, ready_at), before)
            if not self._is_permitted(task):
                continue
            if has_room:
                free -= slots
                self._give(ready_at, task, promise)
                continue
            free = 0
            if slots > 1:
                ahead = 0  # it needs slots that are kept for it
            if spoken_for > 0 or ahead == 0 or task.limits is not None:
                spoken_for -= 1
                self.left = place_of(task) if self.left is None else self.left
            else:
                ahead -= 1
                self._give(ready_at, task, promise, ahead=True)
            if ahead == 0 and self.left is not None:
                return
        if self.left is None or not queue.is_cut:
            self._ran_out(queue)  # else it would leave the same again

    def _give_oldest(self) -> None:
        for ready_at, task, promise in self._by_age():
            is_old = self._c.before is None or ready_at < self._c.before
            has_room = is_old and self._c.slots_for(task) <= self._c.free
            if not self._is_permitted(task):
                continue
            if has_room:
                self._give(ready_at, task, promise)
            return

    def _oldest_left(self, left: TaskPlace) -> TaskPlace:
        if not self._is_mixed(left):
            return left
        permitted = (task for _, task, _ in self._by_age() if self._is_permitted(task))
        found = next(map(place_of, permitted), None)
        loaded = self._ready.oldest
        if loaded.is_cut and (found is None or not loaded.entries):
            self.again = True  # all that were loaded lack a permit: there may be more behind them
        return left if found is None else found

    def _is_mixed(self, left: TaskPlace) -> bool:
        """Whether the first one left may not be the oldest."""
        if left.priority or self._ready.is_mixed:
            return True
        return any(negative for negative, _, _ in self._beside(is_root=False))

    def _by_age(self) -> Iterator[tuple[Millis, Task, Promise]]:
        """Those that may be handed out, the oldest first, whatever their priorities."""
        queue = self._ready.by_age()
        beside = sorted(by_age(entry) for entry in self._beside(is_root=False))
        return self._usable(queue, is_root=False, beside=beside)

    def _is_permitted(self, task: Task) -> bool:
        """Whether all its limits have a permit left. If one has not, the task waits behind that
        one's gate, so that no take comes across it again; somebody else may be let in instead.
        """
        gate = None if task.limits is None else permits.lacking(self._d, task)
        if gate is not None:
            readied = len(self._d.readied)
            permits.turn_back(self._d, task, gate)
            self.again = self.again or len(self._d.readied) > readied
        return gate is None

    def give_roots(self) -> None:
        room = self._d.settings.roots_per_take
        queue = self._ready.roots
        for ready_at, task, promise in self._usable(queue, is_root=True):
            if room == 0:
                return
            room -= 1
            self._give(ready_at, task, promise)
        if room > 0:
            self._ran_out(queue)

    def _ran_out(self, queue: Queue) -> None:
        """There may be more: beyond what was loaded, or soon, when another process is done."""
        self.again = self.again or queue.is_cut
        if queue.is_contended:
            self.look_at = later(self._d.now, CONTENDED_MS)

    def _give(self, ready_at: Millis, task: Task, promise: Promise, *, ahead: bool = False) -> None:
        holder = self._holder
        claimed = task.acquired(holder.pid, holder.ttl, None, holder.incarnation, ahead=ahead)
        if claimed.limits is not None:
            claimed = permits.charged(self._d, claimed)
        self._d.put_task(claimed)
        if task.refused is not None:
            self._holder = holder.retried(self._d.now)
            self._d.put_holder(self._holder)
        again = resumed(self._d, claimed)
        self.claims.append(Claim(claimed, promise, ready_at, self._root_param(task), again))

    def _root_param(self, task: Task) -> str | None:
        """A big one is left out, as each claim of the run would carry it: workers read it once.

        Who is embedded remembers the runs that it has started, but not for as long as tasks defer.
        """
        is_remembered = self._c.embedded and task.resume is None
        if is_remembered or task.is_trigger or ":" not in task.id:
            return None
        root_id = life_root_of(task.id)
        if ":" in task.id[len(root_id) + 1 :]:
            return None  # an item: its join has what it needs
        may_see = root_id.startswith(self._c.prefix) and self._d.rows.is_known(root_id)
        root = self._d.promise(root_id) if may_see else None
        return root.param if root is not None and len(root.param) <= MAX_ROOT_PARAM else None

    def _usable(
        self, queue: Queue, *, is_root: bool, beside: Sequence[Entry] | None = None
    ) -> Iterator[tuple[Millis, Task, Promise]]:
        """Those that may be handed out; one that was made pending early is put back.

        `beside`: what comes on top of the queue, in order, if the caller has sorted that.
        """
        d = self._d
        _drop_taken(d, queue)
        beside = self._beside(is_root=is_root) if beside is None else beside
        for _, ready_at, task_id in queue.merged(beside):
            row = d.tasks.get(task_id) or d.rows.task(task_id)
            if row is None or row.ready_at != ready_at or ready_at > d.now:
                continue
            task, promise = d.task(task_id), d.promise(task_id)
            if task is None or promise is None or task.state != "pending":
                continue
            if task.waits_left > 0:
                d.put_task(task.suspended())
            elif task.refused is None or self._may_retry():
                yield ready_at, task, promise

    def _may_retry(self) -> bool:
        """Whether it may try a task that other code has refused: not too often, or it would spin
        where many codes refuse many tasks.
        """
        retry_at = later(self._holder.retried_at, RETRY_REFUSED_MS)
        if self._holder.retried_at == 0 or retry_at <= self._d.now:
            return True
        self.look_at = retry_at
        return False

    def _beside(self, *, is_root: bool) -> Sequence[Entry]:
        """What comes on top of the queue, in order."""
        own = self._own_entries(is_root=is_root)
        refused = () if is_root else self._ready.refused.entries
        return sorted({*own, *refused}) if refused else own

    def _own_entries(self, *, is_root: bool) -> Sequence[Entry]:
        """What this very step made ready and suits this take."""
        if not self._own:
            return ()
        key = self._c.key
        return [
            entry_of(task) for task in self._own if task.is_root == is_root and is_for(key, task)
        ]


def _readied(d: Draft) -> Sequence[Task]:
    """What this very step made ready, in order."""
    own = [d.tasks[each] for each in dict.fromkeys(d.readied)]
    return sorted(filter(lambda task: task.is_ready, own), key=lambda task: entry_of(task)[:2])


def _drop_taken(d: Draft, queue: Queue) -> None:
    """Earlier takes of this batch have emptied the queue from the front."""
    taken = 0
    for _, ready_at, task_id in queue.entries:
        row = d.rows.task(task_id)
        if row is not None and row.ready_at == ready_at:
            break
        taken += 1
    queue.drop_first(taken)


def _registered(d: Draft, c: Take) -> Holder:
    """The caller's holder, renewed; an incarnation that is gone stays gone."""
    holder = d.holder(c.pid, c.incarnation)
    if holder is None:
        holder = Holder(c.pid, c.incarnation, c.group, c.embedded, c.ttl, expires_at=0)
        alive = [old for old in d.holders_of(c.pid) if old.is_alive]
        if alive and c.prefix:
            return holder.gone("lost", d.now)  # a narrow prefix must not end other people's workers
        for old in alive:
            d.put_holder(old.gone("lost", d.now))
    is_known = holder.knows(c.names, c.codes)
    if holder.is_alive and c.renews and (holder.wants_renewal(d.now, c.ttl) or not is_known):
        holder = holder.renewed(d.now, c.ttl).knowing(c.names, c.codes)
        d.put_holder(holder)
    return holder
