"""Triggers that kill their process: found, and nobody else is blamed for long."""

import asyncio
import logging
from typing import Any, ClassVar

import pytest

from layby import triggers
from layby.core.ticks import LoseHolders
from layby.testing import virtual_test
from tests.helpers.triggers import TriggerWorld, trigger_world

INNOCENT = 150


class Poison(triggers.Trigger, frozen=True):
    """Its process dies when it has run for so long."""

    after: float
    began: ClassVar[list[str]] = []
    died: ClassVar[asyncio.Event]

    async def run(self) -> Any:
        await asyncio.sleep(self.after)
        self.died.set()
        await asyncio.sleep(1e6)


class PoisonousCancel(triggers.Trigger, frozen=True):
    """Its process dies when it has been cancelled for so long."""

    after: float

    async def run(self) -> Any:
        await asyncio.sleep(1e6)

    async def on_cancel(self) -> None:
        await asyncio.sleep(self.after)
        Poison.died.set()
        await asyncio.sleep(1e6)


class Innocent(triggers.Trigger, frozen=True):
    async def run(self) -> Any:
        await asyncio.sleep(1e6)


class SlowCancel(Innocent, frozen=True):
    async def on_cancel(self) -> None:
        await asyncio.sleep(4)


class Wordless(Innocent, frozen=True):
    def sentence(self) -> str:
        raise LookupError("no words")


CLASSES = (Poison, PoisonousCancel, Innocent, SlowCancel, Wordless)


async def die(world: TriggerWorld, manager: Any) -> None:
    """As if the process were killed: nothing is handed back, its lease ends."""
    worker = manager.worker
    worker.close()
    manager._reports.close()
    key = (worker.config.pid, worker.incarnation)
    assert (await world.runner.client.send(LoseHolders(keys=(key,)))).is_ok


async def live(world: TriggerWorld, seconds: float) -> bool:
    """One process; whether it survived that long."""
    Poison.died = asyncio.Event()
    async with world.manager(CLASSES, capacity=1_000) as manager:
        try:
            async with asyncio.timeout(seconds):
                await Poison.died.wait()
        except TimeoutError:
            return True
        await die(world, manager)
    return False


def tasks(world: TriggerWorld) -> dict[str, Any]:
    return world.runner.engine._store.dump().tasks


@pytest.mark.parametrize("after", [0.0, 0.5, 2.9])
@virtual_test
async def test_the_one_that_kills_its_process_fails(after, caplog):
    """After five deaths its task hears why; all others run, and none of them has failed."""
    caplog.set_level(logging.CRITICAL)
    async with trigger_world() as world:
        for number in range(INNOCENT):
            await world.put(f"i{number:03}", Innocent())
        await world.put("poison", Poison(after))
        deaths = 0
        while not await live(world, 120):
            deaths += 1
        assert deaths == 5
        state, why = await world.outcome("poison")
        assert (state, "its process ended" in why or "5 times" in why) == ("rejected", True)
        crashes = [task.crashes for name, task in tasks(world).items() if name != "poison"]
        assert len(crashes) == INNOCENT
        assert max(crashes) <= 3
        assert all([(await world.look(f"i{n:03}")).is_pending for n in range(INNOCENT)])


@pytest.mark.parametrize("after", [0.0, 0.5, 2.9])
@virtual_test
async def test_an_on_cancel_that_kills_its_process_harms_nobody_else(after, caplog):
    """It is code of users like `run`: it is found by trying, and harms nobody."""
    caplog.set_level(logging.CRITICAL)
    async with trigger_world() as world:
        await world.put("poison", PoisonousCancel(after))
        await world.put("slow", SlowCancel())
        for number in range(3):
            await world.put(f"i{number}", Innocent())
        for name in ("poison", "slow"):
            await world.cancel(name)
        deaths = 0
        while not await live(world, 120):
            deaths += 1
        assert deaths == 5
        assert (await world.outcome("poison.cancel"))[0] == "rejected"
        assert await world.outcome("slow.cancel") == ("resolved", True)
        assert all([(await world.look(f"i{number}")).is_pending for number in range(3)])
        assert max(tasks(world)[f"i{number}"].crashes for number in range(3)) <= 3


@virtual_test
async def test_one_that_has_run_for_long_is_not_blamed(caplog):
    """A process may die for many reasons: only what is new in it is suspected."""
    caplog.set_level(logging.CRITICAL)
    async with trigger_world() as world:
        await world.put("poison", Poison(60))
        for _ in range(8):
            assert not await live(world, 120)
        assert tasks(world)["poison"].crashes == 0
        assert (await world.look("poison")).is_pending


@virtual_test
async def test_suspects_say_why_they_wait(caplog):
    """It is shown while they wait for their turn."""
    caplog.set_level(logging.CRITICAL)
    async with trigger_world() as world:
        await world.put("poison", Poison(0.1))
        for number in range(40):
            await world.put(f"i{number}", Innocent())
        assert not await live(world, 60)
        Poison.died = asyncio.Event()
        async with world.manager([Innocent], capacity=100) as manager:
            await asyncio.sleep(1)
            shown = [task.waiting_on or "" for task in tasks(world).values()]
            assert sum("a process died once soon after it began" in each for each in shown) == 8
            assert manager.running == 40
            await asyncio.sleep(60)
            shown = [task.waiting_on or "" for task in tasks(world).values()]
            assert sum("died" in each for each in shown) == 0


@virtual_test
async def test_one_that_cannot_say_what_it_waits_for():
    """Those that began with it are shown as waiting all the same: a lost process is not theirs."""
    async with trigger_world() as world, world.manager(CLASSES):
        await world.put("wordless", Wordless())
        await world.put("innocent", Innocent())
        await asyncio.sleep(10)
        shown = tasks(world)
        assert shown["innocent"].sub_status == "Deferred"
        assert "no words" in shown["wordless"].waiting_on
