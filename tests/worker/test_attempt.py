"""One try by itself, without a worker."""

import asyncio
from types import SimpleNamespace
from typing import Any

from layby.core.commands import RegainPermits
from layby.core.replies import RegainData, Reply, ok
from layby.testing import virtual_test
from layby.worker.attempt import Attempt


@virtual_test
async def test_each_time_it_waits_for_permits_it_has_a_place_of_its_own():
    """Also within a millisecond: the promise that lets it in is named after its place, and the one
    of last time has settled.
    """
    asked: list[RegainPermits] = []

    class Host:
        def __init__(self) -> None:
            self.client = SimpleNamespace(send=self.send)

        async def send(self, request: Any) -> Reply:
            asked.append(request)
            return ok(RegainData())

        def now(self) -> int:
            return 1_000

        def spawn(self, coroutine: Any) -> Any:
            return asyncio.ensure_future(coroutine)

    attempt: Any = object.__new__(Attempt)
    attempt._host, attempt.id, attempt.version, attempt._place = Host(), "run/r:t", 1, 0
    for _ in range(3):
        await attempt.regain_permits()
    assert [each.place for each in asked] == [1_000, 1_001, 1_002]
