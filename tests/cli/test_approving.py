"""`layby approvals|approve|deny`: what a person reads and types."""

import json
from typing import Any

from layby.core.commands import CreateBelow
from layby.wire import json_values
from tests.helpers import requests as r
from tests.helpers.command_line import Desk, typed

TASK = "run/a:a"
PRICE = {"type": "object", "properties": {"eur": {"type": "integer"}}, "required": ["eur"]}


def asked(desk: Desk, name: str = "approval-1", **question: Any) -> str:
    """A task that asks; returns the short id of the approval."""
    tags = {"layby:approval": "true", "layby:asker": TASK, "resonate:external": "true"}
    param = json_values.to_value({"prompt": "Ship it?", **question})
    promise_id = f"{TASK}.c.approval.{name}"
    desk.do(CreateBelow(id=TASK, version=1, promise_id=promise_id, param=param, tags=tags))
    return promise_id.removeprefix("run/")


def started(desk: Desk) -> None:
    desk.do(r.run(with_take=r.take(), a=""))


def test_the_list_and_a_yes(desk: Desk):
    """The list shows the question; the answer keeps who and why; a second one is told who."""
    started(desk)
    short = asked(desk)
    assert short in typed("approvals").out
    assert "Ship it?" in typed("approvals").out
    (found,) = typed("approvals", "--json").json["approvals"]
    assert (found["prompt"], found["task"], found["deadline"]) == ("Ship it?", TASK, None)
    said = typed("approve", short, "--by", "anna", "--reason", "paid").lines
    assert said == [f"{short} is approved"]
    late = typed("deny", short, "--by", "bob")
    late.complains(1, f"{short} was settled before by anna")
    assert late.err.endswith(": it stays approved\n")
    assert typed("approvals").lines == ["nobody is asked for an approval"]
    read = typed("promises", "get", f"run/{short}", "--json").json["promise"]
    assert read["headers"] == {"layby:by": "anna", "layby:reason": "paid"}


def test_the_task_is_enough_if_it_asks_one_thing(desk: Desk):
    """With two questions they are named."""
    started(desk)
    first, second = asked(desk), asked(desk, "key.other")
    typed("approve", "a:a").complains(1, "asks for several approvals", first, second)
    typed("deny", first, "--reason", "no")
    assert typed("deny", "a:a", "--reason", "no").lines == [f"{second} is denied"]
    typed("approve", "a:a", "--by", "bob").complains(1, f"{second} was settled before")


def test_the_loser_is_told_who_was_first_also_by_task_and_run(desk: Desk):
    """cli.md: "for later ones the exit code is 1, and the message says who has answered"."""
    started(desk)
    short = asked(desk)
    typed("approve", "a:a", "--by", "ann")
    for each in ("a:a", "a"):
        typed("deny", each, "--by", "bob").complains(1, f"{short} was settled before by ann")


def test_a_run_does_not_mean_another_whose_name_begins_the_same(desk: Desk):
    started(desk)
    asked(desk)
    desk.do(r.promise("run"))
    typed("approve", "run").complains(1, "asks nobody for an approval")
    assert len(typed("approvals", "--json").json["approvals"]) == 1


def test_a_value_that_does_not_fit_leaves_it_open(desk: Desk):
    """Exit code 2: it could not be done like this."""
    started(desk)
    short = asked(desk, schema=PRICE)
    typed("approve", short, "--value", "{}").complains(2, "the answer must have 'eur'")
    typed("approve", short).complains(2, "must be object")
    said = typed("approve", short, "--value", '{"eur": 7}', "--json")
    assert json.loads(said.out)["promise"]["value"] == {"eur": 7}


def test_what_is_not_an_approval(desk: Desk):
    """The error says where to look."""
    started(desk)
    typed("approve", "nothing").complains(1, "`layby approvals`")
    desk.do(r.promise("paid"))
    typed("approve", "paid").complains(1, "asks nobody")


def test_why_names_the_command(desk: Desk):
    """An open approval is answered, not resolved."""
    started(desk)
    short = asked(desk)
    named = [each.strip() for each in typed("why", f"run/{short}").lines]
    assert f"$ layby approve {short}" in named


def test_why_names_the_command_that_gives_a_value(desk: Desk):
    """Without one the yes would be refused."""
    started(desk)
    short = asked(desk, schema=PRICE)
    assert f"$ layby approve {short} --value JSON" in typed("why", f"run/{short}").out
