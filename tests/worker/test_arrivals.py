"""Claims on their way to a body, by themselves: who begins, who goes back, who is dropped."""

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from layby.core.commands import BlockTask, LimitTask, Value
from layby.core.model import Millis, Promise, Task
from layby.core.queries import Execute
from layby.core.replies import Claim
from layby.program import Verdict
from layby.testing import virtual_test
from layby.worker.arrivals import Arrivals
from layby.worker.body import Body
from layby.worker.credit import IN_LINE_MS, Credit
from layby.worker.lease import LeaseTime
from layby.worker.releases import OLD_BODY_MS
from tests.helpers.workers import until


def claim_of(task_id: str, version: int = 1, ready_at: Millis = 7, **fields: Any) -> Claim:
    task = Task(id=task_id, target="", kind="node", state="acquired", version=version, **fields)
    promise = Promise(task_id, "", "{}", "{}", timeout_at=10**6, created_at=0)
    return Claim(task, promise, ready_at)


class Site:
    """A worker with one slot, as far as arrivals know it; it is its own loader and reporter too."""

    def __init__(self, loaded: Any = "attempt") -> None:
        self.now: Millis = 0
        self.attempts: dict[str, Any] = {}
        self.credit = Credit(1)
        self.lease = LeaseTime(None, lambda: self.now)
        self.is_stopping = False
        self.is_in_lease = True
        self.renewals = 0
        self.loaded = loaded
        self.found: asyncio.Future[Any] | None = None
        """What is found later, if it is not known at once."""
        self.ran: list[Body] = []
        self.back: list[tuple[Any, ...]] = []
        self.reported: list[object] = []
        self.tasks: list[asyncio.Task[Any]] = []
        me: Any = self
        self.arrivals = Arrivals(me, self.credit, me, me, me)

    def come(self, claim: Claim) -> Body:
        host: Any = self
        body = Body(host, claim)
        self.arrivals.add(body, claim)
        return body

    # --- the worker

    def is_leased(self, _: Any) -> bool:
        return self.is_in_lease

    async def renew_lease(self, _: Any) -> None:
        self.renewals += 1
        await asyncio.sleep(0)
        self.is_in_lease = self.renewals > 1

    def run(self, body: Body, attempt: Any) -> None:
        assert attempt is body.attempt
        self.ran.append(body)

    async def release(self, task_id: str, version: int) -> None:
        self.back.append((task_id, version))

    def dispatch(self) -> None:
        for body in self.credit.grants():
            assert isinstance(body, Body)
            if body.attempt is not None:
                self.arrivals.begin(body)

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        self.tasks.append(asyncio.create_task(coroutine))
        return self.tasks[-1]

    # --- what else it has

    def load_now(self, claim: Claim) -> Any:
        if self.found is not None:
            return None
        if self.loaded != "attempt":
            return self.loaded
        return SimpleNamespace(id=claim.task.id, version=claim.task.version, body=None)

    async def load(self, _: Claim) -> Any:
        assert self.found is not None
        return await self.found

    def block(self, report: object) -> None:
        self.reported.append(report)

    limit = block

    def settle(self, task: Task, verdict: Verdict) -> None:
        self.reported.append((task.id, verdict))

    def add(self, released: Any) -> None:
        assert not released.begun
        self.back.append((released.id, released.version, released.ready_at, released.delay))


def test_what_is_loaded_begins_when_it_has_its_slot() -> None:
    site = Site()
    one, two = site.come(claim_of("a")), site.come(claim_of("b", ready_at=8))
    assert site.ran == []
    site.dispatch()
    assert site.ran == [one]
    site.credit.leave(one)
    site.dispatch()
    assert site.ran == [one, two]


def test_what_goes_back_unbegun_keeps_its_place() -> None:
    site = Site()
    site.come(claim_of("a"))
    site.come(claim_of("b", version=3, ready_at=8))
    site.arrivals.hand_back_all()
    assert site.back == [("a", 1, 7, 0), ("b", 3, 8, 0)]
    site.dispatch()
    assert (site.ran, site.credit.waiting) == ([], 0)


@virtual_test
async def test_a_call_goes_back_by_the_protocol() -> None:
    """It holds its slot when it is acquired; if the worker stops meanwhile, both are given back."""
    site = Site()
    site.is_stopping = True
    host: Any = site
    body = Body(host, call=Execute("c", 1, "poll://any@default"))
    site.credit.join_line(body, 0, 0)
    assert site.credit.grants() == [body]
    site.arrivals.adopt(body, claim_of("c"))
    await asyncio.gather(*site.tasks)
    assert (site.back, site.ran, site.credit.held) == ([("c", 1)], [], 0)


@virtual_test
async def test_a_call_takes_the_place_of_an_earlier_claim_that_is_not_loaded() -> None:
    """That keeps no slot: nobody would ever free it."""
    site = Site()
    site.credit = site.arrivals._credit = Credit(2)
    site.found = asyncio.get_running_loop().create_future()
    host: Any = site
    for version in (1, 2):
        body = Body(host, call=Execute("c", version - 1, "poll://any@default"))
        site.credit.join_line(body, 0, 0)
        assert site.credit.grants() == [body]
        site.arrivals.adopt(body, claim_of("c", version=version))
    assert site.credit.held == 1


def test_a_claim_ends_the_attempt_before_it_and_goes_back_for_a_while() -> None:
    """A task never has two bodies here, whether we have been told that the first is over or not."""
    site, told = Site(), list[str]()
    site.attempts["a"] = SimpleNamespace(version=1, end=told.append)
    site.come(claim_of("a", version=2))
    assert (told, site.back) == (["lost"], [("a", 2, 7, OLD_BODY_MS)])


def test_a_later_claim_of_the_same_task_replaces_the_earlier() -> None:
    site = Site()
    site.come(claim_of("a"))
    later = site.come(claim_of("a", version=2))
    site.dispatch()
    assert (site.ran, site.credit.held) == ([later], 1)


def test_what_was_taken_away_never_begins() -> None:
    """Only the claim that is meant: not a later one of the same task."""
    site = Site()
    site.come(claim_of("a", version=2))
    kept = site.come(claim_of("b", ready_at=8))
    assert not site.arrivals.lost("a", 1)
    assert not site.arrivals.lost("none", 1)
    assert site.arrivals.lost("a", 2)
    assert site.ran == [kept]  # its turn came with that


def test_a_new_incarnation_keeps_only_what_the_old_one_did_not_hold() -> None:
    site = Site()
    site.come(claim_of("a"))
    call = site.come(claim_of("c", ready_at=8))
    site.arrivals.lose_all({"a": 1})
    site.dispatch()
    assert (site.ran, site.back) == ([call], [])


@pytest.mark.parametrize(
    "report",
    [
        BlockTask(id="a", version=1, code="v1", why="it changed"),
        LimitTask(id="a", version=1, limits=("api",)),
        Verdict("resolved", Value()),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_needs_no_body_is_reported_and_leaves_the_line(report: Any) -> None:
    site = Site(report)
    site.come(claim_of("a"))
    told = ("a", report) if isinstance(report, Verdict) else report
    assert (site.reported, site.credit.waiting, site.ran) == ([told], 0, [])


@virtual_test
async def test_what_is_taken_away_while_it_is_loaded_is_forgotten() -> None:
    """Another claim that came meanwhile is not it."""
    site = Site()
    site.found = asyncio.get_running_loop().create_future()
    site.come(claim_of("a"))
    site.arrivals.lost("a", 1)
    site.come(claim_of("a", version=2))
    site.found.set_result(Verdict("resolved", Value()))
    await asyncio.gather(*site.tasks)
    assert len(site.reported) == 1


@virtual_test
async def test_outside_its_lease_it_begins_when_that_is_renewed() -> None:
    site = Site()
    site.is_in_lease = False
    body = site.come(claim_of("a"))
    site.dispatch()
    assert site.ran == []
    await asyncio.gather(*site.tasks)
    assert (site.ran, site.renewals) == ([body], 2)


@virtual_test
async def test_what_is_lost_while_the_lease_is_renewed_does_not_begin() -> None:
    site = Site()
    site.is_in_lease = False
    site.come(claim_of("a"))
    site.dispatch()
    site.arrivals.lost("a", 1)
    await asyncio.gather(*site.tasks)
    assert (site.ran, site.renewals) == ([], 1)


@virtual_test
async def test_who_stands_in_line_for_too_long_goes_back() -> None:
    site = Site()
    site.come(claim_of("a"))
    site.arrivals.arm_overdue_timer()
    site.now = IN_LINE_MS
    await until(lambda: site.back)
    assert (site.back, site.credit.waiting) == ([("a", 1, 7, 0)], 0)
    site.arrivals.close()
