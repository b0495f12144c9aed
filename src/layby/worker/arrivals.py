"""Claims on their way to a body: they stand in line while they are loaded; then they begin.

One that cannot begin here, or not soon, goes back as it came: that was not a try. What is found
about a task while it is loaded may also be reported at once, without a body.
"""

import asyncio
from collections.abc import Container
from typing import Any, Protocol

from layby.core.commands import BlockTask, LimitTask, Released
from layby.core.model import Millis
from layby.core.replies import Claim
from layby.program import Verdict
from layby.worker.attempt import Attempt
from layby.worker.body import Body
from layby.worker.credit import HELD, Credit
from layby.worker.lease import LeaseTime
from layby.worker.releases import OLD_BODY_MS, Releases
from layby.worker.reporting import Reporter
from layby.worker.task_loading import Loaded, TaskLoader


class ArrivalHost(Protocol):
    """What arriving needs from the worker."""

    attempts: dict[str, Attempt]
    lease: LeaseTime

    @property
    def is_stopping(self) -> bool: ...

    def is_leased(self, attempt: Attempt) -> bool: ...

    async def renew_lease(self, attempt: Attempt) -> None: ...

    def run(self, body: Body, attempt: Attempt) -> None:
        """It has its slot, and its task is certainly ours; it is no arrival any more."""
        ...

    async def release(self, task_id: str, version: int) -> None:
        """Hand back a call."""
        ...

    def dispatch(self) -> None: ...

    def spawn(self, coroutine: Any) -> "asyncio.Task[Any]": ...


class Arrivals:
    def __init__(
        self,
        host: ArrivalHost,
        credit: Credit,
        loader: TaskLoader,
        reporter: Reporter,
        releases: Releases,
    ) -> None:
        self._host = host
        self._credit = credit
        self._loader = loader
        self._reporter = reporter
        self._releases = releases
        self._bodies: dict[str, Body] = {}
        """Claimed, and not begun yet."""
        self._overdue_timer: asyncio.TimerHandle | None = None

    # --- coming --------------------------------------------------------------------------

    def add(self, body: Body, claim: Claim) -> None:
        """The root of a run needs no slot, so it does not stand in line."""
        if self._end_older_attempt(claim):
            self.hand_back(body, delay=OLD_BODY_MS)
            return
        self._enter(body, claim)
        if not claim.task.is_root:
            self._credit.join_line(body, claim.ready_at, self._host.lease.elapsed())
        self._load(body)

    def adopt(self, body: Body, claim: Claim) -> None:
        """A call that has been acquired: it holds its slot already."""
        body.claim = claim
        if self._host.is_stopping or self._end_older_attempt(claim):
            self._credit.leave(body)
            self.hand_back(body)
            return
        self._enter(body, claim)
        self._load(body)

    def _enter(self, body: Body, claim: Claim) -> None:
        """An earlier claim of its task that is here was lost, and we have not been told."""
        if (older := self._bodies.get(claim.task.id)) is not None:
            self._drop(older)
        self._bodies[claim.task.id] = body

    def _end_older_attempt(self, claim: Claim) -> bool:
        """A claim means that an earlier one of ours is over, whether we have been told or not.

        True while the body of that one has not ended: a task never has two bodies here.
        """
        older = self._host.attempts.get(claim.task.id)
        if older is not None and older.version < claim.task.version:
            older.end("lost")
        return older is not None

    # --- going ---------------------------------------------------------------------------

    def hand_back(self, body: Body, delay: Millis = 0) -> None:
        """It keeps its place, and does not count as a try."""
        if self._bodies.get(body.id) is body:
            self._drop(body)
        if body.is_call:
            self._host.spawn(self._host.release(body.id, body.version))
            return
        ready_at = body.claim.ready_at if body.claim is not None else None
        self._releases.add(
            Released(body.id, body.version, ready_at=ready_at, begun=False, delay=delay)
        )

    def hand_back_all(self) -> None:
        for body in list(self._bodies.values()):
            self.hand_back(body)

    def lost(self, task_id: str, version: int) -> bool:
        """It was taken away; whether it was here: then it never begins."""
        body = self._bodies.get(task_id)
        if body is None or body.version != version:
            return False
        self._drop(body)
        self._host.dispatch()
        return True

    def lose_all(self, held: Container[str]) -> None:
        """None of these is ours any more."""
        for body in list(self._bodies.values()):
            if body.id in held:
                self._drop(body)

    def _drop(self, body: Body) -> None:
        """It has not begun, and never will."""
        del self._bodies[body.id]
        self._credit.leave(body)

    # --- load ----------------------------------------------------------------------------

    def _load(self, body: Body) -> None:
        assert body.claim is not None
        loaded = self._loader.load_now(body.claim)
        if loaded is None:
            self._host.spawn(self._load_later(body, body.claim))
        else:
            self._loaded(body, loaded)

    async def _load_later(self, body: Body, claim: Claim) -> None:
        loaded = await self._loader.load(claim)
        if loaded is not None and not self._host.is_stopping:
            self._loaded(body, loaded)
            self._host.dispatch()

    def _loaded(self, body: Body, loaded: Loaded) -> None:
        claim = body.claim
        assert claim is not None
        if self._bodies.get(claim.task.id) is not body:
            return  # taken away, or handed back meanwhile
        if isinstance(loaded, BlockTask):
            self._drop(body)
            self._host.dispatch()
            self._reporter.block(loaded)
            return
        if isinstance(loaded, LimitTask):
            self._drop(body)
            self._host.dispatch()
            self._reporter.limit(loaded)
            return
        if isinstance(loaded, Verdict):
            self._settle(body, claim, loaded)
            return
        body.attempt = loaded
        loaded.body = body
        if body.slot_state is HELD:
            self.begin(body)

    def _settle(self, body: Body, claim: Claim, verdict: Verdict) -> None:
        self._drop(body)
        self._host.dispatch()
        self._reporter.settle(claim.task, verdict)

    # --- begin ---------------------------------------------------------------------------

    def begin(self, body: Body) -> None:
        """It has its slot; if the lease may have expired, it is renewed first."""
        attempt = body.attempt
        assert attempt is not None
        if self._host.is_leased(attempt):
            del self._bodies[attempt.id]
            self._host.run(body, attempt)
        else:
            self._host.spawn(self._begin_in_lease(body, attempt))

    async def _begin_in_lease(self, body: Body, attempt: Attempt) -> None:
        while not self._host.is_leased(attempt):
            await self._host.renew_lease(attempt)
            if self._bodies.get(attempt.id) is not body:
                return  # it is not ours any more
        del self._bodies[attempt.id]
        self._host.run(body, attempt)

    # --- overdue claims ------------------------------------------------------------------

    def arm_overdue_timer(self) -> None:
        due = self._credit.overdue_at
        if due is not None and self._overdue_timer is None:
            seconds = max(0, due - self._host.lease.elapsed()) / 1000
            loop = asyncio.get_running_loop()
            self._overdue_timer = loop.call_later(seconds, self._hand_back_overdue)

    def _hand_back_overdue(self) -> None:
        self._overdue_timer = None
        for contender in self._credit.overdue(self._host.lease.elapsed()):
            assert isinstance(contender, Body)
            self.hand_back(contender)
        self._host.dispatch()

    def close(self) -> None:
        if self._overdue_timer is not None:
            self._overdue_timer.cancel()
