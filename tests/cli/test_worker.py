"""`layby worker` and `layby dev` as people start and stop them."""

import asyncio
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from layby import RetryPolicy, RunFailed, Workflow, run, task
from layby.cli.worker import LoadedCode, _work
from layby.client.http import HttpClient
from layby.core.model import NEVER
from layby.errors import StoreUnavailable
from layby.workflow import plan
from tests.helpers.cli_processes import Process
from tests.helpers.command_line import Desk, typed
from tests.helpers.postgres import being_migrated, cluster, until_waiting_to_migrate
from tests.helpers.server_process import PATIENCE_S, ServerProcess
from tests.helpers.signals import inherited

FLOWS = """
from layby import Workflow, task

@task
async def double(context):
    context["twice"] = 2 * context["n"]

@task(rpc="greet")
async def greet(context):
    return f"hello {context['name']}"

flow = Workflow("doubling", tasks=[double])
"""


@contextmanager
def layby(folder: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-m", "layby.cli", *arguments],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        assert process.stderr is not None
        process.stderr.close()


def heard(process: "subprocess.Popen[str]", pattern: str) -> "re.Match[str]":
    """The first line it says that looks like this."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if found := re.search(pattern, line):
            return found
    raise AssertionError("".join(said))


def ended(process: "subprocess.Popen[str]") -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(PATIENCE_S)


def test_a_worker_may_be_started_before_its_server(desk: Desk, tmp_path: Path):
    """It says whom it looks for; it says what it works on; it ends when it is asked to."""
    (tmp_path / "flows.py").write_text(FLOWS)
    server = ServerProcess(tmp_path)
    with server:
        pass  # its port is free again, and known
    with layby(tmp_path, "worker", "flows.py", "--url", f"http://127.0.0.1:{server.port}") as here:
        heard(here, "layby is connecting to http://127.0.0.1")
        with server:
            heard(here, "layby works for .*: workflow doubling, call greet")
            url = f"http://127.0.0.1:{server.port}"
            ran = typed("run", "flows.py:flow", "--context", "n=4", "--url", url)
            assert '"twice": 8' in ran.out
            called = typed(
                "invoke", "c", "-f", "greet", "--arg", '{"name": "ada"}', "--wait", "--url", url
            )
            assert "hello ada" in called.out
            assert ended(here) == 0


def test_a_closed_terminal_ends_a_worker_in_order(desk: Desk, tmp_path: Path):
    (tmp_path / "flows.py").write_text(FLOWS)
    with ServerProcess(tmp_path) as server:
        url = f"http://127.0.0.1:{server.port}"
        heeded = inherited(signal.SIGHUP, signal.SIG_DFL)
        with heeded, layby(tmp_path, "worker", "flows.py", "--url", url) as here:
            heard(here, "layby works for")
            here.send_signal(signal.SIGHUP)
            heard(here, "layby is stopping: tasks are handed back as they end")
            assert here.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("command", ["worker", "dev"])
def test_one_that_loads_its_code_ends_when_it_is_asked_to(
    command: str, asked: signal.Signals, tmp_path: Path
):
    """Red on b972d63e: it died of the signal, or was deaf as the first process of a container."""
    slow = tmp_path / "slow.py"
    slow.write_text("import time\nprint('loading', flush=True)\ntime.sleep(100)\n")
    flags = ("--db", f"sqlite:{tmp_path / 'layby.db'}")
    with (
        inherited(signal.SIGHUP, signal.SIG_DFL),
        Process(["-m", "layby.cli", command, str(slow), *flags]) as here,
    ):
        here.hear("loading")
        here.send(asked)
        assert (here.end(), here.said) == (0, ["loading"])


@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("command", ["serve", "dev", "worker", "run"])
def test_one_that_waits_for_its_database_ends_when_it_is_asked_to(
    command: str, asked: signal.Signals, tmp_path: Path
):
    """Somebody else migrates it, which may take long."""
    database = cluster().new_database()
    (tmp_path / "flows.py").write_text(FLOWS)
    works = command in ("worker", "run")
    more = (str(tmp_path / "flows.py"),) if works else ("--port", "0")
    flags = (*more, "--db", cluster().url(database))
    with (
        being_migrated(database),
        inherited(signal.SIGINT, signal.SIG_DFL),
        Process(["-m", "layby.cli", command, *flags]) as here,
    ):
        until_waiting_to_migrate(database)
        here.send(asked)
        assert here.end() == (130 if command == "run" else 0)
        assert not any("Traceback" in each or "shutting down" in each for each in here.said)


def test_dev_is_a_server_and_a_worker(desk: Desk, tmp_path: Path):
    """In one process, on a file in the current folder."""
    (tmp_path / "flows.py").write_text(FLOWS)
    with layby(tmp_path, "dev", "flows.py", "--port", "0") as here:
        url = heard(here, r"layby serves sqlite:layby.db at (http://\S+)")[1]
        heard(here, "layby works for")
        assert '"twice": 6' in typed("run", "flows.py:flow", "--context", "n=3", "--url", url).out
        assert ended(here) == 0


def test_the_log_names_every_try_that_failed(caplog: pytest.LogCaptureFixture):
    """So that whoever watches a worker does not have to search the store."""

    @task(retry=RetryPolicy(max_attempts=2, delay=0.01, jitter=0))
    async def fail(context):
        raise ValueError("no")

    caplog.set_level("INFO", "layby.worker")
    with pytest.raises(RunFailed):
        run(Workflow("failing", tasks=[fail]), {})
    first, last = [each.message for each in caplog.records if "failed in try" in each.message]
    assert re.fullmatch(
        r"run/\w+:fail failed in try 1: ValueError: no; it is tried again in 0.0 s", first
    )
    assert re.match(r"run/\w+:fail failed in try 2: ValueError: no\nTraceback", last)


def test_code_that_cannot_be_worked_on_is_named(desk: Desk, tmp_path: Path):
    """Before anybody looks for a server."""
    (tmp_path / "empty.py").write_text("x = 1\n")
    (tmp_path / "flows.py").write_text(FLOWS)
    typed("worker", "nowhere.flows").complains(2, "no module 'nowhere.flows'", "path/to/file.py")
    typed("worker", "nowhere.py").complains(2, "there is no file nowhere.py")
    typed("worker", "empty.py").complains(2, "empty.py has nothing to run: write flow = Workflow")
    typed("dev", "empty.py", "--db", "memory:", "--port", "0").complains(2, "nothing to run")
    typed("worker", "flows.py:flow").complains(2, "give flows.py without what follows")
    typed("worker", "flows.py", "--lease", "soon").complains(2, "'soon' is not a duration")
    typed("worker", "flows.py", "--lease", "1ms").complains(2, "at least 100ms")
    typed("worker", "flows.py", "--slots", "0").complains(2, "slots")
    typed("dev", "flows.py", "--slots", "0").complains(2, "slots")
    for url in ("ftp://x", "localhost:8001", "layby.db"):
        typed("worker", "flows.py", "--url", url).complains(2, url, "http://127.0.0.1:8001")
    typed("worker", "flows.py", "--group", "layby.x").complains(2, "cannot serve calls in group")
    (tmp_path / "twice.py").write_text(
        FLOWS + FLOWS.replace("2 *", "3 *").replace("flow =", "two =")
    )
    typed("worker", "twice.py").complains(2, "workflow 'doubling' is already", "another name")
    (tmp_path / "large.py").write_text(FLOWS.replace("@task\n", "@task(slots=5)\n"))
    for command in ("worker", "dev"):
        typed(command, "large.py").complains(2, "needs 5 slots at once, but this worker has 4")
    assert [each.name for each in tmp_path.glob("*.db")] == ["layby.db"]


def test_a_worker_that_is_refused_says_so(desk: Desk, tmp_path: Path):
    """It does not try again and again with a token that does not fit."""
    (tmp_path / "flows.py").write_text(FLOWS)
    (tmp_path / "layby.toml").write_text('[auth]\npublic_key = "none"\n')
    with ServerProcess(tmp_path) as server:
        url = f"http://127.0.0.1:{server.port}"
        with layby(tmp_path, "worker", "flows.py", "--url", url, "--token", "nonsense") as here:
            heard(here, f"layby: the server at {url} refused this worker: Unauthorized")
            assert here.wait(PATIENCE_S) == 2


def test_a_worker_that_finds_no_server_can_be_stopped(desk: Desk, tmp_path: Path):
    """At once, though it is looking."""
    (tmp_path / "flows.py").write_text(FLOWS)
    with layby(tmp_path, "worker", "flows.py", "--url", "http://127.0.0.1:1") as here:
        heard(here, "layby is connecting to")
        began = time.monotonic()
        assert ended(here) == 0
        assert time.monotonic() - began < 20


STUBBORN = """
import asyncio, threading
from layby import Workflow, task

@task
async def blocks(context):
    print("@begun", flush=True)
    threading.Event().wait(600)

@task
def thread(context):
    print("@begun", flush=True)
    threading.Event().wait(600)

@task
async def deaf(context):
    print("@begun", flush=True)
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            pass

blocking, stubborn = Workflow("blocking", tasks=[thread]), Workflow("stubborn", tasks=[deaf])
blocked = Workflow("blocked", tasks=[blocks])
"""


@pytest.mark.parametrize("flow", ["blocking", "stubborn"])
def test_a_body_that_does_not_end_does_not_keep_its_worker(flow: str, desk: Desk, tmp_path: Path):
    """When the grace is over its task is handed back; what it still does counts for nothing."""
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    with ServerProcess(tmp_path) as server:
        url = f"http://127.0.0.1:{server.port}"
        stubborn = ["-m", "layby.cli", "worker", str(tmp_path / "stubborn.py"), "--url", url]
        with Process([*stubborn, "--grace", "1s"]) as here:
            here.hear("layby works for")
            asyncio.run(started(url, flow))
            here.hear("@begun")
            assert here.stop() < 10
            here.hear("is handed back though its body goes on")
            here.hear("though a task body is still running")
        held = typed("tasks", "search", "--state", "acquired", "--url", url, "--json").json
        assert held["tasks"] == []


async def started(url: str, flow: str) -> None:
    """By somebody who has no code for it."""

    @task(id={"blocking": "thread", "stubborn": "deaf", "blocked": "blocks"}[flow])
    async def body(context: Any) -> None: ...

    client = HttpClient(url)
    command = plan.plan(Workflow(flow, tasks=[body]), "r", {}, "default", NEVER)
    assert (await client.send(command)).is_ok
    await client.close()


def test_asked_twice_a_worker_ends_at_once(desk: Desk, tmp_path: Path):
    """Whoever presses Ctrl-C again means it."""
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    with ServerProcess(tmp_path) as server:
        url = f"http://127.0.0.1:{server.port}"
        with Process(
            ["-m", "layby.cli", "worker", str(tmp_path / "stubborn.py"), "--url", url]
        ) as here:
            here.hear("layby works for")
            asyncio.run(started(url, "stubborn"))
            here.hear("@begun")
            here.send(signal.SIGTERM)
            here.hear("layby waits for 1 task to end")
            threading.Event().wait(1)  # two signals in one second are one
            began = time.monotonic()
            here.send(signal.SIGTERM)
            assert here.end() == 128 + signal.SIGTERM
            assert time.monotonic() - began < 10


def test_asked_twice_a_worker_whose_loop_is_blocked_ends_at_once(desk: Desk, tmp_path: Path):
    """Red on b972d63e: it took note of a signal only when the loop went on, so it heard none."""
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    with ServerProcess(tmp_path) as server:
        url = f"http://127.0.0.1:{server.port}"
        with Process(
            ["-m", "layby.cli", "worker", str(tmp_path / "stubborn.py"), "--url", url]
        ) as here:
            here.hear("layby works for")
            asyncio.run(started(url, "blocked"))
            here.hear("@begun")
            here.send(signal.SIGTERM)
            for _ in range(PATIENCE_S):
                threading.Event().wait(0.5)  # two signals in one second are one
                if not here.is_alive:
                    break
                here.send(signal.SIGINT)
            assert not here.is_alive
            assert here.end() == 128 + signal.SIGINT


class RefusedRunner:
    async def __aenter__(self) -> None:
        raise StoreUnavailable("the password is wrong")


def test_a_database_that_refuses_is_asked_again_with_growing_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 4:
            raise asyncio.CancelledError

    monkeypatch.setattr(asyncio, "sleep", sleep)
    refused: Any = RefusedRunner()
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(_work(refused, cast("LoadedCode", None), "here"))
    assert pauses == [0.5, 1.0, 2.0, 4.0]
