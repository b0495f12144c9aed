"""Rows that nobody has named belong to a command or a tick, as many and as large as others have
made them: one transaction loads and writes few of them, and the rest comes in others.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from layby.core.birth import encoded
from layby.core.commands import (
    Command,
    CreateSchedule,
    CreateTask,
    GetPromise,
    GetTask,
    HeartbeatTasks,
    Node,
    SetLimit,
    StartRun,
    Value,
)
from layby.core.footprint import LEASES_AT_ONCE, Footprint
from layby.core.replies import OK, Claim, ClaimData, PromiseData, Reply, TakeData
from layby.core.rows import Rows
from layby.core.settings import Settings
from layby.engine.calendar import next_after
from layby.engine.engine import Engine
from layby.engine.items import Answer, Item
from layby.engine.observer import Commit
from layby.store.api import Store
from layby.store.memory import MemoryStore
from layby.store.page_bounds import PAGE_BYTES, UNWEIGHED
from layby.store.sqlite import SqliteStore
from tests.helpers.clocks import ManualClock
from tests.helpers.postgres_stores import postgres_store
from tests.helpers.requests import (
    OTHER,
    acquire,
    claimed,
    finish,
    promise,
    run,
    settle,
    suspend,
    take,
    target,
)

HEAVY = Value(data="x" * (PAGE_BYTES // 2))
TOGETHER = 2
"""So many of them bring a transaction to its bound."""
MOST = max(TOGETHER, UNWEIGHED)
MANY = 3 * MOST
SPINS = 500
"""No test needs so many transactions."""


class World:
    """An engine whose commits are counted by the promises and tasks that each has written."""

    def __init__(self, store: Store) -> None:
        self.clock = ManualClock()
        self.written: list[int] = []
        self.loaded: list[int] = []
        """Characters of params and values, by transaction."""
        self._load, store.load = store.load, self._loading
        self._engine = Engine(store, self.clock, observer=self)
        self._engine.start_inline()

    def _loading(self, footprint: Footprint, now: int) -> Rows:
        rows = self._load(footprint, now)
        promises = rows.promises.values()
        self.loaded.append(sum(len(each.param) + len(each.value) for each in promises))
        return rows

    def committed(self, commit: Commit) -> None:
        changes = commit.changes
        self.written.append(len(changes.promises.keys() | changes.tasks.keys()))
        if len(self.written) > SPINS:
            pytest.fail("it looks again and again")

    def do(self, command: Command) -> Reply:
        reply = self._engine.call(command)
        assert reply.is_ok, reply
        return reply

    def take(self, free: int) -> TakeData:
        data = self.do(take(free)).data
        assert isinstance(data, TakeData)
        return data

    def taken(self, free: int) -> Sequence[Claim]:
        return self.take(free).claims

    def send(self, *commands: Command) -> list[Reply]:
        """Together; where the answers will be when there are any."""
        replies = list[Reply]()
        self._engine.submit([Item(command, _append, replies) for command in commands])
        self._engine.pump()
        return replies

    def state(self, promise_id: str) -> str:
        data = self.do(GetPromise(id=promise_id)).data
        assert isinstance(data, PromiseData)
        return data.promise.state

    def pass_time(self, ms: int) -> None:
        self.written.clear()
        self.loaded.clear()
        self.clock.advance(ms)
        self._engine.pump()

    def stop(self) -> None:
        self._engine.stop()


def _append(answers: Sequence[tuple[Item, Answer]]) -> None:
    for item, each in answers:
        item.token.append(each)


def opened(backend: str, folder: Path) -> Store:
    if backend == "memory":
        return MemoryStore(Settings(), next_after)
    if backend == "sqlite":
        return SqliteStore(folder / "layby.db", Settings(), next_after)
    return postgres_store()


@pytest.fixture(params=["sqlite", "postgres"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def world(backend: str, tmp_path: Path) -> Iterator[World]:
    world = World(opened(backend, tmp_path))
    yield world
    world.stop()


def heavy_task(task_id: str, ttl: int = 5_000) -> CreateTask:
    command = claimed(task_id, ttl=ttl)
    action = command.action
    return replace(command, action=replace(action, data=replace(action.data, param=HEAVY)))


def names(count: int = MANY) -> list[str]:
    return [f"h{number:02}" for number in range(count)]


@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgres"])
def test_a_preload_ends_with_the_promise_that_fills_it(world):
    for name in names():
        world.do(replace(promise(name, branch="a"), param=HEAVY))
    world.do(target("t", branch="a"))
    reply = world.do(acquire("t", 0))
    assert isinstance(reply.data, ClaimData)
    assert [each.id for each in reply.data.preload] == names(TOGETHER)


def test_deadlines_of_heavy_promises_are_met_in_several_transactions(world):
    for name in names():
        world.do(replace(promise(name, timeout_at=1_000), param=HEAVY))
    world.pass_time(1_000)
    assert max(world.written) <= MOST
    assert sum(world.written) == MANY
    assert {world.state(name) for name in names()} == {"rejected_timedout"}


def test_leases_of_heavy_tasks_end_in_several_transactions(world):
    for name in names():
        world.do(heavy_task(name))
    world.pass_time(5_000)
    assert max(world.written) <= MOST
    assert sum(world.written) == MANY


def test_heavy_tasks_that_wait_are_resumed_in_several_transactions(world):
    """Also when several promises that they wait for settle at once."""
    world.do(promise("first", timeout_at=1_000))
    world.do(promise("second", timeout_at=1_000))
    for number, name in enumerate(names()):
        world.do(heavy_task(name))
        world.do(suspend(name, 1, "second" if number % 2 else "first"))
    world.pass_time(1_000)
    assert max(world.written) <= MOST + 2
    for name in names():
        world.do(acquire(name, 1))


def test_a_heartbeat_without_tasks_loads_none_of_what_they_have(world):
    """Also beside commands that do name one of them: those see all of it."""
    for name in names():
        world.do(heavy_task(name))
    world.pass_time(4_000)
    shown, beat = world.send(HeartbeatTasks(pid="p", tasks=[]), GetPromise(id=names()[0]))
    assert beat == OK
    assert shown.data.promise.param == encoded(HEAVY)
    assert max(world.loaded) <= 1.01 * len(shown.data.promise.param)
    assert max(world.written) <= MOST
    world.pass_time(4_000)
    tasks = [world.do(GetTask(id=name)).data.task for name in names()]
    assert {(task.state, task.wake_at) for task in tasks} == {("acquired", 9_000)}
    assert world.do(GetPromise(id=names()[1])).data.promise.param == shown.data.promise.param


@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgres"])
def test_a_heartbeat_renews_many_leases_in_several_transactions_before_its_answer(world):
    count = 2 * LEASES_AT_ONCE + 1
    assert all(reply.is_ok for reply in world.send(*(claimed(f"t{at}") for at in range(count))))
    world.pass_time(4_000)
    beats = world.send(*[HeartbeatTasks(pid="p", tasks=[])] * 3, HeartbeatTasks(pid="q", tasks=[]))
    assert beats == [OK] * 4
    assert max(world.written) <= LEASES_AT_ONCE
    assert sum(world.written) == count
    world.pass_time(4_000)
    assert not any(world.written)


def test_a_settlement_is_answered_before_many_heavy_tasks_are_resumed(world):
    world.do(promise("first"))
    for name in names():
        world.do(heavy_task(name))
        world.do(suspend(name, 1, "first"))
    world.written.clear()
    world.do(settle("first"))
    assert max(world.written) <= MOST + 1
    for name in names():
        world.do(acquire(name, 1))


def test_occurrences_with_heavy_params_come_in_several_transactions(world):
    for name in names():
        given = {"promise_timeout": 10**9, "promise_param": HEAVY}
        given["promise_tags"] = {"resonate:target": OTHER}
        world.do(CreateSchedule(id=name, cron="* * * * *", promise_id="{{.id}}.a", **given))
    world.pass_time(60_000)
    assert max(world.written) <= MOST
    assert {world.state(f"{name}.a") for name in names()} == {"pending"}


def test_missed_occurrences_with_heavy_params_come_in_several_transactions(world):
    """Of one schedule, after a long pause."""
    given = {"promise_timeout": 10**9, "promise_param": HEAVY}
    given["promise_tags"] = {"resonate:target": OTHER}
    world.do(CreateSchedule(id="s", cron="* * * * *", promise_id="{{.timestamp}}.a", **given))
    world.pass_time(MANY * 60_000)
    assert max(world.written) <= TOGETHER
    times = [60_000 * number for number in range(1, MANY + 1)]
    assert {world.state(f"{time}.a") for time in times} == {"pending"}


def test_heavy_roots_are_handed_out_in_several_takes(world):
    """A worker gets them whatever room it has."""
    for name in names():
        command = run(f"run/{name}", a="")
        world.do(replace(command, param=HEAVY))
    nodes = [claim.task.id for claim in world.taken(free=MANY)]
    assert len(nodes) == MANY
    for node in nodes:
        world.do(finish(node))
    found = list(iter(lambda: [claim.task.id for claim in world.taken(free=0)], []))
    assert max(map(len, found)) <= MOST
    assert sorted(root for part in found for root in part) == [f"run/{name}" for name in names()]


def heavy_nodes(count: int, priority: int = 0) -> StartRun:
    nodes = tuple(
        Node(id=f"{at:02}", name="f", param=HEAVY, priority=priority + at % 2 * priority)
        for at in range(count)
    )
    return StartRun(id=f"run/{priority}", name="root", group="g", nodes=nodes)


@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgres"])
def test_heavy_nodes_are_handed_out_in_several_takes_in_their_order(world):
    """However many slots a worker has free. It hears that there may be more."""
    world.do(heavy_nodes(MANY))
    first = world.take(MANY)
    assert first.again
    found = [first.claims, *iter(lambda: world.taken(free=MANY), [])]
    assert max(map(len, found)) <= MOST
    ids = [f"run/0:{at:02}" for at in range(MANY)]
    assert [claim.task.id for part in found for claim in part] == ids


@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgres"])
def test_of_heavy_nodes_those_with_priority_come_first_and_none_is_left_out(world):
    for priority in (0, 5, -5):
        world.do(heavy_nodes(MANY, priority))
    found = list(iter(lambda: world.taken(free=100), []))
    priorities = [claim.task.priority for part in found for claim in part]
    assert max(map(len, found)) <= MOST
    assert len(priorities) == 3 * MANY
    assert priorities == sorted(priorities, reverse=True)


@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgres"])
def test_what_one_take_leaves_is_offered_to_the_others_that_wait(world):
    """At once: no time passes."""
    answers = [world.send(take(MANY, pid=f"w{at}", wait_ms=10_000)) for at in range(MANY)]
    world.do(heavy_nodes(MANY))
    found = [reply.data.claims for each in answers for reply in each]
    assert max(map(len, found)) <= MOST
    ids = [f"run/0:{at:02}" for at in range(MANY)]
    assert sorted(claim.task.id for part in found for claim in part) == ids


@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgres"])
@pytest.mark.parametrize("param", [Value(), HEAVY])
def test_a_take_that_leaves_all_it_sees_waits(world, param):
    """It has no slot free, and nothing that has limits is handed out ahead."""
    world.do(SetLimit(name="l", concurrency=100))
    nodes = (Node(id=f"{at:02}", name="f", limits=("l",), param=param) for at in range(MANY))
    world.do(StartRun(id="run/a", name="root", group="g", nodes=tuple(nodes)))
    assert world.send(replace(take(0, wait_ms=10_000), ahead=5)) == []
