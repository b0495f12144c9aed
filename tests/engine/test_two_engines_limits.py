"""Two engines on one database share limits: none is exceeded, and no permit is lost."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from layby.core import commands as c
from layby.core.limits import GetLimit
from tests.helpers import requests as r
from tests.helpers.two_engines import sharing, told

pytestmark = pytest.mark.postgres

RUNS = 60
CONCURRENCY = 3


def limited(number: int, *limits: str) -> c.StartRun:
    node = c.Node(id="a", name="f", limits=limits)
    return c.StartRun(id=f"run/{number:03}", name="root", group="g", nodes=(node,))


def nodes(taken: object) -> list[tuple[str, int]]:
    claims = [claim for claim in taken.claims if claim.task.kind == "node"]  # type: ignore[attr-defined]
    return [(claim.task.id, claim.task.version) for claim in claims]


def test_two_engines_together_stay_below_a_limit() -> None:
    """Each worker takes and finishes as fast as it can; who runs is counted outside."""
    lock, running, most, done = threading.Lock(), set[str](), [0], set[str]()
    with sharing() as shared:
        told(shared.engines[0], c.SetLimit(name="api", concurrency=CONCURRENCY))
        for number in range(RUNS):
            told(shared.engines[number % 2], limited(number, "api"))

        def work(at: int) -> None:
            engine = shared.engines[at]
            held = list[tuple[str, int]]()
            while len(done) < RUNS:
                taken = told(engine, r.take(2, pid=f"p{at}", wait_ms=200))
                for task_id, version in nodes(taken):
                    with lock:
                        running.add(task_id)
                        most[0] = max(most[0], len(running))
                    held.append((task_id, version))
                while held:
                    task_id, version = held.pop()
                    with lock:
                        running.discard(task_id)
                        done.add(task_id)
                    told(engine, r.finish(task_id, version))

        with ThreadPoolExecutor(2) as pool:
            for each in [pool.submit(work, at) for at in range(2)]:
                each.result(60)
        state = shared.check()
        assert state.limits["api"].held == 0
    assert len(done) == RUNS
    assert 1 < most[0] <= CONCURRENCY


def test_a_permit_that_is_freed_meanwhile_is_not_lost() -> None:
    """One finishes while the other takes: whoever comes second lets the next one in."""
    with sharing() as shared:
        one, two = shared.engines
        told(one, c.SetLimit(name="api", concurrency=1))
        for number in range(3):
            told(one, limited(number, "api"))
        ((task_id, version),) = nodes(told(one, r.take(1)))
        finished, taken = shared.meeting(r.finish(task_id, version), r.take(1, pid="q"))
        assert finished.is_ok
        found = nodes(taken.data) or nodes(told(two, r.take(1, pid="q")))
        assert [each for each, _ in found] == ["run/001:a"]
        assert told(two, GetLimit(name="api")).held == 1
        shared.check()


def test_both_define_the_same_limit_at_once() -> None:
    with sharing() as shared:
        first, second = shared.meeting(
            c.SetLimit(name="api", concurrency=1), c.SetLimit(name="api", concurrency=2)
        )
        assert first.is_ok
        assert second.is_ok
        assert shared.check().limits["api"].concurrency in (1, 2)
