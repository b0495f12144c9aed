"""`layby limits`, and what `why`, `waiting` and `doctor` say of tasks that wait for permits."""

import shlex
import sqlite3
from contextlib import closing

from layby.core.commands import Node, StartRun, Take
from tests.helpers.command_line import Desk, typed


def limited(run_id: str, name: str = "api") -> StartRun:
    node = Node(id="call", name="w/call", limits=(name,))
    return StartRun(id=f"run/{run_id}", name="w", group="g", nodes=(node,))


def take(desk: Desk) -> None:
    desk.do(
        Take(pid="p", incarnation="1", group="g", names=("w", "w/call"), free=9, embedded=False)
    )


def test_a_limit_is_set_shown_listed_and_deleted(desk: Desk):
    """The whole life of one."""
    typed("limits", "set", "api", "--concurrency", "1", "--rate", "10/min", "--burst", "2")
    for each in ("a", "b", "c"):
        desk.do(limited(each))
    take(desk)
    shown = typed("limits", "show", "api").lines
    assert shown[0] == "api"
    assert [" ".join(line.split()) for line in shown[1:]] == [
        "held 1 of 1",
        "run/a:call",
        "rate 10/min, burst 2",
        "waiting 2",
    ]
    table = typed("limits").lines
    assert table[0].split() == ["LIMIT", "HELD", "RATE", "WAITING", "HOLDERS"]
    assert table[1].split() == ["api", "1", "of", "1", "10/min,", "burst", "2", "2", "run/a:call"]
    as_json = typed("limits", "list", "--json").json["limits"]
    assert (as_json[0]["name"], as_json[0]["held"], as_json[0]["waiting"]) == ("api", 1, 2)
    assert typed("limits", "delete", "api").lines == ["limit api is deleted"]
    assert "is not defined" in typed("limits", "show", "api").lines[1]


def test_why_names_who_holds_the_permits(desk: Desk):
    typed("limits", "set", "api", "--concurrency", "1")
    for each in ("a", "b"):
        desk.do(limited(each))
    take(desk)
    told = " ".join(typed("why", "b:call").lines)
    assert "waits for a permit of 'api' (1 of 1 held by run/a:call)" in told
    listed = " ".join(typed("waiting").lines)
    assert "waits for a permit of 'api' (1 of 1 held by run/a:call)" in listed


def test_why_says_until_when_a_rate_keeps_it(desk: Desk):
    typed("limits", "set", "api", "--rate", "1/h")
    for each in ("a", "b"):
        desk.do(limited(each))
    take(desk)
    told = " ".join(typed("why", "b:call").lines)
    assert "waits for a permit of 'api': the next one may begin in " in told
    assert "1/h)" in told


def test_why_says_that_a_limit_is_not_defined(desk: Desk):
    desk.do(limited("a", "nowhere"))
    told = " ".join(typed("why", "a:call").lines)
    assert "limit 'nowhere' is not defined: runner.limit('nowhere', …) or layby limits set" in told
    assert "not defined" in " ".join(typed("limits").lines)


def test_names_with_spaces_can_be_pasted(desk: Desk):
    """Every command that `why` prints, also in sentences, quotes the limit for a shell."""
    desk.do(limited("my run", "tenant 7"))
    lines = typed("why", "my run:call").lines
    assert "layby limits set 'tenant 7' --concurrency N" in lines[0]
    (command,) = (line.strip() for line in lines if line.strip().startswith("$"))
    words = shlex.split(command.replace("N", "0"))
    assert typed(*words[2:]).code == 0
    show = next(line for line in typed("why", "my run:call").lines if "$" in line)
    assert shlex.split(show)[2:5] == ["limits", "show", "tenant 7"]
    typed("wake", "my run").complains(1, "`layby why 'my run'`")


def test_wrong_numbers_are_refused(desk: Desk):
    typed("limits", "set", "api", "--rate", "often").complains(2, "10/min")
    typed("limits", "set", "api").complains(2, "--concurrency")
    typed("limits", "show", "nothing").complains(1, "layby limits")
    typed("limits", "delete", "nothing").complains(1, "layby limits")


def test_doctor_counts_limits_and_sees_a_wrong_count(desk: Desk):
    typed("limits", "set", "api", "--concurrency", "1")
    for each in ("a", "b"):
        desk.do(limited(each))
    take(desk)
    assert any(line.split()[:2] == ["limits", "1"] for line in typed("doctor").lines)
    with closing(sqlite3.connect(desk.file)) as file, file:
        file.execute("UPDATE limits SET held = 2")
    said = typed("doctor")
    assert said.code == 1
    assert "held_permits_are_out" in said.out
