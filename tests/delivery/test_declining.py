"""Which receiver of a group hears of a task, and who else when that one declines."""

import asyncio

from layby import Runner
from layby.core.commands import AcquireTask, ReleaseTask
from layby.testing import virtual_test
from tests.helpers.callers import Stranger, call
from tests.helpers.workers import settled_down


@virtual_test
async def test_who_declines_is_followed_by_the_others():
    """Each is asked once, without delay, until one keeps the message."""
    async with Runner("memory:") as runner:
        group = [Stranger(runner, name) for name in "abc"]
        await call(runner, "t", "f")
        declined: set[Stranger] = set()
        while len(declined) < 3:
            await settled_down()
            [asked] = [each for each in group if each.heard and each not in declined]
            asked.decline("t", 0)
            declined.add(asked)
        await settled_down()
        assert [each.heard for each in group] == [[("t", 0)]] * 3


@virtual_test
async def test_what_all_have_declined_waits_for_the_next_who_comes():
    """It is kept; a newcomer hears of it at once, and so does who comes back."""
    async with Runner("memory:") as runner:
        first = Stranger(runner, "first")
        await call(runner, "t", "f")
        await settled_down()
        first.decline("t", 0)
        await settled_down()
        second = Stranger(runner, "second")
        await settled_down()
        assert (first.heard, second.heard) == ([("t", 0)], [("t", 0)])
        second.decline("t", 0)
        first.leave()
        again = Stranger(runner, "first")
        await settled_down()
        assert again.heard == [("t", 0)]


@virtual_test
async def test_a_retry_asks_everybody_again():
    """Whoever declined may have a slot by now."""
    async with Runner("memory:") as runner:
        only = Stranger(runner)
        await call(runner, "t", "f")
        await settled_down()
        only.decline("t", 0)
        await asyncio.sleep(29)
        assert only.heard == [("t", 0)]
        await asyncio.sleep(2)
        assert only.heard == [("t", 0)] * 2


@virtual_test
async def test_a_late_no_changes_nothing():
    """Of somebody who was not asked, or about a version that is over."""
    async with Runner("memory:") as runner:
        asked = Stranger(runner, "asked")
        await call(runner, "t", "f")
        await settled_down()
        other = Stranger(runner, "other")
        other.decline("t", 0)
        asked.decline("t", 7)
        asked.decline("unknown", 0)
        await settled_down()
        assert other.heard == []
        await runner.client.send(AcquireTask(id="t", version=0, pid="asked", ttl=60_000))
        await runner.client.send(ReleaseTask(id="t", version=1))
        asked.decline("t", 0)
        other.decline("t", 0)
        await settled_down()
        assert sorted([*asked.heard, *other.heard]) == [("t", 0), ("t", 1)]


@virtual_test
async def test_who_has_declined_may_still_acquire():
    """To decline is to let others go first, and no more."""
    async with Runner("memory:") as runner:
        only = Stranger(runner)
        await call(runner, "t", "f")
        await settled_down()
        only.decline("t", 0)
        taken = await runner.client.send(AcquireTask(id="t", version=0, pid="me", ttl=1))
        assert taken.status == 200
