"""Several processes on one file: one owns it, the others speak to that one by themselves."""

import asyncio
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from layby import Runner
from layby.errors import StoreOwned
from layby.runner import private_socket
from layby.runner.embedded import EmbeddedLink
from layby.runner.remote import RemoteLink
from layby.store.ownership import is_served, socket_of
from tests.helpers.cli_processes import Process, layby, until
from tests.helpers.troubled_server import play
from tests.runner.sharing_child import shared, waiting

CHILD = Path(__file__).with_name("sharing_child.py")
pytestmark = pytest.mark.files_only("the socket beside a file")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "layby.db"


def child(file: Path, mode: str = "own", *name: str) -> Process:
    return Process([str(CHILD), str(file), mode, *name])


def opened(file: Path, mode: str = "own") -> Process:
    """One that has the file, and listens unless it is mute."""
    process = child(file, mode)
    process.hear("owner")
    if mode != "mute":
        until(lambda: is_served(file), process)
    return process


def is_guest(runner: Runner) -> bool:
    return isinstance(runner._link, RemoteLink)


# --- sharing ---------------------------------------------------------------------------------


def test_a_second_process_works_with_the_owner(file: Path):
    """It starts runs, gets results, settles what others wait for, and both do the work."""

    async def scene() -> None:
        async with Runner(f"sqlite:{file}", slots=1) as runner:
            assert is_guest(runner)
            runs = [await runner.start(shared, run_id=f"r{number}") for number in range(20)]
            pids = {(await run.result())["pid"] for run in runs}
            assert len(pids) == 2
            assert os.getpid() in pids
            run = await runner.start(waiting, run_id="w")
            await runner.resolve("event", 7)
            assert (await run.result())["answer"] == 7

    with opened(file):
        play(scene)


def test_commands_reach_the_owner(file: Path):
    """The command line finds it, and so does a worker beside it."""
    with opened(file):
        with layby("run", f"{CHILD}:shared", "--db", file, "--id", "a") as run:
            assert run.end() == 0, run.tail
        with layby("resolve", "event", "--value", "1", "--db", file) as resolve:
            assert resolve.end() == 0, resolve.tail
        with layby("worker", CHILD, "--url", f"sqlite:{file}") as worker:
            worker.hear("layby works for")
            assert worker.stop() < 5


def test_processes_that_start_in_the_same_moment_share(file: Path):
    """Whoever is first owns the file for as long as it runs; nobody is turned away."""
    names = [f"r{number}" for number in range(5)]
    children = [child(file, "run", name) for name in names]
    try:
        for each in children:
            assert each.end() == 0, each.tail
            assert each.hear("result")
    finally:
        for each in children:
            each.kill()


# --- the socket ------------------------------------------------------------------------------


def test_only_its_user_may_speak_to_the_owner(file: Path):
    """As with the file itself; and nothing is left behind."""
    with opened(file) as owner:
        assert socket_of(file).stat().st_mode & 0o777 == 0o600
        owner.stop()
    assert not socket_of(file).exists()


def test_a_path_may_be_longer_than_that_of_a_socket(tmp_path: Path):
    """Then the socket is elsewhere, and found by everybody."""
    folder = tmp_path / ("a" * 100)
    folder.mkdir()
    file = folder / "layby.db"

    async def scene() -> None:
        async with Runner(f"sqlite:{file}") as runner:
            assert is_guest(runner)
            await runner.execute(shared, run_id="r")

    with opened(file) as owner:
        assert socket_of(file).parent == Path(tempfile.gettempdir())
        assert socket_of(file).stat().st_mode & 0o777 == 0o600
        play(scene)
        with layby("resolve", "event", "--value", "1", "--db", file) as resolve:
            assert resolve.end() == 0, resolve.tail
        owner.stop()
    assert not socket_of(file).exists()


def test_a_socket_of_somebody_else_is_not_spoken_to(file: Path, monkeypatch: pytest.MonkeyPatch):
    """In a folder for everybody anybody may listen under any name."""
    file.touch()
    uid = os.getuid()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(socket_of(file)))
        listening.listen()
        assert is_served(file)
        monkeypatch.setattr(os, "getuid", lambda: uid + 1)
        assert is_served(file)  # root, for instance, beside the owner of the file
        real, place = Path.stat, socket_of(file)

        def of_a_stranger(path: Path, **options: bool) -> os.stat_result:
            found = list(real(path, **options))
            if path == place:
                found[4] += 2
            return os.stat_result(found)

        monkeypatch.setattr(Path, "stat", of_a_stranger)
        assert not is_served(file)


def test_a_socket_that_a_killed_owner_left_is_replaced(file: Path):
    """The next owner is no guest of a ghost, and others reach it."""

    async def scene() -> None:
        async with Runner(f"sqlite:{file}") as runner:
            assert not is_guest(runner)
            await asyncio.to_thread(until, lambda: is_served(file))
            guest = await asyncio.to_thread(child, file, "run", "r")
            assert await asyncio.to_thread(guest.end) == 0, guest.tail

    with opened(file) as owner:
        owner.kill()
    assert socket_of(file).exists()
    assert not is_served(file)
    play(scene)
    assert not socket_of(file).exists()


# --- owners that come and go -----------------------------------------------------------------


def test_an_owner_that_lets_nobody_in_is_named(file: Path, monkeypatch: pytest.MonkeyPatch):
    """With what to do about it."""
    monkeypatch.setattr(private_socket, "PATIENCE_S", 0.2)

    async def scene() -> None:
        with pytest.raises(StoreOwned) as refused:
            async with Runner(f"sqlite:{file}"):
                pass
        told = str(refused.value)
        assert str(owner.pid) in told
        assert "sharing_child.py" in told
        assert "stop that process" in told

    with opened(file, "mute") as owner:
        play(scene)


def test_who_lets_nobody_in_is_nobodys_guest(file: Path, monkeypatch: pytest.MonkeyPatch):
    """`socket=False` means: this process or none; it is told at once."""
    monkeypatch.setattr(private_socket, "PATIENCE_S", 20)

    async def scene() -> None:
        began = time.monotonic()
        with pytest.raises(StoreOwned):
            async with Runner(f"sqlite:{file}", socket=False):
                pass
        assert time.monotonic() - began < 10

    with opened(file):
        play(scene)


def test_an_owner_that_leaves_meanwhile_is_succeeded(file: Path):
    """Whoever waits for it to listen takes the file over instead."""

    async def scene() -> None:
        opening = asyncio.ensure_future(Runner(f"sqlite:{file}").__aenter__())
        await asyncio.sleep(0.3)
        assert not opening.done()
        await asyncio.to_thread(owner.kill)
        runner = await opening
        assert not is_guest(runner)
        await runner.close()

    with opened(file, "mute") as owner:
        play(scene)


@pytest.mark.parametrize("end", [Process.kill, Process.stop])
def test_a_guest_succeeds_its_owner(file: Path, end: Callable[[Process], object]):
    """What it does goes on, what the owner did it takes over, and others find it."""

    async def scene() -> None:
        async with Runner(f"sqlite:{file}", slots=1) as runner:
            started = [await runner.start(waiting, run_id=f"w{number}") for number in range(3)]
            await asyncio.to_thread(end, owner)
            runs = [await runner.start(shared, run_id=f"r{number}") for number in range(3)]
            for run in runs:
                assert (await run.result())["pid"] == os.getpid()
            await runner.resolve("event", 7)
            assert [(await run.result())["answer"] for run in started] == [7, 7, 7]
            with await asyncio.to_thread(child, file, "run", "r") as another:
                assert await asyncio.to_thread(another.end) == 0, another.tail
        assert not socket_of(file).exists()

    with opened(file) as owner:
        play(scene)


def test_a_guest_succeeds_an_owner_that_leaves_before_it_is_let_in(file: Path):
    """It had found it listening, and not yet said a word."""

    async def scene() -> None:
        runner = Runner(f"sqlite:{file}")
        link = await runner._open_link()
        await asyncio.to_thread(owner.stop)

        async def found() -> EmbeddedLink | RemoteLink:
            return link

        runner._open_link = found
        async with asyncio.timeout(20):
            await runner.__aenter__()
            await runner.execute(shared, run_id="r")
            await runner.close()

    with opened(file) as owner:
        play(scene)


def test_of_several_guests_one_succeeds(file: Path):
    """The others are its guests from then on, whoever of them it was."""

    async def scene() -> None:
        async with Runner(f"sqlite:{file}", slots=1) as runner:
            guests = [await asyncio.to_thread(child, file) for _ in range(2)]
            for each in guests:
                await asyncio.to_thread(each.hear, "guest")
            await asyncio.to_thread(owner.kill)
            runs = [await runner.start(shared, run_id=f"r{number}") for number in range(20)]
            pids = {(await run.result())["pid"] for run in runs}
            assert os.getpid() in pids
            assert owner.pid not in pids
            for each in guests:
                await asyncio.to_thread(each.kill)
            assert (await runner.execute(shared, run_id="last"))["pid"] == os.getpid()

    with opened(file) as owner:
        play(scene)


def test_a_server_has_no_successor(file: Path):
    """It finds its file free when it comes back, and its guests go on."""

    async def scene() -> None:
        async with Runner(f"sqlite:{file}") as runner:
            assert is_guest(runner)
            await runner.execute(shared, run_id="before")
            await asyncio.to_thread(server.kill)
            await asyncio.sleep(0.5)  # long enough for any guest to succeed
            assert not is_served(file)
            server.start()
            await runner.execute(shared, run_id="after")

    with layby("serve", "--db", f"sqlite:{file}", "--port", "0") as server:
        server.hear("layby serves")
        play(scene)


# --- a Runner and its socket -----------------------------------------------------------------


def test_a_runner_that_is_closed_at_once_leaves_nothing(file: Path):
    """Whether its socket was open by then or not."""

    async def scene() -> None:
        for patience in (0, 0, 0.001, 0.01, 0.05):
            async with Runner(f"sqlite:{file}"):
                await asyncio.sleep(patience)
            assert not socket_of(file).exists()

    play(scene)


@pytest.mark.parametrize("is_let_in", [False, True])
def test_who_is_cancelled_while_it_closes_gives_the_file_up(file: Path, *, is_let_in: bool):
    """Whatever it waits for just then; and nothing of it is left, in this process either."""

    async def main() -> None:
        for turns in range(1, 40):
            runner = Runner(f"sqlite:{file}")
            await runner.__aenter__()
            if is_let_in:
                await runner._link.opened()
            closing = asyncio.create_task(runner.close())
            for _ in range(turns):
                await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait([closing])
            for thread in threading.enumerate():
                if thread.name == "layby-writer":  # it closes the file, and may not be done
                    await asyncio.to_thread(thread.join, 10)
                    assert not thread.is_alive(), turns

    asyncio.run(main())


def test_a_plain_installation_lets_others_in(file: Path):
    """What only a server needs is not needed to share a file."""

    async def scene() -> None:
        async with Runner(f"sqlite:{file}", slots=1) as runner:
            assert is_guest(runner)
            await runner.execute(shared, run_id="r")

    with opened(file, "plain"):
        play(scene)


def test_a_socket_that_cannot_be_opened_is_told(file: Path, caplog: pytest.LogCaptureFixture):
    """The Runner works; others are told that the file is in use."""
    socket_of(file).mkdir(parents=True)

    async def scene() -> None:
        async with Runner(f"sqlite:{file}") as runner:
            await runner.execute(shared, run_id="r")
            await asyncio.to_thread(until, lambda: "cannot reach" in caplog.text)

    play(scene)
    assert str(socket_of(file)) in caplog.text
