"""What waits the longest and which runs are newest: either store, page by page, by an index."""

import random
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from layby.core import commands as c
from layby.core import queries as q
from layby.core.address import inbox_of
from layby.core.model import FAR
from layby.core.replies import Explanation
from layby.core.settings import Settings
from layby.core.waits import waiting_of, waits_since
from layby.store import by_time, page_bounds
from layby.store.sql import SqlStore
from tests.helpers import requests as r
from tests.helpers.worlds import EVERY_BACKEND, Timed, World, new_store

NOW = 1_000
TOLD = '{"kind":"condition","sentence":"until it holds","since":1}'


def rows(chance: random.Random, size: int) -> Iterator[Timed]:
    """Tasks and promises in every state in which something waits, begun at random moments."""
    for number in range(size):
        at = chance.randrange(NOW)
        key = f"{chance.choice('abc')}{number}"
        yield from chance.choice((plain, foreign, ours, suspended, run))(chance, key, at)
    yield c.EnsurePromise(id="placeholder"), NOW


def plain(chance: random.Random, key: str, at: int) -> Iterator[Timed]:
    tags = {"timer": "true"} if chance.random() < 0.2 else {}
    yield r.promise(key, chance.choice((NOW, NOW + 1, 10**9)), **tags), at
    if chance.random() < 0.5:
        yield c.RegisterListener(awaited=key, address="http://example.org"), at
    if chance.random() < 0.2:
        yield r.settle(key), at


def foreign(chance: random.Random, key: str, at: int) -> Iterator[Timed]:
    yield r.target(key, chance.choice((NOW, 10**9)), delay=str(chance.choice((0, NOW - 1)))), at
    if chance.random() < 0.3:
        yield c.HaltTask(id=key, by="me"), at
    if chance.random() < 0.3:
        yield r.acquire(key, 0), at


def ours(chance: random.Random, key: str, at: int) -> Iterator[Timed]:
    tags = {"resonate:target": "poll://any@layby.g", "layby:name": f"n{key}"}
    yield c.CreatePromise(id=key, timeout_at=10**9, tags=tags), at
    yield r.take(1, pid=chance.choice("pq"), names=(f"n{key}",)), at
    at += chance.randrange(NOW - at)  # it waits since then, not since its birth
    yield c.AnnotateTask(id=key, version=1, sub_status="Deferred", waiting_on=TOLD), at
    if chance.random() < 0.3:
        yield c.AnnotateTask(id=key, version=1, progress="{}"), at
    match chance.randrange(5):
        case 4:
            yield c.BlockTask(id=key, version=1, code="v1", why="it is new"), at
        case 0:
            yield r.fail(key, 1, retry_in=NOW + 5), at
        case 1:
            yield from waiting_after_a_failure(key, at)


def waiting_after_a_failure(key: str, at: int) -> Iterator[Timed]:
    """Failed once, tried again, suspended on a promise: it does not back off any more."""
    yield r.fail(key, 1, retry_in=0), at
    yield r.take(1, pid="p", names=(f"n{key}",)), at
    yield r.promise(f"{key}.x"), at
    yield r.suspend(key, 2, f"{key}.x"), at


def suspended(chance: random.Random, key: str, at: int) -> Iterator[Timed]:
    awaited = [f"{key}.{number}" for number in range(chance.randrange(1, 6))]
    yield r.claimed(key, ttl=10**6), at
    for each in awaited:
        yield r.promise(each), at
    yield r.suspend(key, 1, *awaited), at


def run(chance: random.Random, key: str, at: int) -> Iterator[Timed]:
    yield r.run(f"run/{key}", chance.choice((NOW, 10**9)), a="", b="a", d="a b"), at


_prepared: dict[int, tuple[World, World]] = {}


def prepared(seed: int) -> tuple[World, World]:
    """Two stores with the same random rows; made once for each seed."""
    if seed not in _prepared:
        script = sorted(rows(random.Random(seed), 25), key=lambda timed: timed[1])
        _prepared[seed] = (World("memory", now=NOW), World("sqlite", now=NOW))
        for world in _prepared[seed]:
            world.batch(script)
    return _prepared[seed]


KINDS = ("promise", "worker", "sleep", "manual", "condition", "backoff", "none")


@given(
    seed=st.integers(0, 20),
    limit=st.sampled_from((1, 2, 7, 1000)),
    until=st.none() | st.integers(0, NOW + 1),
    kind=st.none() | st.sampled_from(KINDS),
    prefix=st.none() | st.sampled_from(("a", "run/", "x")),
)
@settings(max_examples=150)
def test_both_stores_tell_what_waits(
    seed: int, limit: int, until: int | None, kind: str | None, prefix: str | None
) -> None:
    """The longest first, each once, exactly what the naive reading of all rows finds."""
    query = q.ListWaiting(limit=limit, until=until, wait_kind=kind, prefix=prefix)
    memory, sqlite = (walk(world, query) for world in prepared(seed))
    assert memory == sqlite
    found = [entry.promise.id for page in memory for entry in page]
    assert found == expected(prepared(seed)[0], query)


def walk(world: World, query: Any) -> list[list[Any]]:
    """All pages, following the cursor."""
    pages: list[list[Any]] = []
    while True:
        data = world.ok(query)
        pages.append(list(data.entries))
        assert len(pages[-1]) <= query.limit
        if data.cursor is None:
            return pages
        query = replace(query, cursor=data.cursor)


def expected(world: World, query: q.ListWaiting) -> list[str]:
    state = world.dump()
    wanted: list[tuple[int, str]] = []
    awaited = {each.awaited for each in state.listeners if "@layby." not in each.address}
    for key, stored in state.promises.items():
        promise, task = stored.at(NOW), state.tasks.get(key)
        waiting = waiting_of(promise, task, NOW)
        if waiting is None or not waiting.is_listed:
            continue
        if query.wait_kind not in (None, waiting.kind):
            continue
        if task is None and key not in awaited:
            continue
        if waiting.since <= (FAR if query.until is None else query.until):
            wanted.append((waits_since(promise, task), key))
    return [key for _, key in sorted(wanted) if key.startswith(query.prefix or "")]


@given(seed=st.integers(0, 20))
@settings(max_examples=20)
def test_both_stores_explain_alike(seed: int) -> None:
    """Every promise there is, with all that stands around it."""
    memory, sqlite = prepared(seed)
    for key in memory.dump().promises:
        query = q.ExplainPromise(id=key)
        assert plainly(memory.ok(query)) == plainly(sqlite.ok(query))


def plainly(explanation: Explanation) -> Explanation:
    return replace(explanation, awaited=list(explanation.awaited))


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_an_unknown_promise_has_no_explanation(backend) -> None:
    """404, as for every read by id."""
    with World(backend) as world:
        assert world.send(q.ExplainPromise(id="x")).status == 404


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_an_explanation_says_what_a_task_is_suspended_on_and_who_waits_for_it(backend) -> None:
    """Waits in both directions, and how many listen."""
    with World(backend) as world:
        for key in ("child", "other"):
            world.ok(r.promise(key))
        world.ok(r.claimed("parent"))
        world.ok(r.suspend("parent", 1, "child", "other"))
        world.ok(c.RegisterListener(awaited="child", address="http://example.org"))
        parent = world.ok(q.ExplainPromise(id="parent"))
        child = world.ok(q.ExplainPromise(id="child"))
    assert [promise.id for promise, _ in parent.awaited] == ["child", "other"]
    assert (list(child.awaiters), child.listeners, child.task) == (["parent"], 1, None)


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_what_a_body_waits_for_in_memory_is_awaited_too(backend) -> None:
    """There is no row for such a wait: its worker has said for which promise it is."""
    with World(backend) as world:
        world.ok(c.EnsurePromise(id="event"))
        world.ok(r.run(a=""))
        world.ok(r.take(1))
        told = '{"kind":"promise","sentence":"waiting","since":1,"awaited":"event"}'
        world.ok(c.AnnotateTask(id="run/a:a", version=1, sub_status="Deferred", waiting_on=told))
        (entry,) = world.ok(q.ListWaiting()).entries
    assert entry.promise.id == "run/a:a"
    assert [promise.id for promise, _ in entry.awaited] == ["event"]


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_long_lists_are_cut_and_say_so(backend) -> None:
    """A fan-out of thousands must not make an answer of thousands."""
    with World(backend) as world:
        keys = [f"p{number:03}" for number in range(by_time.EXPLAINED + 1)]
        world.batch([(r.promise(key), 0) for key in keys])
        world.ok(r.claimed("parent"))
        world.ok(r.suspend("parent", 1, *keys))
        explanation = world.ok(q.ExplainPromise(id="parent"))
        entries = world.ok(q.ListWaiting(limit=1_000)).entries
        (entry,) = [each for each in entries if each.task is not None]
    assert [promise.id for promise, _ in explanation.awaited] == keys[:-1]
    assert explanation.more_awaited
    assert (len(entry.awaited), entry.more_awaited) == (by_time.LISTED, True)


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_an_explanation_counts_workers_and_those_with_the_code(backend) -> None:
    """Of the task's group, alive; a worker that learns a name counts from its next take on."""
    with World(backend) as world:
        world.ok(r.run(a=""))
        task = q.ExplainPromise(id="run/a:a")

        def counts() -> tuple[int, int]:
            found = world.ok(task)
            return found.workers, found.able_workers

        assert counts() == (0, 0)
        world.ok(r.take(0, pid="p", names=("other",)))
        world.ok(r.take(0, pid="q", group="another"))
        assert counts() == (1, 0)
        world.ok(r.take(0, pid="p", names=("f",)))
        assert counts() == (1, 1)
        world.ok(c.LeaveWorker(pid="p", incarnation="1"))
        assert counts() == (0, 0)


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_an_explanation_names_the_holder(backend) -> None:
    """Also one that is lost, as long as the task is still its."""
    with World(backend) as world:
        world.ok(r.run(a=""))
        world.ok(r.take(1, ttl=50))
        assert world.ok(q.ExplainPromise(id="run/a:a")).holder.standing == "alive"
        world.ok(r.take(1, incarnation="2"))
        assert world.ok(q.ExplainPromise(id="run/a:a")).holder.standing == "lost"


# --- since when --------------------------------------------------------------------------


def since(world: World, task_id: str) -> int | None:
    return world.dump().tasks[task_id].waiting_since


def test_a_wait_keeps_its_time_while_nothing_changes_in_it() -> None:
    """Dispatching again, a heartbeat or progress are no new waits."""
    with World() as world:
        world.ok(r.target("x"))
        world.tick(40_000)
        assert world.dump().tasks["x"].ready_at == 40_000
        assert since(world, "x") == 0
        world.ok(r.acquire("x", 0, ttl=1_000))
        assert since(world, "x") is None
        world.tick(1_000)
        assert since(world, "x") == 41_000
        world.clock.advance(5)
        world.ok(c.HaltTask(id="x"))
        assert since(world, "x") == 41_005
        world.clock.advance(5)
        world.ok(c.HaltTask(id="x"))
        assert since(world, "x") == 41_005


def test_a_parked_task_waits_since_it_was_told() -> None:
    """Telling the same again keeps the time; another wait begins anew."""
    with World() as world:
        world.ok(r.run(a=""))
        world.ok(r.take(1))

        def told(text: str | None) -> int | None:
            world.clock.advance(10)
            deferred = None if text is None else "Deferred"
            world.ok(c.AnnotateTask(id="run/a:a", version=1, sub_status=deferred, waiting_on=text))
            return since(world, "run/a:a")

        assert told(TOLD) == 10
        assert told(TOLD) == 10
        assert told(TOLD + " ") == 30
        assert told(None) is None


NAMED = '{"kind":"sleep","sentence":"sleeping","record_id":"run/a:a.w0.sleep-1"}'
NEXT = NAMED.replace("sleep-1", "sleep-2")
NAMELESS = '{"kind":"promise","sentence":"waiting for promise x"}'


class Parking:
    """A task whose body is begun again and again; 10 ms pass before each thing that it tells."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.version = 0
        world.ok(r.run(a=""))
        self.begin()

    def begin(self) -> None:
        self.world.clock.advance(10)
        assert self.world.ok(r.take(1)).claims
        self.version += 1

    def tell(self, waiting_on: str | None) -> int | None:
        self.world.clock.advance(10)
        told = c.AnnotateTask(id="run/a:a", version=self.version, waiting_on=waiting_on)
        self.world.ok(told)
        return since(self.world, "run/a:a")

    def begin_again(self) -> None:
        self.world.ok(c.ReleaseTask(id="run/a:a", version=self.version))
        self.begin()


@pytest.mark.parametrize("backend", EVERY_BACKEND)
@pytest.mark.parametrize("told", [NAMED, NAMELESS])
def test_who_parks_again_in_the_same_wait_has_waited_all_the_while(backend, told) -> None:
    """Whoever has the task: a restart makes no wait look new, and neither does a halt."""
    with World(backend) as world:
        body = Parking(world)
        first = body.tell(told)
        body.begin_again()
        assert since(world, "run/a:a") is None
        assert body.tell(told) == first
        world.ok(c.HaltTask(id="run/a:a"))
        assert since(world, "run/a:a") == world.clock.now()
        world.ok(c.ContinueTask(id="run/a:a"))
        ended = c.Released("run/a:a", body.version)
        world.ok(c.ReleaseTasks(pid="p", incarnation="1", tasks=(ended,)))
        body.begin()
        assert body.tell(told) == first
        world.check()


def test_another_wait_begins_anew_after_a_restart() -> None:
    """Also one that looks alike, as soon as the body has gone on from the one it was in."""
    with World() as world:
        body = Parking(world)
        body.tell(NAMED)
        body.begin_again()
        assert body.tell(NEXT) == world.clock.now()
        body.tell(None)
        first = body.tell(NAMELESS)
        body.begin_again()
        assert body.tell(NAMELESS) == first
        body.tell(None)
        assert body.tell(NAMELESS) == world.clock.now()


def test_after_a_failure_waits_begin_anew() -> None:
    """The next try makes them anew, with deadlines of their own."""
    with World() as world:
        body = Parking(world)
        body.tell(NAMED)
        body.begin_again()
        world.ok(r.fail("run/a:a", version=body.version, retry_in=0))
        body.begin()
        assert body.tell(NAMED) == world.clock.now()


@pytest.mark.parametrize("told", ["1", '"x"', "[]", '{"record_id":1}', "{}"])
def test_a_wait_that_cannot_be_told_apart_begins_anew(told) -> None:
    """What a worker in another language writes is its own affair."""
    with World() as world:
        body = Parking(world)
        body.tell(told)
        body.begin_again()
        assert body.tell(told) == world.clock.now()


def test_tasks_behind_others_of_their_run_are_not_listed() -> None:
    """They wait for what is listed itself."""
    with World() as world:
        world.ok(r.run(a="", b="a"))
        listed = [entry.promise.id for entry in world.ok(q.ListWaiting()).entries]
    assert listed == ["run/a:a"]


# --- pages -------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_a_page_looks_at_so_many_rows(backend, monkeypatch) -> None:
    """A page looks at so many rows and no more; it says that there is more behind them."""
    monkeypatch.setattr(page_bounds, "LOOKED_AT", 101)
    with World(backend) as world:
        world.batch([(r.target(f"x{number:03}"), number) for number in range(150)])
        world.clock.advance(NOW)
        world.ok(c.HaltTask(id="x149"))
        first = world.ok(q.ListWaiting(wait_kind="manual", limit=5))
        assert (list(first.entries), first.cursor) == ([], "100:x100")
        (found,) = world.ok(q.ListWaiting(wait_kind="manual", cursor=first.cursor)).entries
        assert found.promise.id == "x149"


@pytest.mark.parametrize("cursor", ["x", ":a", "a:b", "1.5:b", f"{2**70}:b"])
@pytest.mark.parametrize("query", [q.ListWaiting(), q.ListRuns(newest_first=True)])
def test_a_cursor_that_is_none_is_refused(query, cursor) -> None:
    """400, rather than the first page once more."""
    with World() as world:
        reply = world.send(replace(query, cursor=cursor))
    assert (reply.status, reply.data) == (400, "cursor must be one that an answer gave")


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_internal_promises_are_not_even_looked_at(backend, monkeypatch) -> None:
    """Nobody may wait for them, and no sweep ever takes them out of the way."""
    monkeypatch.setattr(page_bounds, "LOOKED_AT", 2)
    with World(backend, settings=Settings.strict()) as world:
        world.batch([(r.promise(f"x{number}", NOW), 0) for number in range(200)])
        world.clock.advance(NOW)
        world.ok(r.promise("open", external="true"))
        world.ok(c.RegisterListener(awaited="open", address=r.WORKER))
        page = world.ok(q.ListWaiting())
    assert ([each.promise.id for each in page.entries], page.cursor) == (["open"], None)


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_runs_come_newest_first(backend) -> None:
    """Page by page, filtered as by id."""
    with World(backend) as world:
        for number, key in enumerate("bca"):
            world.ok(r.run(f"run/{key}", a=""))
            world.clock.advance(1 if number else 0)
        world.ok(r.settle("run/c"))

        def listed(**query: Any) -> tuple[list[str], str | None]:
            page = world.ok(q.ListRuns(newest_first=True, **query))
            return [promise.id for promise, _ in page.rows], page.cursor

        assert listed() == (["run/a", "run/c", "run/b"], None)
        assert listed(limit=1) == (["run/a"], "1:run/a")
        assert listed(limit=1, cursor="1:run/a") == (["run/c"], "0:run/c")
        assert listed(limit=1, cursor="0:run/c") == (["run/b"], None)
        assert listed(state="resolved") == (["run/c"], None)
        assert listed(name="root", limit=3)[0] == ["run/a", "run/c", "run/b"]
        assert listed(name="other") == ([], None)


@pytest.mark.parametrize(
    ("source", "arguments", "index"),
    [
        (by_time.WAITING, (0, "", 9), "promises_waiting"),
        (by_time.OUTSIDE, (0, "", 9), "promises_outside"),
        (by_time.NEWEST, (9, ""), "promises_newest_runs"),
    ],
)
def test_every_list_reads_a_range_of_its_index(source, arguments, index) -> None:
    """No scan and no sort, however many rows there are."""
    with closing(new_store("sqlite")) as store:
        assert isinstance(store, SqlStore)
        statement = f"EXPLAIN QUERY PLAN SELECT promises.id FROM {source} LIMIT 5"
        plan = store._connection.execute(statement, arguments).fetchall()
    told = "\n".join(step[3] for step in plan)
    assert f"SEARCH promises USING INDEX {index}" in told or f"COVERING INDEX {index}" in told
    assert "TEMP B-TREE" not in told
    assert "SCAN" not in told


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_a_wait_is_listed_once(backend) -> None:
    """As the task that waits, whether it is suspended in the store or parked in any worker."""
    with World(backend) as world:
        world.ok(c.EnsurePromise(id="event"))
        world.ok(r.run(a=""))
        world.ok(r.take(1))
        told = '{"kind":"promise","sentence":"waiting","since":1,"awaited":"event"}'
        world.ok(c.AnnotateTask(id="run/a:a", version=1, sub_status="Deferred", waiting_on=told))
        world.ok(c.RegisterListener(awaited="event", address=inbox_of("default", "w")))
        world.ok(r.claimed("sdk"))
        world.ok(r.suspend("sdk", 1, "event"))
        listed = [entry.promise.id for entry in world.ok(q.ListWaiting()).entries]
        assert sorted(listed) == ["run/a:a", "sdk"]
        world.ok(c.RegisterListener(awaited="event", address="http://example.org"))
        listed = [entry.promise.id for entry in world.ok(q.ListWaiting()).entries]
        assert sorted(listed) == ["event", "run/a:a", "sdk"]
        assert world.ok(q.ExplainPromise(id="event")).listeners == 1
