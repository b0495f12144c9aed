"""The one writer: commands queue, and each commit takes all that queued during the previous one.

A lone caller pays one commit, a crowd shares it; there is no timer window. The writer runs as a
thread, or inline (`pump()`) for tests and simulation, with equal results. It remembers one number,
the earliest deadline: lowered by what is saved, read again by an indexed MIN after each tick.
Answers leave after the commit, never before.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from layby.clock import SLOWER, Clock, StoreClock
from layby.core import validate
from layby.core.changes import Changes
from layby.core.commands import Command, GetPromise, Take, WatchPromise
from layby.core.kinds import EngineControl, Query, Sender
from layby.core.model import FAR, Message, Millis, later
from layby.core.queries import OfferMessages
from layby.core.queue import Offer
from layby.core.replies import DEBUG_IS_OFF, Reply, TakeData, ok, refuse
from layby.core.ticks import ExpireHolders, ExpireLeases, ForgetMessages, IdsTick, LoseHolders, Tick
from layby.core.values import WORKER_LOST, lost_message
from layby.engine.batch import Applied, Asked, apply
from layby.engine.conflicts import (
    MOST_REPLAYS,
    Contended,
    HeldUp,
    Needed,
    replayed,
    told_at_once,
)
from layby.engine.elsewhere import (
    ADDRESSES_AT_ONCE,
    LOOK_MS,
    HearCommit,
    OtherProcesses,
    busy_until,
)
from layby.engine.held_up import HeldUpItems
from layby.engine.items import NOT_BEGUN, Answer, Item, answer, answer_to_failure
from layby.engine.observer import Commit, Observer, tell
from layby.engine.outbox import (
    Delivery,
    Nobody,
    announced_outbox,
    delivering,
    outgoing_of,
    stored_outbox,
    withdrawn_by,
)
from layby.engine.portions import Portion, Scales
from layby.engine.reads import Reads
from layby.engine.service import Service
from layby.engine.waiting import WaitingTakes, Watches, in_front, rest_of, should_hold, should_wait
from layby.engine.writer_time import WriterTime
from layby.errors import (
    EngineStopped,
    StoreAway,
    StoreBusy,
    StoreError,
    StoreGone,
    StoreUnavailable,
)
from layby.rate_limited_log import RateLimitedLog
from layby.store.announcement import Announcement, announcement_of
from layby.store.api import Store, StoreConflict

logger = logging.getLogger(__name__)
failures = logging.getLogger(f"{__name__}.failures")
"""What shows failures itself can silence these lines, and no others."""

RETRY_MS: Final[Millis] = 1_000
"""How long to wait before ticks are tried again after a failure."""
LEAVE_S: Final = 3.0
"""How long a shared store may take to close: one that answers takes a few milliseconds."""
HELD_UP_S: Final = 0.1
"""How soon a request is tried again for which a row was locked."""


class EngineConfig(Struct, frozen=True):
    max_batch: int = 512
    """Commands in one transaction at most."""
    chunk: int = 500
    """Rows a tick handles in one transaction: timers never stall commands for long."""
    repair_ms: Millis = 30_000
    """How often everything the engine remembers is read again from the store."""
    debug: bool = False


class Engine:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        delivery: Delivery | None = None,
        config: EngineConfig | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.clock = StoreClock(clock)
        self._time = WriterTime(self.clock)
        self._store = store
        self._delivery = delivery or Nobody()
        self._config = config or EngineConfig()
        self._observer = observer
        self._queue: SimpleQueue[Sequence[Item]] = SimpleQueue()
        self._service: Service | None = None
        self._is_stopped = False
        self._is_closed = False
        self._is_paused = False
        self._earliest: Millis = 0
        self._repair_at: Millis = 0
        self._again: deque[Item] = deque()
        self._held_up = HeldUpItems()
        self._takes = WaitingTakes()
        self._watches = Watches()
        self._scales = Scales(store)
        self._reads = Reads(store, self._time)
        self._offered = OfferMessages()
        self._others = OtherProcesses(store, self._watches)
        self._times_stuck = 0
        self._given = 0
        self._served = 0
        self._failure_log = RateLimitedLog(
            "the writer continues after a failure", logger, logging.WARNING
        )
        self._pausing = threading.Event()
        """Never set: waiting for it is a pause."""
        self.replays = 0
        """How often a batch was replayed because another process changed the same rows."""
        self.commits = 0
        """Transactions that wrote something: for benchmarks and tests that count them."""

    # --- life ----------------------------------------------------------------------------

    def start(self) -> None:
        """Run the writer as a thread."""
        self._open()
        self._reads.start()
        self._service = Service("layby-writer", self._loop, lambda: self._queue.put(()))
        self._service.start()

    def start_inline(self) -> None:
        """No thread: every `pump()` does all pending work."""
        self._open()

    def stop(self, timeout: float | None = None) -> bool:
        """Answer everything that has been submitted, then close the store."""
        if self._service is not None:
            return self._service.stop(timeout)
        self._close()
        return True

    def leave(self) -> None:
        """Stop. A store that others share and that does not answer is not waited for: whoever goes
        without a word is given up there in any case. Nobody else can have a file before it is
        closed.
        """
        if not self.stop(LEAVE_S if self.is_shared else None):
            why = "what this process holds there ends by itself"
            logger.warning("the store has not been closed within %g s: %s", LEAVE_S, why)

    @property
    def is_inline(self) -> bool:
        return self._service is None

    @property
    def is_shared(self) -> bool:
        """Whether other processes have an engine on the same store."""
        return self._store.is_shared

    @property
    def free_slots(self) -> int:
        """Room in the waiting takes, as they reported it."""
        return self._takes.free

    @property
    def backlog(self) -> int:
        """Roughly how many requests were submitted and not yet served: two threads count."""
        return self._given - self._served

    # --- requests ------------------------------------------------------------------------

    def submit(self, items: Sequence[Item]) -> None:
        """Queue requests; their order is the order in which they apply."""
        if self._is_stopped:
            _refuse(*items)
            return
        # A retried request is served more often than it was submitted: never below zero.
        self._given = max(self._given, self._served) + len(items)
        self._queue.put(items)
        if self._is_closed:  # the writer stopped in the meantime: nobody else will look
            _refuse(*self._drain_queue())

    def call(self, request: Command | Query, now: Millis | None = None) -> Reply:
        """Send one request and block until it is answered."""
        future: Future[Reply] = Future()
        self.submit([Item(request, _set_futures, future, now)])
        if self.is_inline:
            self.pump()
        return future.result()

    def forget(self, messages: Sequence[Message]) -> None:
        """These messages have been delivered, or can never be."""
        self.submit([Item(ForgetMessages(messages=tuple(messages)), _ignore)])

    def pump(self) -> None:
        """Inline: do everything that is queued or due, and return when nothing is left."""
        while True:
            self._time.look()
            items = [*self._drain_again(), *self._drain_queue()]
            if items:
                self._process(items)
            elif not self._tick_if_due() and not self._again:
                self._time.rest_for(self.patience())
                return

    # --- the loop ------------------------------------------------------------------------

    def _open(self) -> None:
        with told_at_once():
            self._begin()

    def _begin(self) -> None:
        with self._store.transaction():
            self.clock.begin_at(self._store.store_time())
        self._time.begin()
        if self._store.is_shared:
            self._store.share(self._heard_elsewhere, self._delivery.wants)
        else:
            self._end_former_holders()
        self._repair()

    def _end_former_holders(self) -> None:
        """Nobody else has this store open, so who was embedded in its last owner is gone."""
        with self._store.transaction():
            pids = self._store.living_pids()
        if pids:
            expire = ExpireHolders(pids=pids, opening=True, heard_since=self._time.heard_since)
            self._commit([(expire, self._time.now)])

    def _loop(self) -> None:
        assert self._service is not None
        while not self._service.stopping.is_set():
            self._turn()
        self._is_stopped = True
        try:
            self._process([*self._drain_again(), *self._drain_queue()])
        finally:
            self._close()

    def _turn(self) -> None:
        items = self._next_items()
        self._time.look()
        try:
            with self._reads.giving_way():
                if items:
                    self._process(items)
                self._try_held_up()
                self._tick_if_due()
        except (StoreError, StoreConflict) as failure:  # each second of a full disk
            self._failure_log.tell(str(failure))
            if isinstance(failure, StoreUnavailable):
                self._note_away()
            if isinstance(failure, StoreGone):
                self._give_up_waiting(failure)
            self._pause()
        except Exception:
            logger.exception("the writer continues after a failure")
            self._pause()

    def _pause(self) -> None:
        """Something is wrong: do not spin."""
        self._earliest = self._time.advance() + RETRY_MS

    def _note_away(self) -> None:
        """Whoever was seen there, or has a lease, gets time to come back when the store does."""
        self._time.is_store_away = True
        self._repair_at = min(self._repair_at, self._time.now + RETRY_MS)  # is it back?
        self._others.begin_anew()

    def _give_up_waiting(self, failure: StoreGone) -> None:
        """What they wait for may never come; whoever wants to wait on asks again."""
        answer([(item, failure) for item in self._watches.all()])

    def _next_items(self) -> list[Item]:
        """Requests to retry and all that queued; waits for one, but not past the next deadline."""
        if not self._again:
            try:
                first = self._queue.get(timeout=self._time.rest_for(self.patience()))
            except Empty:
                return []
            return [*first, *self._drain_queue()]
        return [*self._drain_again(), *self._drain_queue()]

    def _drain_queue(self) -> Iterator[Item]:
        with suppress(Empty):
            for _ in range(self._queue.qsize()):
                yield from self._queue.get_nowait()

    def _drain_again(self) -> Iterator[Item]:
        while self._again:
            yield self._again.popleft()

    def patience(self) -> float:
        """Seconds until there is something to do without a request."""
        if self._is_paused:
            return 3600.0
        longest = HELD_UP_S if self._held_up else 3600.0
        return min(max(0, self._soonest - self.clock.now()) / 1000, longest)

    @property
    def _soonest(self) -> Millis:
        return min(self._earliest, self._repair_at, self._takes.earliest)

    def _close(self) -> None:
        self._is_stopped = True
        self._is_closed = True
        _refuse(
            *self._takes.all(), *self._watches.all(), *self._drain_again(), *self._held_up.all()
        )
        _refuse(*self._drain_queue())
        self._reads.stop()
        self._store.close()

    # --- batches -------------------------------------------------------------------------

    def _process(self, items: Sequence[Item]) -> None:
        """Commands in batches; queries begin when what came before them has been committed."""
        batch: list[Item] = []
        queries: list[Item] = []
        for item in items:
            if isinstance(item.request, Command):
                if item.request.is_alone:
                    self._run(batch, queries)
                    self._run([item], ())
                    batch, queries = [], []
                else:
                    batch.append(item)
            elif isinstance(item.request, EngineControl) or not batch:
                self._run(batch, queries)
                batch, queries = [], []
                self._ask(item)
            else:
                queries.append(item)
            if len(batch) >= self._config.max_batch:
                self._run(batch, queries)
                batch, queries = [], []
        self._run(batch, queries)

    def _run(self, batch: Sequence[Item], queries: Sequence[Item]) -> None:
        for portion in self._scales.portions(batch):
            if portion.put_off:
                self._put_off(portion.put_off)
            beside = self._read_beside(portion)
            if portion.begun:
                self._serve(portion.begun)
            if beside is not None:
                is_of_a_peer = beside.allowance is not None  # else its answer leaves at once
                self._reads.put(beside, portion.last_chars if is_of_a_peer else 0)
        self._served += len(batch)
        for query in queries:
            self._ask(query)

    def _put_off(self, items: Sequence[Item]) -> None:
        answer([(item, NOT_BEGUN) for item in items])
        self._pass_calls_on(items)

    def _pass_calls_on(self, items: Sequence[Item]) -> None:
        """Takes among them did not look: others are woken for what they were woken for."""
        self._again.extend(self._takes.woken_by(Changes(), items))

    def _read_beside(self, portion: Portion) -> Item | None:
        """What takes long to load is read on another thread, if it is only read.

        As the last of its portion: what its caller has sent before it will have been committed.
        """
        if not portion.last_chars or self.is_inline:
            return None
        last = portion.begun[-1]
        may_be_read = isinstance(last.request, GetPromise) and last.now is None
        return portion.begun.pop() if may_be_read else None

    def _serve(self, batch: Sequence[Item]) -> None:
        if any(item.is_behind_failure for item in batch):
            self._put_off([item for item in batch if item.is_behind_failure])
            batch = [item for item in batch if not item.is_behind_failure]
        if self._held_up:
            for item in filter(self._held_up.has_caller_of, batch):
                self._held_up.add(item)
            batch = [item for item in batch if not self._held_up.has_caller_of(item)]
        if batch:
            self._serve_now(batch)

    def _serve_now(self, batch: Sequence[Item]) -> None:
        try:
            applied = self._commit_all(batch)
        except Contended as contended:
            self._run_by_halves(batch, contended)
        except Exception as failure:  # noqa: BLE001 - whatever failed, the caller is answered
            self._run_one_by_one(batch, failure)
        else:
            self._answer_all(batch, applied)

    def _commit_all(self, batch: Sequence[Item]) -> Applied:
        self._time.advance()
        return self._commit(
            [(item.request, item.now) for item in batch if isinstance(item.request, Command)]
        )

    def _answer_all(self, batch: Sequence[Item], applied: Applied) -> None:
        _, replies, changes, now = applied
        answers = list(self._answers_now(batch, replies, now))
        answers += self._watches.settled_by(changes)
        self._follow_up(changes, batch)  # messages first: who waits for them is far away
        answer(answers)

    def _run_by_halves(self, batch: Sequence[Item], contended: Contended) -> None:
        """Other processes change the same rows: a smaller batch meets fewer of them."""
        if len(batch) == 1:
            is_early = not self.is_inline and not self._is_stopped
            if is_early and isinstance(contended, HeldUp):
                self._held_up.add(batch[0])
            else:
                self._answer_failure(batch, contended)
            return
        middle = len(batch) // 2
        self._serve(batch[:middle])
        self._serve(batch[middle:])

    def _try_held_up(self) -> None:
        """One of them: it may keep the writer waiting for as long as a lock may."""
        if not self._held_up:
            return
        item = self._held_up.next()
        try:
            applied = self._commit_all([item])
        except Contended as contended:
            if self._held_up.failed(item) < MOST_REPLAYS:
                return
            self._answer_failure([item], contended)
        except Exception as failure:  # noqa: BLE001 - whatever failed, the caller is answered
            self._run_one_by_one([item], failure)
        else:
            self._answer_all([item], applied)
        self._held_up.ended(item)
        self._put_off(list(self._held_up.behind_failure(item)))

    def _run_one_by_one(self, batch: Sequence[Item], failure: Exception) -> None:
        """The batch was rolled back; steps are pure, so each is replayed alone.

        One bad command, or a full disk, does not stop those that can be served, but for what its
        own sender wants to have done after it (`Allowance`). A lock is waited for once, and a file
        that is gone is gone for all: no command of this batch would fare better alone.
        """
        if isinstance(failure, StoreGone):
            self._give_up_waiting(failure)
        if len(batch) == 1 or isinstance(failure, StoreBusy | StoreAway | StoreGone):
            self._answer_failure(batch, failure)
            return
        for item in batch:
            self._serve([item])

    def _answer_failure(self, batch: Sequence[Item], failure: Exception) -> None:
        """A take that already waits goes on waiting while the store is away, and looks again."""
        is_away = isinstance(failure, StoreAway | Contended)
        waiting = [item for item in batch if is_away and item.until is not None]
        for item in waiting:
            replaced = self._takes.add(item, self._time.now, later(self._time.now, RETRY_MS))
            answer([(older, ok(TakeData())) for older in replaced])
        self._pass_calls_on(batch)
        failed = [item for item in batch if item not in waiting]
        if isinstance(failure, StoreError):
            for item in failed:
                item.could_not_be_served()
        answer([(item, answer_to_failure(item.request, failure)) for item in failed])

    def _commit(self, commands: Sequence[Asked]) -> Applied:
        began = perf_counter()
        offers = self._waiting_offers(commands)

        def once(needed: Needed) -> Applied:
            with self._store.transaction(lazily=_need_no_disk(commands)):
                return apply(self._store, commands, self._time.now, offers, needed, self._watches)

        applied = self._replayed(once)
        self._committed(applied.changes)
        timed, replies, changes, _ = applied
        tell(self._observer, Commit(timed, replies, changes, perf_counter() - began))
        return applied

    def _replayed(self, once: Callable[[Needed], Applied]) -> Applied:
        try:
            applied, replays = replayed(once, self._pausing.wait)
        except StoreUnavailable:
            self._note_away()
            raise
        self._time.is_store_away = False
        self.replays += replays
        self._time.reach(applied.now)
        return applied

    def _waiting_offers(self, commands: Sequence[Asked]) -> Sequence[Offer]:
        """Room in waiting takes; only matters to takes that may be handed something ahead."""
        asked = (command.asks for command, _ in commands)
        return self._takes.offers if any(take and take.ahead > 0 for take in asked) else ()

    def _committed(self, changes: Changes) -> None:
        self._earliest = min(self._earliest, changes.earliest)
        if not changes.is_empty:
            self.commits += 1
        for task_id in changes.given_up:
            message = lost_message(task_id, changes.tasks[task_id].crashes)
            failures.error("%s failed: %s: %s", task_id, WORKER_LOST, message)

    def _answers_now(
        self, batch: Sequence[Item], replies: Sequence[Reply], now: Millis
    ) -> Iterator[tuple[Item, Answer]]:
        """Answers to give now; requests that wait stay here."""
        for item, reply in zip(batch, replies, strict=True):
            if isinstance(item.request, Take) and should_wait(item.request, reply):
                self._wait_for_ready(item, reply, now)
            elif isinstance(item.request, WatchPromise) and should_hold(item.request, reply):
                self._watches.add(item)
            elif (rest := rest_of(item.request, reply)) is not None:
                item.request = rest
                self._again.append(item)
            else:
                yield item, reply

    def _wait_for_ready(self, item: Item, reply: Reply, now: Millis) -> None:
        assert isinstance(item.request, Take)
        assert isinstance(reply.data, TakeData)
        if reply.data.again:
            self._again.append(item)
        elif not item.is_abandoned:
            # A take with a time of its own would find the same whenever it looked again.
            look_at = reply.data.look_at if item.now is None else None
            replaced = self._takes.add(item, now, look_at, in_front(item.request, reply.data))
            answer([(older, ok(TakeData())) for older in replaced])

    def _follow_up(self, changes: Changes, batch: Sequence[Item] = ()) -> None:
        """What a commit sets in motion: waiting takes, and messages."""
        self._again.extend(self._takes.woken_by(changes, batch))
        offered = self._store.offered_here(changes) if changes.messages else ()
        if self._store.is_shared:
            self._store.announce(announcement_of(changes, offered))
        if not changes.messages:
            return
        with delivering():
            if self._is_paused:  # new ones are offered after the pause; earlier ones are stale
                self._delivery.committed((), tuple(changes.messages))
            else:
                self._delivery.committed(outgoing_of(changes, offered), withdrawn_by(changes))

    # --- time ----------------------------------------------------------------------------

    def _tick_if_due(self) -> bool:
        """One chunk of what is due; True when there was something to do."""
        if self._is_paused or self._time.advance() < self._soonest:
            return False
        now = self._time.look()
        if expired := self._takes.expired(now):
            answer([(item, ok(TakeData())) for item in expired])
            return True
        if looking := self._takes.looking(now):
            self._again.extend(looking)
            return True
        if self._repair_at <= now:
            self._repair()
            return True
        return self._earliest <= now and self._tick(now, self.clock.wall(), self._time.heard_since)

    def _tick(
        self, now: Millis, wall: Millis | None = None, heard_since: Millis | None = None
    ) -> bool:
        """By default as a debugger wants it: `now` is wall time too, and no lease is extended.

        Otherwise what is due by `now` happens when the store says that it is, like any command: on
        a shared one others may have written meanwhile what it changes.
        """
        at = now if wall is None else None
        wall = now if wall is None else wall
        began = perf_counter()
        ticks: Sequence[Tick] = ()
        earliest = FAR

        def once(needed: Needed) -> Applied:
            nonlocal ticks, earliest
            with self._store.transaction():
                ticks = _heard(self._store.due(now, self._config.chunk, wall), heard_since)
            asked = [(tick, at) for tick in ticks]
            with self._store.transaction(lazily=_need_no_disk(asked)):
                applied = apply(
                    self._store, asked, self._time.now, (), needed, self._watches, may_wait=False
                )
                earliest = self._next_deadline(now, wall)
                return applied

        timed, replies, changes, _ = self._replayed(once)
        self._committed(changes)
        tell(self._observer, Commit(timed, replies, changes, perf_counter() - began))
        is_stuck = bool(ticks) and changes.is_empty
        self._times_stuck = self._times_stuck + 1 if is_stuck else 0
        self._earliest = max(earliest, self._stuck_until(now)) if is_stuck else earliest
        self._again.extend(Item(each, _ignore) for each in _one_by_one(ticks, replies))
        answer(list(self._watches.settled_by(changes)))
        self._follow_up(changes)
        return bool(ticks) and not is_stuck

    def _stuck_until(self, now: Millis) -> Millis:
        """Ticks that change nothing would be found due again at once: a bug must not spin.

        On a shared store another process may be about to do the same.
        """
        is_shared = self._store.is_shared
        return busy_until(now, self._times_stuck - 1) if is_shared else now + RETRY_MS

    def _next_deadline(self, now: Millis, wall: Millis) -> Millis:
        """In store time. An occurrence also waits for the wall clock, which may get there later."""
        occurs_at = self._store.next_occurrence()
        if now > wall and occurs_at < FAR:
            occurs_at = max(occurs_at, now + -(-(occurs_at - wall) * (SLOWER - 1) // SLOWER))
        return min(self._store.earliest(), occurs_at)

    def _repair(self) -> None:
        """Nothing depends on it: it repairs what a lost wake-up would have left behind."""
        is_shared = self._store.is_shared
        self._repair_at = self._time.advance() + (LOOK_MS if is_shared else self._config.repair_ms)
        self._watches.drop_abandoned()
        self._takes.drop_abandoned()
        self._again.extend(self._takes.all())
        with self._store.transaction():
            self._earliest = self._next_deadline(self._time.now, self.clock.wall())
        self._time.is_store_away = False
        if is_shared:
            answer(self._others.settled(self._others.next_watched()))
            renewed = self._others.renewed_messages(self._time.now)
            with delivering():
                self._delivery.keep(renewed)
            if gone := self._others.gone(self._time.now):
                self._again.append(Item(LoseHolders(keys=tuple(gone)), _ignore))
        self._offered = self.offer(self._offered)

    def offer(self, page: OfferMessages) -> OfferMessages:
        """Deliver a page of the outbox; the next page, or the first one after the last."""
        with self._store.transaction():
            outgoing, last = stored_outbox(self._store, page, self._time.now)
        if outgoing and not self._is_paused:
            with delivering():
                self._delivery.offered(outgoing)
        if last is None:
            return replace(page, after=OfferMessages().after)
        return replace(page, after=(last.address, last.id, last.kind))

    # --- other processes -----------------------------------------------------------------

    def _heard_elsewhere(self, announcement: Announcement) -> None:
        """On the thread of the signals."""
        self.submit([Item(HearCommit(announcement=announcement), _ignore)])

    def hear(self, announcement: Announcement) -> None:
        """Another process has committed something that may concern who waits here."""
        self._again.extend(self._takes.concerned_by(announcement))
        self._earliest = min(self._earliest, announcement.earliest)
        if announcement.everything:
            self._repair_at = 0
            return
        answer(self._others.settled(self._watches.watched(announcement.settled)))
        self._offer_announced(announcement.messages)
        told = {each.address for each in announcement.messages}
        for address in sorted(announcement.addresses - told)[:ADDRESSES_AT_ONCE]:
            self.offer(OfferMessages.to(address))

    def _offer_announced(self, messages: Iterable[Message]) -> None:
        """Another process has written these, and has nobody for them."""
        wanted = [each for each in messages if self._delivery.wants(each)]
        for outgoing in announced_outbox(self._store, wanted, self._time.now):
            if outgoing and not self._is_paused:
                with delivering():
                    self._delivery.offered(outgoing)

    def release(self, messages: Sequence[Message]) -> None:
        self._others.release(messages)

    def vouch(self, pid: str, incarnation: str) -> None:
        """This process is that holder; on a shared store others notice soon when it dies."""
        self._store.vouch((pid, incarnation))

    # --- queries and the debug surface ---------------------------------------------------

    def _ask(self, item: Item) -> None:
        """A control is carried out now, between two batches; a query is read beside them."""
        self._served += 1
        query = item.request
        assert isinstance(query, Query)
        wrong = validate.problems(query)
        if wrong is not None:
            answer([(item, refuse(400, wrong))])
        elif query.sender is Sender.DEBUGGER and not self._config.debug:
            answer([(item, DEBUG_IS_OFF)])
        elif isinstance(query, EngineControl):
            answer([(item, self._control(query))])
        else:
            self._reads.put(item)

    def _control(self, control: EngineControl) -> Answer:
        try:
            return control.control(self)
        except Exception as failure:  # noqa: BLE001 - whatever failed, the caller is answered
            return answer_to_failure(control, failure)

    def pause(self) -> None:
        self._set_paused(paused=True)

    def unpause(self) -> None:
        self._set_paused(paused=False)

    def _set_paused(self, *, paused: bool) -> None:
        self._is_paused = paused
        self._repair_at = 0  # what was written in the meantime has not been offered

    def tick_until_idle(self, now: Millis) -> None:
        while self._tick(now):
            pass

    def reset(self) -> None:
        with self._store.transaction():
            stale = [each.key for each in self._store.messages(OfferMessages(limit=FAR))]
        self._store.clear()
        self._earliest = FAR
        with delivering():
            self._delivery.committed((), stale)


def _set_futures(answers: Sequence[tuple[Item, Answer]]) -> None:
    for item, each in answers:
        if isinstance(each, BaseException):
            item.token.set_exception(each)
        else:
            item.token.set_result(each)


def _refuse(*items: Item) -> None:
    answer([(item, EngineStopped("the engine has been stopped")) for item in items])


def _ignore(_: Sequence[tuple[Item, Answer]]) -> None:
    """For requests that the engine sends itself."""


def _need_no_disk(commands: Sequence[Asked]) -> bool:
    """What a power cut may take back: it would be done again."""
    return bool(commands) and all(command.is_alone for command, _ in commands)


def _heard(ticks: Sequence[Tick], since: Millis | None) -> list[Tick]:
    """Ticks that end leases are told since when leases could be renewed."""
    return [
        replace(tick, heard_since=since) if isinstance(tick, ExpireLeases | ExpireHolders) else tick
        for tick in ticks
    ]


def _one_by_one(ticks: Sequence[Tick], replies: Sequence[Reply]) -> Iterator[Tick]:
    """One row that hits a bug must not hold up the others of its tick."""
    for tick, reply in zip(ticks, replies, strict=True):
        if reply.status >= 500 and isinstance(tick, IdsTick) and len(tick.ids) > 1:
            yield from (replace(tick, ids=(each,)) for each in tick.ids)
