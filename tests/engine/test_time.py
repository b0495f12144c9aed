"""Store time in the engine: clocks that are put, gaps between turns, restarts."""

import logging
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest

from layby.core import commands as c
from layby.core.model import Millis
from layby.core.settings import Settings
from layby.core.stats import GetStats, StatsData
from layby.engine.calendar import next_after
from layby.engine.engine import Engine
from layby.errors import StoreAway
from layby.store.sqlite import SqliteStore
from tests.helpers import requests as r
from tests.helpers.clocks import ManualClock
from tests.helpers.worlds import BACKENDS, Backend, World, Wrapped

START = 1_700_000_000_000
HOUR = 3_600_000
TIMER = {"resonate:timer": "true"}


@pytest.fixture
def world_options() -> dict[str, Any]:
    return {"paused": False, "now": START}


def ask(world: World, command: c.Command) -> Any:
    """At store time, as everybody does who does not debug."""
    reply = world.engine.call(command)
    assert reply.is_ok, reply
    return reply.data


def let_pass(world: World, ms: Millis) -> None:
    """Time passes, and the engine turns whenever it means to."""
    end = world.clock.elapsed() + ms
    while (left := end - world.clock.elapsed()) > 0:
        rest = max(1, min(left, round(world.engine.patience() * 1000)))
        world.clock.advance(rest)
        world.engine.pump()


def stop_for(world: World, ms: Millis) -> None:
    """The process is stopped, or the machine suspended: time passes and nobody looks."""
    world.clock.advance(ms)
    world.engine.pump()


def timer(world: World, length: Millis, promise_id: str = "run/a:a.t") -> None:
    ask(world, r.run(with_take=r.take(embedded=True), a=""))
    ask(
        world,
        c.CreateBelow(id="run/a:a", version=1, promise_id=promise_id, timeout=length, tags=TIMER),
    )


def beat(world: World) -> None:
    ask(world, c.HeartbeatWorker(pid="p", incarnation="1"))


def standing(world: World) -> str:
    return world.dump().holders["p", "1"].standing


# --- the wall is put back or forward -----------------------------------------------------


@pytest.mark.parametrize("back", [5_000, HOUR])
def test_a_timer_takes_its_time_after_the_clock_was_put_back(world: World, back: Millis) -> None:
    """Neither at once nor when the clock has caught up: a little longer than it says."""
    timer(world, 20_000, "before")
    world.clock.set(START - back)
    timer(world, 2_000)
    let_pass(world, 1_999)
    assert world.promise("run/a:a.t").is_pending
    let_pass(world, 2_000 // 15 + 2)
    assert world.promise("run/a:a.t").state == "resolved"
    let_pass(world, 20_000)
    assert world.promise("before").state == "resolved"


def test_new_runs_have_their_deadline_after_the_clock_was_put_back(world: World) -> None:
    """Right after it was put back by an hour, a deadline of three seconds is three seconds."""
    ask(world, r.run("run/b", a=""))
    world.clock.set(START - HOUR)
    ask(world, r.run(timeout=3_000, a=""))
    promise = world.promise("run/a")
    assert (promise.timeout_at - promise.created_at, promise.state) == (3_000, "pending")
    let_pass(world, 2_999)
    assert world.promise("run/a").is_pending
    let_pass(world, 300)
    assert world.promise("run/a").state == "rejected_timedout"


def test_a_clock_put_forward_takes_store_time_with_it(world: World) -> None:
    """What is due by then is due; who could not renew its lease is not lost."""
    timer(world, 2 * HOUR)
    ask(world, r.take(0, pid="w", incarnation="1", ttl=3_000))
    world.clock.set(START + 3 * HOUR)
    world.engine.pump()
    assert world.promise("run/a:a.t").state == "resolved"
    assert world.dump().holders["w", "1"].is_alive
    let_pass(world, 3_000)
    assert not world.dump().holders["w", "1"].is_alive


# --- gaps --------------------------------------------------------------------------------


def test_a_gap_between_two_turns_ends_no_lease(world: World) -> None:
    """Stopped for eight seconds with leases of three: the holder gets one whole lease more."""
    ask(world, r.run(with_take=r.take(ttl=3_000), a=""))
    let_pass(world, 1_000)
    beat(world)
    stop_for(world, 8_000)
    assert standing(world) == "alive"
    assert world.dump().holders["p", "1"].expires_at == START + 1_000 + 8_000 + 3_000
    let_pass(world, 2_000)
    beat(world)
    let_pass(world, 2_900)
    assert standing(world) == "alive"
    let_pass(world, 100)
    assert standing(world) == "lost"
    world.check()


def test_a_gap_spares_leases_of_tasks_too(world: World) -> None:
    """Those that were claimed by the protocol: their own deadline, the same rule."""
    ask(world, r.claimed("t", ttl=3_000))
    stop_for(world, 8_000)
    assert (world.task("t").state, world.task("t").wake_at) == ("acquired", START + 11_000)
    let_pass(world, 2_999)
    assert world.task("t").state == "acquired"
    let_pass(world, 1)
    assert world.task("t").state == "pending"


def test_what_was_slow_by_less_than_a_second_is_no_gap(world: World) -> None:
    ask(world, r.take(0, ttl=3_000))
    stop_for(world, 4_000)
    assert standing(world) == "lost"


class SlowDisk(Wrapped):
    """The next commit takes as long as it is told."""

    takes: Millis = 0
    clock: ManualClock | None = None

    def save(self, *args: Any) -> None:
        if self.clock is not None:
            self.clock.advance(self.takes)
            self.takes = 0
        self.inner.save(*args)


def test_a_turn_that_takes_long_is_a_gap_as_well() -> None:
    """A slow disk: heartbeats queue behind the commit, and are heard before anybody is lost."""
    with World(paused=False, now=START, wrap=cast("Any", SlowDisk)) as world:
        ask(world, r.take(0, ttl=3_000))
        disk = cast("SlowDisk", world.store)
        disk.clock, disk.takes = world.clock, 8_000
        ask(world, r.promise("p"))
        assert disk.takes == 0
        assert standing(world) == "alive"


class Restarting(Wrapped):
    """A database that can be out of reach."""

    is_away = False

    def transaction(self, *, lazily: bool = False) -> Any:
        if self.is_away:
            raise StoreAway("postgresql://db: it is stopped")
        return self.inner.transaction(lazily=lazily)


def test_a_store_that_was_away_ends_no_lease() -> None:
    """The writer turned all the time, and could write nothing: nobody could renew a lease."""
    with World(paused=False, now=START, wrap=cast("Any", Restarting)) as world:
        ask(world, r.run(with_take=r.take(ttl=3_000), a=""))
        database = cast("Restarting", world.store)
        database.is_away = True
        for _ in range(16):
            with pytest.raises(StoreAway):
                world.engine.call(r.promise("p"))
            with suppress(StoreAway):
                let_pass(world, 500)
        database.is_away = False
        world.engine.pump()
        assert standing(world) == "alive"
        let_pass(world, 2_900)
        beat(world)
        let_pass(world, 2_900)
        assert standing(world) == "alive"
        let_pass(world, 100)
        assert standing(world) == "lost"


def test_a_store_that_is_back_spares_leases_once() -> None:
    """Who is silent from then on is lost a lease after the next look, which comes soon."""
    with World(paused=False, now=START, wrap=cast("Any", Restarting)) as world:
        ask(world, r.take(0, ttl=3_000))
        database = cast("Restarting", world.store)
        database.is_away = True
        with pytest.raises(StoreAway):
            world.engine.call(r.promise("p"))
        database.is_away = False
        let_pass(world, 4_000)
        assert standing(world) == "lost"


@pytest.mark.parametrize("backend", BACKENDS)
def test_who_debugs_spares_nobody(backend: Backend) -> None:
    """`debug.tick` says what time it is: answers stay those of the protocol."""
    with World(backend, now=START) as world:
        world.ok(r.claimed("t", ttl=3_000))
        world.ok(r.take(0, ttl=3_000))
        world.tick(8_000)
        assert world.task("t").state == "pending"
        assert standing(world) == "lost"


# --- restarts ----------------------------------------------------------------------------


@contextmanager
def opened(path: Path, clock: ManualClock) -> Generator[Engine]:
    engine = Engine(SqliteStore(path, Settings(), next_after), clock)
    engine.start_inline()
    try:
        yield engine
    finally:
        engine.stop()


def test_store_time_goes_on_where_it_was(tmp_path: Path) -> None:
    """The clock was put back while nobody ran: nothing is created before what was there."""
    clock = ManualClock(START)
    with opened(tmp_path / "a.db", clock) as engine:
        engine.call(r.promise("p"))
    clock.set(START - HOUR)
    clock.advance(1_000)
    with opened(tmp_path / "a.db", clock) as engine:
        assert engine.clock.now() == START
        clock.advance(16_000)
        assert engine.clock.now() == START + 15_000
        made: Any = engine.call(r.promise("q")).data
        assert made.promise.created_at == START + 15_000


def test_only_what_is_written_moves_the_stored_time(tmp_path: Path) -> None:
    clock = ManualClock(START)
    with opened(tmp_path / "a.db", clock) as engine:
        engine.call(r.promise("p"))
        clock.advance(5_000)
        engine.call(c.GetPromise(id="p"))
        assert engine._store.store_time() == START


def test_time_that_somebody_says_is_not_stored(tmp_path: Path) -> None:
    """`resonate:debug_time` is a matter of that request."""
    with opened(tmp_path / "a.db", ManualClock(START)) as engine:
        engine.call(r.promise("p"), START + HOUR)
        assert engine._store.store_time() == START


def test_leases_of_others_outlive_a_restart(tmp_path: Path) -> None:
    """Nobody could renew them while it was closed: one whole lease from the opening on."""
    clock = ManualClock(START)
    with opened(tmp_path / "a.db", clock) as engine:
        engine.call(r.take(0, ttl=3_000))
        engine.call(r.claimed("t", ttl=3_000))
    clock.advance(HOUR)
    with opened(tmp_path / "a.db", clock) as engine:
        engine.pump()
        assert engine._store.dump().holders["p", "1"].is_alive
        assert engine._store.dump().tasks["t"].state == "acquired"
        clock.advance(3_000)
        engine.pump()
        assert not engine._store.dump().holders["p", "1"].is_alive
        assert engine._store.dump().tasks["t"].state == "pending"


# --- schedules ---------------------------------------------------------------------------


def test_occurrences_wait_for_both_clocks(world: World) -> None:
    """Ten minutes ahead of the wall: the next minute comes when the wall shows it."""
    begun = START - START % 60_000
    world.clock.set(begun)
    let_pass(world, 1)
    ask(world, r.nightly(cron="* * * * *"))
    world.clock.set(begun - 10 * 60_000 + world.clock.elapsed())
    first = f"run/nightly-{_next_run(world)}"
    let_pass(world, 11 * 60_000 - 1_000)
    assert first not in world.dump().promises
    let_pass(world, 2_000)
    assert first in world.dump().promises
    assert world.clock.now() >= _last_run(world)


def test_waiting_for_the_wall_neither_spins_nor_holds_up_timers(world: World) -> None:
    """An occurrence that store time has passed is no reason to be late with anything else."""
    ask(world, r.nightly(cron="* * * * *"))
    let_pass(world, 30_000)
    world.clock.set(world.clock.now() - HOUR)
    let_pass(world, 60_000)
    timer(world, 1_500)
    turns = 0
    begun = world.clock.elapsed()
    while world.promise("run/a:a.t").is_pending:
        world.clock.advance(max(1, round(world.engine.patience() * 1000)))
        world.engine.pump()
        turns += 1
    assert turns < 10
    assert 1_500 <= world.clock.elapsed() - begun <= 1_602


def _stats(world: World) -> StatsData:
    data = world.engine.call(GetStats()).data
    assert isinstance(data, StatsData)
    return data


def _next_run(world: World) -> Millis:
    return world.dump().schedules["nightly"].next_run_at


def _last_run(world: World) -> Millis:
    return world.dump().schedules["nightly"].last_run_at or 0


# --- it is told --------------------------------------------------------------------------


def test_the_difference_is_told_when_it_comes_and_goes(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """One line each, and in the stats meanwhile."""
    caplog.set_level(logging.INFO, "layby.engine.writer_time")
    world.clock.set(START - 10_000)
    let_pass(world, 100)
    assert 9_000 < _stats(world).store_time_ahead <= 10_000
    let_pass(world, 161_000)
    assert _stats(world).store_time_ahead == 0
    told = [each.getMessage() for each in caplog.records if "late" not in each.getMessage()]
    assert len(told) == 2
    assert "put back: store time is 9." in told[0] or "store time is 10.0 s ahead" in told[0]
    assert "caught up" in told[1]


def test_each_further_step_back_is_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """How far it is now; what is only being made up for is not told again."""
    world.clock.set(START - 10_000)
    let_pass(world, 16_000)
    world.clock.set(world.clock.now() - 20_000)
    let_pass(world, 16_000)
    told = [each.getMessage() for each in caplog.records if "put back" in each.getMessage()]
    assert len(told) == 2
    assert "store time is 29." in told[1] or "store time is 28." in told[1]
