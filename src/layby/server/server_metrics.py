"""The metrics of a server, for Prometheus.

`committed` runs in the writer's thread, everything else in the event loop. Numbers that only the
store knows are read when somebody scrapes, and not too often: counting takes the writer's time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from importlib.metadata import version
from time import monotonic
from typing import Any, Final, Literal

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from layby.core.replies import Claim, TakeData
from layby.core.schedules import FireSchedule
from layby.core.stats import COUNTED, LONGEST, StatsData
from layby.core.waits import WAIT_KINDS
from layby.engine.observer import Commit
from layby.errors import LaybyError
from layby.server.series import FINE_BOUNDS, SIZE_BOUNDS, Family, Histogram, HistogramFamily
from layby.server.turns import PacedTurns
from layby.wire.decode import KINDS

logger = logging.getLogger(__name__)

CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"
UNKNOWN: Final = "unknown"
OTHER: Final = "other"
STATS_EVERY: Final = 5.0
STATS_SHARE: Final = 100
"""The store spends at most a hundredth of its time counting, however long one count takes."""
STATS_SELDOM: Final = 60.0
STATS_PATIENCE: Final = 5.0

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
ReadStats = Callable[[], Awaitable[StatsData]]
Live = Literal[
    "poll_connections",
    "backlog_requests",
    "free_slots",
    "pushes_under_way",
    "store_time_ahead",
    "triggers_running",
    "triggers_capacity",
    "trigger_polls",
]

REQUESTS: Final = Family(
    "resonate_request_total", "Requests answered, by kind and status", ("kind", "status")
)
DURATIONS: Final = HistogramFamily(
    "resonate_request_duration_seconds",
    "From a request read to its answer; takes and watches wait in it",
    ("kind",),
)
MESSAGES: Final = Family("resonate_messages_total", "Deliveries by kind of message", ("kind",))
DELIVERIES: Final = Family(
    "resonate_deliveries_total",
    "Deliveries by how they went: `success`, `error` (tried again) or `dropped` (leads nowhere)",
    ("status",),
)
TAKEN_OVER: Final = Family(
    "layby_messages_taken_over_total",
    "Messages that another server had begun to deliver before it failed: they may arrive twice",
)
SCHEDULED: Final = Family("resonate_schedule_promises_total", "Promises made by schedules")
SKIPPED: Final = Family(
    "layby_schedule_skipped_total", "Occurrences without a run because an earlier one was open"
)
BATCHES: Final = HistogramFamily(
    "layby_batch_commands", "Commands in one transaction", bounds=SIZE_BOUNDS
)
COMMITS: Final = HistogramFamily(
    "layby_commit_seconds", "From a transaction's begin to its commit", bounds=FINE_BOUNDS
)
WAKES: Final = HistogramFamily(
    "layby_wake_latency_seconds",
    "From a promise's settlement to its `unblock` on the wire",
    bounds=FINE_BOUNDS,
)
RESUMES: Final = HistogramFamily(
    "layby_resume_lag_seconds",
    "From a task's readiness to its hand-over to a layby worker",
    bounds=FINE_BOUNDS,
)
LIVE: Final[dict[Live, Family]] = {
    "poll_connections": Family("layby_poll_connections", "Open `/poll` streams"),
    "backlog_requests": Family("layby_backlog_requests", "Requests the writer has not served yet"),
    "free_slots": Family("layby_free_slots", "Free slots of layby workers that wait for tasks"),
    "pushes_under_way": Family("layby_pushes_under_way", "HTTP pushes without an answer yet"),
    "store_time_ahead": Family(
        "layby_store_time_ahead_seconds",
        "How far store time is ahead of the machine's clock: above 0 after that was put back",
    ),
    "triggers_running": Family("layby_triggers_running", "Triggers that run in this server"),
    "triggers_capacity": Family("layby_triggers_capacity", "How many may run here at a time"),
    "trigger_polls": Family(
        "layby_trigger_polls", "Different questions that are asked for them; equal ones are shared"
    ),
}
TASKS: Final = Family(
    "layby_tasks",
    f"Tasks by state, the fulfilled left out; {COUNTED:,} means that or more",
    ("state",),
)
OLDEST: Final = Family(
    "layby_oldest_wait_seconds",
    f"How long the oldest wait of each kind has lasted, among the {LONGEST} longest of all",
    ("kind",),
)
OUTBOX: Final = Family("layby_outbox_messages", "Messages that nobody has taken yet")
HOLDERS: Final = Family("layby_holders", "Living layby worker processes")
HELD: Final = Family("layby_held_tasks", "Tasks they hold: running and parked")
SCHEDULES: Final = Family("layby_schedules", "Schedules")
UNTAKEN: Final = Family(
    "layby_triggers_untaken",
    "Triggers that nobody runs: no room, no such class, or not allowed to poll; `layby why` says",
)
PERMITS: Final = Family("layby_permits_held", "Permits of limits that tasks hold now")
AWAITED: Final = Family(
    "layby_permits_awaited", f"Tasks that wait for a permit; {COUNTED:,} means that or more"
)
INFO: Final = Family("layby_info", "Always 1; the version is its label", ("version",))


class _Requests:
    """The requests of one kind."""

    __slots__ = ("by_status", "durations")

    def __init__(self) -> None:
        self.by_status: dict[int, int] = {}
        self.durations = Histogram(DURATIONS.bounds)


class Metrics(Collector):
    def __init__(
        self, read_stats: ReadStats | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        self._requests = {kind: _Requests() for kind in (*KINDS, UNKNOWN)}
        self._unknown = self._requests[UNKNOWN]
        self._messages: dict[str, int] = dict.fromkeys(("execute", "unblock"), 0)
        self._deliveries: dict[str, int] = dict.fromkeys(("success", "error", "dropped"), 0)
        self._taken_over = 0
        self._scheduled = 0
        self._skipped = 0
        self._batches = Histogram(BATCHES.bounds)
        self._commits = Histogram(COMMITS.bounds)
        self._wakes = Histogram(WAKES.bounds)
        self._resumes = Histogram(RESUMES.bounds)
        self._live: dict[Live, Callable[[], float]] = {}
        self._stats = _Stats(read_stats, clock) if read_stats is not None else None
        self._version = version("layby")
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        self._turns = PacedTurns()
        self._text: asyncio.Future[bytes] | None = None
        """What all wait for who have asked since the latest one was made."""

    # --- called by the server ------------------------------------------------------------

    def request(self, kind: str, status: int, seconds: float) -> None:
        """A request with an envelope: others have no kind and are not counted."""
        of = self._requests.get(kind) or self._unknown
        of.by_status[status] = of.by_status.get(status, 0) + 1
        of.durations.add(seconds)

    def delivery(self, kind: str, status: str) -> None:
        """A message that was delivered, was not, or never will be."""
        self._deliveries[status] += 1
        if kind in self._messages:  # others are internal
            self._messages[kind] += 1

    def count_taken_over(self) -> None:
        self._taken_over += 1

    def committed(self, commit: Commit) -> None:
        """An `Observer` of the engine, on the writer's thread."""
        if not commit.commands:
            return
        self._batches.add(len(commit.commands))
        self._commits.add(commit.seconds)
        for (command, now), reply in zip(commit.commands, commit.replies, strict=True):
            for claim in _claims(reply.data):
                self._resumes.add((now - claim.ready_at) / 1000)
            if isinstance(command, FireSchedule):
                made = commit.changes.born | commit.changes.adopted
                self._scheduled += sum(promise_id in made for _, promise_id in command.occurrences)
                after = commit.changes.schedules.get(command.found.id) or command.found
                self._skipped += after.skipped - command.found.skipped

    def observe_wake(self, seconds: float) -> None:
        self._wakes.add(seconds)

    def watch(self, name: Live, read: Callable[[], float]) -> None:
        """`read` is called at each scrape."""
        self._live[name] = read

    # --- called by Prometheus ------------------------------------------------------------

    async def scrape(self) -> bytes:
        if self._stats is not None:
            await self._stats.refresh()
        if self._text is None or self._text.done():
            self._text = asyncio.ensure_future(self._made())
        return await asyncio.shield(self._text)

    async def _made(self) -> bytes:
        """It takes the loop for milliseconds, and anybody may ask: the loop rests after each."""
        async with self._turns.turn(self):
            return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        used = {kind: each for kind, each in self._requests.items() if each.by_status}
        yield REQUESTS.counters(
            ((kind, str(status)), count)
            for kind, each in used.items()
            for status, count in each.by_status.items()
        )
        yield DURATIONS.histograms(((kind,), each.durations) for kind, each in used.items())
        yield MESSAGES.counters(((kind,), count) for kind, count in self._messages.items())
        yield DELIVERIES.counters(((how,), count) for how, count in self._deliveries.items())
        yield TAKEN_OVER.counters([((), self._taken_over)])
        yield SCHEDULED.counters([((), self._scheduled)])
        yield SKIPPED.counters([((), self._skipped)])
        yield BATCHES.histograms([((), self._batches)])
        yield COMMITS.histograms([((), self._commits)])
        yield WAKES.histograms([((), self._wakes)])
        yield RESUMES.histograms([((), self._resumes)])
        for name, read in self._live.items():
            yield LIVE[name].gauges([((), read())])
        yield INFO.gauges([((self._version,), 1)])
        if self._stats is not None and self._stats.known is not None:
            yield from _shown(self._stats.known)


class _Stats:
    """The latest numbers of the store, read again when they are old."""

    def __init__(self, read: ReadStats, clock: Callable[[], float]) -> None:
        self._read = read
        self._clock = clock
        self._asking = asyncio.Lock()
        self._stale_at = 0.0
        self.known: StatsData | None = None

    async def refresh(self) -> None:
        async with self._asking:
            began = self._clock()
            if began < self._stale_at:
                return
            self.known = await self._ask()
            took = self._clock() - began
            self._stale_at = began + min(max(STATS_EVERY, STATS_SHARE * took), STATS_SELDOM)

    async def _ask(self) -> StatsData | None:
        """None if the store cannot say: numbers are left out rather than repeated."""
        try:
            async with asyncio.timeout(STATS_PATIENCE):
                return await self._read()
        except (LaybyError, TimeoutError) as failure:
            why = str(failure) or "no answer"
            logger.warning("the numbers of the store are missing from /metrics: %s", why)
            return None


def _claims(data: object) -> Sequence[Claim]:
    """The claims in an answer; another command may include a take."""
    taken = data if isinstance(data, TakeData) else getattr(data, "taken", None)
    return taken.claims if isinstance(taken, TakeData) else ()


def _shown(stats: StatsData) -> Iterator[Metric]:
    yield TASKS.gauges(((state,), count) for state, count in stats.tasks.items())
    yield OLDEST.gauges(((kind,), age) for kind, age in _oldest(stats).items())
    yield OUTBOX.gauges([((), stats.outbox)])
    yield HOLDERS.gauges([((), stats.holders)])
    yield HELD.gauges([((), stats.held)])
    yield SCHEDULES.gauges([((), stats.schedules)])
    yield UNTAKEN.gauges([((), stats.triggers_untaken)])
    yield PERMITS.gauges([((), stats.permits_held)])
    yield AWAITED.gauges([((), stats.permits_awaited)])


def _oldest(stats: StatsData) -> dict[str, float]:
    """Workers may write any kind: unknown ones are counted as one."""
    ages: dict[str, float] = {}
    for kind, since in stats.oldest_waits.items():
        label = kind if kind in WAIT_KINDS else OTHER
        ages[label] = max(ages.get(label, 0.0), (stats.now - since) / 1000)
    return ages


class MetricsApp:
    """`/metrics` alone, for a port that only Prometheus reaches."""

    def __init__(self, scrape: Callable[[], Awaitable[bytes]]) -> None:
        self._scrape = scrape

    async def __call__(self, scope: MutableMapping[str, Any], _receive: object, send: Send) -> None:
        is_known = scope["path"] == "/metrics" and scope["method"] == "GET"
        body = await self._scrape() if is_known else b"There is only GET /metrics here\n"
        headers = [(b"content-type", CONTENT_TYPE), (b"content-length", b"%d" % len(body))]
        status = 200 if is_known else 404
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
