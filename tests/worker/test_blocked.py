"""Code that does not fit what a task has done blocks the task; other code goes on with it."""

import asyncio
import logging

import pytest

from layby import ReplayMismatch, RunFailed, Runner, UsageError, Workflow, current_handle, task
from layby.testing import virtual_test
from tests.helpers.workers import crashing, flow_of, look

BLOCKED = ("Pending", "code", 0, 0)


def state(execution):
    kind = execution.waiting_on and execution.waiting_on.kind
    return execution.status, kind, execution.failures, execution.crashes


async def wait_first(handle):
    await handle.wait_for("paid-7")


async def wait_other(handle):
    await handle.wait_for("payment-7")


async def sleep_first(handle):
    await handle.sleep(60)


async def sleep_longer(handle):
    await handle.sleep(90)


async def waited_twice(handle):
    await handle.wait_for("before")
    await handle.wait_for("paid-7")


async def waited_otherwise(handle):
    await handle.wait_for("something")
    await handle.wait_for("paid-7")


async def checkpoint_first(handle):
    await handle.checkpoint("k", int, "1")
    await handle.sleep(60)


async def checkpoint_other(handle):
    await handle.checkpoint("k", int, "2")
    await handle.sleep(60)


CHANGES = {
    "sleep": (sleep_first, sleep_longer),
    "wait_for": (wait_first, wait_other),
    "an earlier wait_for": (waited_twice, waited_otherwise),
    "checkpoint": (checkpoint_first, checkpoint_other),
}


def deployed(call, **options) -> Workflow:
    @task(**options)
    async def works(context, handle):
        await call(handle)
        context["done"] = True

    return flow_of(works)


@pytest.mark.parametrize("change", CHANGES)
@virtual_test
async def test_a_bad_deploy_blocks_and_the_rollback_heals(change, tmp_path, caplog):
    """Nothing fails, nobody is asked, and nothing that was done before is lost."""
    address = f"sqlite:{tmp_path / 'a.db'}"
    before, after = CHANGES[change]
    async with crashing(address, version="v1") as runner:
        await runner.resolve("before")
        await runner.start(deployed(before), run_id="r")
        await asyncio.sleep(1)
    with caplog.at_level(logging.WARNING, "layby"):
        async with Runner(address, version="v2") as runner:
            runner.register(deployed(after))
            await asyncio.sleep(100)
            run = await runner.get("r")
            seen = await look(run, "works")
            assert state(seen) == BLOCKED
            assert seen.waiting_on is not None
            assert "other code than 'v2'" in seen.waiting_on.sentence
            assert "under 'run/r:works." in seen.waiting_on.sentence
            assert [each.outcome for each in seen.tries] == ["Lost", "Blocked"]
            assert [each.code for each in seen.tries] == ["v1", "v2"]
            assert (await run.status()).state == "Running"
    assert len([each for each in caplog.records if "is blocked" in each.message]) == 1
    async with Runner(address, version="v1") as runner:
        runner.register(deployed(before))
        await runner.resolve("paid-7")
        run = await runner.get("r")
        assert (await run.result())["done"]
        status = await run.status()
        assert status.codes == ("v1", "v2")
        assert status.tasks["works"].tries[-1].why == "other code"


def swallow_async(log):
    async def works(context, handle):
        try:
            await handle.sleep(90)
        except Exception as error:  # noqa: BLE001 - as careless bodies do
            log.append(error)
        with pytest.raises(ReplayMismatch):
            await handle.wait_for("anything")
        context["done"] = True
        return {"fine": 1}

    return works


def swallow_plain(log):
    def works(context, handle):
        try:
            handle.sleep(90)
        except Exception as error:  # noqa: BLE001 - as careless bodies do
            log.append(error)
        with pytest.raises(ReplayMismatch):
            handle.checkpoint("k", int, "1")
        return {"fine": 1}

    return works


def raise_other(log):
    async def works(context, handle):
        try:
            await handle.sleep(90)
        except ReplayMismatch as error:
            log.append(error)
            raise ValueError("something else") from None

    return works


def swallow_in_a_helper(log):
    async def works(context):
        try:
            await current_handle().sleep(90)
        except ReplayMismatch as error:
            log.append(error)

    return works


@pytest.mark.parametrize("body", [swallow_async, swallow_plain, raise_other, swallow_in_a_helper])
@virtual_test
async def test_the_body_cannot_swallow_it(body, tmp_path):
    """The handle remembers it, whatever the body returns or raises afterwards."""
    address, log = f"sqlite:{tmp_path / 'a.db'}", []
    async with crashing(address, version="v1") as runner:
        await runner.start(deployed(sleep_first), run_id="r")
        await asyncio.sleep(1)
    async with Runner(address, version="v2") as runner:
        runner.register(flow_of(task(id="works", retries=3)(body(log))))
        await asyncio.sleep(10)
        assert state(await look(await runner.get("r"), "works")) == BLOCKED
        assert [type(each) for each in log] == [ReplayMismatch]


@virtual_test
async def test_a_body_that_waits_elsewhere_is_ended(tmp_path):
    """A part of it got the error; the rest would wait for hours before the task could go on."""
    address = f"sqlite:{tmp_path / 'a.db'}"

    @task
    async def works(context, handle):
        async def changed():
            await handle.sleep(90)

        waits = asyncio.sleep(10_000), changed()
        await asyncio.gather(*waits, return_exceptions=True)

    async with crashing(address, version="v1") as runner:
        await runner.start(deployed(sleep_first), run_id="r")
        await asyncio.sleep(1)
    async with Runner(address, version="v2") as runner:
        runner.register(flow_of(works))
        await asyncio.sleep(20)
        assert state(await look(await runner.get("r"), "works")) == BLOCKED


@virtual_test
async def test_one_key_for_two_calls_in_one_body_is_a_failure():
    """No other code could have made the record: this code is wrong, and says so at once."""

    @task
    async def works(context, handle):
        await handle.checkpoint("k", int, "1")
        await handle.checkpoint("k", int, "2")

    async with Runner("memory:") as runner:
        with pytest.raises(RunFailed, match="ReplayMismatch"):
            await runner.execute(flow_of(works))


@virtual_test
async def test_the_same_wait_after_a_restart_is_not_a_change(tmp_path):
    """Nor is one after a failed try: waits start over then."""
    address = f"sqlite:{tmp_path / 'a.db'}"

    @task(retries=1)
    async def works(context, handle):
        await handle.wait_for(f"paid-{handle._attempt.failures}")
        if handle._attempt.failures == 0:
            raise ValueError

    async with crashing(address) as runner:
        await runner.start(flow_of(works), run_id="r")
        await asyncio.sleep(1)
    async with Runner(address) as runner:
        runner.register(flow_of(works))
        for promise in ("paid-0", "paid-1"):
            await runner.resolve(promise)
        await (await runner.get("r")).result()


@virtual_test
async def test_two_workers_never_pass_it_back_and_forth(tmp_path):
    """Each code refuses it once; continue --code lets them try again, continue does not."""
    address, tried = f"sqlite:{tmp_path / 'a.db'}", []

    def bad(name):
        async def changed(handle):
            tried.append(name)
            await handle.sleep(90)

        return deployed(changed)

    async with crashing(address, version="v1") as runner:
        await runner.start(deployed(sleep_first), run_id="r")
        await asyncio.sleep(1)
    for version in ("v2", "v3", "v2", "v3"):
        async with Runner(address, version=version) as runner:
            runner.register(bad(version))
            await asyncio.sleep(10)
    assert tried == ["v2", "v3"]
    async with Runner(address, version="v2") as runner:
        runner.register(bad("v2"))
        run = await runner.get("r")
        with pytest.raises(UsageError, match="run 'r' is not halted but blocked"):
            await run.continue_()
        with pytest.raises(UsageError, match="not halted"):
            await runner.continue_("r", "works")
        await asyncio.sleep(10)
        assert tried == ["v2", "v3"]
        await run.continue_(code=True)
        await asyncio.sleep(10)
        assert tried == ["v2", "v3", "v2"]
        assert state(await look(run, "works")) == BLOCKED


@virtual_test
async def test_a_deadline_ends_a_blocked_run(tmp_path):
    """It goes on as if nothing had happened, and so does the timeout of the wait."""
    address = f"sqlite:{tmp_path / 'a.db'}"
    async with crashing(address, version="v1") as runner:
        await runner.start(deployed(wait_first), run_id="r", deadline=60)
        await asyncio.sleep(1)
    async with Runner(address, version="v2") as runner:
        runner.register(deployed(wait_other))
        with pytest.raises(RunFailed, match="deadline"):
            await (await runner.get("r")).result()


@virtual_test
async def test_a_task_that_nobody_has_code_for_stays_ready(tmp_path):
    """A renamed task is not a wrong one: whoever has it goes on."""
    address = f"sqlite:{tmp_path / 'a.db'}"

    @task
    async def renamed(context):
        pass

    async with crashing(address, version="v1") as runner:
        await runner.start(deployed(sleep_first), run_id="r")
        await asyncio.sleep(1)
    async with Runner(address, version="v2") as runner:
        runner.register(flow_of(renamed))
        await asyncio.sleep(100)
        seen = await look(await runner.get("r"), "works")
        assert seen.waiting_on is not None
        assert (seen.status, seen.waiting_on.kind) == ("Ready", "worker")
        assert "with the code of 'flow/works'" in seen.waiting_on.sentence
    async with Runner(address, version="v1") as runner:
        runner.register(deployed(sleep_first))
        await (await runner.get("r")).result()


# --- pins ----------------------------------------------------------------------------------


def pinned(log, name, *, plain=False):
    async def first(context, handle):
        log.append((name, "first"))
        await handle.sleep(60)

    def then(context):
        log.append((name, "then"))

    async def then_async(context):
        log.append((name, "then"))

    second = task(id="then", dependencies=["first"])(then if plain else then_async)
    return Workflow("flow", tasks=[task(first), second], pin=True)


@pytest.mark.parametrize("plain", [False, True])
@virtual_test
async def test_a_pinned_run_stays_on_the_code_that_began_it(plain, tmp_path):
    """Although nothing it does has changed; other runs go on with what is there."""
    address, log = f"sqlite:{tmp_path / 'a.db'}", []
    async with crashing(address, version="v1") as runner:
        await runner.start(pinned(log, "v1", plain=plain), run_id="r")
        await asyncio.sleep(1)
        assert (await (await runner.get("r")).status()).pin == "v1"
    async with Runner(address, version="v2") as runner:
        flow = pinned(log, "v2", plain=plain)
        await runner.execute(flow, run_id="new")
        assert log == [("v1", "first"), ("v2", "first"), ("v2", "then")]
        seen = await look(await runner.get("r"), "first")
        assert state(seen) == BLOCKED
        assert seen.waiting_on is not None
        assert "a worker with code 'v1'" in seen.waiting_on.sentence
        assert seen.try_number == 1
    del log[:]
    async with Runner(address, version="v1") as runner:
        runner.register(pinned(log, "v1", plain=plain))
        await (await runner.get("r")).result()
        assert log == [("v1", "first"), ("v1", "then")]


@virtual_test
async def test_a_pinned_run_can_be_given_to_other_code(tmp_path):
    """When the old code is gone for good: it is pinned again by whoever goes on."""
    address, log = f"sqlite:{tmp_path / 'a.db'}", []
    async with crashing(address, version="v1") as runner:
        await runner.start(pinned(log, "v1"), run_id="r")
        await asyncio.sleep(1)
    async with Runner(address, version="v2") as runner:
        runner.register(pinned(log, "v2"))
        await asyncio.sleep(1)
        run = await runner.get("r")
        await run.continue_(code=True)
        await run.result()
        status = await run.status()
    assert (status.pin, status.codes) == ("v2", ("v1", "v2"))
    assert log[-1] == ("v2", "then")


@pytest.mark.parametrize("version", ["", " ", 7, "x" * 101, "a\0"])
def test_a_version_is_a_short_name(version):
    """It is stored with every task that refuses it."""
    with pytest.raises(UsageError, match="version of a Runner"):
        Runner("memory:", version=version)
