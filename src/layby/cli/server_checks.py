"""`layby doctor --url`: is this server healthy? Every check uses ordinary requests."""

import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from time import perf_counter
from typing import Any, Final, Literal, cast

import aiohttp
from msgspec import Struct

import layby
from layby.cli.connection import FIRST_ANSWER_S
from layby.cli.expected_replies import PAGE
from layby.cli.snapshots import SEEN, state_of_entries
from layby.client.first_answer import FirstAnswer
from layby.client.http import ANSWER_S, READ_S
from layby.client.paging import P, pages
from layby.client.transport import Transport
from layby.clock import SystemClock
from layby.core import invariants
from layby.core.commands import GetPromise
from layby.core.invariants import Invariant, StateView, Violation
from layby.core.model import Millis
from layby.core.queries import ListWaiting, Query, SearchPromises, SnapDebug
from layby.core.replies import PromisePage, Reply, WaitingPage
from layby.core.state import State
from layby.core.stats import GetStats, StatsData
from layby.wire import answers
from layby.wire.ask import ask
from layby.workflow.moments import span

Outcome = Literal["ok", "note", "wrong"]
Progress = Callable[[int], None]

TOO_LARGE: Final = 413
"""A store of which there is no snapshot; it is searched instead."""
SKEW_MS: Final[Millis] = 2_000
"""Clocks that differ by less are close enough for waits of seconds."""
SEARCH_INVARIANTS: Final = (
    invariants.promise_times_in_order,
    invariants.timeout_settles_at_deadline,
)
"""Invariants that can be checked on the promises of a search."""
WAITING_INVARIANTS: Final = (
    invariants.task_iff_target,
    invariants.fulfilled_iff_settled,
    invariants.suspended_no_callback,
    invariants.suspended_with_consumed_callbacks,
    invariants.version_non_negative,
    invariants.waiting_since_while_waiting,
)
"""Invariants that can be checked on everything that waits, with what it waits for."""


class Check(Struct, frozen=True):
    name: str
    outcome: Outcome
    told: str


class ServerReport(Struct, frozen=True):
    url: str
    checks: list[Check]
    violations: list[Violation] = []

    @property
    def is_healthy(self) -> bool:
        return all(check.outcome != "wrong" for check in self.checks)


def clock_moved_back(ahead: Millis) -> str:
    """Says that store time is ahead, and what that means."""
    means = "it was set back; schedules wait for it, and everything else runs a little slower"
    return f"store time is {span(ahead)} ahead of the clock: {means}"


async def examine(url: str, token: str | None, progress: Progress) -> ServerReport:
    """Raises if no server answers."""
    probe = _ServerProbe(url, token)
    try:
        checks = [await probe.reachable(), await probe.ready(), await probe.version()]
        access = await probe.access()
        checks.append(access)
        if access.outcome == "wrong":
            return ServerReport(url, checks)
        checks += [await probe.clock(), await probe.debug()]
        found = await probe.violations(progress)
        return ServerReport(url, [*checks, probe.soundness(found)], found)
    finally:
        await probe.close()


class _ServerProbe:
    def __init__(self, url: str, token: str | None) -> None:
        self._transport = Transport(url, token)
        self._token = token
        self._first = FirstAnswer(url, FIRST_ANSWER_S)
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10))
        self._url = url
        self._skew: Millis = 0
        self._checked = ""

    async def close(self) -> None:
        self._first.close()
        await self._session.close()
        await self._transport.close()

    # --- checks --------------------------------------------------------------------------

    async def reachable(self) -> Check:
        """The first request opens the connection; a failure to connect raises here."""
        self._first.begin()
        await self._post(GetPromise(id="layby/doctor"))
        self._first.heard()
        begun = perf_counter()
        await self._post(GetPromise(id="layby/doctor"))
        return Check("reachable", "ok", f"answers in {(perf_counter() - begun) * 1000:.1f} ms")

    async def ready(self) -> Check:
        status, _ = await self._get("/ready")
        if status == 200:
            return Check("ready", "ok", "its store can be read")
        return Check("ready", "wrong", f"/ready answers {status}: see the server's log")

    async def version(self) -> Check:
        status, text = await self._get("/metrics")
        found = re.search(r'layby_info\{version="([^"]*)"\}', text)
        if status != 200 or found is None:
            return Check("version", "note", "unknown: metrics are on another port, or disabled")
        if found[1] == layby.__version__:
            return Check("version", "ok", f"layby {found[1]}, as here")
        return Check("version", "note", f"layby {found[1]}; this command is {layby.__version__}")

    async def access(self) -> Check:
        reply = await self._send(GetPromise(id="layby/doctor"))
        if reply.status in (200, 404):
            return Check("access", "ok", "speaks the protocol and allows reading")
        remedy = ": give --token, or set LAYBY_TOKEN" if reply.status == 401 else f": {reply.data}"
        return Check("access", "wrong", f"refuses reading with {reply.status}{remedy}")

    async def clock(self) -> Check:
        before = SystemClock().now()
        stats = (await self._send(GetStats())).data
        if not isinstance(stats, StatsData):
            return Check("clock", "note", f"unknown: {stats}")
        self._skew = stats.now - (before + SystemClock().now()) // 2
        ahead = stats.store_time_ahead
        if abs(self._skew - ahead) >= SKEW_MS:
            way = "ahead" if self._skew > ahead else "behind"
            means = "deadlines that SDK workers set here mean another time there"
            told = f"{span(abs(self._skew - ahead))} {way}: {means}"
            return Check("clock", "wrong", told)
        if ahead >= SKEW_MS:
            return Check("clock", "note", f"as here, but {clock_moved_back(ahead)}")
        return Check("clock", "ok", "as here")

    async def debug(self) -> Check:
        self._snapped = await self._send(SnapDebug())
        if self._snapped.is_ok or self._snapped.status == TOO_LARGE:
            return Check("debug", "note", "on: any client can stop time and delete everything")
        return Check("debug", "ok", "off")

    async def violations(self, progress: Progress) -> list[Violation]:
        """Checked twice, since one snapshot may fall between two writes."""
        if isinstance(self._snapped.data, State):
            first = self._snapshot_violations(self._snapped.data)
            again = await self._violations_again() if first else []
            self._checked = f"{len(SEEN)} invariants over a snapshot"
            return [each for each in first if each in again]
        found = [each async for each in self._searched_violations(progress)]
        count = len(SEARCH_INVARIANTS) + len(WAITING_INVARIANTS)
        self._checked = f"{count} invariants that can be checked by requests"
        return found

    async def _violations_again(self) -> list[Violation]:
        state = (await self._send(SnapDebug())).data
        return self._snapshot_violations(state) if isinstance(state, State) else []

    def soundness(self, found: Sequence[Violation]) -> Check:
        if found:
            return Check("sound", "wrong", f"{len(found)} violations of {self._checked}")
        return Check("sound", "ok", f"{self._checked} hold")

    # --- invariants ----------------------------------------------------------------------

    def _snapshot_violations(self, state: State) -> list[Violation]:
        return _check(state, self._now(), SEEN)

    async def _searched_violations(self, progress: Progress) -> AsyncIterator[Violation]:
        checked = 0
        async for page in self._pages(SearchPromises(limit=PAGE), PromisePage):
            checked += len(page.promises)
            progress(checked)
            state = State(promises={each.id: each for each in page.promises})
            for violation in _check(state, self._now(), SEARCH_INVARIANTS):
                yield violation
        async for page in self._pages(ListWaiting(limit=PAGE), WaitingPage):
            for violation in _check(
                state_of_entries(page.entries), self._now(), WAITING_INVARIANTS
            ):
                yield violation

    def _pages(self, query: Query, kind: Callable[[Sequence[Any]], P]) -> AsyncIterator[P]:
        """A token that may not search finds nothing."""

        async def ask(query: Query) -> P:
            reply = await self._send(query)
            return cast("P", reply.data) if reply.is_ok else kind([])

        return pages(ask, query)

    def _now(self) -> Millis:
        return SystemClock().now() + self._skew

    # --- requests ------------------------------------------------------------------------

    async def _send(self, request: Any) -> Reply:
        return answers.read(request, await self._post(request))

    async def _post(self, request: Any) -> bytes:
        within = self._first.bounded(ANSWER_S)
        total = within + READ_S if self._first.is_heard else within
        body = ask(request, "0", self._token)
        _, body = await self._transport.post(body, within, total=total)
        return body

    async def _get(self, path: str) -> tuple[int, str]:
        try:
            async with self._session.get(f"{self._url}{path}") as answer:
                return answer.status, await answer.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            return 0, str(error)


def _check(state: State, now: Millis, which: Iterable[Invariant]) -> list[Violation]:
    view = StateView(state, now)
    return [Violation(each.__name__, what) for each in which for what in each(view)]
