"""How a try ended: whether there is another one, and where it stood."""

import asyncio
import threading
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from layby import BlockingHandle, Context, RetryPolicy, RunFailed, Runner, TaskHandle, task
from layby.errors import ContextError, ProcessFailed, TaskFailed
from layby.testing import virtual_test
from layby.worker.ending import is_unstorable
from tests.helpers.process_bodies import sets_a_set
from tests.helpers.workers import flow_of

FOUR = RetryPolicy(max_attempts=4, delay=0.01)


async def failure_of(body):
    """How its only try failed."""
    async with Runner("memory:", slots=2) as runner:
        with pytest.raises(RunFailed) as failed:
            await runner.execute(flow_of(body), run_id="r")
    return failed.value.errors[body.id]


@virtual_test
async def test_a_checkpoint_that_cannot_be_stored_is_not_paid_again():
    paid = []

    @task(retry=FOUR)
    async def charge(context: Context, handle: TaskHandle) -> None:
        await handle.checkpoint("pay", lambda: paid.append(1) or Decimal("9.99"))

    told = await failure_of(charge)
    assert (told.type, told.try_number, paid) == ("ContextError", 1, [1])
    assert "checkpoint 'pay' cannot be stored as JSON" in told.message


@virtual_test
async def test_nor_in_a_thread():
    paid = []

    @task(retry=FOUR)
    def charge(context: Context, handle: BlockingHandle) -> None:
        handle.checkpoint("pay", lambda: paid.append(1) or Decimal("9.99"))

    assert (await failure_of(charge)).try_number == len(paid) == 1


@virtual_test
async def test_nor_in_a_group():
    paid = []

    @task(retry=FOUR)
    async def charge(context: Context, handle: TaskHandle) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(handle.checkpoint("pay", lambda: paid.append(1) or {1, 2}))

    assert (await failure_of(charge)).try_number == len(paid) == 1


@virtual_test
async def test_a_checkpoint_that_is_too_large_is_named_and_not_paid_again():
    paid = []

    @task(retry=FOUR)
    async def charge(context: Context, handle: TaskHandle) -> None:
        await handle.checkpoint("scan", lambda: paid.append(1) or "x" * 7_000_000)

    told = await failure_of(charge)
    assert (told.type, told.try_number, paid) == ("ContextError", 1, [1])
    assert "checkpoint 'scan' cannot be stored" in told.message
    assert "store it elsewhere and pass its address" in told.message


@virtual_test
async def test_a_value_of_the_context_without_a_json_form_is_not_tried_again():
    @task(retry=FOUR)
    async def stamp(context: Context) -> None:
        context["when"] = datetime.now(UTC)

    assert (await failure_of(stamp)).try_number == 1


@virtual_test
async def test_nor_in_a_process():
    told = await failure_of(sets_a_set)
    assert (told.type, told.try_number) == ("ContextError", 1)


@virtual_test
async def test_an_error_of_their_own_follows_their_policy():
    @task(retry=FOUR)
    async def stamp(context: Context) -> None:
        try:
            context["when"] = datetime.now(UTC)
        except ContextError as error:
            raise LookupError("no clock") from error

    assert (await failure_of(stamp)).try_number == 4


def test_what_only_has_its_name_is_another_error():
    assert not is_unstorable(ProcessFailed("theirs", "ContextError"))


@virtual_test
async def test_a_timeout_says_where_a_coroutine_was():
    @task(timeout=2)
    async def waits(context: Context) -> None:
        await asyncio.sleep(100)  # here

    told = await failure_of(waits)
    assert (told.type, "# here" in told.traceback) == ("TaskTimeout", True)
    assert "src/layby" not in told.traceback


def test_a_timeout_says_where_a_thread_was():
    """In real time: virtual time stands still while a thread works. The thread goes on."""
    may_end = threading.Event()

    @task(timeout=0.1)
    def hangs(context: Context) -> None:
        may_end.wait(60)  # here

    async def failure() -> TaskFailed:
        async with Runner("memory:", slots=2) as runner:
            with pytest.raises(RunFailed) as failed:
                await runner.execute(flow_of(hangs), run_id="r")
            may_end.set()
        return failed.value.errors["hangs"]

    told = asyncio.run(failure())
    assert (told.type, told.traceback.count("# here")) == ("TaskTimeout", 1)
    assert "src/layby" not in told.traceback
    assert "concurrent" not in told.traceback


@pytest.mark.parametrize("returned", [{1: 2}, {"when": datetime(2026, 1, 1, tzinfo=UTC)}])
@virtual_test
async def test_a_result_that_is_refused_names_no_place_inside_python(returned):
    @task
    async def returns(context: Context) -> object:
        return returned

    assert (await failure_of(returns)).traceback == ""
