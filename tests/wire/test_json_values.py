import base64
import json
from enum import IntEnum, StrEnum

import pytest
from hypothesis import given

from layby.core import values
from layby.core.commands import Value
from layby.errors import ContextError
from layby.wire.json_values import (
    ErrorText,
    encode,
    error_value,
    from_text,
    named_error_value,
    read_error,
    shown,
    text_of,
    to_value,
)
from tests.workflow.test_context import JSON


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Text(str):
    __slots__ = ()


class Texts(dict): ...


@given(JSON)
def test_a_value_comes_back_as_it_went(value):
    assert from_text(text_of(to_value(value))) == value


def of_an_sdk(payload: object) -> str:
    """As the SDKs write it."""
    data = base64.b64encode(json.dumps(payload).encode()).decode()
    return json.dumps({"headers": {}, "data": data})


@given(JSON)
def test_what_the_sdks_write_is_read(value):
    assert from_text(of_an_sdk(value)) == value


def test_the_envelope_is_that_of_the_sdks():
    assert text_of(to_value("x")) == '{"headers":{},"data":"Ingi"}'


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        ((1, [(2,)]), b"[1,[[2]]]"),
        (Colour.RED, b'"red"'),
        ([Level.HIGH, (Colour.RED,)], b'[3,["red"]]'),
        (Texts(a=1), b'{"a":1}'),
        ("1234567890123456789012345", b'"1234567890123456789012345"'),
        (2**64 - 1, b"18446744073709551615"),
        (-(2**63), b"-9223372036854775808"),
    ],
)
def test_what_counts_as_json(value, encoded):
    assert encode(value) == encoded


def test_the_name_is_told_when_it_is_none():
    with pytest.raises(ContextError, match=r"result of checkpoint 'x'\[1\] is of type object"):
        to_value([1, object()], "result of checkpoint 'x'")
    with pytest.raises(ContextError, match=r"value is not JSON: .*Text"):
        encode([Text("a")])


def test_a_bad_value_too_deep_to_be_walked_is_still_named():
    deep: object = object()
    for _ in range(900):
        deep = [deep]
    with pytest.raises(ContextError, match="value"):
        encode(deep)


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def wrapped(data: str) -> str:
    return json.dumps({"headers": {"x": "y"}, "data": data})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{}", None),
        ('{"headers":{}}', None),
        ('{"data":""}', None),
        ('{"data":"not base64!"}', "not base64!"),
        ('{"data":"abcd"}', "abcd"),
        (wrapped(b64("not json")), b64("not json")),
        (wrapped(b64('{"a":1}')), {"a": 1}),
        (wrapped(b64("null")), None),
        ("plain text", "plain text"),
        ('{"data":7}', '{"data":7}'),
    ],
)
def test_what_others_wrote_is_read_leniently(text, value):
    assert from_text(text) == value


def fails():
    raise ValueError("bad order")


def caught(function) -> BaseException:
    try:
        function()
    except BaseException as error:  # noqa: BLE001
        return error
    raise AssertionError


def test_an_error_in_the_form_of_the_sdks():
    found = from_text(text_of(error_value(caught(fails))))
    assert (found["__type"], found["name"], found["message"]) == (
        "error",
        "ValueError",
        "bad order",
    )
    assert "in fails" in found["stack"]


def recurses():
    recurses()


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (caught(recurses), "maximum recursion depth exceeded"),
        (ValueError("x" * 100_000), "xxx"),
        (Unprintable(), "cannot be shown"),
        (ValueError("\ud800"), "\\ud800"),
        (ValueError(), ""),
    ],
)
def test_strange_errors_are_told_and_kept_short(error, message):
    found = from_text(text_of(error_value(error)))
    assert message in found["message"]
    assert len(found["stack"]) < 9_000
    assert len(found["message"]) < 5_000


@pytest.mark.parametrize(
    ("text", "name", "message", "details"),
    [
        (values.error("WorkerLost", "gone", crashes=5), "WorkerLost", "gone", {"crashes": 5}),
        (of_an_sdk({"message": "no name"}), "Error", "no name", {}),
        (of_an_sdk({"code": 7}), "Error", '{"code":7}', {"code": 7}),
        (of_an_sdk("just text"), "Error", "just text", {}),
        (of_an_sdk(None), "Error", "", {}),
        ('{"data":"raw"}', "Error", "raw", {}),
        ("{}", "Error", "", {}),
        (None, "Error", "", {}),
    ],
)
def test_errors_of_others_are_read_leniently(text, name, message, details):
    assert read_error(text) == ErrorText(name, message, details)


def test_an_error_as_one_line():
    assert str(ErrorText("ValueError", "bad")) == "ValueError: bad"
    assert str(ErrorText("ValueError", "")) == "ValueError"
    assert read_error(text_of(named_error_value("A", "b", c=1))) == ErrorText("A", "b", {"c": 1})


def test_plain_json_is_not_walked_in_python(monkeypatch):
    """Values are read back in C instead; a megabyte would take long otherwise."""
    monkeypatch.setattr("layby.wire.json_values._refuse_non_json", pytest.fail)
    assert json.loads(encode({"rows": [{"n": n, "x": n / 7} for n in range(1000)]}))


def test_values_are_core_values():
    assert to_value(1) == Value(headers={}, data=b64("1"))


def test_what_is_nested_too_deeply_is_shown_as_it_was_sent() -> None:
    """A list is of many, and whoever may create one promise must not end it."""
    data = base64.b64encode(b"[" * 5_000 + b"]" * 5_000).decode()
    text = text_of(Value(data=data))
    assert shown(text) == data
    assert read_error(text) == ErrorText("Error", data)
    assert shown(text_of(to_value([[1]]))) == [[1]]
    assert shown(text_of(Value(data="none"))) == "none"
