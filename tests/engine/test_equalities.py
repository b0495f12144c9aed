"""The same script gives the same replies and the same state, however it is carried out."""

import random
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, groupby
from operator import itemgetter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from layby.core.changes import Changes
from layby.core.commands import (
    Command,
    DeferTask,
    ExtendWait,
    FinishTask,
    ReleaseTasks,
    RerunRun,
    Take,
)
from layby.core.footprint import Footprint
from layby.core.joins import is_below_join
from layby.core.model import Millis
from layby.core.queries import Query, ResetDebug, SnapDebug
from layby.core.replies import JoinData, Reply, TakeData
from layby.core.rows import Rows
from layby.core.settings import Settings
from layby.core.state import State
from layby.core.waits import shown_state
from layby.errors import StoreUnavailable
from layby.store.api import Store
from layby.store.memory import MemoryStore
from layby.wire.answers import shown
from layby.wire.decode import decode_data
from layby.wire.json_values import read_error
from tests.helpers import requests as r
from tests.helpers.random_runs import (
    CHUNK,
    SMALL,
    SMALL_STRICT,
    Script,
    run_scripts,
    seeded_run_script,
)
from tests.helpers.seeds import seeds
from tests.helpers.worlds import Answered, Backend, History, Timed, World, Wrapped, frozen
from tests.model.scripts import seeded_script

Told = tuple[list[Any], State]
"""The replies to a script, and the state it leads to."""
See = Callable[[State], State]
"""What is compared of a state."""
TELLING = (90, 62, 18, 15, 14, 8)
"""Seeds of scripts that have what is rare in others: tests that look for it try them first."""
LOOK_EVERY = 10
"""Steps: to read everything out of a database takes longer than most of them."""


class Widened(Wrapped):
    """Shows every step the whole state instead of the rows it declares."""

    def load(self, footprint: Footprint, now: Millis) -> Rows:
        state = self.inner.dump()
        pids = {pid for pid, _ in state.holders}
        leased = {task.pid for task in state.tasks.values() if task.pid is not None}
        wide = replace(
            footprint,
            ids=footprint.ids | state.promises.keys(),
            branches_of=footprint.branches_of | state.promises.keys(),
            schedules=footprint.schedules | state.schedules.keys(),
            pids=footprint.pids | pids,
            leases_of=footprint.leases_of | leased,
            notices=footprint.notices | pids,
        )
        return self.inner.load(wide, now)


class Flaky(Wrapped):
    """Once armed, fails the next commit that would have written something."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.is_armed = False
        self.failed = 0
        self._saved = False

    def save(self, changes: Changes, now: Millis) -> None:
        self._saved = True
        self.inner.save(changes, now)

    @contextmanager
    def transaction(self, *, lazily: bool = False) -> Generator[None]:
        self._saved = False
        with self._undone(), self.inner.transaction(lazily=lazily):
            yield
            if self._saved and self.is_armed:
                self.is_armed = False
                self.failed += 1
                raise StoreUnavailable("the disk is full, for once")

    @contextmanager
    def _undone(self) -> Generator[None]:
        """The memory store has nothing to roll back, since its own `save` cannot fail."""
        memory = self.inner if isinstance(self.inner, MemoryStore) else None
        before = frozen(memory.state) if memory else None
        try:
            yield
        except StoreUnavailable:
            if memory is not None and before is not None:
                memory.state = before
            raise


def one_by_one(world: World, script: Script) -> tuple[Told, list[State]]:
    """The reference: every step alone, with everything that must hold looked at after it."""
    history = History()
    replies: list[Any] = []
    states: list[State] = []
    for request, now in script:
        reply = world.send(request, now)
        replies.append(kept(reply))
        if isinstance(request, ResetDebug):
            history.forget()
        states.append(world.dump())
        if not isinstance(request, SnapDebug | ResetDebug):
            history.answered(shown_plainly(whole(reply, states[-1])))
        history.observe(states[-1], now)
    return (replies, states[-1]), states


def one_by_one_beside(
    world: World, script: Script, states: Sequence[State], see: See = lambda state: state
) -> Told:
    """Every step alone elsewhere: where the state is the same, the same holds."""
    replies: list[Any] = []
    for step, (request, now) in enumerate(script):
        replies.append(kept(world.send(request, now)))
        if step % LOOK_EVERY == 0:
            assert_same_state(f"after step {step}", see(world.dump()), see(states[step]))
    return replies, see(world.dump())


def in_batches(world: World, script: Script, cuts: Sequence[int], *, mixed: bool) -> Told:
    replies: list[Any] = []
    for batch in cut(script, cuts, mixed=mixed):
        flaky = world.store
        if isinstance(flaky, Flaky):
            flaky.is_armed = len(batch) > 1 and all(map(shares_a_commit, batch))
        replies += map(kept, world.batch(batch))
    return replies, world.dump()


def shares_a_commit(timed: Timed) -> bool:
    """Then a commit that fails is repeated for each alone; what is alone already is not."""
    return isinstance(timed[0], Command) and not timed[0].is_alone


def cut(script: Script, sizes: Sequence[int], *, mixed: bool) -> Generator[list[Timed]]:
    """The script in pieces of these sizes, over and over; unless mixed, each at one instant.

    A take that asks for little is shown just enough rows for one instant, as the engine's own
    clock gives it; only requests that bring their own times can mix instants in a batch. After
    a take that may be handed something ahead there is a cut: what it gets depends on the takes
    that come after it in the same batch, and is meant to. After a query too: it may see them.
    """
    at, turn = 0, cycle(sizes)
    while at < len(script):
        size = next(turn)
        piece = script[at : at + size]
        ahead = next((i for i, (each, _) in enumerate(piece) if may_see_later(each)), size)
        piece = piece[: ahead + 1]
        at += len(piece)
        if mixed:
            yield piece
        else:
            yield from (list(same) for _, same in groupby(piece, key=itemgetter(1)))


def may_see_later(request: object) -> bool:
    if isinstance(request, Query):
        return True
    take = getattr(request, "take", request)
    return isinstance(take, Take) and take.ahead > 0 and take.before is None


def kept(reply: Answered) -> object:
    """A reply that later writes do not change (the memory store shows its living state)."""
    data = without_notices(frozen(reply.data)) if isinstance(reply.data, State) else reply.data
    return (reply.status, data)


def without_notices(state: State) -> State:
    """Which of two promises that are due at the same time settles first is left to the store, and
    so is whether a holder that is lost at that time was told of it.
    """
    told = {key: each for key, each in state.messages.items() if each.kind != "lost"}
    return replace(state, messages=told)


def whole(reply: Answered, state: State) -> Answered:
    """With what an answer leaves out on purpose: the param of a join."""
    if not isinstance(reply.data, JoinData):
        return reply
    promise = reply.data.promise
    full = replace(promise, param=state.promises[promise.id].param)
    return Reply(reply.status, replace(reply.data, promise=full))


def shown_plainly(reply: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(shown(reply, "c")))


WAYS: dict[str, Callable[[Settings], World]] = {
    "batched, memory": lambda settings: small("memory", settings),
    "batched, sqlite": lambda settings: small("sqlite", settings),
    "whole state, memory": lambda settings: small("memory", settings, wrap=Widened),
    "whole state, sqlite": lambda settings: small("sqlite", settings, wrap=Widened),
    "replayed, memory": lambda settings: small("memory", settings, wrap=Flaky),
    "replayed, sqlite": lambda settings: small("sqlite", settings, wrap=Flaky),
    "threaded, memory": lambda settings: small("memory", settings, threaded=True),
    "threaded, sqlite": lambda settings: small("sqlite", settings, threaded=True),
}
POSTGRES_WAYS: dict[str, Callable[[Settings], World]] = {
    "batched, postgres": lambda settings: small("postgres", settings),
    "whole state, postgres": lambda settings: small("postgres", settings, wrap=Widened),
    "replayed, postgres": lambda settings: small("postgres", settings, wrap=Flaky),
    "threaded, postgres": lambda settings: small("postgres", settings, threaded=True),
}
"""Each step is a transaction of another process there: fewer scripts take as long."""


def small(backend: Backend, settings: Settings, **options: Any) -> World:
    return World(backend, settings=settings, chunk=CHUNK, **options)


def assert_equal_every_way(
    script: Script, cuts: Sequence[int], *, mixed: bool = True, settings: Settings = SMALL
) -> None:
    with small("memory", settings) as world:
        told, states = one_by_one(world, script)
    with small("sqlite", settings) as world:
        got = one_by_one_beside(world, script, states)
        assert_same("one by one, sqlite", script, got, told)
    assert_same_in_batches(WAYS, script, cuts, told, mixed=mixed, settings=settings)


def assert_equal_on_postgres(
    script: Script, cuts: Sequence[int], *, mixed: bool = True, settings: Settings = SMALL
) -> None:
    with small("memory", settings) as world:
        told, states = one_by_one(world, script)
    told = told[0], without_notices(told[1])
    with small("postgres", settings) as world:
        got = one_by_one_beside(world, script, states, without_notices)
        assert_same("one by one, postgres", script, got, told)
    assert_same_in_batches(
        POSTGRES_WAYS, script, cuts, told, mixed=mixed, settings=settings, see=without_notices
    )


def assert_same_in_batches(
    ways: dict[str, Callable[[Settings], World]],
    script: Script,
    cuts: Sequence[int],
    told: Told,
    *,
    mixed: bool,
    settings: Settings,
    see: See = lambda state: state,
) -> None:
    for name, new_world in ways.items():
        with new_world(settings) as world:
            replies, state = in_batches(world, script, cuts, mixed=mixed)
            assert_same(name, script, (replies, see(state)), told)


def assert_same(way: str, script: Script, got: Told, expected: Told) -> None:
    pairs = zip(script, got[0], expected[0], strict=True)
    for step, ((request, now), reply, wanted) in enumerate(pairs):
        is_same = reply == wanted
        if not is_same and "postgres" in way:
            is_same = is_same_but_for_left(reply, wanted)
        assert is_same, f"{way}: step {step}: {request} at {now}"
    assert_same_state(way, got[1], expected[1])


def is_same_but_for_left(reply: object, wanted: object) -> bool:
    """Where rows are locked, one more is looked at than may be handed out. If that one leaves the
    queue in the same batch, the answer does not know what is left, and says so (`again`).
    """
    return without_left(reply, if_again=True) == without_left(wanted, if_again=False)


def without_left(reply: Any, *, if_again: bool) -> object:
    status, data = reply
    taken = getattr(data, "taken", data)
    if not isinstance(taken, TakeData) or (if_again and not taken.again):
        return reply
    claims = TakeData(taken.claims)
    return status, (claims if data is taken else replace(data, taken=claims))


def assert_same_state(way: str, got: State, expected: State) -> None:
    for name in got.__struct_fields__:
        assert getattr(got, name) == getattr(expected, name), f"{way}: {name}"


sizes = st.lists(st.integers(1, 12), min_size=1, max_size=4)


@pytest.mark.parametrize("early", [True, False], ids=["early", "scarce"])
@given(data=st.data())
@settings(max_examples=8)
def test_every_way_is_equal(early: bool, data: st.DataObject) -> None:
    """Alone or batched, inline or threaded, on any store, with more rows, after a rollback."""
    script = data.draw(run_scripts(early=early))
    assert_equal_every_way(script, data.draw(sizes), mixed=early)


@pytest.mark.parametrize("seed", seeds(3, slow=40))
@pytest.mark.parametrize("early", [True, False], ids=["early", "scarce"])
def test_long_scripts_are_equal(seed: int, early: bool) -> None:
    """The same for long scripts that a seed names."""
    chance = random.Random(seed)
    script = seeded_run_script(seed, 120, early=early)
    assert_equal_every_way(script, [chance.randint(1, 20) for _ in range(5)], mixed=early)


@pytest.mark.parametrize("early", [True, False], ids=["early", "scarce"])
@given(data=st.data())
@settings(max_examples=3)
def test_every_way_on_postgres_is_equal(early: bool, data: st.DataObject) -> None:
    """The locked load of PostgreSQL shows and writes the same."""
    script = data.draw(run_scripts(early=early))
    assert_equal_on_postgres(script, data.draw(sizes), mixed=early)


@pytest.mark.parametrize("seed", seeds(1, slow=8))
@pytest.mark.parametrize("early", [True, False], ids=["early", "scarce"])
def test_long_scripts_on_postgres_are_equal(seed: int, early: bool) -> None:
    """The same for long scripts that a seed names."""
    chance = random.Random(seed)
    script = seeded_run_script(seed, 120, early=early)
    assert_equal_on_postgres(script, [chance.randint(1, 20) for _ in range(5)], mixed=early)


@pytest.mark.parametrize("seed", range(2))
def test_long_strict_scripts_on_postgres_are_equal(seed: int) -> None:
    """The same under the strict profile."""
    settings = replace(SMALL_STRICT, strict_lineage="colon" if seed % 2 else "off")
    script = seeded_run_script(seed, 120, early=True, settings=settings)
    assert_equal_on_postgres(script, [3, 17, 8], settings=settings)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1_000, 1_050))
@pytest.mark.parametrize("early", [True, False], ids=["early", "scarce"])
def test_very_long_scripts_on_postgres_are_equal(seed: int, early: bool) -> None:
    """A soak of the same."""
    chance = random.Random(seed)
    script = seeded_run_script(seed, 300, early=early)
    assert_equal_on_postgres(script, [chance.randint(1, 40) for _ in range(5)], mixed=early)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1_000, 1_200))
@pytest.mark.parametrize("early", [True, False], ids=["early", "scarce"])
def test_very_long_scripts_are_equal(seed: int, early: bool) -> None:
    """A soak of the same."""
    chance = random.Random(seed)
    script = seeded_run_script(seed, 300, early=early)
    assert_equal_every_way(script, [chance.randint(1, 40) for _ in range(5)], mixed=early)


@pytest.mark.parametrize("early", [True, False], ids=["early", "scarce"])
@given(data=st.data())
@settings(max_examples=4)
def test_every_way_is_equal_when_strict(early: bool, data: st.DataObject) -> None:
    """Of runs and protocol kinds under the strict profile, every invariant after every step."""
    script = data.draw(run_scripts(early=early, settings=SMALL_STRICT))
    cuts = data.draw(sizes)
    assert_equal_every_way(script, cuts, mixed=early, settings=SMALL_STRICT)


@pytest.mark.parametrize("seed", seeds(2, slow=4))
def test_long_strict_scripts_are_equal(seed: int) -> None:
    """The same for long scripts that a seed names; strict external alone lets more trees meet."""
    chance = random.Random(seed)
    settings = replace(SMALL_STRICT, strict_lineage="colon" if seed % 2 else "off")
    script = seeded_run_script(seed, 120, early=True, settings=settings)
    cuts = [chance.randint(1, 20) for _ in range(5)]
    assert_equal_every_way(script, cuts, settings=settings)


def state_of(world: World) -> State:
    """As it is kept in memory: `dump` would copy all of it after each request."""
    assert isinstance(world.store, MemoryStore)
    return world.store.state


def test_scripts_have_children() -> None:
    """Runs that tasks start, also with another life, and that are cancelled with those tasks."""
    ends = ("has ended", "which started it, was cancelled")
    expected = {"child", "child_any", "read", "any", "all", "end", *ends}
    seen: set[str] = set()
    with small("memory", SMALL) as world:
        for seed in (*TELLING, *range(400)):
            if seen >= expected:
                break
            world.reset()
            for request, now in seeded_run_script(seed, 120, early=seed % 2 == 0):
                world.send(request, now)
                seen |= {wait.mode for wait in state_of(world).waits.values()}
            found = state_of(world).promises.values()
            children = (each for each in found if '"layby:parent"' in each.tags)
            told = [str(read_error(each.value)) for each in children if not each.is_pending]
            seen |= {end for end in ends if any(end in each for each in told)}
    assert seen >= expected


def test_scripts_have_maps() -> None:
    """Calls that end in each way, items that have a permit, wait for one or are deferred."""
    expected = {"resolved", "rejected", "rejected_canceled", "gated", "permitted", "deferred"}
    seen: set[str] = set()
    for seed in (*TELLING, *range(100)):
        if seen >= expected:
            break
        with small("memory", SMALL) as world:
            for request, now in seeded_run_script(seed, 120, early=seed % 2 == 0):
                world.send(request, now)
                state = state_of(world)
                joins = (key for key, task in state.tasks.items() if task.is_join)
                seen |= {state.promises[key].state for key in joins}
                items = [each for each in state.tasks.values() if is_below_join(each.id)]
                seen |= {"gated" for each in items if each.gate is not None}
                seen |= {"permitted" for each in items if each.permits is not None}
                seen |= {"deferred" for each in items if shown_state(each) == "deferred"}
    assert seen >= expected


def test_strict_scripts_get_somewhere() -> None:
    """Tasks wait and finish, and internal promises exist and are refused to who would wait."""
    answers: set[tuple[str, int]] = set()
    rare = {("task.suspend", 200), ("promise.register_listener", 422)}
    born: set[bool] = set()
    with small("memory", SMALL_STRICT) as world:
        for seed in range(40):
            if seed >= 10 and answers >= rare:
                break
            world.reset()
            for request, now in seeded_run_script(seed, 120, early=True, settings=SMALL_STRICT):
                answers.add((request.kind, world.send(request, now).status))
            born |= {promise.internal for promise in world.dump().promises.values()}
    assert born == {True, False}
    for kind in ("layby.task.finish", "promise.register_listener", "task.suspend"):
        assert (kind, 200) in answers
    assert ("promise.register_listener", 422) in answers


def test_scripts_meet_what_deferring_brings() -> None:
    """Waits that are over in each way, one that fired at once, moved deadlines, clean-up."""
    over = {f"is {state}" for state in ("resolved", "rejected", "rejected_timedout")}
    expected = {"deferred", "at once", "moved", "cleans up", *over}
    seen: set[str] = set()
    for seed in (*TELLING, *range(60)):
        if seen >= expected:
            break
        with small("memory", SMALL) as world:
            for request, now in seeded_run_script(seed, 120, early=seed % 2 == 0):
                reply = world.send(request, now)
                seen |= {each for each in deferring_in(request, reply) if reply.is_ok}
                tasks = state_of(world).tasks.values()
                seen |= {"deferred" for task in tasks if shown_state(task) == "deferred"}
                seen |= {"cleans up" for task in tasks if task.id.endswith(".cancel")}
    assert seen >= expected


def deferring_in(request: Command | Query, reply: Answered) -> Iterator[str]:
    if isinstance(request, DeferTask) and reply.is_ok and reply.data.task.state == "pending":
        yield "at once"
    if isinstance(request, ExtendWait):
        yield "moved"
    for claim in getattr(getattr(reply.data, "taken", reply.data), "claims", ()):
        if claim.resumed is not None:
            yield f"is {claim.resumed.event.state}"


def test_scripts_meet_what_turns_bring() -> None:
    """Claims ahead that begin, holds that outlive a halt, verdicts that are applied, reruns."""
    kept = {"kept halted", "kept pending", "kept fulfilled"}
    expected = {"ahead", "begun", *kept, "released", "verdict", "rerun"}
    seen: set[str] = set()
    for seed in (*TELLING, *range(400)):
        if seen >= expected:
            break
        with small("memory", SMALL) as world:
            tasks = state_of(world).tasks
            for request, now in seeded_run_script(seed, 120, early=seed % 2 == 0):
                before = dict(tasks)
                reply = world.send(request, now)
                seen |= {"ahead" for task in tasks.values() if task.ahead}
                seen |= {f"kept {task.state}" for task in tasks.values() if task.is_kept}
                began = any(t.ahead and tasks[k].tries > t.tries for k, t in before.items())
                seen |= {"begun"} if began and isinstance(request, Take) else set()
                if isinstance(request, ReleaseTasks) and before != tasks:
                    seen.add("released")
                if isinstance(request, FinishTask) and reply.is_ok and reply.data.root:
                    seen.add("verdict")
                if isinstance(request, RerunRun) and reply.is_ok:
                    seen.add("rerun" if reply.data.promise.is_pending else "rerun in vain")
    assert seen >= expected


@pytest.mark.parametrize("seed", range(20))
def test_what_goes_ahead_is_taken_from_nobody_who_has_room(seed: int) -> None:
    """In one batch, takes get for their free slots what they get when nothing goes ahead."""
    chance = random.Random(seed)
    aheads = [chance.choice((0, 1, 3)) for _ in range(6)]
    frees = [chance.choice((0, 1, 2, 3)) for _ in aheads]
    count = chance.choice((3, 8, 20))
    got: list[list[Any]] = []
    for may in (True, False):
        with small("sqlite" if seed % 2 else "memory", SMALL) as world:
            for at in range(count):
                world.ok(r.run(f"run/{at:02}", a=""))
            takes = [
                replace(r.take(free, pid=str(at)), ahead=ahead if may else 0)
                for at, (free, ahead) in enumerate(zip(frees, aheads, strict=True))
            ]
            replies = world.batch([(take, 0) for take in takes])
            world.check()
        claims = [reply.data.claims for reply in replies]
        got.append([[c.task.id for c in each if not c.task.ahead] for each in claims])
        ahead = sum(c.task.ahead for each in claims for c in each)
        assert ahead == (min(sum(aheads), max(0, count - sum(frees))) if may else 0)
    assert got[0] == got[1]


@pytest.mark.parametrize("seed", seeds(2, slow=20))
def test_protocol_scripts_are_equal(seed: int) -> None:
    """The model's scripts too give one result, however they are cut and wherever they run."""
    chance = random.Random(seed)
    assert_equal_every_way(protocol_script(seed), [chance.randint(1, 20) for _ in range(5)])


@pytest.mark.parametrize("seed", seeds(1, slow=8))
def test_protocol_scripts_on_postgres_are_equal(seed: int) -> None:
    """The same on PostgreSQL."""
    chance = random.Random(seed)
    assert_equal_on_postgres(protocol_script(seed), [chance.randint(1, 20) for _ in range(5)])


def protocol_script(seed: int) -> Script:
    requests = ((decode_data(kind, encoded(data)), now) for kind, data, now in seeded_script(seed))
    return [(each, now) for each, now in requests if isinstance(each, Command | Query)]


def encoded(data: object) -> bytes:
    return msgspec.json.encode(data)
