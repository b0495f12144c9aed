"""Calls of functions that this worker serves, from the message to the claim and its lease.

An `execute` names a task, and its promise says which function is called. A call whose function we
do not have is declined at once, so that another worker is offered it. Other calls stand in line
here until a slot is free, and are declined too while none is: whoever acquires a call first has it.
A call that has been acquired is an attempt like any other. Only its lease is its own: it is renewed
by its id, and nobody tells us when the task is taken away, so we check.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import msgspec

from layby.client.interface import WatchingClient
from layby.client.patience import known, send_until_answered
from layby.core.commands import (
    AcquireTask,
    GetPromise,
    GetTask,
    HeartbeatTasks,
    ReleaseTask,
    TaskVersion,
    WatchPromise,
)
from layby.core.model import Millis, Promise
from layby.core.queries import Execute
from layby.core.replies import Claim, ClaimData, PromiseData, TaskData
from layby.core.tag_names import TARGET
from layby.errors import StoreError
from layby.program import Program
from layby.wire.call_format import read_call
from layby.worker.body import Body
from layby.worker.credit import LINE
from layby.worker.lease import LeaseTime

logger = logging.getLogger(__name__)

MAX_WAITING: Final = 10_000
"""Calls kept in line while no slot is free; others are asked for again when these are done."""
BATCH: Final = 500
"""Leases renewed in one command."""
PARKED_PER_BEAT: Final = 50
"""Parked calls checked with one heartbeat; a lost one's next write would be refused anyway."""
BEATS_PER_LEASE: Final = 3
OLD_BODY_S: Final = 1.0
"""How long a call waits while an old body of the same task is still running here."""
WATCH_AFTER_S: Final = 0.5
"""A call that ends sooner is not watched for being cancelled."""


class CallSource(Protocol):
    """How execute messages for this worker's group reach it, and how it declines them."""

    def open(self) -> None: ...

    def close(self) -> None: ...

    def decline(self, task: Execute) -> None: ...


class CallHost(Protocol):
    """What calls need from the worker they run in."""

    client: WatchingClient
    lease: LeaseTime

    @property
    def running(self) -> "list[str]": ...

    def new_call(self, call: Execute) -> Body:
        """It stands in line for a slot from now on; when it has one, `acquire` is called."""
        ...

    def withdraw(self, body: Body) -> None:
        """The call is not ours: out of line, or its slot is free again."""
        ...

    def adopt(self, body: Body, claim: Claim) -> None:
        """The call is ours, and becomes the body of its claim."""
        ...

    def has_old_body(self, task_id: str) -> bool:
        """Whether a body of an earlier claim of this task has not ended here."""
        ...

    def lost(self, task_id: str, version: int) -> None: ...

    def spawn(self, coroutine: Any) -> "asyncio.Task[Any]": ...


class CallLease:
    """The lease of a call that we have acquired; `watch` notices that somebody else ends it."""

    __slots__ = ("time", "timer", "version", "watch")

    def __init__(self, version: int, timer: asyncio.TimerHandle, time: LeaseTime) -> None:
        self.version = version
        self.timer = timer
        self.time = time
        self.watch: asyncio.Task[Any] | None = None

    def end(self) -> None:
        self.timer.cancel()
        if self.watch is not None:
            self.watch.cancel()


class Calls:
    """`beats`: it renews its leases itself; a remote worker has a heartbeat thread for that."""

    def __init__(
        self, host: CallHost, program: Program, pid: str, ttl: Millis, *, beats: bool
    ) -> None:
        self.source: CallSource | None = None
        """Set by the link that connects the worker to its store."""
        self._host = host
        self._program = program
        self._pid = pid
        self._ttl = ttl
        self._is_beating = not beats
        self._functions: frozenset[str] = frozenset()
        self._waiting: dict[str, Body] = {}
        """Calls that stand in line."""
        self._acquiring: dict[str, int] = {}
        """Versions of calls that have a slot, and are being acquired."""
        self._leases: dict[str, CallLease] = {}
        self._next_to_check = 0
        self._has_declined_for_room = False
        self._is_closed = False

    # --- starting and stopping -----------------------------------------------------------

    def code_changed(self) -> None:
        """There may be more functions now: ask again for what was declined before."""
        if self._functions != self._program.functions:
            self._functions = self._program.functions
            self._reopen_source()

    def close(self) -> None:
        """Receive no more, and begin nothing."""
        self._is_closed = True
        for body in self._waiting.values():
            self._host.withdraw(body)
        self._waiting.clear()
        if self.source is not None:
            self.source.close()

    async def release(self, leased: Sequence[TaskVersion]) -> None:
        commands = (ReleaseTask(id=each.id, version=each.version) for each in leased)
        await asyncio.gather(*map(self._host.client.send, commands))

    def _reopen_source(self) -> None:
        if self.source is not None and not self._is_closed:
            self.source.close()
            self.source.open()

    # --- from the message to the line ----------------------------------------------------

    def on_execute(self, task_id: str, version: int) -> None:
        """An `execute` has come, perhaps a second time, perhaps late."""
        lease, waiting = self._leases.get(task_id), self._waiting.get(task_id)
        if lease is not None and lease.version <= version:
            self._host.lost(task_id, lease.version)  # it is pending again, so it is not ours
        if self._is_closed or (lease is not None and lease.version > version):
            return
        if waiting is None or waiting.call is None or waiting.call.version < version:
            self._host.spawn(self._read_call(task_id, version))
        else:
            self._decline(waiting.call)  # another worker may have a slot for it sooner

    async def _read_call(self, task_id: str, version: int) -> None:
        data = (await send_until_answered(self._host.client, GetPromise(id=task_id))).data
        if not isinstance(data, PromiseData) or not data.promise.is_pending or self._is_closed:
            return
        call = Execute(task_id, version, _target_of(data.promise))
        if self._program.serves(read_call(data.promise)):
            self._put_in_line(call)
        else:
            self._decline(call)

    def _put_in_line(self, call: Execute) -> None:
        """Put it in line, and decline it too: another worker may have a slot for it sooner."""
        if self._is_closed or self._is_old(call):
            return
        if len(self._waiting) >= MAX_WAITING:
            self._has_declined_for_room = True
            self._decline(call)
            return
        older = self._waiting.pop(call.id, None)
        if older is not None:
            self._host.withdraw(older)
        body = self._host.new_call(call)
        if body.slot_state is LINE:
            self._waiting[call.id] = body
            self._decline(call)

    def _is_old(self, call: Execute) -> bool:
        """Whether we acquire it, or have done so: one who heard of it twice would have it twice, as
        an answer that got lost tells only that it is ours.
        """
        lease = self._leases.get(call.id)
        is_ours = lease is not None and lease.version > call.version
        return is_ours or self._acquiring.get(call.id, -1) >= call.version

    def _decline(self, call: Execute) -> None:
        if self.source is not None:
            self.source.decline(call)

    # --- from the line to the claim ------------------------------------------------------

    def acquire(self, body: Body) -> None:
        """It has a slot: try to acquire the call, as others may."""
        assert body.call is not None
        self._waiting.pop(body.call.id, None)
        if self._has_declined_for_room and not self._waiting:
            self._has_declined_for_room = False
            self._reopen_source()
        self._acquiring[body.call.id] = body.call.version
        self._host.spawn(self._acquire(body, body.call))

    async def _acquire(self, body: Body, call: Execute) -> None:
        claim = None
        try:
            claim = await self._claim(call)
        finally:
            if self._acquiring.get(call.id) == call.version:
                del self._acquiring[call.id]
            if claim is None:
                self._host.withdraw(body)
        if claim is not None:
            self._host.adopt(body, claim)

    async def _claim(self, call: Execute) -> Claim | None:
        host = self._host
        if host.has_old_body(call.id):
            self._decline(call)  # others may have it at once, and we when that one has ended
            asyncio.get_running_loop().call_later(OLD_BODY_S, self._put_in_line, call)
            return None
        acquire = AcquireTask(id=call.id, version=call.version, pid=self._pid, ttl=self._ttl)
        sent_at = host.lease.elapsed()
        data = (await send_until_answered(host.client, acquire)).data
        if not isinstance(data, ClaimData):
            return None  # somebody else has it, or it is over
        task = data.task
        if self._is_closed:
            await self.release([TaskVersion(task.id, task.version)])
            return None
        self._lease(task.id, task.version, sent_at)
        queued_at = data.promise.created_at if task.version == 1 else 0
        return Claim(task, data.promise, queued_at, resumed=data.resumed)

    # --- the lease -----------------------------------------------------------------------

    def _lease(self, task_id: str, version: int, sent_at: Millis) -> None:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(WATCH_AFTER_S, self._watch, task_id, version)
        time = LeaseTime(self._ttl, self._host.lease.elapsed)
        time.renewed(sent_at)
        self._leases[task_id] = CallLease(version, timer, time)
        if not self._is_beating:
            self._is_beating = True
            self._host.spawn(self._beat_on())

    def let_go(self, task_id: str, version: int) -> None:
        lease = self._leases.get(task_id)
        if lease is not None and lease.version == version:
            lease.end()
            del self._leases[task_id]

    def leased(self) -> list[TaskVersion]:
        """May be called from any thread."""
        return [TaskVersion(key, lease.version) for key, lease in list(self._leases.items())]

    def beats(self) -> Iterator[HeartbeatTasks]:
        """The commands that renew all leases."""
        leased = self.leased()
        for start in range(0, len(leased), BATCH):
            yield HeartbeatTasks(pid=self._pid, tasks=leased[start : start + BATCH])

    def renewed(self, beat: HeartbeatTasks, sent_at: Millis) -> None:
        """The beat was answered. Ids that are not ours are silently skipped, so only what we still
        held then has certainly been renewed. May be called from any thread.
        """
        for each in beat.tasks:
            time = self.lease_of(each.id, each.version)
            if time is not None and time.is_held():
                time.renewed(sent_at)

    def lease_of(self, task_id: str, version: int) -> LeaseTime | None:
        lease = self._leases.get(task_id)
        return lease.time if lease is not None and lease.version == version else None

    async def renew(self, task_id: str, version: int) -> None:
        """If no renewal was confirmed in time: renew it by its id, and check that it is ours."""
        time, named = self.lease_of(task_id, version), TaskVersion(task_id, version)
        sent_at = self._host.lease.elapsed()
        await send_until_answered(self._host.client, HeartbeatTasks(pid=self._pid, tasks=[named]))
        self._check_still_ours(
            named, (await send_until_answered(self._host.client, GetTask(id=task_id))).data
        )
        if time is not None and self.lease_of(task_id, version) is time:
            time.renewed(sent_at)

    async def check_leases(self) -> None:
        """Check whether tasks are still ours: those that run, and a few that are parked."""
        leased, running = self.leased(), set(self._host.running)
        parked = [each for each in leased if each.id not in running]
        start = self._next_to_check if self._next_to_check < len(parked) else 0
        self._next_to_check = start + PARKED_PER_BEAT
        looked = [each for each in leased if each.id in running] + parked[
            start : start + PARKED_PER_BEAT
        ]
        try:
            await asyncio.gather(*map(self._check, looked))
        except StoreError as failure:
            logger.warning("whether calls are still ours could not be checked: %s", failure)

    async def _check(self, leased: TaskVersion) -> None:
        self._check_still_ours(
            leased, known(await self._host.client.send(GetTask(id=leased.id))).data
        )

    def _check_still_ours(self, leased: TaskVersion, data: object) -> None:
        is_ours = (
            isinstance(data, TaskData)
            and data.task.state == "acquired"
            and data.task.version == leased.version
        )
        if not is_ours:
            self._host.lost(leased.id, leased.version)

    def _watch(self, task_id: str, version: int) -> None:
        lease = self._leases.get(task_id)
        if lease is not None and lease.version == version:
            lease.watch = self._host.spawn(self._await_end(task_id, version))

    async def _await_end(self, task_id: str, version: int) -> None:
        """Its promise was settled by somebody else: cancelled, or past its deadline."""
        await send_until_answered(self._host.client, WatchPromise(id=task_id))
        self._host.lost(task_id, version)

    async def _beat_on(self) -> None:
        while self._leases:
            await asyncio.sleep(self._ttl / 1000 / BEATS_PER_LEASE)
            try:
                for beat in self.beats():
                    sent_at = self._host.lease.elapsed()
                    if (await self._host.client.send(beat)).is_ok:
                        self.renewed(beat, sent_at)
                await self.check_leases()
            except StoreError as failure:
                logger.warning("the leases of calls could not be renewed: %s", failure)
        self._is_beating = False


def _target_of(promise: Promise) -> str:
    tags: dict[str, str] = msgspec.json.decode(promise.tags)
    return tags.get(TARGET, "")
