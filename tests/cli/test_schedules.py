"""Schedules by the protocol."""

import pytest

from layby.core.commands import CreateRunSchedule, Node
from tests.helpers.command_line import Desk, typed

NIGHTLY = (
    "nightly",
    "--cron",
    "0 3 * * *",
    "--param",
    '{"func": "clean", "args": []}',
    "--tag",
    "resonate:target=poll://any@default",
)


def test_create_get_search_delete(desk: Desk):
    """The whole life of one."""
    made = typed("schedules", "create", *NIGHTLY, "--timeout", "2h", "--json").json["schedule"]
    assert (
        made
        | {
            "id": "nightly",
            "cron": "0 3 * * *",
            "promise_id": "{{.id}}-{{.timestamp}}",
            "promise_timeout_ms": 7_200_000,
            "promise_param": {"func": "clean", "args": []},
            "last": None,
        }
        == made
    )
    lines = typed("schedules", "get", "nightly").lines
    assert lines[0].split() == ["schedule", "nightly"]
    assert [line for line in lines if line.startswith("next") and " in " in line]
    table = typed("schedules", "search").lines
    assert table[0].split() == ["SCHEDULE", "CRON", "NEXT", "LAST", "CREATES"]
    assert table[1].startswith("nightly   0 3 * * *  in ")
    assert typed("schedule", "delete", "nightly").lines == ["nightly is deleted"]
    assert typed("schedules", "search", "--json").json == {"schedules": []}


def test_a_schedule_of_runs_says_which(desk: Desk):
    """With the clock it goes by."""
    (made,) = desk.do(
        CreateRunSchedule(
            id="nightly",
            cron="0 3 * * *",
            timezone="Europe/Berlin",
            name="order",
            group="default",
            nodes=(Node("a", "order/a"),),
        )
    )
    assert made.schedule.flow == "order"
    table = typed("schedules", "search").lines
    assert "0 3 * * * (Europe/Berlin)" in table[1]
    assert "nightly-TIME, a run of 'order'" in table[1]
    told = typed("schedules", "get", "nightly", "--json").json["schedule"]
    assert (told["workflow"], told["timezone"]) == ("order", "Europe/Berlin")
    assert typed("schedules", "get", "nightly").code == 0


@pytest.mark.parametrize("verb", ["get", "delete"])
def test_an_unknown_schedule(desk: Desk, verb):
    """With the one that may have been meant."""
    typed("schedules", "create", *NIGHTLY)
    typed("schedules", verb, "nigthly").complains(1, "no schedule 'nigthly'", "mean 'nightly'")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("s", "--cron", "often", *NIGHTLY[5:]), "Invalid cron expression 'often': write five"),
        (("s", "--cron", "", *NIGHTLY[5:]), "Cron expression is required: write five fields"),
        (("s", "--cron", "* * * * *"), "resonate:target"),
        (("s",), "Missing option '--cron'"),
        (("s", "--cron", "* * * * *", "--timeout", "5"), "not a duration"),
        (("s", "--cron", "* * * * *", "--param", "{x}"), "is not JSON"),
    ],
)
def test_bad_input(desk: Desk, arguments, said):
    """Exit code 2."""
    result = typed("schedules", "create", *arguments)
    assert result.code == 2, result
    assert said.lower() in " ".join(result.err.split()).lower()


def test_deleting_as_json(desk: Desk):
    """One document."""
    typed("schedules", "create", *NIGHTLY)
    assert typed("schedules", "delete", "nightly", "--json").json == {"ok": True}
