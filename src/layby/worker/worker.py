"""Takes by credit, runs bodies, reports how they end.

The pipeline of one claim: take → load → run → classify → report, each in a file of its own:
`standing_take`, `loading`, `body` and `bodies`, `ending`, `reporting`. Who may run is decided by
`credit` alone; the worker tells it what happens and carries out what it decides.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextvars import copy_context
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from layby.client.api import LineClient
from layby.core.commands import (
    HeartbeatWorker,
    LeaveWorker,
    Released,
    ReleaseTasks,
    StartRun,
    Take,
    TaskVersion,
)
from layby.core.model import Millis
from layby.core.queries import Execute
from layby.core.replies import (
    Claim,
    FailData,
    FinishData,
    Reply,
    RunData,
    TakeData,
)
from layby.errors import EngineStopped, StoreError
from layby.executors import HealthEvent, HealthEventSink
from layby.worker.attempt import Attempt
from layby.worker.bodies import Bodies
from layby.worker.body import Body
from layby.worker.callbacks import Callbacks
from layby.worker.calls import Calls
from layby.worker.credit import HELD, NOTHING, Ask, Credit, Offer
from layby.worker.ending import classify
from layby.worker.loading import Loaded, Loader
from layby.worker.patience import patiently
from layby.worker.program import Program, Verdict
from layby.worker.reporting import Report, Reporter
from layby.worker.sight import Sight
from layby.worker.standing_take import StandingTake
from layby.worker.wheel import Wheel

logger = logging.getLogger(__name__)

FOREVER_MS = 3_600_000
WAIT_MS = 30_000
"""How long a take waits at a server: what lies in between may lose the answer, and say nothing."""
LEAVE_S = 3.0
"""How long a worker that stops tries to hand its tasks back; later they are taken over anyway."""
REFUSED_S = 5.0
"""How long a worker that is refused waits before it asks for tasks again."""
OLD_BODY_MS: Millis = 1_000
"""How long a task goes back for whose old body still ends in this process."""


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
    """Whether parked tasks are taken out of the garbage collector's sight (`gc.freeze`)."""


class Worker:
    def __init__(
        self,
        client: LineClient,
        program: Program,
        config: WorkerConfig,
        now: Callable[[], Millis],
    ) -> None:
        self.client = client
        self.now = now
        self.config = config
        self.credit = Credit(config.slots, config.max_parked)
        self.health = HealthEventSink()
        self.attempts: dict[str, Attempt] = {}
        self._program = program
        self._wheel = Wheel()
        self._sight = Sight(is_on=config.freeze_parked)
        self._bodies = Bodies(self._wheel, config.max_threads, config.processes, self.give_up)
        self._context = copy_context()
        """What bodies start in: nothing that one of them sets reaches another."""
        self.incarnation = config.incarnation
        self.registered_as = ""
        """The incarnation that the store is known to know."""
        self.on_new_incarnation: Callable[[], None] = lambda: None
        """For whoever has told the store who this worker is."""
        self._arriving: dict[str, Body] = {}
        """Claimed, and not begun yet."""
        self._begun_ahead: dict[str, int] = {}
        """Versions of tasks that were claimed ahead and have begun: the store does not know."""
        self.holds: dict[str, int] = {}
        """Versions of the tasks it has been given and not given back, as far as it knows."""
        self._running: set[Body] = set()
        self._stuck: dict[Body, str] = {}
        self.slots_lent = 0
        """How often a slot was lent, so that its body did not wait for itself."""
        self._background: set[asyncio.Task[Any]] = set()
        self._callbacks = Callbacks()
        self._loader = Loader(self, client, program)
        self._reporter = Reporter(self, program, self._callbacks)
        self._standing = StandingTake(
            self.credit, self._offering, self._patiently, self._answered, self.spawn
        )
        self._is_looking = False
        self._giving_back: asyncio.TimerHandle | None = None
        self._stopping = False
        self._was_full = False
        self.calls = Calls(self, program, config.pid, config.ttl, beats=config.embedded)

    # --- life ----------------------------------------------------------------------------

    def start(self) -> None:
        self.look()

    async def stop(self, grace: float = 1.0) -> None:
        """Hand every task back at once; bodies get `grace` seconds to clean up."""
        self._stopping = True
        self.credit.is_open = False
        self._standing.close()
        leased = self.calls.close()
        await asyncio.sleep(0)  # reports of bodies that have just ended leave first
        for attempt in list(self.attempts.values()):
            attempt.end("shutdown")
        await self._leave(leased)
        await asyncio.gather(self.bodies_ended(grace), self._callbacks.finish(grace))
        self.close()

    def close(self) -> None:
        self._wheel.close()
        self._bodies.close()
        self._sight.close()
        if self._giving_back is not None:
            self._giving_back.cancel()
        for task in list(self._background):
            task.cancel()

    async def bodies_ended(self, within: float) -> bool:
        """Whether all bodies have ended in time."""
        tasks = [body.task for body in self._running if body.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=within)
        return all(task.done() for task in tasks)

    async def _leave(self, leased: Sequence[TaskVersion]) -> None:
        leave = LeaveWorker(pid=self.config.pid, incarnation=self.incarnation)
        try:
            async with asyncio.timeout(LEAVE_S):
                await asyncio.gather(self.client.send(leave), self.calls.release(leased))
        except (EngineStopped, StoreError, TimeoutError) as failure:
            why = str(failure) or "the store does not answer"
            logger.warning("the worker could not hand its tasks back: %s", why)

    def lost(self, task_id: str, version: int) -> None:
        """A task was taken away: cancelled, halted, timed out or settled by somebody else."""
        attempt, arriving = self.attempts.get(task_id), self._arriving.get(task_id)
        if attempt is not None and attempt.version == version:
            attempt.end("lost")
            return
        if arriving is not None and arriving.version == version:
            self._drop(arriving)
            self.look()
        self._body_is_over(task_id, version)

    def _drop(self, body: Body) -> None:
        """It has not begun, and will not."""
        del self._arriving[body.id]
        self.credit.leave(body)

    @property
    def is_stopping(self) -> bool:
        return self._stopping

    @property
    def running(self) -> "list[str]":
        """Tasks whose bodies hold a slot now. May be asked from any thread."""
        return [each.id for each in list(self.attempts.values()) if not each.is_parked]

    @property
    def stuck(self) -> tuple[str, ...]:
        """Tasks that are over but whose bodies go on: each keeps its slot until it ends."""
        return tuple(self._stuck.values())

    @property
    def threads(self) -> int:
        """How many plain `def` bodies have a thread now, those that wait in it too."""
        return self._bodies.threads

    # --- what credit decides -------------------------------------------------------------

    def look(self) -> None:
        """Something has changed: let those go on whose turn it is, and ask for more."""
        for seat in self.credit.grants():
            assert isinstance(seat, Body)
            self._granted(seat)
        if not self._is_looking and not self._stopping:
            self._is_looking = True
            asyncio.get_running_loop().call_soon(self._ask_for_more)

    def _granted(self, body: Body) -> None:
        if body.is_resuming:
            body.resume()
        elif body.claim is None and body.call is not None:
            self.calls.acquire(body)
        elif body.attempt is not None:
            self._begin(body)

    def _ask_for_more(self) -> None:
        """Once for all that happens in a turn of the loop, after its reports have left."""
        self._is_looking = False
        self._sight.look(self.credit.parked)
        if self._stopping or not self._program.names:
            return
        older = self.credit.older()
        if older is not None:
            self.spawn(self._take_now(older))
        self._standing.look()
        self._arm_giving_back()

    async def _take_now(self, ask: Ask) -> None:
        """A take that is answered at once."""
        reply = None
        try:
            reply = await self._patiently(self.take(ask))
        finally:
            self.credit.answered(ask)
            self._heed(reply, ask)
            self.look()

    async def let_others_in(self) -> None:
        """Room was made: let what is ready in the store stand in line before this goes on."""
        self.look()
        if not self._program.names:
            return
        ask = self.credit.ask(self.config.slots)
        if ask.free:
            await self._take_now(ask)

    def why_not_park(self) -> str | None:
        """Why no task may be parked or taken now; None when one may."""
        if not self.credit.is_full:
            self._was_full = False
            return None
        reason = f"{self.config.max_parked} tasks are parked (max_parked), so it keeps its slot"
        if not self._was_full:
            self._was_full = True
            self._tell_health("parked_limit", "no new task is taken: max_parked is reached")
        return reason

    def code_changed(self) -> None:
        """The program knows more names now: ask for those too."""
        self.calls.code_changed()
        if self._program.names and not self._stopping:
            self._standing.tell()
        self.look()

    # --- takes ---------------------------------------------------------------------------

    def take(self, ask: Ask, wait_ms: int = 0, *, in_line: bool = False) -> Take:
        config = self.config
        return Take(
            pid=config.pid,
            incarnation=self.incarnation,
            group=config.group,
            names=self._program.names,
            free=ask.free,
            ahead=ask.ahead,
            before=ask.before,
            in_line=in_line,
            begun=self._newly_begun(),
            ttl=config.ttl,
            embedded=config.embedded,
            wait_ms=wait_ms,
        )

    def _offering(self, offer: Offer) -> Take:
        wait_ms = FOREVER_MS if self.config.embedded else WAIT_MS
        return self.take(Ask(offer.free), wait_ms, in_line=offer.in_line)

    def _newly_begun(self) -> tuple[TaskVersion, ...]:
        if not self._begun_ahead:
            return ()
        begun, self._begun_ahead = self._begun_ahead, {}
        return tuple(TaskVersion(task_id, version) for task_id, version in begun.items())

    def ask(self) -> tuple[Ask, Take | None]:
        """What a report may bring back: the slot that has just become free asks for a task."""
        if self._stopping:
            return NOTHING, None
        ask = self.credit.ask(1, self.now())
        return ask, self.take(ask)

    def registration(self) -> Take:
        """Takes nothing: makes this worker a holder, or renews its lease."""
        return replace(self.take(NOTHING), names=())

    def heartbeat(self) -> HeartbeatWorker:
        """May be asked for from any thread."""
        return HeartbeatWorker(
            pid=self.config.pid, incarnation=self.incarnation, held=len(self.holds)
        )

    def _answered(self, take: Take, reply: Reply, is_latest: bool) -> None:  # noqa: FBT001
        if isinstance(reply.data, TakeData):
            if is_latest or reply.data.claims:  # one that was replaced knows nothing of the rest
                self._heed(reply, NOTHING)
        elif is_latest and reply.status != 409:
            self._be_refused(reply)
            return
        elif is_latest:
            self.start_over(take.incarnation, reply)
        self.look()

    def _be_refused(self, reply: Reply) -> None:
        """Asking again at once would be refused again, and again."""
        logger.error("this worker is given no tasks, and asks again later: %s", reply.data)
        asyncio.get_running_loop().call_later(REFUSED_S, self.look)

    def start_over(self, incarnation: str, reply: Reply) -> None:
        """The store gave this worker up: everything it held belongs to others now."""
        if incarnation != self.incarnation or self._stopping:
            return  # told before, or expected
        logger.error("the worker lost its lease and begins anew: %s", reply.data)
        self.incarnation = uuid.uuid4().hex
        held, self.holds = self.holds, {}
        for body in list(self._arriving.values()):
            if body.id in held:
                self._drop(body)
        for attempt in list(self.attempts.values()):
            if attempt.id in held:
                attempt.end("lost")
        self.on_new_incarnation()
        self.look()

    async def start_run(self, command: StartRun) -> Reply:
        """Start a run and, with room for it, its first tasks in the same command."""
        ask = NOTHING
        if command.name in self._program.names and not self._stopping:
            first = sum(not node.after for node in command.nodes)
            ask = self.credit.ask(first)
        take = self.take(ask) if ask.free else None
        try:
            reply = await self.client.send(replace(command, take=take))
        except BaseException:
            self.credit.answered(ask)
            self.look()
            raise
        self.credit.answered(ask)
        self._go_on(reply, NOTHING if take is None else ask)  # who did not ask is told nothing
        return reply

    def _heed(self, reply: Reply | None, ask: Ask) -> None:
        """What an answer brings, and what it says of what it leaves."""
        data = None if reply is None else reply.data
        taken = data.taken if isinstance(data, FinishData | FailData | RunData) else data
        if isinstance(taken, TakeData):
            self.credit.heard(taken.oldest_left, NOTHING if taken.again else ask)
            self.arrive(taken.claims)

    def _go_on(self, reply: Reply | None, ask: Ask) -> None:
        data = None if reply is None else reply.data
        if isinstance(data, RunData) and data.promise.is_pending:
            self._program.started(data.promise)
        if isinstance(data, FinishData | FailData) and not data.promise.is_pending:
            self._program.settled(data.promise)
            if data.root is not None:
                self._program.settled(data.root)
        self._heed(reply, ask)
        self.look()

    # --- load ----------------------------------------------------------------------------

    def arrive(self, claims: Iterable[Claim]) -> None:
        """Tasks that are ours now: they stand in line while they are loaded."""
        for claim in claims:
            if claim.task.is_ours:
                self.holds[claim.task.id] = claim.task.version
            if self._stopping:
                continue  # handed back with everything else
            if claim.task.is_root:
                self._load(Body(self, claim))
            else:
                self._arrive(claim)

    def _arrive(self, claim: Claim) -> None:
        task = claim.task
        older = self.attempts.get(task.id)
        if older is not None:
            older.end("lost")  # whether we have heard so or not
            self.give_back([Released(task.id, task.version, begun=False, delay=OLD_BODY_MS)])
            return
        body = Body(self, claim)
        self._arriving[task.id] = body
        self.credit.stand(body, claim.ready_at, self.now())
        self._load(body)

    def new_call(self, call: Execute) -> Body:
        """A call that we could serve: it stands in line, with the time of its first hearing."""
        body = Body(self, call=call)
        self.stand(body)
        return body

    def withdraw(self, body: Body) -> None:
        self.credit.leave(body)
        self.look()

    def adopt(self, body: Body, claim: Claim) -> None:
        """A call that has been acquired: it holds its slot already."""
        older = self.attempts.get(claim.task.id)
        if older is not None:
            older.end("lost")
        body.claim = claim
        self._arriving[claim.task.id] = body
        self._load(body)

    def _load(self, body: Body) -> None:
        assert body.claim is not None
        loaded = self._loader.load_now(body.claim)
        if loaded is None:
            self.spawn(self._load_later(body, body.claim))
        else:
            self._loaded(body, loaded)

    async def _load_later(self, body: Body, claim: Claim) -> None:
        loaded = await self._loader.load(claim)
        if loaded is not None and not self._stopping:
            self._loaded(body, loaded)
            self.look()

    def _loaded(self, body: Body, loaded: Loaded) -> None:
        claim = body.claim
        assert claim is not None
        if not claim.task.is_root and self._arriving.get(claim.task.id) is not body:
            return  # taken away, or given back meanwhile
        if isinstance(loaded, Verdict):
            self._settle(body, claim, loaded)
            return
        body.attempt = loaded
        loaded.body = body
        if body.stand is HELD:
            self._begin(body)

    def _settle(self, body: Body, claim: Claim, verdict: Verdict) -> None:
        if not claim.task.is_root:
            self._drop(body)
            self.look()
        self._reporter.settle(claim.task, verdict)

    # --- run -----------------------------------------------------------------------------

    def _begin(self, body: Body) -> None:
        attempt, claim = body.attempt, body.claim
        assert attempt is not None
        assert claim is not None
        if claim.task.ahead:
            self._begun_ahead[attempt.id] = attempt.version
        body.claim = body.call = None  # a body may be parked for long
        del self._arriving[attempt.id]
        self.attempts[attempt.id] = attempt
        self._running.add(body)
        self.credit.begin(body, self.now())
        body.run(self._bodies.begin(attempt, body, self._context.copy()))

    def park(self, body: Body) -> bool:
        has_parked = self.credit.park(body)
        if has_parked:
            self.look()
        return has_parked

    def stand(self, body: Body) -> None:
        now = self.now()
        self.credit.stand(body, now, now)
        self.look()

    def step_back(self, body: Body) -> None:
        self.credit.step_back(body)
        self.look()

    def cancel_body(self, attempt: Attempt) -> None:
        body = attempt.body
        if body is None or body.task is None:
            return
        self.credit.end(body)
        body.task.cancel()
        self.look()

    def give_up(self, attempt: Attempt) -> None:
        """The body goes on though it must not: report now, and let it keep its slot."""
        body = attempt.body
        if body is None or body in self._stuck:
            return
        self._stuck[body] = attempt.id
        held = "and keeps its slot" if body.stand is HELD else "without a slot"
        told = f"{attempt.id} goes on after '{attempt.reason}' {held}"
        logger.warning(told)
        self._tell_health("stuck", told)
        self._report(attempt, None)

    def lent(self, attempt: Attempt, why: str) -> None:
        self.slots_lent += 1
        self._tell_health("slot_lent", f"{attempt.id}: {why}")

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
        self.look()
        self._report(attempt, body.task)
        if body.task is not None and not body.task.cancelled():
            body.task.exception()  # told in the report

    # --- report --------------------------------------------------------------------------

    def _report(self, attempt: Attempt, task: "asyncio.Task[Any] | None") -> None:
        """Once for each try."""
        if attempt.is_reported:
            return
        ending = classify(attempt, task)
        if ending != "taken away":
            attempt.is_reported = True
            self._reporter.report(attempt, ending)
        elif task is not None:
            self._body_is_over(attempt.id, attempt.version)

    def _body_is_over(self, task_id: str, version: int) -> None:
        """A task that was taken away, halted say, is handed out again when the store knows that."""
        if self.holds.get(task_id) == version:
            self.give_back([Released(task_id, version)])
        else:
            self.let_go(task_id, version)

    def reported(self, report: Report, ask: Ask, reply: Reply | None) -> None:
        self.credit.answered(ask)
        self.let_go(report.id, report.version)
        self._go_on(reply, ask)

    def let_go(self, task_id: str, version: int) -> None:
        """It is no longer ours."""
        self.calls.let_go(task_id, version)
        if self.holds.get(task_id) == version:
            del self.holds[task_id]

    # --- giving back ---------------------------------------------------------------------

    def _arm_giving_back(self) -> None:
        due = self.credit.overdue_at
        if due is not None and self._giving_back is None:
            seconds = max(0, due - self.now()) / 1000
            loop = asyncio.get_running_loop()
            self._giving_back = loop.call_later(seconds, self._give_back_overdue)

    def _give_back_overdue(self) -> None:
        self._giving_back = None
        bodies = [seat for seat in self.credit.overdue(self.now()) if isinstance(seat, Body)]
        for body in bodies:
            del self._arriving[body.id]
        self.give_back([_unbegun(body) for body in bodies])
        self.look()

    def give_back(self, tasks: "Sequence[Released]") -> None:
        if tasks:
            self.spawn(self._give_back(tasks))

    async def _give_back(self, tasks: "Sequence[Released]") -> None:
        release = ReleaseTasks(
            pid=self.config.pid, incarnation=self.incarnation, tasks=tuple(tasks)
        )
        await self._patiently(release)
        for task in tasks:
            self.let_go(task.id, task.version)

    # --- small things --------------------------------------------------------------------

    async def _patiently(self, command: Any) -> Reply | None:
        """Send until the store answers; None when the engine has been stopped."""
        try:
            return await patiently(self.client, command)
        except EngineStopped:
            return None

    def _tell_health(self, kind: str, reason: str) -> None:
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
            logger.error("a bug in the worker", exc_info=task.exception())


def _unbegun(body: Body) -> Released:
    """It keeps its place, and was no try."""
    return Released(body.id, body.version, ready_at=body.place, begun=False)
