"""Takes tasks by credit, runs their bodies, and reports how they end.

The pipeline of one claim: take → load → run → classify → report, each in a file of its own:
`standing_take`, `arrivals` and `task_loading`, `body` and `body_runner`, `ending`, `reporting`.
`credit` alone decides who may run; the worker tells it what happens and does what it decides.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine, Iterable
from contextvars import copy_context
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from layby.client.interface import WatchingClient
from layby.client.patience import send_until_answered
from layby.core.commands import (
    BlockTask,
    FailTask,
    HeartbeatWorker,
    LeaveWorker,
    LimitTask,
    Released,
    ReleaseTask,
    StartRun,
    Take,
    TaskVersion,
)
from layby.core.held_exits import exit_of, exit_task
from layby.core.model import Millis, Promise
from layby.core.queries import Execute
from layby.core.questions import settled_by
from layby.core.replies import (
    Claim,
    FailData,
    FinishData,
    Reply,
    RunData,
    TakeData,
    TakingData,
)
from layby.errors import EngineStopped, StoreError
from layby.executors import HealthEvent, HealthEventSink
from layby.program import Program
from layby.worker.arrivals import Arrivals
from layby.worker.attempt import Attempt
from layby.worker.body import Body
from layby.worker.body_runner import BodyRunner
from layby.worker.callbacks import Callbacks
from layby.worker.calls import Calls
from layby.worker.child_run import RunStarter
from layby.worker.credit import HELD, NOTHING, Ask, Credit, Offer
from layby.worker.ending import classify
from layby.worker.gc_freeze import GcFreezer
from layby.worker.lease import Elapsed, LeaseTime
from layby.worker.loop_watch import LoopWatch
from layby.worker.open_takes import OpenTakes
from layby.worker.promise_watches import PromiseWatches
from layby.worker.releases import Releases
from layby.worker.renewal import Renewal
from layby.worker.replay import condition_error
from layby.worker.reporting import Report, Reporter
from layby.worker.standing_take import StandingTake
from layby.worker.task_loading import TaskLoader
from layby.worker.wheel import Wheel
from layby.worker.worker_stop import WorkerStop

logger = logging.getLogger(__name__)

FOREVER_MS = 3_600_000
WAIT_MS = 30_000
"""How long a take waits at a server; a proxy in between may silently lose a later answer."""
LEAVE_S = 3.0
"""How long a worker that stops tries to say so; after that its tasks are taken over anyway."""
CALLBACKS_S = 1.0
"""How long callbacks may still take when the worker stops."""
REFUSED_S = 5.0
"""How long a worker that was refused waits before it asks for tasks again."""


class WorkerConfig(Struct, frozen=True):
    slots: int = 4
    group: str = "default"
    pid: str = ""
    incarnation: str = ""
    embedded: bool = True
    ttl: Millis = 60_000
    max_parked: int = 250_000
    max_threads: int = 32
    processes: int = 2
    freeze_parked: bool = True
    """Whether parked tasks are hidden from the garbage collector (`gc.freeze`)."""


class Worker:
    def __init__(
        self,
        client: WatchingClient,
        program: Program,
        config: WorkerConfig,
        now: Callable[[], Millis],
        elapsed: Elapsed,
    ) -> None:
        self.client = client
        self.now = now
        self.config = config
        self.credit = Credit(config.slots, config.max_parked)
        self.health = HealthEventSink()
        self.attempts: dict[str, Attempt] = {}
        self._program = program
        self._wheel = Wheel()
        self.watches = PromiseWatches(client, now, self.spawn)
        self._gc_freezer = GcFreezer(is_on=config.freeze_parked)
        self._body_runner = BodyRunner(
            self._wheel, config.max_threads, config.processes, self.give_up
        )
        self._context = copy_context()
        """The context that each body starts with a copy of: what one body sets, no other sees."""
        self.incarnation = config.incarnation
        self.lease = LeaseTime(None if config.embedded else config.ttl, elapsed, config.incarnation)
        self._renewal = Renewal(self)
        self.registered_as = ""
        """The incarnation that the store has confirmed."""
        self.on_new_incarnation: Callable[[], None] = lambda: None
        """Set by the link that has registered this worker."""
        self._begun_ahead: dict[str, int] = {}
        """Versions of tasks that were claimed ahead and have begun; the store does not know."""
        self.holds: dict[str, int] = {}
        """Versions of the tasks that it was given and has not handed back, as far as it knows."""
        self.open_takes = OpenTakes()
        self._running: set[Body] = set()
        self._stuck: dict[Body, str] = {}
        self._ends_to_tell: dict[tuple[str, int], Attempt | None] = {}
        """Claims whose timeout is being reported, and whose body has ended meanwhile, if it has."""
        self.slots_lent = 0
        """How often a slot was lent so that a body did not wait for itself."""
        self._background: set[asyncio.Task[Any]] = set()
        self._callbacks = Callbacks()
        self.starter: RunStarter | None = None
        """Starts child runs for its tasks; set by whoever knows what a workflow is."""
        self._reporter = Reporter(self, program, self._callbacks)
        self._releases = Releases(self, config.pid)
        self._arrivals = Arrivals(
            self, self.credit, TaskLoader(self, client, program), self._reporter, self._releases
        )
        self._standing = StandingTake(
            self.credit,
            self._standing_take_for,
            self._send_take,
            self._standing_take_answered,
            self.spawn,
        )
        self._is_ask_scheduled = False
        self._loop_watch: LoopWatch | None = None
        self.task_beside: Callable[[asyncio.Task[Any]], str | None] = lambda _: None
        """Whose code a Task runs that is not a body's. May be called in any thread."""
        self._loop_sentinel: asyncio.Task[None] | None = None
        """When it is cancelled, somebody is ending the event loop."""
        self.stopping: WorkerStop | None = None
        """Ends the bodies; set when the worker is asked to stop."""
        self.has_left = False
        self.overlaps = 0
        """Tasks that were handed back though their bodies went on."""
        self._was_full = False
        self.calls = Calls(self, program, config.pid, config.ttl, beats=config.embedded)

    # --- starting and stopping -----------------------------------------------------------

    def start(self) -> None:
        self.dispatch()

    def _watch_loop(self) -> None:
        """From the first body on: a worker without tasks needs no thread for that."""
        if self._loop_watch is None:
            self._loop_watch = LoopWatch(
                lambda: bool(self.attempts),
                self._task_run_by,
                lambda: self.running,
                partial(self._emit_health, "loop_blocked"),
            )
            self._loop_watch.start()

    @property
    def blocked_by(self) -> str | None:
        """What keeps the event loop from going on, in words. May be read in any thread."""
        return None if self._loop_watch is None else self._loop_watch.blocked_by

    def _task_run_by(self, current: "asyncio.Task[Any] | None") -> str | None:
        """Called by the thread that watches the loop, while the loop is blocked."""
        if current is None:
            return None
        bodies = (body.id for body in tuple(self._running) if body.task is current)
        return next(bodies, None) or self.task_beside(current)

    async def stop(self, grace: float = 1.0) -> None:
        """Hand every task back when its body has ended, waiting for at most `grace` seconds."""
        self.stopping = WorkerStop(self, grace, self.open_takes.sent)
        self.credit.is_open = False
        self._standing.withdraw()
        self.calls.close()
        self._arrivals.hand_back_all()
        await asyncio.sleep(0)  # reports of bodies that have just ended are sent first
        try:
            await self.stopping.end_bodies()
        finally:
            await self._leave()
            await self._callbacks.finish(CALLBACKS_S)
            self.close()

    def close(self) -> None:
        """Release threads and timers, and cancel whatever still runs."""
        if self._loop_watch is not None:
            self._loop_watch.stop()
        self._wheel.close()
        self.watches.close()
        self._body_runner.close()
        self._gc_freezer.close()
        self._standing.close()
        self._arrivals.close()
        for body in self._running:
            if body.task is not None:
                body.task.cancel()
        for task in list(self._background):
            task.cancel()

    async def _leave(self) -> None:
        self.has_left = True
        leave = LeaveWorker(pid=self.config.pid, incarnation=self.incarnation)
        try:
            async with asyncio.timeout(LEAVE_S):
                await self.client.send(leave)
        except (EngineStopped, StoreError, TimeoutError) as failure:
            why = str(failure) or "the store does not answer"
            logger.warning("the worker could not hand its tasks back: %s", why)

    def lost(self, task_id: str, version: int) -> None:
        """A task was taken away: cancelled, halted, timed out or settled by somebody else."""
        attempt = self.attempts.get(task_id)
        is_call = self.calls.lease_of(task_id, version) is not None
        self.calls.let_go(task_id, version)
        if attempt is not None and attempt.version == version:
            attempt.end("lost")  # held until its body has ended: it may have been halted
            return
        if self._reporter.is_under_way(task_id, version):
            return  # its answer says the same, and who hears it knows whether a body has begun
        has_waited = self._arrivals.lost(task_id, version)
        is_here = is_call or self.holds.get(task_id) == version
        if not is_here and self.open_takes.give_up(task_id, version) and not self.is_stopping:
            self._standing.replace_soon()  # else its answer may be far away
        if not is_call:
            self._releases.add(Released(task_id, version, begun=is_here and not has_waited))

    def told(self, promise: Promise) -> None:
        """A person has decided about a wait of one of our bodies: it is over, or lasts longer."""
        exit_ = exit_of(promise)
        task_id = None if exit_ is None else exit_task(promise)
        attempt = self.attempts.get(task_id or "")
        if exit_ is None or attempt is None or not attempt.is_open:
            return
        if exit_.until is None:
            self.ended_by_hand(exit_.wait, promise)
        else:
            attempt.annotations.hear_move(exit_.wait, exit_.until, settled_by(promise)[0])

    def moved_by_hand(self, record_id: str, until: Millis) -> None:
        """The deadline of a wait is kept with its task, and somewhere else now."""
        self.watches.move_by_hand(record_id, until)
        self._wheel.move(record_id, max(0, until - self.now()) / 1000)

    def ended_by_hand(self, record_id: str, exit_: Promise) -> None:
        """A condition counts as met, or fails."""
        self._wheel.end(record_id, condition_error(exit_))

    @property
    def is_stopping(self) -> bool:
        return self.stopping is not None

    @property
    def is_leaving(self) -> bool:
        """Whether nothing more is expected from the store."""
        return self.has_left or (self.is_stopping and not self.attempts and self.holds_nothing)

    @property
    def running(self) -> "list[str]":
        """Tasks whose bodies hold a slot now. May be called from any thread."""
        return [each.id for each in list(self.attempts.values()) if not each.is_parked]

    @property
    def stuck(self) -> tuple[str, ...]:
        """Tasks that are over but whose bodies go on: each keeps its slot until it ends."""
        return tuple(self._stuck.values())

    @property
    def threads(self) -> int:
        """How many plain `def` bodies have a thread now, including those that wait in it."""
        return self._body_runner.threads

    # --- what credit decides -------------------------------------------------------------

    def dispatch(self) -> None:
        """Something has changed: start or resume those whose turn it is, and ask for more."""
        for contender in self.credit.grants():
            assert isinstance(contender, Body)
            self._use_slot(contender)
        if self.stopping is not None:
            self.stopping.changed()
        elif not self._is_ask_scheduled:
            self._is_ask_scheduled = True
            asyncio.get_running_loop().call_soon(self._ask_for_more)

    def _use_slot(self, body: Body) -> None:
        if body.is_resuming:
            body.resume()
        elif body.claim is None and body.call is not None:
            self.calls.acquire(body)
        elif body.attempt is not None:
            self._arrivals.begin(body)

    def _ask_for_more(self) -> None:
        """Once per turn of the loop, after its reports have been sent."""
        self._is_ask_scheduled = False
        self._gc_freezer.update(self.credit.parked)
        if self.is_stopping or not self._program.names:
            return
        earlier = self.credit.earlier()
        if earlier is not None:
            self.spawn(self._take_now(earlier))
        self._standing.update()
        self._arrivals.arm_overdue_timer()

    async def _take_now(self, ask: Ask) -> None:
        """A take that is answered at once."""
        reply = None
        try:
            reply = await self._send_take(self.take(ask))
        finally:
            self.credit.answered(ask)
        if reply is not None:
            self._accept_tasks(reply, ask)
            self.dispatch()

    async def let_others_in(self) -> None:
        """A slot was released: let what is ready in the store stand in line before this goes on."""
        self.dispatch()
        if not self._program.names:
            return
        ask = self.credit.ask(self.config.slots)
        if ask.free:
            await self._take_now(ask)

    def why_not_park(self) -> str | None:
        """Why no task may be parked now; None when one may be."""
        if not self.credit.is_full:
            self._was_full = False
            return None
        reason = f"{self.config.max_parked} tasks are parked (max_parked), so it keeps its slot"
        if not self._was_full:
            self._was_full = True
            self._emit_health("parked_limit", "max_parked is reached: waits keep their slots")
        return reason

    def slots_for(self, group: str | None) -> int | None:
        """How many it has for tasks of this group (None: its own); None if it takes none of it."""
        return self.config.slots if group in (None, self.config.group) else None

    def may_lend(self) -> bool:
        return self.credit.lend(self.lease.elapsed())

    def code_changed(self) -> None:
        """The program may have code for more workflows now: ask for those too."""
        self.calls.code_changed()
        self.replace_standing_take()
        self.dispatch()

    # --- takes ---------------------------------------------------------------------------

    def take(self, ask: Ask, wait_ms: int = 0) -> Take:
        config = self.config
        return Take(
            pid=config.pid,
            incarnation=self.incarnation,
            group=config.group,
            names=self._program.names,
            codes=self._program.codes,
            free=ask.free,
            ahead=ask.ahead,
            before=ask.before,
            before_priority=ask.before_priority,
            oldest=ask.oldest,
            slots=config.slots,
            begun=self._newly_begun(),
            ttl=config.ttl,
            embedded=config.embedded,
            wait_ms=wait_ms,
        )

    def _standing_take_for(self, offer: Offer) -> Take:
        wait_ms = FOREVER_MS if self.config.embedded else WAIT_MS
        take = self.take(Ask(offer.free, oldest=offer.oldest), wait_ms)
        return replace(take, in_line=True, left=offer.left) if offer.in_line else take

    def _newly_begun(self) -> tuple[TaskVersion, ...]:
        if not self._begun_ahead:
            return ()
        begun, self._begun_ahead = self._begun_ahead, {}
        return tuple(TaskVersion(task_id, version) for task_id, version in begun.items())

    def ask(self) -> tuple[Ask, Take | None]:
        """What a report may bring back: the slot that has just become free asks for a task."""
        if self.stopping is not None:
            return NOTHING, None
        ask = self.credit.ask(1, self.lease.elapsed())
        return ask, self.take(ask)

    def registration(self) -> Take:
        """Takes nothing: makes this worker a holder, or renews its lease."""
        return replace(self.take(NOTHING), names=(), codes=())

    def heartbeat(self) -> HeartbeatWorker:
        """May be called from any thread."""
        return HeartbeatWorker(
            pid=self.config.pid, incarnation=self.incarnation, held=len(self.holds)
        )

    def _standing_take_answered(self, take: Take, reply: Reply, is_latest: bool) -> None:  # noqa: FBT001
        if isinstance(reply.data, TakeData):
            if is_latest or reply.data.claims:  # one that was replaced does not know what is left
                self._accept_tasks(reply, NOTHING)
        elif is_latest and reply.status != 409:
            self._retry_after_refusal(reply)
            return
        elif is_latest:
            self.start_over(take.incarnation, reply)
        self.dispatch()

    def _retry_after_refusal(self, reply: Reply) -> None:
        """Asking again at once would only be refused again."""
        logger.error("the store gives this worker no tasks; it asks again later: %s", reply.data)
        asyncio.get_running_loop().call_later(REFUSED_S, self.dispatch)

    def start_over(self, incarnation: str, reply: Reply) -> None:
        """The store gave this worker up: everything it held belongs to others now."""
        if incarnation != self.incarnation or self.has_left:
            return  # told before, or expected
        logger.error("the worker lost its lease and starts over: %s", reply.data)
        self.incarnation = uuid.uuid4().hex
        self.lease.begin_anew(self.incarnation)
        held, self.holds = self.holds, {}
        self.open_takes.give_up_all()
        self._arrivals.lose_all(held)
        for attempt in list(self.attempts.values()):
            if attempt.id in held:
                attempt.end("lost")
        self.on_new_incarnation()
        self.replace_standing_take()  # its answer may come on a connection that is dead
        self.dispatch()

    async def start_run(self, command: StartRun) -> Reply:
        """Start a run and, if there is room, take its first tasks in the same command."""
        ask = NOTHING
        if command.name in self._program.names and self.stopping is None:
            first = sum(node.slots for node in command.nodes if not node.after)
            ask = self.credit.ask(first)
        take = self.take(ask) if ask.free else None
        starting = replace(command, take=take)
        self.open_takes.begin(starting)
        try:
            reply = await self.client.send(starting)
        except BaseException:
            self.open_takes.end(starting)
            self.credit.answered(ask)
            self.dispatch()
            raise
        ours = self.open_takes.end(starting, reply)
        self.credit.answered(ask)
        # Without a take, the answer says nothing about what is left in the store.
        self._handle_reply(ours, NOTHING if take is None else ask)
        return reply

    def _accept_tasks(self, reply: Reply | None, ask: Ask) -> None:
        """Accept the tasks that an answer brings, and note what it leaves in the store."""
        data = None if reply is None else reply.data
        taken = data.taken if isinstance(data, TakingData) else data
        if isinstance(taken, TakeData):
            if taken.again:
                self.credit.heard_in_part(ask)
            else:
                self.credit.heard(taken.next_place, taken.oldest_place, ask)
            self.arrive(taken.claims)

    def _handle_reply(self, reply: Reply | None, ask: Ask) -> None:
        data = None if reply is None else reply.data
        if isinstance(data, RunData) and data.promise.is_pending:
            self._program.started(data.promise)
        if isinstance(data, FinishData | FailData) and not data.promise.is_pending:
            if data.root is not None:  # first: of a run that is over, nothing is learned
                self._program.settled(data.root)
            self._program.settled(data.promise)
        self._accept_tasks(reply, ask)
        self.dispatch()

    # --- arrive --------------------------------------------------------------------------

    def arrive(self, claims: Iterable[Claim]) -> None:
        """Tasks that are ours now; they stand in line while they are loaded."""
        for claim in claims:
            if claim.task.version < self.holds.get(claim.task.id, 0):
                continue  # answers overtake each other, and this claim was over before that began
            body = Body(self, claim)
            if claim.task.is_ours:
                self.holds[claim.task.id] = claim.task.version
            if self.is_stopping:
                self._arrivals.hand_back(body)
            else:
                self._arrivals.add(body, claim)

    def replace_standing_take(self) -> None:
        """The one that waits at the store is answered then, with the tasks that it was given."""
        if self._program.names and self.stopping is None:
            self._standing.send_now()

    def give_up_answer(self, task_id: str, version: int) -> bool:
        """Whether a task that the store has given to us can be handed back as one that has not
        begun: not if it is here by now. If its answer still comes, it does not begin either.
        """
        if self.holds.get(task_id) == version:
            return False
        self.open_takes.give_up(task_id, version)
        return True

    def has_old_body(self, task_id: str) -> bool:
        return task_id in self.attempts

    def new_call(self, call: Execute) -> Body:
        """A call that we could serve: it stands in line from now on."""
        body = Body(self, call=call)
        self.join_line(body)
        return body

    def withdraw(self, body: Body) -> None:
        self.credit.leave(body)
        self.dispatch()

    def adopt(self, body: Body, claim: Claim) -> None:
        """A call that has been acquired: it holds its slot already."""
        self._arrivals.adopt(body, claim)

    # --- run -----------------------------------------------------------------------------

    def run(self, body: Body, attempt: Attempt) -> None:
        """It has its slot, and its task is certainly ours."""
        if body.claim is not None and body.claim.task.ahead:
            self._begun_ahead[attempt.id] = attempt.version
        body.claim = body.call = None  # frees memory: a body may be parked for long
        self.attempts[attempt.id] = attempt
        self._watch_loop()
        self._running.add(body)
        if self._loop_sentinel is None:
            self._loop_sentinel = self.spawn(self._watch_for_loop_end())
        self.credit.begin(body, self.lease.elapsed())
        body.run(self._body_runner.begin(attempt, body, self._context.copy()))

    def park(self, body: Body) -> bool:
        has_parked = self.credit.park(body)
        if has_parked:
            self.dispatch()
        return has_parked

    def join_line(self, body: Body) -> None:
        self.credit.join_line(body, self.now(), self.lease.elapsed())
        self.dispatch()

    def step_back(self, body: Body) -> None:
        self.credit.step_back(body)
        self.dispatch()

    def cancel_body(self, attempt: Attempt) -> None:
        body = attempt.body
        if body is None or body.task is None:
            return
        self.credit.end(body)
        body.task.cancel()
        self.dispatch()

    def give_up(self, attempt: Attempt) -> None:
        """The body goes on though it was ended, and keeps its slot. A timeout is reported now;
        otherwise its task is held until the body ends.
        """
        body = attempt.body
        if body is None or body in self._stuck or attempt.reason == "shutdown":
            return
        self._stuck[body] = attempt.id
        held = "and keeps its slot" if body.slot_state is HELD else "without a slot"
        message = (
            f"{attempt.id} is still running although its task has ended ({attempt.reason}) {held}: "
            "let its code end when it is cancelled, or when handle.is_cancelled is true"
        )
        logger.warning(message)
        self._emit_health("stuck", message)
        if attempt.reason == "timeout":
            self._report(attempt, None)

    def lent(self, attempt: Attempt, why: str) -> None:
        self.slots_lent += 1
        self._emit_health("slot_lent", f"{attempt.id}: {why}")

    def ended(self, body: Body) -> None:
        attempt = body.attempt
        assert attempt is not None
        attempt.close()
        self._running.discard(body)
        self._stuck.pop(body, None)
        self._begun_ahead.pop(attempt.id, None)
        if self.attempts.get(attempt.id) is attempt:
            del self.attempts[attempt.id]
        self.credit.leave(body)
        self.dispatch()
        self._report(attempt, body.task)
        if attempt.outlasted:
            self.hand_back(attempt)
        if body.task is not None and not body.task.cancelled():
            body.task.exception()  # it is in the report

    # --- report --------------------------------------------------------------------------

    def _report(self, attempt: Attempt, task: "asyncio.Task[Any] | None") -> None:
        """Once for each try."""
        if attempt.is_reported or self.is_loop_ending():
            return
        ending = classify(attempt, task)
        if ending == "taken away":
            self.hand_back(attempt)
        elif ending == "blocked":
            attempt.is_reported = True
            self._reporter.block(attempt.blocked())
        else:
            attempt.is_reported = True
            attempt.outlasted = task is None
            if attempt.outlasted:
                self._ends_to_tell[attempt.id, attempt.version] = None
            self._reporter.report(attempt, ending)

    def is_loop_ending(self) -> bool:
        """Whether somebody ends the loop without closing the Runner: bodies cancelled by that have
        not failed. Their tasks go on elsewhere, as if the process had died.
        """
        sentinel = self._loop_sentinel
        return sentinel is not None and sentinel.cancelling() > 0 and not self.has_left

    async def _watch_for_loop_end(self) -> None:
        """Does nothing, until somebody cancels everything that runs in the loop."""
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            if self.is_loop_ending():
                self._note_loop_end()

    def _note_loop_end(self) -> None:
        self.credit.is_open = False
        if not self.holds_nothing:
            logger.error(
                "the event loop ended while the Runner was open: its tasks are taken over when it "
                "is opened again, or when its lease is over. Use `async with Runner(...)`"
            )

    @property
    def is_over(self) -> bool:
        """Whether all that it held belongs to others, or is about to."""
        return self.has_left or self.is_loop_ending()

    def hand_back(self, attempt: Attempt) -> None:
        """Its body has ended, or is no longer waited for: others may begin it."""
        if attempt.is_reported and not attempt.outlasted:
            return
        if (claim := (attempt.id, attempt.version)) in self._ends_to_tell:
            self._ends_to_tell[claim] = attempt  # told first, it would undo the try, not end it
            return
        attempt.is_reported, attempt.outlasted = True, False
        if self.calls.lease_of(attempt.id, attempt.version) is not None:
            self.spawn(self._release_call(attempt))
        elif self.holds.get(attempt.id) == attempt.version:
            self._releases.add(attempt.released())

    async def _release_call(self, attempt: Attempt) -> None:
        """The protocol's release takes no history, which is written before."""
        if attempt.has_begun and attempt.reason != "lost":
            await self._patiently(attempt.annotations.final())
        await self.release(attempt.id, attempt.version)

    async def release(self, task_id: str, version: int) -> None:
        await self._patiently(ReleaseTask(id=task_id, version=version))
        self.let_go(task_id, version)
        self.dispatch()

    def report_overlap(self, attempt: Attempt) -> None:
        if attempt.is_reported or attempt.reason == "lost":
            return
        self.overlaps += 1
        message = (
            f"{attempt.id} is handed back though its body goes on: two may run at once. Give it a "
            "longer grace, or let it end when handle.is_cancelled is true"
        )
        logger.warning(message)
        self._emit_health("overlap", message)

    @property
    def holds_nothing(self) -> bool:
        return not self.holds and not self.calls.leased()

    def are_answered(self, mark: int) -> bool:
        return self.open_takes.are_answered(mark)

    def reported(self, report: Report, ask: Ask, reply: Reply | None) -> None:
        reply = self.open_takes.end(report, reply)
        self.credit.answered(ask)
        if _is_refused(reply) and not _goes_on(report):
            self._say_that_it_has_ended(report)
        elif not _is_kept(report, reply):
            self.let_go(report.id, report.version)
        outlasting = self._ends_to_tell.pop((report.id, report.version), None)
        if outlasting is not None:
            self.hand_back(outlasting)
        self._handle_reply(reply, ask)

    def _say_that_it_has_ended(self, report: Report) -> None:
        """The task was taken away before, and we may never be told so. If it came from a take, the
        store waits for this.
        """
        if self.holds.get(report.id) == report.version:
            self._releases.add(Released(report.id, report.version, begun=_has_begun(report)))
        else:
            self.let_go(report.id, report.version)

    def let_go(self, task_id: str, version: int) -> None:
        """It is no longer ours."""
        self.calls.let_go(task_id, version)
        if self.holds.get(task_id) == version:
            del self.holds[task_id]

    # --- leases --------------------------------------------------------------------------

    def is_leased(self, attempt: Attempt) -> bool:
        """Whether its task is certainly ours now. May be called from any thread."""
        own = self.calls.lease_of(attempt.id, attempt.version)
        return (self.lease if own is None else own).is_held()

    async def renew_lease(self, attempt: Attempt) -> None:
        """Return when it is known; an attempt that is lost has been ended by then."""
        if self.calls.lease_of(attempt.id, attempt.version) is None:
            await self._renewal.renew()
        else:
            await self.calls.renew(attempt.id, attempt.version)

    # --- small things --------------------------------------------------------------------

    async def _send_take(self, take: Take) -> Reply | None:
        self.open_takes.begin(take)
        reply = None
        try:
            reply = await self._patiently(take)
        finally:  # whoever asked accepts the tasks before anything else happens
            ours = self.open_takes.end(take, reply)
            if self.stopping is not None:
                self.stopping.changed()
        return ours

    async def _patiently(self, command: Any) -> Reply | None:
        """Send until the store answers; None when the engine has been stopped."""
        try:
            return await send_until_answered(self.client, command)
        except EngineStopped:
            return None

    def _emit_health(self, kind: str, reason: str) -> None:
        event = HealthEvent(
            kind=kind,
            source="worker",
            reason=reason,
            depth=self.credit.parked,
            capacity=self.config.max_parked,
        )
        self.health.emit(event)

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        loop = asyncio.get_running_loop()
        task = loop.create_task(coroutine, context=self._context)
        self._background.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._background.discard(task)
        if task.cancelled() or task.exception() is None:
            return
        if not isinstance(task.exception(), EngineStopped):
            logger.error("a bug in the worker: a background task failed", exc_info=task.exception())


def _is_kept(report: Report, reply: Reply | None) -> bool:
    """Whether the store goes on waiting to hear that the body has ended."""
    data = None if reply is None else reply.data
    is_settled = isinstance(data, FailData) and not data.promise.is_pending
    return _goes_on(report) and (is_settled or _is_refused(reply))


def _goes_on(report: Report) -> bool:
    """Whether the body goes on past what it reports."""
    return isinstance(report, FailTask) and report.still_running


def _has_begun(report: Report) -> bool:
    """Whether it is about a body: a task that is settled without one has no history to tell."""
    if isinstance(report, BlockTask):
        return report.begun
    return not isinstance(report, LimitTask) and report.history is not None


def _is_refused(reply: Reply | None) -> bool:
    """Whether the task had been taken away before the report came."""
    return reply is not None and reply.status in (404, 409)
