"""A workflow that declares its context: checked wherever runs start, read as a class in tasks."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypedDict

import pytest

import layby
from layby import BlockingRunner, Conflict, Context, ContextError, RunFailed, Runner, Workflow, task
from layby.testing import current_clock, virtual_test
from tests.helpers.troubled_server import play, served


@dataclass
class Offer:
    amount: int
    express: bool = False
    price: int | None = None


class Priced(TypedDict):
    price: int


@task
async def price(context: Context) -> Offer:
    offer = context.typed(Offer)
    offer.price = offer.amount * (3 if offer.express else 2)
    return offer


@task(dependencies=[price])
def check(context: Context) -> None:
    context["checked"] = context.typed(Priced)["price"] > 0


@task(dependencies=[price], process=True)
def count(context: Context) -> None:
    context["digits"] = len(str(context.typed(Priced)["price"]))


offers = Workflow("offer", tasks=[price, check], context=Offer)
counting = Workflow("counting", tasks=[price, count], context=Offer)

WRONG = "context[\"amount\"]: expected int, got str 'x' (declared by Offer of workflow 'offer')"


@asynccontextmanager
async def embedded() -> AsyncGenerator[Runner]:
    async with Runner("memory:") as runner:
        yield runner


@asynccontextmanager
async def over_http() -> AsyncGenerator[Runner]:
    async with served() as server, Runner(f"http://127.0.0.1:{server.port}") as runner:
        yield runner


def on_both(scene: Callable[[Runner], Awaitable[None]], place) -> None:
    async def run() -> None:
        async with place() as runner:
            await scene(runner)

    play(run)


@pytest.mark.parametrize("place", [embedded, over_http])
def test_starts_are_checked_and_tasks_read_the_class(place):
    """By an instance or a mapping; what does not fit starts nothing."""

    async def scene(runner: Runner) -> None:
        for given in ({"amount": 7}, Offer(7)):
            result = await runner.execute(offers, given)
            assert (result["price"], result["checked"]) == (14, True)
            assert result.typed(Offer) == Offer(7, price=14)
        before = await runner.list()
        for start in (runner.start, runner.execute):
            with pytest.raises(ContextError) as caught:
                await start(offers, {"amount": "x"})
            assert str(caught.value) == WRONG
        with pytest.raises(ContextError, match=r"is not declared by Offer .* mean 'express'"):
            await runner.schedule(offers, "* * * * *", context={"amount": 1, "expres": True})
        assert [each.id for each in await runner.list()] == [each.id for each in before]
        assert await runner.schedules() == []

    on_both(scene, place)


@pytest.mark.parametrize("place", [embedded, over_http])
def test_an_existing_run_needs_no_context(place):
    """A new one does; and so does the same id of another workflow."""

    async def scene(runner: Runner) -> None:
        with pytest.raises(ContextError, match="amount"):
            await runner.start(offers, run_id="r")
        await runner.execute(offers, {"amount": 7}, run_id="r")
        again = await runner.start(offers, run_id="r")
        assert not again.is_new
        assert (await again.result())["price"] == 14
        with pytest.raises(Conflict, match="belongs to workflow 'offer'"):
            await runner.start(counting, run_id="r")

    on_both(scene, place)


def test_an_instance_stores_its_defaults_and_a_mapping_does_not():
    """What was given is what the run begins with."""
    assert "express" not in layby.run(offers, {"amount": 7})
    assert layby.run(offers, Offer(7))["express"] is False


def test_in_a_process_of_its_own():
    """A child process reads the class as well; a change in vain is an error there too."""
    assert layby.run(counting, Offer(50))["digits"] == 3
    with pytest.raises(RunFailed, match="'price' of the Priced"):
        layby.run(Workflow("vain", tasks=[changes_in_vain]), {"price": 1})


@task(process=True)
def changes_in_vain(context: Context) -> None:
    context.typed(Priced)["price"] += 1


def test_blocking(tmp_path):
    """The same checks."""
    with BlockingRunner("memory:") as runner:
        assert runner.execute(offers, Offer(7))["price"] == 14
        with pytest.raises(ContextError, match="expected int, got str 'x'"):
            runner.start(offers, {"amount": "x"})


@virtual_test
async def test_a_task_that_finds_something_else_fails_by_name():
    """Checked when it is read, whoever has written it."""

    @task(dependencies=[spoils])
    async def reads(context: Context) -> None:
        context.typed(Offer)

    async with Runner("memory:") as runner:
        flow = Workflow("spoilt", tasks=[spoils, reads], context=Offer)
        with pytest.raises(RunFailed) as caught:
            await runner.execute(flow, Offer(7))
    assert caught.value.failed["reads"].startswith(
        "ContextError: context[\"amount\"]: expected int, got str 'much' (declared by Offer)"
    )


@task
async def spoils(context: Context) -> None:
    context["amount"] = "much"


@virtual_test
async def test_a_changed_copy_fails_the_task():
    """Not stored, and not silent."""

    @task
    async def changes(context: Context) -> None:
        context.typed(Offer).price = 3

    async with Runner("memory:") as runner:
        with pytest.raises(RunFailed, match=r"'price' of the Offer from context\.typed"):
            await runner.execute(Workflow("vain", tasks=[changes]), {"amount": 1})


@virtual_test
async def test_a_schedule_starts_what_was_checked():
    """An instance is stored like a mapping."""
    async with Runner("memory:") as runner:
        schedule = await runner.schedule(offers, "0 * * * *", context=Offer(7, express=True))
        again = await runner.schedule(offers, "0 * * * *", context=Offer(7, express=True))
        assert again.id == schedule.id
        await current_clock().advance(3600)
        [run] = await schedule.runs()
        assert (await run.result())["price"] == 21
