"""Calls in the form the SDKs make them."""

import pytest

from layby.clock import SystemClock
from tests.helpers.command_line import Desk, typed


def test_a_call_as_the_sdks_write_it(desk: Desk):
    """Function, arguments and version in the param; the target in the tags."""
    arguments = ("--arg", "Anna", "--arg", "42", "--arg", '{"a": 1}')
    made = typed("invoke", "c1", "-f", "hello", *arguments, "--json").json["promise"]
    assert made["param"] == {"func": "hello", "args": ["Anna", 42, {"a": 1}], "version": 1}
    assert made["tags"] == {"resonate:target": "poll://any@default"}
    assert made["timeout_ms"] - made["created_ms"] == pytest.approx(3_600_000, abs=5_000)


def test_all_arguments_as_json(desk: Desk):
    """Where types matter."""
    made = typed("invoke", "c1", "-f", "f", "--json-args", '["1", null]', "--version", 2, "--json")
    assert made.json["promise"]["param"] == {"func": "f", "args": ["1", None], "version": 2}


def test_a_delayed_call(desk: Desk):
    """Its deadline moves with it; until then it is due, not stuck."""
    made = typed("invoke", "c1", "-f", "f", "--delay", "10m", "--timeout", "1h", "--json").json
    delay = int(made["promise"]["tags"]["resonate:delay"])
    assert delay - SystemClock().now() == pytest.approx(600_000, abs=5_000)
    assert made["promise"]["timeout_ms"] - delay == 3_600_000
    assert typed("why", "c1").lines[0].startswith("call c1 of f() is due in 10 min")


def test_the_same_id_is_the_same_call(desk: Desk):
    """It is made once."""
    first = typed("invoke", "c1", "-f", "f", "--json").json
    assert typed("invoke", "c1", "-f", "other", "--json").json == first


def test_nobody_can_be_waited_for_here(desk: Desk):
    """A file without an owner has no workers: waiting would never end."""
    typed("invoke", "c1", "-f", "f", "--wait").complains(2, "no process serves", "layby serve")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Missing option '-f'"),
        (("-f", "f", "--arg", "1", "--json-args", "[]"), "exclude each other"),
        (("-f", "f", "--json-args", "{}"), "takes a JSON array"),
        (("-f", "f", "--json-args", "["), "is not JSON"),
        (("-f", "f", "--timeout", "1"), "not a duration"),
        (("-f", "f", "--target", "default"), "Invalid resonate:target address"),
    ],
)
def test_bad_input(desk: Desk, arguments, said):
    """Exit code 2, no call."""
    result = typed("invoke", "c1", *arguments)
    assert result.code == 2
    assert said.lower() in " ".join(result.err.split()).lower()
    assert typed("promises", "search", "--json").json == {"promises": []}
