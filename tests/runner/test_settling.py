"""Whoever settles something is told whether it was their doing, wherever the store is."""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from layby import BlockingRunner, Conflict, Runner, Settlement, UsageError, Workflow, task
from tests.helpers.troubled_server import Meddler, Trouble, play, served


@task
async def waits(context, handle):
    context["answer"] = await handle.wait_for(context.get("question", "question"))


FLOW = Workflow("waiting", tasks=[waits])


@asynccontextmanager
async def embedded() -> AsyncGenerator[Runner]:
    async with Runner("memory:") as runner:
        yield runner


@asynccontextmanager
async def remote() -> AsyncGenerator[Runner]:
    async with served() as server, Runner(f"http://127.0.0.1:{server.port}") as runner:
        yield runner


anywhere = pytest.mark.parametrize("place", [embedded, remote])


def told(settlement: Settlement) -> tuple[object, ...]:
    return settlement.state, settlement.value, settlement.won


@anywhere
def test_settling_tells_who_won(place):
    """The first of two calls; the second is told what stands, even if it brought the same."""

    async def scene() -> None:
        async with place() as runner:
            first = await runner.resolve("p", {"a": 1})
            assert first
            assert told(first) == ("resolved", {"a": 1}, True)
            assert first.id == "p"
            assert first.settled_at > 1_500_000_000_000
            again = await runner.resolve("p", {"a": 1})
            assert not again
            assert told(again) == ("resolved", {"a": 1}, False)
            assert again.settled_at == first.settled_at
            assert told(await runner.reject("p", "no")) == ("resolved", {"a": 1}, False)
            rejected = await runner.reject("q", ValueError("too late"))
            assert (rejected.won, rejected.state) == (True, "rejected")
            assert (rejected.value["name"], rejected.value["message"]) == ("ValueError", "too late")
            with pytest.raises(UsageError, match="Run 'run/none' not found"):
                await runner.resolve("run/none")

    play(scene)


@anywhere
def test_a_run_is_not_settled_from_outside(place):
    """Nor is a task of it: whoever wants it to end cancels it."""

    async def scene() -> None:
        async with place() as runner:
            run = await runner.start(FLOW, run_id="r")
            with pytest.raises(Conflict, match=r"promise 'run/r': It is a run.*cancel it"):
                await runner.resolve("run/r", 3)
            with pytest.raises(Conflict, match="promise 'run/r:waits': It is a task of a run"):
                await runner.reject("run/r:waits", "no")
            assert (await run.status()).state == "Running"
            await runner.resolve("question", 42)
            assert (await run.result())["answer"] == 42

    play(scene)


@anywhere
def test_cancelling_tells_who_won(place):
    """A run, a task of it, and both once more."""

    async def scene() -> None:
        async with place() as runner:
            run = await runner.start(FLOW, run_id="r")
            by_task = await runner.cancel("r", "waits", by="ada")
            assert (by_task.id, by_task.won) == ("run/r:waits", True)
            other = await runner.start(FLOW, run_id="s")
            won = await other.cancel(by="ada", reason="twice")
            assert (won.id, won.state, won.won) == ("run/s", "rejected_canceled", True)
            assert (won.value["by"], won.value["reason"]) == ("ada", "twice")
            lost = await other.cancel(by="bob")
            assert (lost.won, lost.value["by"]) == (False, "ada")
            with pytest.raises(UsageError, match="no task 'wiats'"):
                await runner.cancel(run.id, "wiats")

    play(scene)


@anywhere
def test_of_many_at_once_one_wins(place):
    """Equal values or not."""

    async def scene() -> None:
        async with place() as runner:
            answers = await asyncio.gather(*(runner.resolve("p", n % 2) for n in range(20)))
            assert sum(map(bool, answers)) == 1
            assert len({each.value for each in answers}) == 1

    play(scene)


CALLS: dict[str, tuple[str, Callable[[Runner], Awaitable[Settlement]]]] = {
    "resolve": ("layby.promise.resolve", lambda runner: runner.resolve("p", 1)),
    "reject": ("layby.promise.resolve", lambda runner: runner.reject("p", "no")),
    "cancel": ("layby.promise.cancel", lambda runner: runner.cancel("r")),
}


@pytest.mark.parametrize("trouble", ["lose", "twice", "refuse", "cut"])
@pytest.mark.parametrize("name", CALLS)
def test_a_lost_answer_does_not_make_a_loser(name: str, trouble: Trouble):
    """The link sends it again, and finds that it has won; somebody else has not."""
    kind, call = CALLS[name]

    async def scene() -> None:
        async with (
            served() as server,
            Meddler(server.port) as meddler,
            Runner(meddler.url) as runner,
        ):
            await runner.start(FLOW, run_id="r")
            meddler.trouble(kind, trouble)
            assert (await call(runner)).won
            assert not (await call(runner)).won

    play(scene)


def test_a_blocking_runner_tells_it_too(tmp_path: Path):
    """The same answers."""
    with BlockingRunner(f"sqlite:{tmp_path / 'layby.db'}") as runner:
        assert runner.resolve("p", 1)
        assert not runner.resolve("p", 1)
        assert not runner.reject("p", "no")
        run = runner.start(FLOW, run_id="r")
        assert run.is_new
        assert not runner.start(FLOW, run_id="r").is_new
        assert runner.cancel("r", "waits").won
        assert runner.start(FLOW, run_id="s").cancel()
        assert not runner.cancel("s")


# --- runs that exist ---------------------------------------------------------------------------


@anywhere
def test_a_run_says_whether_it_is_new(place):
    """To the call that created it, and to no other."""

    async def scene() -> None:
        async with place() as runner:
            assert (await runner.start(FLOW)).is_new
            assert (await runner.start(FLOW, run_id="r")).is_new
            assert not (await runner.start(FLOW, run_id="r")).is_new
            assert not (await runner.get("r")).is_new
            assert not any(each.is_new for each in await runner.list())

    play(scene)


@pytest.mark.parametrize("trouble", ["lose", "twice"])
def test_a_run_is_new_though_the_answer_was_lost(trouble: Trouble, caplog):
    """The link started it once, and asked twice."""

    async def scene() -> None:
        async with (
            served() as server,
            Meddler(server.port) as meddler,
            Runner(meddler.url) as runner,
        ):
            meddler.trouble("layby.run.start", trouble)
            assert (await runner.start(FLOW, {"a": 1}, run_id="r")).is_new
            assert not (await runner.start(FLOW, {"a": 1}, run_id="r")).is_new

    play(scene)
    assert warnings_of(caplog) == []


@anywhere
def test_another_context_for_an_existing_run_is_told(place, caplog):
    """The first context stays. Keys are named; values may be confidential."""

    async def scene() -> None:
        async with place() as runner:
            await runner.start(FLOW, {"a": 1, "b": {"x": 1, "y": [2]}, "c": "secret"}, run_id="r")
            same = {"c": "secret", "b": {"y": [2], "x": 1}, "a": 1}
            await runner.start(FLOW, same, run_id="r")
            await runner.start(FLOW, run_id="r")
            assert warnings_of(caplog) == []
            await runner.start(FLOW, {"a": 2, "b": same["b"], "d": "hidden"}, run_id="r")

    play(scene)
    (told,) = warnings_of(caplog)
    assert "run 'r' already exists" in told
    assert "differs in 'a', 'c', 'd'" in told
    assert "'b'" not in told
    assert "secret" not in told
    assert "hidden" not in told


@task
async def lasts(context, handle):
    await handle.wait_for("never")


LASTING = Workflow("lasting", tasks=[lasts])


@anywhere
@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [(None, 60, "none"), (3600, 60, r"\d{4}-\d\d-\d\d .* UTC"), (60, 60, None), (60, None, None)],
)
def test_another_deadline_for_an_existing_run_is_told(place, caplog, first, second, kept):
    """The first one stays. Who gives none asks for none; who repeats the same is not told."""

    async def scene() -> None:
        async with place() as runner:
            await runner.start(LASTING, run_id="r", deadline=first)
            await runner.start(LASTING, run_id="r", deadline=second)

    play(scene)
    told = " ".join(warnings_of(caplog))
    wanted = (
        "" if kept is None else rf"run 'r' already exists and keeps its first deadline \({kept}\).*"
    )
    assert re.fullmatch(wanted, told), told


@anywhere
@pytest.mark.parametrize(
    ("first", "second", "is_told"), [(0, 5, True), (5, 5, False), (5, 0, False)]
)
def test_another_priority_for_an_existing_run_is_told(place, caplog, first, second, is_told):
    """As with deadlines: who gives none asks for none."""

    async def scene() -> None:
        async with place() as runner:
            await runner.start(LASTING, run_id="r", priority=first)
            await runner.start(LASTING, run_id="r", priority=second)

    play(scene)
    kept = (
        "run 'r' already exists and keeps its first priority (0): the one given now does not count"
    )
    assert [each.startswith(kept) for each in warnings_of(caplog)] == [True] * is_told


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        each.getMessage()
        for each in caplog.records
        if each.levelno >= logging.WARNING and each.name == "layby.runner.starting"
    ]
