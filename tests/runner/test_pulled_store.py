"""A file pulled from under a Runner, a server and their guests: each says so, and what to do."""

import asyncio
import logging
import re
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest

from layby import Runner, Workflow, task
from layby.errors import StoreGone
from layby.store.own_file import identity
from layby.store.ownership import is_served
from tests.helpers.cli_processes import Process, layby, until
from tests.helpers.server_process import Peer, ServerProcess
from tests.helpers.troubled_server import play
from tests.runner.sharing_child import waiting

CHILD = Path(__file__).with_name("sharing_child.py")
pytestmark = pytest.mark.files_only("a file that is taken away")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "layby.db"


def move(file: Path, name: str) -> Path:
    return file.rename(file.with_name(name))


async def told(caplog: pytest.LogCaptureFixture, text: str) -> None:
    """Wait until the log says so."""
    while text not in caplog.text:  # noqa: ASYNC110 - a log has no event
        await asyncio.sleep(0.01)


# --- embedded --------------------------------------------------------------------------------


def test_who_waits_and_who_asks_is_told(file: Path) -> None:
    """A caller that waits for a result would wait forever: it is told as soon as it is noticed."""

    async def scene() -> None:
        async with Runner(f"sqlite:{file}") as runner:
            run = await runner.start(waiting, run_id="w")
            result = asyncio.ensure_future(run.result())
            await asyncio.sleep(0)
            move(file, "original.db")
            with pytest.raises(
                StoreGone, match=f"{re.escape(str(file))}: the file is gone.*stop this process"
            ):
                await runner.resolve("event", 7)
            with pytest.raises(StoreGone, match=f"{re.escape(str(file))}: the file is gone"):
                await result

    play(scene)


def test_a_body_that_runs_meanwhile_is_kept(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its report is sent until the file is back; its side effects are not repeated."""
    began, go_on = asyncio.Event(), asyncio.Event()
    calls: list[str] = []

    @task
    async def works(context):
        calls.append("called")
        began.set()
        await go_on.wait()
        context["done"] = True

    async def scene() -> None:
        async with Runner(f"sqlite:{file}") as runner:
            run = await runner.start(Workflow("flow", tasks=[works]), run_id="r")
            await began.wait()
            elsewhere = move(file.parent, "elsewhere")
            go_on.set()
            await told(caplog, f"{file}: the file is gone")
            move(elsewhere, "data")
            assert (await run.result())["done"] is True

    with caplog.at_level(logging.WARNING, "layby"):
        play(scene)
    assert calls == ["called"]


# --- a server --------------------------------------------------------------------------------


def status_of(url: str) -> int:
    try:
        with urllib.request.urlopen(url) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_a_server_whose_file_was_replaced_refuses_and_says_so(tmp_path: Path) -> None:
    """Requests, /ready, the log and both doctors; and it ends in an orderly way."""
    with ServerProcess(tmp_path) as server, closing(Peer(server.port)) as peer:
        create = {"timeoutAt": 2**53 - 1, "param": {}, "tags": {}}
        assert peer.ask("promise.create", {"id": "before"} | create).status == 200
        url, file = f"http://127.0.0.1:{server.port}", server.file
        assert status_of(f"{url}/ready") == 200
        original = file.rename(file.with_name("original.db"))
        with layby("run", f"{CHILD}:shared", "--db", file.with_name("other.db")) as run:
            assert run.end() == 0, run.tail
        file.with_name("other.db").rename(file)

        refused = peer.ask("promise.create", {"id": "after"} | create)
        assert refused.status == 503
        told = f"{file}: another file is in its place"
        assert told in refused.data
        assert peer.ask("promise.get", {"id": "before"}).status == 503
        assert status_of(f"{url}/ready") == 503
        server.until_it_says(told)
        with layby("doctor", "--url", url) as doctor:
            assert doctor.end() == 1, doctor.tail
            assert told in doctor.tail
        with layby("doctor", file) as doctor:
            assert doctor.end() == 1, doctor.tail
            assert f"process {server.process_id}" in doctor.tail
            assert "put that one back, or stop that process" in doctor.tail
        file.unlink()
        with layby("doctor", file) as doctor:
            assert doctor.end() == 2, doctor.tail
            assert "uses the file that was there" in doctor.tail
        original.rename(file)
        assert peer.ask("promise.get", {"id": "before"}).status == 200
        assert peer.ask("promise.create", {"id": "again"} | create).status == 200
        with layby("doctor", file) as doctor:
            assert doctor.end() == 0, doctor.tail


@pytest.mark.parametrize("pulled", ["", "-wal"])
def test_the_doctor_does_not_blame_the_disk(tmp_path: Path, pulled: str) -> None:
    """What is left cannot be read: that is told with the process that uses it, which knows why."""
    with ServerProcess(tmp_path) as server, closing(Peer(server.port)) as peer:
        create = {"timeoutAt": 2**53 - 1, "param": {}, "tags": {}}
        assert peer.ask("promise.create", {"id": "before"} | create).status == 200
        server.file.with_name(f"{server.file.name}{pulled}").unlink()
        server.file.touch()
        with layby("doctor", server.file) as doctor:
            assert doctor.end() == 2, doctor.tail
            assert f"cannot be read: process {server.process_id}" in doctor.tail
            assert "or its -wal file was removed, replaced or cut short" in doctor.tail


# --- guests ----------------------------------------------------------------------------------


def test_guests_are_told_and_nobody_begins_a_new_file(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A guest that took over an empty file would lose every run without a word."""

    async def scene() -> None:
        async with Runner(f"sqlite:{file}", slots=1) as runner:
            run = await runner.start(waiting, run_id="w")
            original = move(file, "original.db")
            resolve = asyncio.ensure_future(runner.resolve("event", 7))
            await told(caplog, f"{file}: the file is gone")
            await asyncio.to_thread(owner.kill)
            await told(caplog, f"no process owns {file}, but it cannot be opened: it was deleted")
            assert identity(file) is None
            move(original, file.name)
            await resolve
            assert (await run.result())["answer"] == 7

    with (
        caplog.at_level(logging.WARNING, "layby"),
        Process([str(CHILD), str(file), "own"]) as owner,
    ):
        owner.hear("owner")
        until(lambda: is_served(file), owner)
        play(scene)
