"""What people see of a task: sub-status, spans and tries, the same wherever they look."""

import asyncio

import msgspec
import pytest

from layby import RetryPolicy, RunFailed, Runner, task
from layby.core.queries import GetRun
from layby.core.replies import RowPage
from layby.testing import virtual_test
from layby.workflow.history import read_history
from tests.helpers.workers import flow_of, look, rows, settled_down


@virtual_test
async def test_sub_status_in_the_status_the_view_and_the_query(tmp_path):
    """Active, Deferred, Active, None: run.status(), `task_executions` and `layby.run.get` agree."""
    path = tmp_path / "a.db"

    @task
    async def works(context, handle):
        await asyncio.sleep(10)
        await handle.sleep(10)
        await asyncio.sleep(10)

    async def seen():
        status = await look(run, "works")
        (row,) = [row for row in rows(path) if row["name"] == "flow/works"]
        page = (await runner.client.send(GetRun(id="run/r"))).data
        assert isinstance(page, RowPage)
        (stored,) = [stored for _, stored in page.rows if stored and stored.kind == "node"]
        assert row["waiting_on"] == stored.waiting_on
        kind = row["waiting_on"] and msgspec.json.decode(row["waiting_on"])["kind"]
        assert (status.waiting_on and status.waiting_on.kind) == kind
        assert (status.sub_status == "Deferred") == (stored.sub_status == "Deferred")
        return status.status, status.sub_status, row["state"], row["sub_status"], kind

    async with Runner(f"sqlite:{path}") as runner:
        run = await runner.start(flow_of(works), run_id="r")
        await asyncio.sleep(5)
        assert await seen() == ("Running", "Active", "acquired", "Active", None)
        await asyncio.sleep(10)
        assert await seen() == ("Running", "Deferred", "acquired", "Deferred", "sleep")
        await asyncio.sleep(10)
        assert await seen() == ("Running", "Active", "acquired", "Active", None)
        await run.result()
        assert await seen() == ("Completed", None, "fulfilled", None, None)


@virtual_test
async def test_a_try_keeps_its_spans():
    """Queued, running, parked, running: how long each took, and how the try ended."""

    @task
    async def works(context, handle):
        await asyncio.sleep(3)
        await handle.sleep(10)
        await asyncio.sleep(2)

    @task
    async def blocker(context):
        await asyncio.sleep(7)

    async with Runner("memory:", slots=1) as runner:
        begin = runner.now()
        await runner.start(flow_of(blocker, name="b"))
        run = await runner.start(flow_of(works, name="w"))
        await run.result()
        (only,) = (await look(run, "works")).tries
        assert (only.number, only.why, only.outcome) == (1, "first", "Completed")
        spans = [(span.kind, span.start - begin, (span.end or 0) - begin) for span in only.spans]
        assert spans == [
            ("queued", 0, 7_000),
            ("running", 7_000, 10_000),
            ("parked", 10_000, 20_000),
            ("running", 20_000, 22_000),
        ]


@virtual_test
async def test_waiting_for_a_slot_belongs_to_the_parked_span():
    """A woken body does not run until it holds a slot again."""

    @task
    async def works(context, handle):
        await handle.sleep(5)

    @task
    async def blocker(context):
        await asyncio.sleep(20)

    async with Runner("memory:", slots=1) as runner:
        begin = runner.now()
        run = await runner.start(flow_of(works, name="w"))
        await settled_down()
        await runner.start(flow_of(blocker, name="b"))
        await run.result()
        (only,) = (await look(run, "works")).tries
        parked = [span for span in only.spans if span.kind == "parked"]
        assert [(span.start - begin, (span.end or 0) - begin) for span in parked] == [(0, 20_000)]


@virtual_test
async def test_tries_say_why_they_were_started_and_how_they_ended():
    """Two failures and a success; failures are counted apart from tries."""

    @task(retry=RetryPolicy(max_attempts=3, delay=5, backoff="fixed"))
    async def works(context, handle):
        if handle.try_number < 3:
            raise OSError(f"no {handle.try_number}")

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(works))
        await run.result()
        seen = await look(run, "works")
        assert (seen.try_number, seen.failures) == (3, 2)
        told = [(each.number, each.why, each.outcome, each.error) for each in seen.tries]
        assert told == [
            (1, "first", "Failed", "OSError: no 1"),
            (2, "retry", "Failed", "OSError: no 2"),
            (3, "retry", "Completed", None),
        ]


@virtual_test
async def test_a_failed_task_keeps_its_error_and_its_history(tmp_path):
    """In the status and in the view; sub-status and wait are gone."""
    path = tmp_path / "a.db"

    @task
    async def works(context, handle):
        await handle.sleep(5)
        raise OSError("broke")

    async with Runner(f"sqlite:{path}") as runner:
        with pytest.raises(RunFailed, match="broke"):
            await runner.execute(flow_of(works), run_id="r")
        seen = await look(await runner.get("r"), "works")
        assert (seen.status, seen.sub_status, seen.waiting_on) == ("Failed", None, None)
        assert seen.error == "OSError: broke"
        (row,) = [row for row in rows(path) if row["name"] == "flow/works"]
        assert (row["sub_status"], row["waiting_on"]) == (None, None)
        (only,) = read_history(row["history"]).tries
        assert [span.kind for span in only.spans] == ["queued", "running", "parked", "running"]


@virtual_test
async def test_polls_are_counted_in_memory_and_never_written():
    """A thousand polls, no commit."""

    @task
    async def works(context, handle):
        await handle.defer_until(lambda: False, poll_interval=1)

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(works))
        await asyncio.sleep(0.5)
        before = runner.engine.commits
        await asyncio.sleep(1000)
        waiting_on = (await look(run, "works")).waiting_on
        assert waiting_on is not None
        assert waiting_on.polls == 1000
        assert waiting_on.next_poll_at == runner.now() + 500
        assert runner.engine.commits == before
        await run.cancel()
