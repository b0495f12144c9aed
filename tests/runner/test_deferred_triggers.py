"""Tasks that defer for a trigger that needs code, from the call to the resumed body."""

import asyncio
from typing import Any

import pytest

from layby import RunFailed, Runner, TaskHandle, Workflow, task, triggers
from layby.testing import virtual_test
from layby.triggers.registry import REGISTRY
from tests.helpers.polled_services import PolledService
from tests.helpers.push_receivers import on_loop
from tests.helpers.workers import flow_of, look, until

LOG: list[Any] = []


class Ready(triggers.Trigger, frozen=True):
    order: int
    after: float = 0.0

    async def run(self) -> Any:
        await asyncio.sleep(self.after)
        if self.order < 0:
            raise LookupError("no such order")
        return {"order": self.order}

    async def on_cancel(self) -> None:
        LOG.append(("on_cancel", self.order))


class OnceAsked(triggers.PolledTrigger, frozen=True):
    order: int

    def poll(self) -> Any:
        LOG.append(("poll", self.order))
        return {"order": self.order} if len(LOG) > 3 else None


@pytest.fixture(autouse=True)
def _registered():
    LOG.clear()
    REGISTRY.add(Ready)
    REGISTRY.add(OnceAsked)


async def fetched(context: Any, handle: TaskHandle, event: Any, more: int = 0) -> None:
    context["event"] = event
    context["more"] = more


def deferring(trigger: triggers.Trigger, **options: Any) -> Workflow:
    @task(id="wait")
    async def wait(context: Any, handle: TaskHandle) -> None:
        await handle.defer(trigger, resume=fetched, **options)

    return flow_of(wait)


@virtual_test
async def test_a_trigger_of_its_user():
    """From the defer to the resumed body, with the payload and the kwargs."""
    async with Runner("memory:") as runner:
        run = await runner.start(deferring(Ready(7, after=60), kwargs={"more": 3}), run_id="r")
        await asyncio.sleep(30)
        assert (await look(run, "wait")).sub_status == "Deferred"
        context = await run.result()
        assert (context["event"], context["more"]) == ({"order": 7}, 3)
        assert (await look(run, "wait")).try_number == 2


@virtual_test
async def test_a_polled_one():
    """A plain `def poll`, asked until it says something."""
    async with Runner("memory:") as runner:
        context = await runner.execute(deferring(OnceAsked(5, every=10)))
    assert context["event"] == {"order": 5}
    assert len(LOG) == 4


@virtual_test
async def test_one_that_fails():
    """The task fails with what it raised."""
    async with Runner("memory:") as runner:
        with pytest.raises(RunFailed, match="Ready raised LookupError: no such order"):
            await runner.execute(deferring(Ready(-1)))


@virtual_test
async def test_a_run_that_is_cancelled_cancels_its_trigger():
    """`on_cancel` is called; nothing is left behind."""
    async with Runner("memory:") as runner:
        run = await runner.start(deferring(Ready(7, after=1e6)), run_id="r")
        await asyncio.sleep(10)
        await runner.cancel("r")
        await until(lambda: LOG == [("on_cancel", 7)])
        await asyncio.sleep(10)
        assert all(manager.running == 0 for manager in runner._triggers.managers)  # type: ignore[union-attr]
        assert (await run.status()).state == "Cancelled"


@virtual_test
async def test_a_wait_that_times_out_calls_on_cancel_too():
    """The deadline of the wait is that of the trigger."""
    async with Runner("memory:") as runner:
        with pytest.raises(RunFailed):
            await runner.execute(deferring(Ready(7, after=1e6), timeout=60))
        await until(lambda: LOG == [("on_cancel", 7)])


@virtual_test
async def test_triggers_survive_a_restart(tmp_path):
    """Those that were taken over are run from the beginning, by another process."""
    file = f"sqlite:{tmp_path / 'a.db'}"
    flow = deferring(Ready(7, after=100))
    async with Runner(file) as runner:
        await runner.start(flow, run_id="r")
        await asyncio.sleep(50)
    async with Runner(file) as runner:
        runner.register(flow)
        assert (await (await runner.get("r")).result())["event"] == {"order": 7}


@pytest.mark.files_only("a Runner that has its store to itself may poll anything")
@on_loop
async def test_http_poll_from_a_task():
    """In real time, against a real service, asked once for two tasks that wait for the same."""
    done = triggers.Compare("/state", "==", "done")
    async with (
        PolledService({"state": "running"}, {"state": "done"}) as service,
        Runner("memory:") as runner,
    ):
        flow = deferring(triggers.HttpPoll(service.url(), until=done, every=0.2))
        runs = [await runner.start(flow) for _ in range(2)]
        for run in runs:
            assert (await run.result())["event"] == {"status": 200, "body": {"state": "done"}}
        assert len(service.requests) == 2
