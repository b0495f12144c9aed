"""`layby run`: a workflow from its name to its result."""

import io
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from time import monotonic

import pytest
from rich.console import Console

from layby.cli.run import drawn, read_context
from layby.core.waits import WaitingOn
from layby.errors import UsageError
from layby.workflow.status import RunStatus, TaskExecution, TaskStatus
from tests.helpers.cli_processes import until
from tests.helpers.command_line import heed_interrupts, typed

FLOWS = Path(__file__).with_name("flows.py")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """Where the runs are kept; modules named in a test do not stay imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("flows", "broken", "empty"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_a_run_from_start_to_result(folder):
    """Its tasks on stderr, a line for each change; its context as JSON on stdout."""
    said = typed("run", f"{FLOWS}:flow", "--context", "n=21", "--id", "r-1")
    assert said.code == 0, said
    assert json.loads(said.out) == {"n": 42, "ok": True, "done": True}
    for line in (
        "double: Completed",
        "check: Running Deferred: sleeping 0.3 s",
        "check: Completed",
        "last: Completed",
    ):
        assert line in said.err.splitlines()
    assert "\x1b" not in said.err
    assert (folder / "layby.db").is_file()


def test_the_same_id_is_the_same_run(folder):
    """Its result is there at once."""
    for _ in range(2):
        said = typed("run", f"{FLOWS}:flow", "--context", "n=1", "--id", "r-1", "--json").json
        assert (said["run"]["state"], said["result"]["n"]) == ("Completed", 2)
    assert len(typed("runs").lines) == 2


@pytest.mark.parametrize("width", [40, 80])
def test_a_narrow_terminal_keeps_the_names_of_tasks(folder, width):
    """What they wait for is cut, who waits and how is not."""
    told = WaitingOn("condition", "waiting until something that takes many words is true", 0)
    approve = TaskExecution(
        id="approve",
        task_execution_id="run/r:approve",
        status="Running",
        sub_status="Deferred",
        waiting_on=told,
    )
    tasks = {"approve": approve}
    status = RunStatus(run_id="r", flow="order", state="Running", tasks=tasks, created_at=0)
    shown = io.StringIO()
    Console(width=width, file=shown).print(drawn(status, lines=5))
    line = shown.getvalue().splitlines()[1]
    assert line.startswith("approve  Running Deferred  wai")
    assert len(line) == width


def test_a_low_terminal_shows_what_moves():
    """What has ended, or not begun, is only counted: it has nothing to say."""
    done: TaskStatus = "Completed"
    states: tuple[TaskStatus, ...] = (done, done, done, "Pending", "Running", done, "Failed")
    tasks = {
        f"t{n}": TaskExecution(id=f"t{n}", task_execution_id=f"run/r:t{n}", status=state)
        for n, state in enumerate(states)
    }
    status = RunStatus(run_id="r", flow="order", state="Running", tasks=tasks, created_at=0)
    shown = io.StringIO()
    Console(width=80, file=shown).print(drawn(status, lines=2))
    assert [each.rstrip() for each in shown.getvalue().splitlines()] == [
        "run r  Running",
        "t6  Failed",
        "t4  Running",
        "... and 1 Pending, 4 Completed",
    ]


def test_a_run_that_fails_names_its_tasks(folder):
    """Exit code 1; what did not run says why."""
    said = typed("run", f"{FLOWS}:flow", "--context", "n=99")
    assert (said.code, said.out) == (1, "")
    assert "check: Failed: ValueError: too much" in said.err
    assert "last: Skipped: all_success: 'check' is Failed" in said.err
    assert re.search(r"layby: run '\w+' failed: task 'check' failed: ValueError", said.err)


def test_a_run_that_fails_says_where(folder):
    """The traceback of each task that failed, up to a few; programs read it elsewhere."""
    said = typed("run", f"{FLOWS}:flow", "--context", "n=99")
    assert "task 'check':\nTraceback (most recent call last):" in said.err
    assert f'File "{FLOWS}", line ' in said.err
    assert said.err.splitlines()[-2] == "ValueError: too much"
    assert said.err.count("Traceback") == 1
    assert "src/layby" not in said.err
    said = typed("run", f"{FLOWS}:flow", "--context", "n=99", "--json")
    assert "Traceback" not in said.err
    said = typed("run", f"{FLOWS}:all_fail", "--id", "five")
    assert said.err.count("Traceback") == 3
    assert "and 2 more: layby tree five --verbose" in said.err


RETURNING = """
from layby import Workflow, task


@task
def counts(context):
    return 41 + 1


flow = Workflow("counting", tasks=[counts])
"""


def test_what_a_task_returns_does_not_vanish(folder):
    """Beside its name for people, with the task for programs."""
    (folder / "broken.py").write_text(RETURNING)
    said = typed("run", "broken.py")
    assert "counts: Completed: returned 42" in said.err
    (counts,) = typed("run", "broken.py", "--json").json["tasks"]
    assert (counts["result"], counts["traceback"]) == (42, None)


def test_what_tasks_print_is_no_part_of_the_result(folder):
    """Programs read stdout; people see it all."""
    (folder / "broken.py").write_text(PRINTING)
    said = typed("run", "broken.py")
    assert json.loads(said.out) == {}
    assert "while loading\n" in said.err
    assert "while running\n" in said.err


def test_a_failed_run_as_json(folder):
    """The document has it all, the exit code the verdict."""
    said = typed("run", f"{FLOWS}:flow", "--context", '{"n": 99}', "--json")
    assert said.code == 1
    told = json.loads(said.out)
    assert (told["run"]["state"], told["result"]) == ("Failed", None)
    assert [(each["id"], each["status"]) for each in told["tasks"]] == [
        ("double", "Completed"),
        ("check", "Failed"),
        ("last", "Skipped"),
    ]
    assert "too much" in told["run"]["error"]


def test_a_run_may_have_a_priority(folder):
    """It is kept with the run, and its tasks have it."""
    said = typed("run", f"{FLOWS}:flow", "--context", "n=1", "--id", "r-1", "--priority", "7")
    assert said.code == 0, said
    with closing(sqlite3.connect(folder / "layby.db")) as file:
        found = file.execute("SELECT task_priority FROM promises WHERE task_kind = 'node'")
        assert {row[0] for row in found} == {7}
    assert "range -100<=x<=100" in typed("run", str(FLOWS), "--priority", "-101").err


def test_a_deadline_ends_the_run(folder):
    """It waits for nobody beyond that."""
    arguments = ("--context", "question=never-answered", "--deadline", "300ms")
    said = typed("run", f"{FLOWS}:asking", *arguments)
    assert said.code == 1
    assert "the run's deadline passed" in said.err


def test_a_run_belongs_to_a_group(folder):
    """Its workers share it."""
    arguments = ("--context", "question=q", "--id", "r-1", "--deadline", "100ms")
    typed("run", f"{FLOWS}:asking", *arguments, "--group", "gpu")
    found = typed("tasks", "search", "--target", "poll://any@layby.gpu", "--json").json["tasks"]
    assert [each["id"] for each in found] == ["run/r-1", "run/r-1:ask"]


def test_a_workflow_may_be_named_as_module(folder, monkeypatch):
    """As Python finds it from this folder."""
    (folder / "flows.py").write_text(FLOWS.read_text())
    assert typed("run", "flows:flow", "--context", "n=1").code == 0


@pytest.mark.parametrize(
    ("given", "context"),
    [
        ((), {}),
        (("n=1", "s=x", "j=[1]"), {"n": 1, "s": "x", "j": [1]}),
        (("t=a=b",), {"t": "a=b"}),
        (('{"n": 1, "m": 2}', "n=3"), {"n": 3, "m": 2}),
    ],
)
def test_a_context_in_parts(given, context):
    """Later ones win, key by key."""
    assert read_context(given) == context


def test_a_context_from_a_file(folder):
    """`@FILE`."""
    (folder / "c.json").write_text('{"n": 5}')
    assert read_context(("@c.json",)) == {"n": 5}


@pytest.mark.parametrize("text", ["n", "=1", "[1]", '{"n"', "@nowhere"])
def test_what_is_no_context(text):
    """Said before anything is started."""
    with pytest.raises(UsageError, match="--context"):
        read_context((text,))


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("gone.py:flow", "there is no file gone.py"),
        ("gone.module", "there is no module 'gone.module'"),
        (f"{FLOWS}:flwo", "flows.py"),
        (str(FLOWS), "several workflows"),
        ("empty.py", "has no workflow"),
    ],
)
def test_what_cannot_be_found(folder, target, said):
    """Exit code 2, and no file has been made."""
    (folder / "empty.py").write_text("x = 1\n")
    typed("run", target).complains(2, said)
    assert not (folder / "layby.db").exists()


def test_bad_options(folder):
    """Exit code 2."""
    assert "is not a duration" in typed("run", str(FLOWS), "--deadline", "1").err
    assert "not in the range" in typed("run", str(FLOWS), "--slots", "0").err
    typed("run", f"{FLOWS}:flow", "--id", "a:b").complains(2, "run id 'a:b'", "use 'a-b'")


@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_says_how_to_go_on_and_does(folder, asked):
    """Ctrl-C, or who stops services, hands everything back; the same id goes on where it was."""
    target = f"{FLOWS}:asking"
    command = [sys.executable, "-m", "layby.cli", "run", target, "--context", "question=q-1"]
    command += ["--db", "o.db"]
    clean = {name: text for name, text in os.environ.items() if not name.startswith("LAYBY_")}
    with subprocess.Popen(
        [*command, "--id", "r-1"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=clean,
        preexec_fn=heed_interrupts,  # noqa: PLW1509 - the child has one thread
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "Deferred: waiting for promise q-1" in line:
                break
        process.send_signal(asked)
        said = process.stderr.read()
    assert process.returncode == 130
    assert f"the run 'r-1' is kept; continue it with: layby run {target} --id r-1 --db o.db" in said
    assert said.endswith("layby: interrupted\n")
    typed("resolve", "q-1", "--value", "7", "--db", "o.db")
    done = typed("run", target, "--id", "r-1", "--json", "--db", "o.db").json
    assert done["result"] == {"question": "q-1", "answer": 7}


PRINTING = """
from layby import Workflow, task

@task
async def show(context):
    print("while running")

print("while loading")
flow = Workflow("printing", tasks=[show])
"""
BLOCKING = """
import time
from layby import Workflow, task

@task(timeout=TIMEOUT)
def block(context):
    time.sleep(60)

flow = Workflow("blocking", tasks=[block])
"""


@pytest.mark.parametrize(
    ("timeout", "code", "said"),
    [("0.2", 1, "failed: task 'block' failed: TaskTimeout"), ("None", 130, "layby: interrupted")],
)
def test_a_body_that_does_not_end_keeps_nobody(folder, timeout, code, said):
    """What there is to say is said, and the process ends, though a thread cannot be stopped."""
    (folder / "blocking.py").write_text(BLOCKING.replace("TIMEOUT", timeout))
    command = [sys.executable, "-m", "layby.cli", "run", "blocking.py", "--db", "b.db"]
    command += ["--grace", "1s"]
    began = monotonic()
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,  # noqa: PLW1509 - the child has one thread
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "block: Running" in line:
                break
        if code == 130:
            process.send_signal(signal.SIGINT)
        told = process.stderr.read()
    assert process.returncode == code
    assert said in told
    assert "layby exits though a task body is still running" in told
    assert monotonic() - began < 30


def test_a_file_that_is_in_use_is_shared_with_its_owner(folder):
    """A second process runs through the first one's socket; the owner's own run goes on."""
    owner = [sys.executable, "-m", "layby.cli", "run", f"{FLOWS}:asking", "--context", "question=q"]
    with subprocess.Popen(
        [*owner, "--id", "owned"], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "Deferred: waiting for promise q" in line:
                break
        until((folder / "layby.db.sock").is_socket)
        assert typed("run", f"{FLOWS}:flow", "--context", "n=1", "--json").json["result"]["n"] == 2
        assert typed("why", "owned").lines[1] == "  $ layby resolve q --value JSON"
        assert typed("resolve", "q", "--value", '"at last"').lines == ["q is resolved"]
        assert process.stdout is not None
        assert json.loads(process.stdout.read())["answer"] == "at last"
    assert process.returncode == 0


def test_a_declared_context_is_checked(folder):
    """The key, what was expected and what came; nothing is started."""
    said = typed("run", f"{FLOWS}:declared", "--context", "n=one")
    assert said.code == 2
    assert "context[\"n\"]: expected int, got str 'one'" in said.err
    assert "declared by Numbers of workflow 'declared'" in said.err
    assert json.loads(typed("run", f"{FLOWS}:declared", "--context", "n=1").out) == {"n": 2}


@pytest.mark.parametrize("name", ["declared", "flow"])
def test_an_existing_run_needs_no_context(folder, name):
    """What is printed when it is interrupted names none: no complaint, declared or not."""
    run = ("run", f"{FLOWS}:{name}", "--id", "r-1")
    first = typed(*run, "--context", "n=1")
    again = typed(*run)
    assert (again.code, again.out) == (0, first.out)
    assert "context" not in again.err


def test_a_task_that_kept_killing_its_worker_is_told_once(folder):
    """By the view; the engine's line in the log would stand in the middle of it."""
    command = [sys.executable, "-m", "layby.cli", "run", f"{FLOWS}:deadly", "--id", "r"]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 3
    with closing(sqlite3.connect(folder / "layby.db")) as file, file:
        file.execute("UPDATE promises SET task_crashes = 4 WHERE id = 'run/r:dies'")
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "dies: Failed" in ended.stderr
    assert "WorkerLost" in ended.stderr
    assert "run/r:dies failed: WorkerLost" not in ended.stderr
