"""Calls of functions that this worker serves, from the message to the claim and its lease.

An `execute` says which task there is, and its promise which function is called. What we have no
function for is declined at once, so that another worker hears of it. The rest stands in line here
until a slot is free, and is declined as well while none is: whoever acquires it first has it.
A call that has been acquired is an attempt like others. Only its lease is its own: it is renewed
by its name, and nobody tells us when the task is taken away, so we look.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final, Protocol

import msgspec

from layby.client.api import Client
from layby.core.birth import TARGET
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
from layby.errors import StoreError
from layby.worker.call_format import read_call
from layby.worker.patience import known, patiently
from layby.worker.program import Program

logger = logging.getLogger(__name__)

MAX_WAITING: Final = 10_000
"""Calls remembered while no slot is free; others are asked for again when these are done."""
PORTION: Final = 500
"""Leases renewed in one command."""
FEW: Final = 50
"""Parked calls looked after in one beat: what they write next would be refused anyway."""
BEATS_PER_LEASE: Final = 3
YOUNG_S: Final = 0.5
"""A call that ends sooner is not worth watching whether somebody cancels it."""


class Line(Protocol):
    """How executes for this worker's group reach it, and how it says no."""

    def open(self) -> None: ...

    def close(self) -> None: ...

    def decline(self, task: Execute) -> None: ...


class Host(Protocol):
    """What calls need of the worker they run in."""

    client: Client

    @property
    def credit(self) -> int: ...

    @property
    def running(self) -> "list[str]": ...

    def credit_changed(self) -> None: ...

    def ride(self, slots: int) -> None:
        """Claim slots for what is on its way, or give them back."""
        ...

    async def is_slot_left(self) -> bool:
        """Once no take has been offered what rides: whether there is a slot for it."""
        ...

    def begin(self, claims: "list[Claim]") -> "list[asyncio.Task[Any]]": ...

    def lost(self, task_id: str, version: int) -> None: ...

    def spawn(self, coroutine: Any) -> "asyncio.Task[Any]": ...


class Lease:
    """A call that we have acquired; `watch` makes us hear of its end from elsewhere."""

    __slots__ = ("timer", "version", "watch")

    def __init__(self, version: int, timer: asyncio.TimerHandle) -> None:
        self.version = version
        self.timer = timer
        self.watch: asyncio.Task[Any] | None = None

    def end(self) -> None:
        self.timer.cancel()
        if self.watch is not None:
            self.watch.cancel()


class Calls:
    """`beats`: renews its leases itself; a worker whose store is elsewhere has a heart for that."""

    def __init__(self, host: Host, program: Program, pid: str, ttl: Millis, *, beats: bool) -> None:
        self.line: Line | None = None
        """Given by whoever connects the worker to its store."""
        self._host = host
        self._program = program
        self._pid = pid
        self._ttl = ttl
        self._is_beating = not beats
        self._functions: frozenset[str] = frozenset()
        self._waiting: dict[str, Execute] = {}
        self._leases: dict[str, Lease] = {}
        self._looked_after = 0
        self._has_forgotten = False
        self._is_next = True
        """Whether a slot that both calls and runs want is for a call this time."""
        self._is_closed = False

    # --- life ----------------------------------------------------------------------------

    def code_changed(self) -> None:
        """There may be more functions now: hear again what was declined before."""
        if self._functions != self._program.functions:
            self._functions = self._program.functions
            self._hear_again()

    def close(self) -> list[TaskVersion]:
        """Hear no more; what has to be released."""
        self._is_closed = True
        self._waiting.clear()
        if self.line is not None:
            self.line.close()
        return self.leased()

    async def release(self, leased: Sequence[TaskVersion]) -> None:
        commands = (ReleaseTask(id=each.id, version=each.version) for each in leased)
        await asyncio.gather(*map(self._host.client.send, commands))

    def _hear_again(self) -> None:
        if self.line is not None and not self._is_closed:
            self.line.close()
            self.line.open()

    # --- from the message to the line ----------------------------------------------------

    def heard(self, task_id: str, version: int) -> None:
        """An `execute` has come, perhaps once more, perhaps late."""
        lease, waiting = self._leases.get(task_id), self._waiting.get(task_id)
        if lease is not None and lease.version <= version:
            self._host.lost(task_id, lease.version)  # it is pending again, so it is not ours
        if self._is_closed or (lease is not None and lease.version > version):
            return
        if waiting is None or waiting.version < version:
            self._host.spawn(self._look(task_id, version))
        else:
            self._share_with_others(waiting)

    async def _look(self, task_id: str, version: int) -> None:
        data = (await patiently(self._host.client, GetPromise(id=task_id))).data
        if not isinstance(data, PromiseData) or not data.promise.is_pending or self._is_closed:
            return
        call = Execute(task_id, version, _target_of(data.promise))
        if self._program.serves(read_call(data.promise)):
            self._remember(call)
        else:
            self._decline(call)

    def _remember(self, call: Execute) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self._has_forgotten = True
            self._decline(call)
            return
        self._waiting[call.id] = call
        self._share_with_others(call)
        self._host.credit_changed()

    def _share_with_others(self, call: Execute) -> None:
        """Another worker may have a slot for it sooner."""
        if len(self._waiting) > self._host.credit:
            self._decline(call)

    def _decline(self, call: Execute) -> None:
        if self.line is not None:
            self.line.decline(call)

    # --- from the line to the claim ------------------------------------------------------

    @property
    def is_any_waiting(self) -> bool:
        return bool(self._waiting)

    def share(self, room: int) -> int:
        """How many of these slots are for calls: half of them, and an odd one in turns."""
        half, odd = divmod(room, 2)
        mine = half + (odd and self._is_next)
        if odd and self._waiting:
            self._is_next = not self._is_next
        return min(mine, len(self._waiting))

    def let_run_pass(self) -> bool:
        """Whether the slot that has just become free is for a task of a run, if there is one."""
        if self._waiting and self._is_next:
            return False
        self._is_next = True
        return True

    def begin(self, room: int) -> "list[asyncio.Task[Any]]":
        """Acquire calls for so many slots, those first that came first."""
        begun = list(islice(self._waiting.values(), max(0, room)))
        for call in begun:
            del self._waiting[call.id]
        self._host.ride(len(begun))
        if self._has_forgotten and not self._waiting:
            self._has_forgotten = False
            self._hear_again()
        return [self._host.spawn(self._acquire(call)) for call in begun]

    async def _acquire(self, call: Execute) -> None:
        """Done when its body stands in line for its slot, or it turned out not to be ours."""
        arriving: list[asyncio.Task[Any]] = []
        try:
            if await self._host.is_slot_left():
                arriving = await self._claim(call)
            elif not self._is_closed:
                self._waiting = {call.id: call} | self._waiting
        finally:
            self._host.ride(-1)
        await asyncio.gather(*arriving)

    async def _claim(self, call: Execute) -> "list[asyncio.Task[Any]]":
        host = self._host
        acquire = AcquireTask(id=call.id, version=call.version, pid=self._pid, ttl=self._ttl)
        data = (await patiently(host.client, acquire)).data
        if not isinstance(data, ClaimData):
            return []  # somebody else has it, or it is over
        task = data.task
        if self._is_closed:
            await self.release([TaskVersion(task.id, task.version)])
            return []
        self._lease(task.id, task.version)
        queued_at = data.promise.created_at if task.version == 1 else 0
        return host.begin([Claim(task, data.promise, queued_at)])

    # --- the lease -----------------------------------------------------------------------

    def _lease(self, task_id: str, version: int) -> None:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(YOUNG_S, self._watch, task_id, version)
        self._leases[task_id] = Lease(version, timer)
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
        """What renews all leases."""
        leased = self.leased()
        for start in range(0, len(leased), PORTION):
            yield HeartbeatTasks(pid=self._pid, tasks=leased[start : start + PORTION])

    async def look_after(self) -> None:
        """Whether tasks are still ours: those that run, and a few that are parked."""
        leased, running = self.leased(), set(self._host.running)
        parked = [each for each in leased if each.id not in running]
        start = self._looked_after if self._looked_after < len(parked) else 0
        self._looked_after = start + FEW
        looked = [each for each in leased if each.id in running] + parked[start : start + FEW]
        try:
            await asyncio.gather(*map(self._check, looked))
        except StoreError as failure:
            logger.warning("calls could not be looked after: %s", failure)

    async def _check(self, leased: TaskVersion) -> None:
        data = known(await self._host.client.send(GetTask(id=leased.id))).data
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
        """It settles under our hands: cancelled, or past its deadline."""
        await patiently(self._host.client, WatchPromise(id=task_id))
        self._host.lost(task_id, version)

    async def _beat_on(self) -> None:
        while self._leases:
            await asyncio.sleep(self._ttl / 1000 / BEATS_PER_LEASE)
            try:
                for beat in self.beats():
                    await self._host.client.send(beat)
                await self.look_after()
            except StoreError as failure:
                logger.warning("the leases of calls could not be renewed: %s", failure)
        self._is_beating = False


def _target_of(promise: Promise) -> str:
    tags: dict[str, str] = msgspec.json.decode(promise.tags)
    return tags.get(TARGET, "")
