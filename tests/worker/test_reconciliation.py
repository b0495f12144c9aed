"""What a worker holds and what the store believes it holds, when answers have got lost."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from layby import Runner, Workflow, task
from layby.core import commands as c
from layby.core import queries as q
from layby.core.model import NEVER, Task
from layby.core.replies import OK, Reply, TaskPage, ok, refuse
from layby.errors import StoreUnavailable
from layby.worker.open_takes import OpenTakes
from layby.worker.reconciliation import BEATS_BETWEEN_CHECKS, MOST_LOOKS, Reconciler
from layby.worker.worker import Worker
from layby.workflow import plan
from tests.helpers.server_thread import Elsewhere, play, server_elsewhere, soon
from tests.helpers.troubled_server import Trouble

LIST = "layby.worker.list"
RELEASE = "layby.worker.release"


@pytest.fixture
def elsewhere():
    with server_elsewhere() as found:
        yield found


@task
async def first(context, handle):
    await asyncio.sleep(0.01)
    context["first"] = handle.try_number


@task(dependencies=["first"])
async def second(context, handle):
    await asyncio.sleep(0.01)
    context["second"] = handle.try_number


FLOW = Workflow("two", tasks=[first, second])


async def start_elsewhere(elsewhere: Elsewhere, flow: Workflow, run_id: str) -> None:
    """By somebody who takes none of its tasks."""
    await elsewhere.ok(plan.plan(flow, run_id, {}, "default", NEVER))


async def result_of(runner: Runner, run_id: str) -> Any:
    async with asyncio.timeout(20):
        return (await (await runner.get(run_id)).result()).to_dict()


# --- with a real server ----------------------------------------------------------------------


@pytest.mark.parametrize("trouble", ["lose", "cut"])
def test_a_task_that_came_in_a_lost_answer_is_handed_back_and_run(
    elsewhere: Elsewhere, trouble: Trouble
):
    """Nobody has it and the store believes we do: it goes back, and somebody runs it."""

    async def scene() -> None:
        taking = lambda data: data["free"] > 0  # noqa: E731 - not a registration
        elsewhere.meddler.trouble("layby.worker.take", trouble, when=taking)
        async with elsewhere.runner(slots=1) as runner:
            runner.register(FLOW)
            await soon(lambda: elsewhere.server.engine.free_slots)
            await start_elsewhere(elsewhere, FLOW, "a")
            assert await result_of(runner, "a") == {"first": 1, "second": 1}
            assert (await elsewhere.task("run/a:first")).version == 2

    play(scene)


def test_a_task_that_rode_on_a_lost_answer_is_handed_back_and_run(elsewhere: Elsewhere):
    """With the report of the one before it, or with the start of its run."""

    async def scene() -> None:
        elsewhere.meddler.trouble("layby.task.finish", "lose")
        async with elsewhere.runner(slots=1) as runner:
            run = await runner.start(FLOW, run_id="a")
            assert (await run.result()).to_dict() == {"first": 1, "second": 1}
            assert (await elsewhere.task("run/a:second")).version == 2
            await soon(lambda: runner.worker.credit.free == 1)
            elsewhere.meddler.trouble("layby.run.start", "lose")
            run = await runner.start(FLOW, run_id="b")
            assert (await run.result()).to_dict() == {"first": 1, "second": 1}
            assert (await elsewhere.task("run/b:first")).version == 2

    play(scene)


def test_a_task_that_was_handed_back_does_not_begin_when_its_answer_comes(elsewhere: Elsewhere):
    """The answer was late, not lost: no two bodies of a task share a try."""
    bodies: list[int] = []
    released = asyncio.Event()

    @task
    async def body(context, handle):
        bodies.append(handle.try_number)
        await released.wait()

    flow = Workflow("one", tasks=[body])

    async def scene() -> None:
        taking = lambda data: data["free"] > 0  # noqa: E731 - not a registration
        meddler = elsewhere.meddler
        meddler.trouble("layby.worker.take", "late", when=taking)
        meddler.trouble(RELEASE, "slow")
        async with elsewhere.runner(slots=1) as runner:
            runner.register(flow)
            await soon(lambda: elsewhere.server.engine.free_slots)
            await start_elsewhere(elsewhere, flow, "a")
            await soon(lambda: elsewhere.count(RELEASE))
            elsewhere.loop.call_soon_threadsafe(meddler.let_go.set)
            while (await elsewhere.task("run/a:body")).version == 1:  # noqa: ASYNC110 - see `soon`
                await asyncio.sleep(0.01)
            released.set()
            await result_of(runner, "a")
        assert bodies == [1]

    play(scene)


def test_a_task_that_was_halted_before_its_answer_came_does_not_begin(elsewhere: Elsewhere):
    """We say at once that no body of it runs here: whoever waits for that goes on."""
    bodies: list[int] = []

    @task
    async def body(context, handle):
        bodies.append(handle.try_number)

    flow = Workflow("one", tasks=[body])

    async def scene() -> None:
        taking = lambda data: data["free"] > 0  # noqa: E731 - not a registration
        meddler = elsewhere.meddler
        meddler.trouble("layby.worker.take", "late", when=taking)
        async with elsewhere.runner(slots=1) as runner:
            runner.register(flow)
            await soon(lambda: elsewhere.server.engine.free_slots)
            await start_elsewhere(elsewhere, flow, "a")
            while (await elsewhere.task("run/a:body")).version == 0:  # noqa: ASYNC110 - see `soon`
                await asyncio.sleep(0.01)
            await elsewhere.ok(c.HaltTask(id="run/a:body"))
            await soon(lambda: elsewhere.count(RELEASE))
            elsewhere.loop.call_soon_threadsafe(meddler.let_go.set)
            await soon(lambda: runner.worker.open_takes.are_answered(1) or bodies)
            await elsewhere.ok(c.ContinueTask(id="run/a:body"))
            await result_of(runner, "a")
        assert len(bodies) == 1

    play(scene)


def test_a_halted_task_whose_answer_and_whose_loss_got_lost_goes_on(
    elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
):
    """The store keeps it for a body that this worker does not have."""
    monkeypatch.setattr(Worker, "lost", lambda *_: None)

    async def scene() -> None:
        taking = lambda data: data["free"] > 0  # noqa: E731 - not a registration
        elsewhere.meddler.trouble("layby.worker.take", "lose", when=taking)
        async with elsewhere.runner(slots=1) as runner:
            runner.register(FLOW)
            await soon(lambda: elsewhere.server.engine.free_slots)
            await start_elsewhere(elsewhere, FLOW, "a")
            while (await elsewhere.task("run/a:first")).version == 0:  # noqa: ASYNC110 - see `soon`
                await asyncio.sleep(0.01)
            await elsewhere.ok(c.HaltTask(id="run/a:first"))
            await elsewhere.ok(c.ContinueTask(id="run/a:first"))
            assert set(await result_of(runner, "a")) == {"first", "second"}

    play(scene)


def test_a_slow_answer_is_not_taken_for_a_lost_one(elsewhere: Elsewhere):
    """However often the two are compared meanwhile, short of two leases."""

    async def scene() -> None:
        taking = lambda data: data["free"] > 0  # noqa: E731 - not a registration
        meddler = elsewhere.meddler
        meddler.trouble("layby.worker.take", "late", when=taking)
        async with elsewhere.runner(slots=1, lease=6) as runner:
            runner.register(FLOW)
            await soon(lambda: elsewhere.server.engine.free_slots)
            await start_elsewhere(elsewhere, FLOW, "a")
            looks = Reconciler(runner.worker)
            for _ in range(MOST_LOOKS - 1):
                await looks.reconcile()
            elsewhere.loop.call_soon_threadsafe(meddler.let_go.set)
            assert await result_of(runner, "a") == {"first": 1, "second": 1}
        assert elsewhere.count(RELEASE) == 0

    play(scene)


class Waiter:
    """A flow whose body waits for an event, and tells when it is ended."""

    def __init__(self) -> None:
        self.ended: list[int] = []

        @task
        async def waits(context, handle):
            try:
                await handle.wait_for("event")
            except asyncio.CancelledError:
                self.ended.append(handle.try_number)
                raise
            context["try"] = handle.try_number

        self.flow = Workflow("waiting", tasks=[waits])

    async def parked(self, runner: Runner) -> None:
        await runner.start(self.flow, run_id="a")
        await soon(lambda: runner.worker.attempts and not runner.worker.running)


def test_a_task_that_the_store_gave_away_ends_here(elsewhere: Elsewhere):
    """Nobody told us, and the body waits without a word: it is ended all the same."""
    waiter, over = Waiter(), asyncio.Event()

    @task
    async def holds_the_slot(context):
        await over.wait()

    async def scene() -> None:
        async with elsewhere.runner(slots=1) as one, elsewhere.runner(slots=1) as other:
            await waiter.parked(one)
            await one.start(Workflow("busy", tasks=[holds_the_slot]), run_id="b")
            other.register(waiter.flow)
            await elsewhere.ok(c.ReleaseTask(id="run/a:waits", version=1))
            await soon(lambda: waiter.ended == [1])
            await elsewhere.ok(c.ResolvePromise(id="event"))
            assert await result_of(other, "a") == {"try": 2}
            over.set()

    play(scene)


def test_a_task_that_comes_back_ends_its_older_try(elsewhere: Elsewhere):
    """One process does not run two tries of a task, whatever it has not been told."""
    waiter = Waiter()

    async def scene() -> None:
        async with elsewhere.runner(slots=1, lease=60) as runner:
            await waiter.parked(runner)
            await elsewhere.ok(c.ReleaseTask(id="run/a:waits", version=1))
            await soon(lambda: waiter.ended == [1])
            await elsewhere.ok(c.ResolvePromise(id="event"))
            assert await result_of(runner, "a") == {"try": 2}

    play(scene)


def test_there_are_no_false_alarms_under_load(elsewhere: Elsewhere):
    """Answers are always under way then; still no task is handed back or ended by mistake."""

    async def look(runner: Runner) -> None:
        looks = Reconciler(runner.worker)
        while True:
            await looks.reconcile()
            await asyncio.sleep(0.005)

    async def scene() -> None:
        patient: Any = {"slots": 4, "lease": 20}
        async with elsewhere.runner(**patient) as one, elsewhere.runner(**patient) as other:
            for runner in (one, other):
                runner.register(FLOW)
            looking = [asyncio.create_task(look(runner)) for runner in (one, other)]
            runs = [await one.start(FLOW, run_id=f"r{number}") for number in range(300)]
            results = [(await run.result()).to_dict() for run in runs]
            assert results == [{"first": 1, "second": 1}] * 300
            for each in looking:
                assert each.cancel()

    play(scene)
    assert elsewhere.count(LIST) > 50


# --- by itself -------------------------------------------------------------------------------


class Holding:
    """A worker and its store, as far as taking reconciler knows them."""

    def __init__(self, here: dict[str, int], store: dict[str, int]) -> None:
        self.holds = here
        self.store = store
        self.kept: set[str] = set()
        self.client = self
        self.incarnation = "1"
        self.config = self
        self.pid = "p"
        self.open_takes = OpenTakes()
        self.gone: list[tuple[str, int]] = []
        self.released: list[tuple[str, int]] = []
        self.answer: Callable[[q.ListHeld], Awaitable[Reply]] = self.page
        self.release_failure: Exception | None = None

    async def send(self, request: Any) -> Reply:
        if isinstance(request, q.ListHeld):
            return await self.answer(request)
        if self.release_failure is not None:
            raise self.release_failure
        assert not any(each.begun for each in request.tasks)
        self.released += [(each.id, each.version) for each in request.tasks]
        return OK

    async def page(self, query: q.ListHeld) -> Reply:
        """Two at a time."""
        left = sorted(each for each in self.store.items() if each[0] > (query.cursor or ""))
        tasks = [self._row(key, version) for key, version in left[:2]]
        return ok(TaskPage(tasks, left[1][0] if len(left) > 2 else None))

    def _row(self, task_id: str, version: int) -> Task:
        state = "halted" if task_id in self.kept else "acquired"
        return Task(id=task_id, target="", version=version, state=state)

    def lost(self, task_id: str, version: int) -> None:
        self.gone.append((task_id, version))

    def replace_standing_take(self) -> None:
        """There is none."""

    def give_up_answer(self, task_id: str, version: int) -> bool:
        return self.holds.get(task_id) != version


def reconcile(holding: Any, *changes: Callable[[], None]) -> None:
    """Once, and once more after each change."""
    reconciler = Reconciler(holding)

    async def run() -> None:
        await reconciler.reconcile()
        for change in changes:
            change()
            await reconciler.reconcile()

    asyncio.run(run())


def nothing() -> None:
    """Time passes."""


def test_what_differs_twice_in_the_same_way_counts():
    """Strangers are handed back, what is missing is given up; the rest is left alone."""
    holding = Holding({"a": 1, "b": 2, "c": 1}, {"a": 1, "b": 3, "d": 4, "e": 1})
    reconcile(holding, nothing)
    assert holding.released == [("b", 3), ("d", 4), ("e", 1)]
    assert sorted(holding.gone) == [("b", 2), ("c", 1)]


def test_what_differs_once_is_only_under_way():
    """It is there when looked at again, or differs in another way."""
    holding = Holding({"a": 1, "b": 1}, {"b": 1, "c": 1})

    def arrives() -> None:
        holding.holds = {"b": 1, "c": 1, "d": 1}

    def goes_on() -> None:
        holding.store = {"b": 1, "d": 1, "e": 1}

    reconcile(holding, arrives, goes_on)
    assert (holding.released, holding.gone) == ([], [])


@pytest.mark.parametrize("answer", [refuse(500, "a bug"), StoreUnavailable("away")])
def test_a_list_that_cannot_be_had_proves_nothing(answer: Reply | Exception):
    """Least of all that everything is lost; also when only its second page is missing."""
    holding = Holding({"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 1, "c": 1})

    async def fails(query: q.ListHeld) -> Reply:
        if query.cursor is None and holding.holds:
            return await holding.page(query)
        if isinstance(answer, Exception):
            raise answer
        return answer

    holding.answer = fails
    reconcile(holding, nothing, nothing)
    assert (holding.released, holding.gone) == ([], [])


def test_now_and_then_it_is_looked_at_anyway():
    """Two differences may cancel each other out, so that both sides count alike."""
    holding: Any = Holding({"a": 1}, {"b": 1})
    reconciler = Reconciler(holding)
    assert not reconciler.is_due(agrees=True)
    assert sum(reconciler.is_due(agrees=True) for _ in range(3 * BEATS_BETWEEN_CHECKS)) == 3
    assert reconciler.is_due(agrees=False)


def test_looking_while_it_looks_is_no_second_look():
    """A slow answer must not make one difference count twice."""
    holding = Holding({}, {"a": 1})
    asked = asyncio.Event()

    async def run() -> None:
        reconciler: Any = Reconciler(holding)  # type: ignore[arg-type]

        async def slowly(query: q.ListHeld) -> Reply:
            await asked.wait()
            return await holding.page(query)

        holding.answer = slowly
        looks = [asyncio.ensure_future(reconciler.reconcile()) for _ in range(3)]
        await asyncio.sleep(0)
        asked.set()
        await asyncio.gather(*looks)

    asyncio.run(run())
    assert holding.released == []


def test_what_the_store_keeps_for_a_body_that_is_not_here_is_let_go():
    """What it keeps for one that is here is lost: that ends, and is told then."""
    holding = Holding({"a": 1}, {"a": 1, "b": 2})
    holding.kept = {"a", "b"}
    reconcile(holding, nothing)
    assert (holding.gone, holding.released) == ([("a", 1)], [("b", 2)])


def test_a_task_that_may_be_on_its_way_is_waited_for():
    """Until all that might bring it is answered; what is sent later cannot bring it."""
    holding = Holding({}, {"a": 1})
    earlier, later = object(), object()
    holding.open_takes.begin(earlier)

    def answered() -> None:
        assert holding.released == []
        holding.open_takes.begin(later)
        holding.open_takes.end(earlier)

    reconcile(holding, nothing, nothing, answered)
    assert holding.released == [("a", 1)]


def test_an_answer_that_never_comes_is_not_waited_for_for_ever():
    """Its connection may have died without a word."""
    holding = Holding({}, {"a": 1})
    holding.open_takes.begin(holding)
    reconcile(holding, *[nothing] * (MOST_LOOKS - 2))
    assert holding.released == []
    reconcile(holding, *[nothing] * (MOST_LOOKS - 1))
    assert holding.released == [("a", 1)]


def test_a_task_whose_answer_comes_just_then_is_kept():
    """While another one is handed back."""
    holding = Holding({}, {"a": 1, "b": 1})
    send = holding.send

    async def sent(request: Any) -> Reply:
        if not isinstance(request, q.ListHeld):
            holding.holds = {"b": 1}
        return await send(request)

    holding.send = sent
    reconcile(holding, nothing)
    assert holding.released == [("a", 1)]


def test_a_task_that_cannot_be_handed_back_now_is_handed_back_later():
    """The store was away just then."""
    holding = Holding({}, {"a": 1})
    holding.release_failure = StoreUnavailable("away")

    def back() -> None:
        holding.release_failure = None

    reconcile(holding, nothing, back, nothing)
    assert holding.released == [("a", 1)]
