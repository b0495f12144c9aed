"""Turns of large batches: a few at once, and callers one after the other."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layby.server import turns
from layby.server.turns import PAUSE_S, REST, PacedTurns, Turns


class Stage:
    """Batches that ask for turns; each has its turn until it is told to end it."""

    def __init__(self, at_once: int = 1) -> None:
        self.turns = Turns(at_once)
        self.began: list[str] = []
        self.most = 0
        self._under_way: list[asyncio.Event] = []

    async def batch(self, caller: str, slices: int = 1) -> None:
        for _ in range(slices):
            async with self.turns.turn(caller):
                self.began.append(caller)
                over = asyncio.Event()
                self._under_way.append(over)
                self.most = max(self.most, len(self._under_way))
                try:
                    await over.wait()
                finally:
                    self._under_way.remove(over)

    def begin(self, caller: str, slices: int = 1) -> "asyncio.Task[None]":
        return asyncio.ensure_future(self.batch(caller, slices))

    async def end_one(self) -> None:
        await settled()
        self._under_way[0].set()
        await settled()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def play(scene: Callable[[Stage], Awaitable[None]], at_once: int = 1) -> None:
    async def run() -> None:
        await scene(Stage(at_once))

    asyncio.run(run())


def test_a_caller_with_many_batches_waits_behind_one_with_a_single_batch() -> None:
    async def scene(stage: Stage) -> None:
        greedy = [stage.begin("greedy", 3) for _ in range(5)]
        await settled()
        modest = stage.begin("modest")
        await stage.end_one()
        await stage.end_one()
        assert stage.began[:3] == ["greedy", "greedy", "modest"]
        assert not modest.done()
        await stage.end_one()
        assert modest.done()
        for each in greedy:
            each.cancel()

    play(scene)


def test_only_so_many_have_a_turn() -> None:
    async def scene(stage: Stage) -> None:
        batches = [stage.begin(f"caller-{number}") for number in range(5)]
        await settled()
        assert len(stage.began) == 2
        for _ in range(5):
            await stage.end_one()
        await asyncio.gather(*batches)
        assert stage.most == 2

    play(scene, at_once=2)


@pytest.mark.parametrize("is_given", [False, True])
def test_who_is_cancelled_takes_no_turn_along(*, is_given: bool) -> None:
    """Neither one that still waits, nor one that has just been given its turn."""

    async def scene(stage: Stage) -> None:
        first, second, third = (stage.begin(name) for name in ("a", "b", "c"))
        await settled()
        if is_given:
            first.cancel()
            await asyncio.sleep(0)  # its turn has been passed on, and the second not yet run
        second.cancel()
        await settled()
        if not is_given:
            await stage.end_one()
        await settled()
        assert stage.began == ["a", "c"]
        third.cancel()
        await settled()
        last = stage.begin("d")
        await stage.end_one()
        assert last.done()

    play(scene)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4)), max_size=12))
def test_nobody_waits_longer_than_one_turn_of_each_other_caller(asked: list[tuple[str, int]]):
    """Whatever the batches, as long as a caller has something to do it is served in between."""

    async def scene(stage: Stage) -> None:
        batches = [stage.begin(caller, slices) for caller, slices in asked]
        total = sum(slices for _, slices in asked)
        for _ in range(total):
            await stage.end_one()
        await asyncio.gather(*batches)
        left = {name: sum(n for caller, n in asked if caller == name) for name in "abc"}
        since = dict.fromkeys("abc", 0)
        for name in stage.began[1:]:  # the first began before the others had asked
            since = {each: since[each] + 1 for each in since}
            since[name] = 0
            left[name] -= 1
            waiting = [each for each in "abc" if left[each] > 1]
            assert all(since[each] <= 3 for each in waiting)

    play(scene)


class LoopOfItsOwn:
    """A clock that only rests and work put forward, and the rests that were asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.rests: list[float] = []
        monkeypatch.setattr(turns.asyncio, "sleep", self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.rests.append(seconds)
        self.now += seconds

    async def works(self, paced: PacedTurns, *pieces: float) -> None:
        for seconds in pieces:
            async with paced.turn("caller"):
                self.now += seconds


def test_the_loop_rests_longer_than_anything_large_took(monkeypatch) -> None:
    """The first begins at once; after each piece the loop is free for three times as long, and for
    a millisecond at least.
    """
    loop = LoopOfItsOwn(monkeypatch)
    asyncio.run(loop.works(PacedTurns(lambda: loop.now), 0.002, 0.0, 0.001))
    assert loop.rests == pytest.approx([0.0, REST * 0.002, PAUSE_S])


def test_who_comes_after_the_rest_does_not_wait(monkeypatch) -> None:
    """A caller that is alone, and slower than its share of the loop, loses nothing."""
    loop = LoopOfItsOwn(monkeypatch)
    paced = PacedTurns(lambda: loop.now)

    async def scene() -> None:
        for _ in range(3):
            await loop.works(paced, 0.002)
            loop.now += 1.0

    asyncio.run(scene())
    assert loop.rests == [0.0, 0.0, 0.0]


def test_what_is_large_waits_for_what_is_small() -> None:
    """Until the last small request that is under way has its answer, and no longer."""

    async def scene() -> None:
        paced, began = PacedTurns(), asyncio.Event()
        paced.begin_small()
        paced.begin_small()

        async def large() -> None:
            async with paced.turn("large"):
                began.set()

        task = asyncio.ensure_future(large())
        paced.end_small()
        await settled()
        assert not began.is_set()
        paced.end_small()
        await settled()
        assert began.is_set()
        await task

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turns, "GIVE_WAY_S", 60.0)
        asyncio.run(asyncio.wait_for(scene(), 30))


def test_what_is_large_goes_on_though_small_requests_never_end() -> None:
    async def scene() -> None:
        paced = PacedTurns()
        with paced.giving_way():
            for _ in range(3):
                async with paced.turn("large"):
                    pass

    asyncio.run(asyncio.wait_for(scene(), 30))
