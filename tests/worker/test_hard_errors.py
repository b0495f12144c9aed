"""Errors and results that are hard to store: a task that ends with one of them ends, too."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from layby import NotAllowed, RunFailed, Runner, UsageError, Workflow, task
from layby.core import commands as c
from layby.core.replies import refuse
from layby.local import LocalClient
from tests.helpers.callers import answer_to, call
from tests.helpers.troubled_server import play, served
from tests.helpers.workers import flow_of


class Unsayable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


LARGE = "x" * 9_000_000
"""More than a server takes in one request."""

ERRORS = {
    "unsayable": (Unsayable, "", "Unsayable: (its message cannot be shown)"),
    "broken text": (FileNotFoundError, "no \udcff.txt", r"FileNotFoundError: no \udcff.txt"),
    "long": (ValueError, LARGE, "ValueError: xxx"),
}


async def failing(runner: Runner, flow: Workflow, said: str) -> None:
    with pytest.raises(RunFailed) as failed:
        await runner.execute(flow, run_id="a", timeout=20)
    assert failed.value.failed["fails"].startswith(said)
    status = (await (await runner.get("a")).status()).tasks["fails"]
    assert (status.status, status.failures, len(status.tries)) == ("Failed", 1, 1)
    assert (status.tries[0].error or "").startswith(said)
    assert runner.worker.credit.held == 0
    assert runner.worker.holds == {}


def embedded(scene: Callable[[Runner], Awaitable[None]]) -> None:
    async def run() -> None:
        async with Runner("memory:") as runner:
            await scene(runner)

    play(run)


def remote(scene: Callable[[Runner], Awaitable[None]]) -> None:
    async def run() -> None:
        async with served() as server, Runner(f"http://127.0.0.1:{server.port}") as runner:
            await scene(runner)

    play(run)


@pytest.mark.parametrize("place", [embedded, remote])
@pytest.mark.parametrize("error", ERRORS)
def test_an_error_that_is_hard_to_store_fails_its_task(place: Any, error: str):
    """It was never reported, and the task seemed to run for ever."""
    kind, message, said = ERRORS[error]

    @task
    async def fails(context):
        raise kind(message)

    place(lambda runner: failing(runner, flow_of(fails), said))


@pytest.mark.parametrize("error", ERRORS)
def test_a_thread_may_raise_them(error: str):
    """The same from the thread of a plain def."""
    kind, message, said = ERRORS[error]

    @task
    def fails(context):
        raise kind(message)

    embedded(lambda runner: failing(runner, flow_of(fails), said))


@pytest.mark.parametrize("error", ERRORS)
def test_a_condition_may_raise_them(error: str):
    """They count like others, and the last one is named."""
    kind, message, said = ERRORS[error]

    def raises():
        raise kind(message)

    @task
    async def fails(context, handle):
        await handle.defer_until(raises, 0.01, max_errors=1)

    async def scene(runner: Runner) -> None:
        with pytest.raises(RunFailed) as failed:
            await runner.execute(flow_of(fails), timeout=20)
        assert said in failed.value.failed["fails"]

    embedded(scene)


@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError])
def test_a_limit_function_may_raise_anything(error: type[BaseException]):
    """It is called beside everything else: the task fails, and the worker goes on."""

    def named(context: object) -> str:
        raise error("enough")

    @task(limit=named)
    async def fails(context: object) -> None: ...

    @task
    async def fine(context: object) -> None: ...

    async def scene(runner: Runner) -> None:
        with pytest.raises(RunFailed, match=f"{error.__name__}: enough"):
            await runner.execute(Workflow("limited", tasks=[fails]), timeout=20)
        await runner.execute(Workflow("fine", tasks=[fine]), timeout=20)

    embedded(scene)


def test_a_checkpoint_that_is_too_large_for_the_server_says_so():
    """In the body, which may do without."""

    @task
    async def keeps(context, handle):
        with pytest.raises(UsageError, match=r"keeps: the store refused .* larger than 8388608"):
            await handle.checkpoint("key", lambda: LARGE)

    async def scene(runner: Runner) -> None:
        await runner.execute(flow_of(keeps), timeout=20)

    remote(scene)


def test_a_result_that_is_too_large_for_the_server_is_a_failure():
    """Whoever called hears of it; the function is not called again and again."""
    calls: list[int] = []

    @task(rpc="grow")
    async def grows(context, handle):
        calls.append(handle.try_number)
        return LARGE

    async def scene(runner: Runner) -> None:
        runner.register(grows)
        await call(runner, "c", "grow", 1)
        async with asyncio.timeout(20):
            with pytest.raises(Exception, match=r"result of c was refused: .* 8388608 bytes"):
                await answer_to(runner, "c")
        assert calls == [1]
        found: Any = (await runner.client.send(c.GetTask(id="c"))).data
        assert found.task.state == "fulfilled"

    remote(scene)


@pytest.mark.parametrize("place", [embedded, remote])
def test_broken_text_is_refused_wherever_the_store_is(place: Any):
    """Ids and keys with half a character are no text."""

    @task
    async def keeps(context, handle):
        with pytest.raises(UsageError, match="Unicode"):
            await handle.checkpoint("a\udcff", lambda: 1)
        with pytest.raises(UsageError, match="Unicode"):
            await handle.wait_for("a\udcff")

    async def scene(runner: Runner) -> None:
        with pytest.raises(UsageError, match="Unicode"):
            await runner.resolve("a\udcff")
        await runner.execute(flow_of(keeps), timeout=20)

    place(scene)


def test_a_sleep_that_cannot_be_watched_is_not_over(monkeypatch: pytest.MonkeyPatch):
    """Its body hears so, instead of going on too soon."""
    watch = LocalClient.watch

    def watch_or_refuse(client: LocalClient, promise_id: str, listener: Any) -> Any:
        watching = watch(client, promise_id, listener)
        if "sleep" in promise_id:
            listener.heard(refuse(403, "Forbidden"))
        return watching

    @task
    async def sleeps(context, handle):
        with pytest.raises(NotAllowed, match="Forbidden"):
            await handle.sleep(60)

    async def scene(runner: Runner) -> None:
        monkeypatch.setattr(LocalClient, "watch", watch_or_refuse)
        await runner.execute(flow_of(sleeps), timeout=20)

    embedded(scene)
