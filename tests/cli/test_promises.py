"""Promises by the protocol: every operation, for people and for programs."""

import json

import pytest

from layby.core.commands import CreatePromise, SettlePromise
from layby.core.model import NEVER
from layby.wire import json_values
from layby.wire.json_values import to_value
from tests.helpers import requests as r
from tests.helpers.command_line import Desk, typed


def test_create_get_and_resolve(desk: Desk):
    """What goes in as JSON comes out as JSON; the record says when."""
    made = typed("promises", "create", "p", "--param", '{"a": [1]}', "--tag", "k=v", "--json").json
    assert (
        made["promise"]
        | {
            "id": "p",
            "state": "pending",
            "param": {"a": [1]},
            "value": None,
            "tags": {"k": "v"},
            "timeout": None,
            "timeout_ms": None,
            "settled": None,
        }
        == made["promise"]
    )
    typed("promises", "resolve", "p", "--value", '"done"')
    read = typed("promises", "get", "p", "--json").json["promise"]
    assert (read["state"], read["value"]) == ("resolved", "done")
    assert read["settled"].endswith("Z")
    assert read["settled_ms"] >= read["created_ms"]


def test_into_a_pipe_a_value_of_any_length_comes_whole(desk: Desk):
    """Lines are never cut there, and the names before them stay as they are."""
    value = to_value("x" * 200_000)
    desk.do(CreatePromise(id="p", timeout_at=NEVER, param=value))
    lines = typed("promises", "get", "p").lines
    assert lines[0] == "promise  p"
    assert f'param    "{"x" * 200_000}"' in lines


def test_a_promise_for_people(desk: Desk):
    """A line for each thing to know, times as people say them."""
    desk.do(
        CreatePromise(
            id="p", timeout_at=NEVER, param=to_value({"func": "f"}), tags={"a": "1", "b": "[x]"}
        )
    )
    lines = typed("promises", "get", "p").lines
    assert lines[0].split() == ["promise", "p"]
    assert "state    pending" in lines
    assert [line for line in lines if line.startswith("created  just now (20")]
    assert "tag      b=[x]" in lines
    assert 'param    {"func":"f"}' in lines


def test_where_an_error_was_raised_stands_apart(desk: Desk):
    """Line by line for people, whole for programs."""
    error = json_values.named_error_value(
        "ValueError", "no", stack="Traceback:\n  File x\nValueError\n"
    )
    desk.do(r.promise("p"), SettlePromise(id="p", state="rejected", value=error))
    assert typed("promises", "get", "p").lines[-4:] == [
        'value    {"__type":"error","name":"ValueError","message":"no"}',
        "stack    Traceback:",
        "           File x",
        "         ValueError",
    ]
    assert "Traceback" not in typed("promises", "search").out
    assert "Traceback" in typed("promises", "get", "p", "--json").json["promise"]["value"]["stack"]


def test_a_deadline_is_relative_and_absolute(desk: Desk):
    """`1h30m` from now."""
    lines = typed("promises", "create", "p", "--timeout", "1h30m").lines
    assert [line for line in lines if line.startswith("deadline  in 1 h 30 min (20")]


@pytest.mark.parametrize(
    ("verb", "state"),
    [("resolve", "resolved"), ("reject", "rejected"), ("cancel", "rejected_canceled")],
)
def test_every_way_to_settle(desk: Desk, verb, state):
    """A settled promise stays as it is: that is the protocol's answer, not an error."""
    desk.do(r.promise("p"))
    settled = typed("promises", verb, "p", "--value", "1", "--json").json["promise"]
    again = typed("promises", "resolve", "p", "--value", "2", "--json").json["promise"]
    assert (settled["state"], settled["value"]) == (state, 1)
    assert again == settled


@pytest.mark.parametrize("verb", ["get", "resolve", "reject", "cancel"])
def test_an_unknown_promise_is_not_made(desk: Desk, verb):
    """404 here, with the id that may have been meant; `layby resolve` would make it."""
    desk.do(r.promise("order-7.paid"))
    said = typed("promises", verb, "ordr-7.paid")
    said.complains(1, "there is no promise 'ordr-7.paid'", "did you mean 'order-7.paid'")
    typed("promises", verb, "zzz").complains(1, "layby promises search")


def test_search_by_state_tag_and_prefix(desk: Desk):
    """As a table, and as one document."""
    desk.do(r.promise("a1", timer="true"), r.promise("a2"), r.promise("b1"), r.settle("a2"))
    table = typed("promises", "search", "--state", "pending").lines
    assert [line.split()[0] for line in table] == ["PROMISE", "a1", "b1"]
    found = typed("promises", "search", "--prefix", "a", "--json").json["promises"]
    assert [each["id"] for each in found] == ["a1", "a2"]
    tagged = typed("promises", "search", "--tag", "resonate:timer=true", "--json").json
    assert [each["id"] for each in tagged["promises"]] == ["a1"]
    assert typed("promises", "search", "--state", "rejected").lines == ["no such promises here"]


def test_limits_are_kept_and_0_means_all(desk: Desk):
    """Through as many pages as it takes."""
    desk.do(*(r.promise(f"p{number:04}") for number in range(1_203)))
    said = typed("promises", "search")
    assert said.out.count("\n") == 101
    assert said.err == "... and more, beyond --limit 100 (--limit 0 lists all)\n"
    assert len(typed("promises", "search", "--limit", 1_203).lines) == 1_204
    assert len(typed("promises", "search", "--limit", 700, "--json").json["promises"]) == 700
    assert len(typed("promises", "search", "--limit", 0, "--json").json["promises"]) == 1_203


def test_register_callback_and_listener(desk: Desk):
    """The awaited promise is shown; whoever waits now waits."""
    desk.do(r.promise("p"), r.claimed("t"))
    assert typed("promises", "register-callback", "p", "t").code == 0
    assert typed("promises", "register-listener", "p", "http://example.org").code == 0
    why = typed("why", "p").lines[0]
    assert "1 task and 1 listener wait for it" in why


def test_what_cannot_be_registered_is_refused(desk: Desk):
    """With the protocol's own words and exit code 1; a bad address is wrong usage."""
    desk.do(r.promise("p"), r.promise("q"))
    typed("promises", "register-callback", "p", "q").complains(1, "no resonate:target tag")
    typed("promises", "register-listener", "p", "nowhere").complains(2, "listener address")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("create", "p", "--timeout", "soon"),
            "'soon' is not a duration: write a duration such as",
        ),
        (("create", "p", "--timeout", "0s"), "makes sense"),
        (("create", "p", "--param", "{"), "is not JSON"),
        (("create", "p", "--param", "hello"), "a string needs quotes: '\"hello\"'"),
        (("create", "p", "--param", "@gone.json"), "gone.json cannot be read"),
        (("create", "p", "--tag", "novalue"), "write KEY=VALUE"),
        (("create", "p", "--tag", "resonate:target=x"), "Invalid resonate:target address"),
        (("create", ""), "promise ID is required"),
        (("search", "--state", "new"), "'new' is not one of"),
        (("search", "--limit", "-1"), "not in the range"),
        (("get",), "Missing argument 'ID'"),
        (("gett", "p"), "Did you mean 'get'?"),
    ],
)
def test_bad_input_is_named(desk: Desk, arguments, said):
    """Exit code 2, and nothing has happened."""
    result = typed("promises", *arguments)
    assert result.code == 2
    assert said.lower() in " ".join(result.err.split()).lower()
    assert typed("promises", "search", "--json").json == {"promises": []}


@pytest.mark.parametrize("command", [("promises", "get"), ("tasks", "get"), ("why",), ("cancel",)])
def test_an_id_that_no_text_can_be(desk: Desk, command):
    """Bytes that are no UTF-8 on the command line."""
    typed(*command, "\udcff").complains(2, "must be valid Unicode")


def test_values_from_a_file_and_from_stdin(desk: Desk):
    """`@FILE`; the value may be any JSON."""
    (desk.file.parent / "v.json").write_text(json.dumps({"deep": [None, 1.5, "ä"]}))
    desk.do(r.promise("p"))
    settled = typed("promises", "resolve", "p", "--value", "@v.json", "--json").json["promise"]
    assert settled["value"] == {"deep": [None, 1.5, "ä"]}


def test_singular_is_fine(desk: Desk):
    """Whoever types `promise` means promises."""
    desk.do(r.promise("p"))
    assert typed("promise", "get", "p").code == 0
