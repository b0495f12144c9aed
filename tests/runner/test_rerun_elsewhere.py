"""Running a run again when the engine, or the first life, was in another process."""

import asyncio
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from layby import RunCancelled, RunFailed, Workflow, task
from layby.client.http import HttpClient
from layby.core.commands import WatchRun
from layby.errors import Conflict, NotFound
from tests.helpers.places import address_of
from tests.helpers.troubled_server import Meddler, play, served
from tests.runner.test_remote import Place, at_a_place

CHILD = Path(__file__).with_name("rerun_child.py")
PATIENCE_S = 60
"""Only a test that hangs needs it."""


def test_a_run_that_failed_before_its_process_was_killed_is_run_again(tmp_path: Path):
    """The new process repeats neither what succeeded nor what was checkpointed."""
    file = tmp_path / "shop.db"
    command = [sys.executable, str(CHILD), str(file), address_of(file)]
    said: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        for line in first.stdout:
            said.append(line.strip())
            if said[-1] == "failed":
                first.kill()
    assert said == ["reserve", "pay", "failed"]
    (tmp_path / "shop.mended").touch()
    second = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=True
    )
    assert second.stdout.splitlines() == [
        "ship",
        "result ['charged', 'order', 'reserved', 'shipped']",
    ]


@pytest.mark.postgres
def test_the_map_of_a_run_is_run_again_by_processes_that_are_killed(tmp_path: Path):
    """No effect is repeated, and no item that has ended, in whatever life and process that was."""
    file = tmp_path / "a.db"
    child = Path(__file__).with_name("map_rerun_child.py")
    command = [sys.executable, str(child), str(file), address_of(file)]

    def killed_after(*last: str) -> list[str]:
        """What a process says until it has said all of these, in whatever order."""
        said: list[str] = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            while not {*last} <= {*said}:
                said.append(process.stdout.readline().strip())
                assert said[-1], "it has ended"
            process.kill()
        return said

    said = killed_after("failed")
    (tmp_path / "a.mended").touch()
    said += killed_after("ends 0", "ends 2", "goes on 1", "goes on 3")
    (tmp_path / "a.open").touch()
    last = killed_after("result [0, 1, 2, 3]")
    assert {"ends 1", "ends 3"} <= {*last}
    effects = Counter(each for each in [*said, *last] if each.startswith(("pay", "deliver")))
    assert effects == {f"{what} {item}": 1 for what in ("pay", "deliver") for item in range(4)}


class Mill:
    """A workflow whose second task fails until it is mended, and counts."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()
        self.is_broken = True
        self.is_lit = asyncio.Event()
        self.is_lit.set()

        @task
        async def grind(context):
            self.ran["grind"] += 1
            context["flour"] = self.ran["grind"]

        @task(dependencies=[grind])
        async def bake(context, handle):
            self.ran["bake"] += 1
            await self.is_lit.wait()
            context["dough"] = await handle.checkpoint("knead", self.knead)
            if self.is_broken:
                raise ValueError("the oven is cold")

        self.flow = Workflow("mill", tasks=[grind, bake])

    def knead(self) -> int:
        self.ran["knead"] += 1
        return self.ran["knead"]


def test_over_http_it_is_the_same():
    """Lives, results, statuses, steering; by workers that never saw the first life.

    Of several who run it again, those who are late hear that it is running again.
    """
    mill = Mill()

    async def scene(place: Place) -> None:
        async with place.runner() as runner:
            run = await runner.start(mill.flow, run_id="m")
            early = asyncio.ensure_future((await runner.get("m")).result())
            with pytest.raises(RunFailed):
                await run.result()
            with pytest.raises(RunFailed):
                await early
        mill.is_broken = False
        async with place.runner() as runner:
            runner.register(mill.flow)
            run = await runner.get("m")
            mill.is_lit.clear()
            again = await asyncio.gather(*(run.rerun() for _ in range(3)), return_exceptions=True)
            mill.is_lit.set()
            late = [each for each in again if isinstance(each, BaseException)]
            assert len(late) < 3
            assert all(isinstance(each, Conflict) and "still running" in str(each) for each in late)
            assert await run.result() == {"flour": 1, "dough": 1}
            assert await (await runner.get("m")).result(life=2) == {"flour": 1, "dough": 1}
            with pytest.raises(RunFailed, match="the oven is cold"):
                await run.result(life=1)
            with pytest.raises(NotFound):
                await run.result(life=3)
            status = await run.status()
            assert (status.state, status.life, status.lives) == ("Completed", 2, 2)
            assert (await run.status(life=1)).state == "Failed"
            assert [each.id for each in await runner.list(state="Completed")] == ["m"]
            assert await runner.list(state="Failed") == []
        assert mill.ran == {"grind": 1, "bake": 2, "knead": 1}

    at_a_place(scene)


def test_an_answer_that_is_lost_does_not_make_two_lives():
    """The request is sent again, and is answered with the life that it has begun."""
    mill = Mill()

    async def scene(place: Place) -> None:
        async with place.runner() as runner:
            run = await runner.start(mill.flow, run_id="m")
            with pytest.raises(RunFailed):
                await run.result()
            mill.is_broken = False
            place.meddler.trouble("layby.run.rerun", "lose")
            await run.rerun()
            await run.result()
            assert (await run.status()).lives == 2

    at_a_place(scene)


def test_steering_over_http_means_the_latest_life():
    @task
    async def wait(context, handle):
        await handle.wait_for("never")

    async def scene(place: Place) -> None:
        async with place.runner() as runner:
            run = await runner.start(Workflow("waiting", tasks=[wait]), run_id="w")
            with pytest.raises(Conflict):
                await run.rerun()
            await run.cancel(reason="first")
            await run.rerun()
            await run.halt()
            assert (await run.status()).state == "Halted"
            await run.cancel(reason="second")
            with pytest.raises(RunCancelled, match="second"):
                await run.result()
            with pytest.raises(RunCancelled, match="first"):
                await run.result(life=1)

    at_a_place(scene)


def test_a_client_without_an_inbox_is_told_of_the_lives_at_once():
    """As the command line asks: the request waits on the server only while the run runs."""
    mill = Mill()

    async def run() -> None:
        async with served() as server, Meddler(server.port) as meddler:
            client = HttpClient(meddler.url)
            async with Place(server, meddler).runner() as runner:
                run = await runner.start(mill.flow, run_id="m")
                waits: Any = await client.send(WatchRun(id="run/m"))
                assert (waits.data.lives, waits.data.promise.state) == (1, "rejected")
                mill.is_broken = False
                await run.rerun()
                reply: Any = await client.send(WatchRun(id="run/m"))
                assert (reply.data.lives, reply.data.promise) == (2, waits.data.promise)
                missing = await client.send(WatchRun(id="run/x", hold=False))
                assert missing.status == 404
                await run.result()
            await client.close()

    play(run)
