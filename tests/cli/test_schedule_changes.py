"""Schedules of workflows from the command line: on a file, as it lies there."""

import json
from pathlib import Path

import pytest

from tests.helpers.command_line import Desk, typed

CODE = """
from layby import Workflow, task

@task
async def collect(context):
    context["rows"] = 3

{more}
report = Workflow("report", tasks=[collect{tasks}])
"""
SIGN = "@task(dependencies=[collect])\nasync def sign(context):\n    pass\n"
NOBODY = "workflow 'report': no living worker of group 'default' has its code"


@pytest.fixture
def code(tmp_path: Path) -> Path:
    file = tmp_path / "reports.py"
    file.write_text(CODE.format(more="", tasks=""))
    return file


def add(code: Path, *options: str, cron: str = "0 9 * * mon-fri"):
    return typed("schedules", "add", f"{code}:report", "--cron", cron, *options)


def shown(schedule_id: str = "report"):
    return typed("schedules", "show", schedule_id, "--json").json["schedule"]


def test_the_whole_life_of_one(desk: Desk, code: Path) -> None:
    """Added, listed, shown, paused, unpaused, started by hand, deleted."""
    said = add(code, "--timezone", "Europe/Berlin", "--context", "to=ada", "--overlap", "skip")
    assert said.code == 0, said
    assert NOBODY in said.err
    assert "overlap" in said.out
    told = shown()
    assert (told["workflow"], told["timezone"]) == ("report", "Europe/Berlin")
    assert (told["overlap"], told["skipped"], told["paused"]) == ("skip", 0, None)
    assert told["next"] is not None

    listed = typed("schedules").lines
    assert listed[0].split() == ["SCHEDULE", "CRON", "NEXT", "LAST", "CREATES"]
    assert listed[1].startswith("report    0 9 * * mon-fri (Europe/Berlin)  in ")
    assert typed("schedules", "--json").json == typed("schedules", "list", "--json").json

    assert typed("schedules", "pause", "report").lines == ["report is paused"]
    assert " paused " in typed("schedules").lines[1]
    assert [
        line for line in typed("schedules", "show", "report").lines if line.startswith("paused")
    ]
    assert shown()["next"] is None
    assert shown()["paused"] is not None

    started = typed("schedules", "start-now", "report")
    assert started.code == 0
    assert NOBODY in started.err
    (run,) = typed("runs", "--json").json["runs"]
    assert started.out == f"report: run {run['id']} is started\n"
    assert "-now-" in run["id"]

    (line,) = typed("schedules", "unpause", "report").lines
    assert line.startswith("report is not paused; its next run comes in ")
    assert typed("schedules", "delete", "report").lines == ["report is deleted"]
    assert typed("schedules", "--json").json == {"schedules": []}
    assert len(typed("runs", "--json").json["runs"]) == 1


def test_a_changed_workflow_needs_replace(desk: Desk, code: Path) -> None:
    """The error names what differs; --replace changes it, and a paused one stays paused."""
    add(code)
    typed("schedules", "pause", "report")
    code.write_text(CODE.format(more=SIGN, tasks=", sign"))
    add(code).complains(
        1,
        "layby: Schedule 'report' already exists and differs in tasks (added 'sign'): "
        "give --replace to change it, or another --id",
    )
    assert add(code, "--replace", "--overlap", "queue-one", "--catch-up").code == 0
    told = shown()
    assert (told["overlap"], told["catch_up"]) == ("queue_one", True)
    assert told["paused"] is not None
    add(code).complains(
        1, "catch-up (True, not False), overlap ('queue-one', not 'allow'): give --replace"
    )
    typed("schedules", "unpause", "report")
    assert add(code, "--replace", "--json").code == 0


def test_as_json(desk: Desk, code: Path) -> None:
    """One document each."""
    add(code, "--id", "weekly")
    assert typed("schedules", "pause", "weekly", "--json").json["schedule"]["paused"]
    assert typed("schedules", "unpause", "weekly", "--json").json["schedule"]["paused"] is None
    said = typed("schedules", "start-now", "weekly", "--json")
    assert json.loads(said.out)["run"].startswith("weekly-")


@pytest.mark.parametrize("verb", ["show", "pause", "unpause", "start-now", "delete"])
def test_an_unknown_schedule(desk: Desk, code: Path, verb: str) -> None:
    """With the one that may have been meant."""
    add(code)
    typed("schedules", verb, "reprot").complains(1, "no schedule 'reprot'", "mean 'report'")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--overlap", "never"), "'never' is not one of"),
        (("--timezone", "Europe/Berln"), "did you mean 'Europe/Berlin'?"),
        (("--id", "a:b"), "must not contain ':'"),
        (("--deadline", "5"), "not a duration"),
        (("--priority", "101"), "101 is not in the range -100<=x<=100"),
    ],
)
def test_bad_input(desk: Desk, code: Path, options: tuple[str, ...], said: str) -> None:
    result = add(code, *options)
    assert result.code == 2, result
    assert said in " ".join(result.err.split())
    assert typed("schedules", "--json").json == {"schedules": []}


@pytest.mark.parametrize("overlap", ["allow", "skip", "queue-one"])
def test_the_policy_is_shown_as_it_is_typed(desk: Desk, code: Path, overlap: str) -> None:
    said = add(code, "--overlap", overlap)
    lines = typed("schedules", "show", "report").lines
    assert said.out.splitlines() == lines
    assert f"overlap   {overlap}, 0 skipped so far" in lines


def test_the_priority_of_its_runs_is_shown_if_they_have_one(desk: Desk, code: Path) -> None:
    add(code, "--priority", "-7")
    assert "priority  -7" in typed("schedules", "show", "report").lines
    assert typed("schedules", "show", "report", "--json").json["priority"] == -7
    assert "priority" not in add(code, "--priority", "0", "--replace").out


def test_a_name_that_cannot_be_an_id_needs_one(desk: Desk, code: Path) -> None:
    code.write_text(code.read_text().replace('"report"', '"my.report"'))
    add(code).complains(2, "give --id, since the workflow's name cannot be one")
    assert add(code, "--id", "report").code == 0


@pytest.mark.parametrize("verb", ["pause", "unpause", "start-now"])
def test_a_schedule_of_promises_can_only_be_deleted(desk: Desk, code: Path, verb: str) -> None:
    """The protocol knows no such thing."""
    typed(
        *("schedules", "create", "plain", "--cron", "* * * * *"),
        *("--tag", "resonate:target=poll://any@default"),
    )
    typed("schedules", verb, "plain").complains(
        1,
        "layby: Schedule 'plain' creates promises, and does not start runs of a workflow: it can "
        "be deleted, but not paused, unpaused or started now",
    )
    add(code, "--id", "plain").complains(
        1, "(it creates promises): delete it, or give another --id"
    )
