"""`layby run` over a URL: others do the work, and this command watches."""

import json
import re
import signal
from pathlib import Path

import pytest

from layby import BlockingRunner
from tests.cli import flows
from tests.cli.test_run import FLOWS
from tests.helpers.cli_processes import Process
from tests.helpers.command_line import typed
from tests.helpers.server_thread import server_elsewhere

ENDING = """
import time
from layby import Workflow, task

@task
def block(context):
    print("has begun", flush=True)
    time.sleep(1.5)

flow = Workflow("ending", tasks=[block])
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_workers_do_the_work(folder):
    """The command registers no worker and takes nothing; no file is made here."""
    with server_elsewhere() as there, BlockingRunner(there.server.url) as worker:
        worker.register(flows.flow)
        said = typed("run", f"{FLOWS}:flow", "--context", "n=3", "--url", there.url)
        assert (said.code, json.loads(said.out)["n"]) == (0, 6), said
        assert there.count("layby.worker.take") == 0
        assert there.count("layby.run.start") == 1
    assert list(folder.iterdir()) == []


def test_a_workflow_by_the_name_its_workers_know(folder):
    """Without its code; an unknown one is not found, and what was meant is suggested."""
    with server_elsewhere() as there, BlockingRunner(there.server.url) as worker:
        worker.register(flows.flow)
        worker.execute(flows.flow, {"n": 1})
        said = typed("run", "numbers", "--context", "n=3", "--url", there.url)
        assert (said.code, json.loads(said.out)["n"]) == (0, 6), said
        typed("run", "numbrs", "--url", there.url).complains(1, "did you mean 'numbers'")


def test_it_may_work_as_well(folder):
    """With --work; without it, nobody having the code, that is told."""
    with server_elsewhere() as there:
        said = typed("run", f"{FLOWS}:flow", "--context", "n=3", "--url", there.url, "--work")
        assert json.loads(said.out)["n"] == 6
        assert there.count("layby.worker.take") > 0
        options = ("--context", "n=3", "--url", there.url, "--deadline", "100ms")
        said = typed("run", f"{FLOWS}:flow", *options)
        assert said.code == 1
        assert "layby: workflow 'numbers': no living worker of group 'default' has its" in said.err
        typed("run", f"{FLOWS}:flow", *options, "--slots", "2").complains(2, "--work")


@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_says_that_the_run_goes_on(folder, asked):
    """It only watched."""
    with server_elsewhere() as there, BlockingRunner(there.server.url) as worker:
        worker.register(flows.asking)
        options = ("--context", "question=q", "--id", "r-1", "--url", there.url)
        with started("run", f"{FLOWS}:asking", *options) as process:
            process.hear("Deferred: waiting for promise q")
            process.send(asked)
            assert process.end() == 130
            told = process.hear(
                "the run 'r-1' stays on the server, for its workers; watch it again with: "
            )
        assert told.endswith(f"layby run {FLOWS}:asking --id r-1 --url {there.url}")
        worker.resolve("q", 7)
        assert worker.get("r-1").result()["answer"] == 7


def test_a_run_that_completes_while_its_command_ends_is_not_called_kept(folder):
    """Its body had begun and was waited for: the last line says how it stands."""
    (folder / "ending.py").write_text(ENDING)
    with started("run", "ending.py", "--id", "r-1") as process:
        process.hear("has begun")
        process.send(signal.SIGTERM)
        assert process.end() == 130
        told = process.hear("the run 'r-1'")
    assert told == (
        "the run 'r-1' has completed; see how it ended with: layby run ending.py --id r-1"
    )
    assert typed("runs", "--json").json["runs"][0]["state"] == "Completed"


def test_a_run_that_failed_meanwhile_says_so_too(folder):
    (folder / "ending.py").write_text(ENDING.replace("time.sleep(1.5)", "time.sleep(1.5); 1 / 0"))
    with started("run", "ending.py", "--id", "r-1") as process:
        process.hear("has begun")
        process.send(signal.SIGTERM)
        assert process.end() == 130
        assert re.match("the run 'r-1' has failed; see how", process.hear("the run 'r-1'"))


def test_a_wrong_port_is_told_after_a_second_and_over_after_five(folder, monkeypatch):
    """Not after half a minute without a word."""
    monkeypatch.setattr("layby.cli.run.FIRST_ANSWER_S", 2)
    monkeypatch.setattr("layby.client.first_answer.TELL_AFTER_S", 1)
    url = "http://127.0.0.1:1"
    said = typed("run", f"{FLOWS}:flow", "--url", url)
    told, end = said.err.splitlines()
    assert said.code == 2
    assert told == f"layby: waiting for {url}: connection refused; gives up after 2 s"
    assert end == f"layby: the server at {url} does not answer (connection refused): is it running?"


def started(*arguments: str) -> Process:
    return Process(["-m", "layby.cli", *arguments])
