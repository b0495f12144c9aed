"""`layby worker` and `layby dev` as people start and stop them."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cli.desk import Desk, typed
from tests.server.processes import PATIENCE_S, ServerProcess

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
        heard(here, "layby looks for http://127.0.0.1")
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


def test_dev_is_a_server_and_a_worker(desk: Desk, tmp_path: Path):
    """In one process, on a file in the current folder."""
    (tmp_path / "flows.py").write_text(FLOWS)
    with layby(tmp_path, "dev", "flows.py", "--port", "0") as here:
        url = heard(here, r"layby serves sqlite:layby.db at (http://\S+)")[1]
        heard(here, "layby works for")
        assert '"twice": 6' in typed("run", "flows.py:flow", "--context", "n=3", "--url", url).out
        assert ended(here) == 0


def test_code_that_cannot_be_worked_on_is_named(desk: Desk, tmp_path: Path):
    (tmp_path / "empty.py").write_text("x = 1\n")
    typed("worker", "nowhere.flows").complains(2, "no module 'nowhere.flows'", "path/to/file.py")
    typed("worker", "nowhere.py").complains(2, "there is no file nowhere.py")
    with ServerProcess(tmp_path) as server:
        url = f"http://127.0.0.1:{server.port}"
        with layby(tmp_path, "worker", "empty.py", "--url", url) as here:
            heard(here, "empty has nothing to work on: write flow = Workflow")
            assert here.wait(PATIENCE_S) == 2
