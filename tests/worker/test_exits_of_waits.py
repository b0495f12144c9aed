"""What a person can do about a wait in memory: let it go on now, or fail."""

from typing import Any

import pytest

from layby import PromiseCancelled, PromiseRejected, Runner, task, waits
from layby.core.commands import CancelPromise
from layby.testing import current_clock, virtual_test
from tests.helpers.workers import flow_of, settled_down

HOUR = 3600
SLEEPS = {
    "alone": (lambda handle: handle.sleep(HOUR), "run/r:t.w0.sleep-1"),
    "in a bundle": (
        lambda handle: handle.all_of(waits.sleep(HOUR), waits.sleep(0)),
        "run/r:t.w0.of.all_of-1.0",
    ),
}


async def outcome(sleep: Any, exit_: Any) -> tuple[str, float]:
    """How the sleep of a task ends, and when; `exit_` gets the Runner meanwhile."""

    @task(id="t")
    async def body(context, handle):
        try:
            await sleep(handle)
            context["how"] = "slept"
        except PromiseRejected as error:
            context["how"] = f"{type(error).__name__}: {error.message}"
        context["after"] = current_clock().elapsed

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(body), run_id="r")
        await settled_down()
        await exit_(runner)
        result = await run.result()
    return result["how"], result["after"]


@pytest.mark.parametrize("form", SLEEPS)
@virtual_test
async def test_a_sleep_is_woken_by_its_timer(form):
    """Whoever resolves the timer wakes the sleep now."""
    sleep, timer = SLEEPS[form]
    assert await outcome(sleep, lambda runner: runner.resolve(timer)) == ("slept", 0)


@pytest.mark.parametrize("form", SLEEPS)
@virtual_test
async def test_a_sleep_is_failed_by_its_timer(form):
    """A rejection is not taken for the end of the time."""
    sleep, timer = SLEEPS[form]
    how = await outcome(sleep, lambda runner: runner.reject(timer, "do not wait for this"))
    assert how == ("PromiseRejected: do not wait for this", 0)
    cancelled = await outcome(
        sleep, lambda runner: runner.send(CancelPromise(id=timer, by="anna", reason="no"))
    )
    assert cancelled == (f"{PromiseCancelled.__name__}: cancelled by anna: no", 0)
