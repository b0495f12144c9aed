"""What an answer may look like: checked the same for every way in which somebody answers."""

from typing import Any

import pytest

from layby.core.answer_schema import KEYWORDS, answer_problem, schema_problem

ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "amount": {"type": "number", "minimum": 0, "exclusiveMaximum": 100},
        "size": {"enum": ["S", "M"]},
        "day": {"type": "string", "format": "date"},
        "note": {"anyOf": [{"type": "string", "maxLength": 5}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
    },
    "required": ["amount"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "answer",
    [
        {"amount": 0},
        {"amount": 99.5, "size": "M", "day": "2026-11-16", "note": None, "tags": ["a", "b"]},
        {"amount": 1, "note": "short"},
    ],
)
def test_what_fits(answer: object) -> None:
    """No problem is named."""
    assert schema_problem(ORDER) is None
    assert answer_problem(ORDER, answer) is None


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (None, "the answer must be object, got None"),
        ({}, "the answer must have 'amount'"),
        ({"amount": True}, "the answer['amount'] must be number, got True"),
        ({"amount": -1}, "the answer['amount'] must be at least 0, got -1"),
        ({"amount": 100}, "the answer['amount'] must be less than 100, got 100"),
        ({"amount": 1, "size": "L"}, "the answer['size'] must be one of S or M, got 'L'"),
        ({"amount": 1, "day": "soon"}, "the answer['day'] must be a date, got 'soon'"),
        ({"amount": 1, "note": "too long"}, "['note'] must have at most 5 characters, got 8"),
        ({"amount": 1, "tags": ["a", 2]}, "the answer['tags'][1] must be string, got 2"),
        ({"amount": 1, "tags": list("abc")}, "['tags'] must have at most 2 items, got 3"),
        ({"amount": 1, "admin": True}, "the answer must not have 'admin'"),
    ],
)
def test_what_does_not_fit(answer: object, problem: str) -> None:
    """The problem names the place, what is wanted and what came."""
    assert problem in (answer_problem(ORDER, answer) or "")


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"pattern": "(a+)+"}, "'pattern', which is not supported"),
        ({"$ref": "#"}, "'$ref', which is not supported"),
        ({"type": "decimal"}, "has type 'decimal'"),
        ({"type": "string", "format": "email"}, "has format 'email'"),
        ({"properties": {"a": 3}}, "the schema['a'] must be an object"),
        ({"properties": [1]}, "properties must be an object"),
        ({"required": "amount"}, "required must be a list"),
        ({"enum": "ab"}, "enum must be a list"),
        ({"minimum": "1"}, "minimum must be a number"),
        ([], "must be an object"),
        ({"description": "x" * 20_000}, "more than 16384"),
        ({"const": object()}, "is not JSON"),
    ],
)
def test_what_is_not_a_schema(schema: object, problem: str) -> None:
    """Refused when the question is asked, not when somebody answers."""
    assert problem in (schema_problem(schema) or "")


def test_a_schema_nested_without_end() -> None:
    """A bounded depth bounds the work for an answer."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(12):
        schema = {"type": "array", "items": schema}
    assert "nested too deeply" in (schema_problem(schema) or "")


def test_true_is_not_one() -> None:
    """As in JSON."""
    assert answer_problem({"enum": [1]}, True) is not None
    assert answer_problem({"const": True}, 1) is not None
    assert answer_problem({"type": "integer"}, 3.0) is not None
    assert answer_problem({"enum": [1]}, 1.0) is not None
    assert answer_problem({"enum": [1.0]}, 1) is None
    assert "type" in KEYWORDS
