"""What an answer may look like: the part of JSON Schema that a form can show and core can check.

A keyword that is not here is refused when the question is asked, so nothing that its author relies
on is silently ignored. Patterns are not here: they could take for ever on the text of a stranger.

It is as strict as msgspec, which reads the answer as a class later: what is accepted here and
refused there could not be asked again.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time
from typing import Annotated, Any, Final, cast

import msgspec
from msgspec import Meta

Schema = Mapping[str, Any]

MAX_SCHEMA_BYTES: Final = 16 * 1024
MAX_DEPTH: Final = 8
FORMATS: Final[Mapping[str, Any]] = {
    "date": date,
    "date-time": datetime,
    "date-time-local": Annotated[datetime, Meta(tz=False)],
    "date-time-offset": Annotated[datetime, Meta(tz=True)],
    "time": time,
    "time-local": Annotated[time, Meta(tz=False)],
    "time-offset": Annotated[time, Meta(tz=True)],
}
"""Texts as RFC 3339 has them. Local ones have no offset from UTC, and others must have one where
the name says so."""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_float(value: object) -> bool:
    """A number that a float can hold."""
    try:
        return _is_number(value) and math.isfinite(float(cast("float", value)))
    except OverflowError:
        return False


_REMARKS: Final = frozenset(("title", "description", "default", "examples"))
_TYPES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": _is_float,
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
}
_BOUNDS: Final[Mapping[str, tuple[Callable[[Any, Any], bool], str]]] = {
    "minimum": (lambda value, bound: value >= bound, "at least"),
    "maximum": (lambda value, bound: value <= bound, "at most"),
    "exclusiveMinimum": (lambda value, bound: value > bound, "more than"),
    "exclusiveMaximum": (lambda value, bound: value < bound, "less than"),
}
_SIZES: Final[Mapping[str, tuple[type, Callable[[int, int], bool], str]]] = {
    "minLength": (str, lambda size, bound: size >= bound, "at least {} characters"),
    "maxLength": (str, lambda size, bound: size <= bound, "at most {} characters"),
    "minItems": (list, lambda size, bound: size >= bound, "at least {} items"),
    "maxItems": (list, lambda size, bound: size <= bound, "at most {} items"),
}
_SUBSCHEMAS: Final = ("properties", "required", "additionalProperties", "items", "anyOf")
_CHOICES: Final = ("enum", "const")
KEYWORDS: Final = frozenset(
    ("type", "format", *_SUBSCHEMAS, *_CHOICES, *_BOUNDS, *_SIZES, *_REMARKS)
)


def schema_problem(schema: object) -> str | None:
    """Why answers cannot be checked by it; None if they can."""
    try:
        size = len(msgspec.json.encode(schema))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        return "the schema is not JSON"
    if size > MAX_SCHEMA_BYTES:
        return f"the schema has {size} bytes, more than {MAX_SCHEMA_BYTES}"
    return next(_schema_problems(schema, "the schema", 0), None)


def answer_problem(schema: Schema, answer: object, where: str = "the answer") -> str | None:
    """Why it does not fit; None if it does."""
    return next(_problems(schema, answer, where), None)


# --- the schema itself --------------------------------------------------------------------------


def _schema_problems(schema: object, where: str, depth: int) -> Iterator[str]:
    if not isinstance(schema, dict):
        yield f"{where} must be an object, got {schema!r:.60}"
        return
    if depth > MAX_DEPTH:
        yield f"{where} is nested too deeply"
        return
    known = cast("dict[str, Any]", schema)
    for each in known:
        if each not in KEYWORDS:
            yield f"{where} has '{each}', which is not supported: use {', '.join(sorted(KEYWORDS))}"
    yield from _wrong_keywords(known, where)
    for place, inner in _inner_schemas(known):
        yield from _schema_problems(inner, f"{where}{place}", depth + 1)


def _wrong_keywords(schema: dict[str, Any], where: str) -> Iterator[str]:
    for each in _types_of(schema):
        if each not in _TYPES:
            yield f"{where} has type {each!r:.40}: it is one of {', '.join(_TYPES)}"
    if (found := schema.get("format")) is not None and found not in FORMATS:
        yield f"{where} has format {found!r:.40}: it is one of {', '.join(FORMATS)}"
    if not isinstance(schema.get("enum", []), list):
        yield f"{where}: enum must be a list"
    required: object = schema.get("required", [])
    names = cast("list[object]", required) if isinstance(required, list) else [None]
    if not all(isinstance(name, str) for name in names):
        yield f"{where}: required must be a list of names"
    for each in (*_BOUNDS, *_SIZES):
        if each in schema and not _is_number(schema[each]):
            yield f"{where}: {each} must be a number"


def _inner_schemas(schema: dict[str, Any]) -> Iterator[tuple[str, object]]:
    properties: object = schema.get("properties", {})
    if isinstance(properties, dict):
        for name, inner in cast("dict[str, object]", properties).items():
            yield f"['{name}']", inner
    else:
        yield " properties", properties
    if "items" in schema:
        yield "[]", schema["items"]
    more = schema.get("additionalProperties", True)
    if not isinstance(more, bool):
        yield "[...]", more
    either: object = schema.get("anyOf", [])
    for inner in cast("list[object]", either) if isinstance(either, list) else [either]:
        yield "", inner


# --- answers ------------------------------------------------------------------------------------


def _problems(schema: Schema, answer: Any, where: str) -> Iterator[str]:
    types = _types_of(schema)
    if types and not any(_TYPES[each](answer) for each in types):
        yield f"{where} must be {_listed(types)}, got {_shown(answer)}"
        return
    if "const" in schema and not _is_same(schema["const"], answer):
        yield f"{where} must be {_shown(schema['const'])}, got {_shown(answer)}"
    if "enum" in schema and not any(_is_same(each, answer) for each in schema["enum"]):
        yield f"{where} must be one of {_listed(schema['enum'])}, got {_shown(answer)}"
    if (either := schema.get("anyOf")) and all(answer_problem(each, answer) for each in either):
        found = answer_problem(either[0], answer, where)
        yield found or f"{where} does not fit"
    yield from _wrong_size(schema, answer, where)
    if isinstance(answer, dict):
        yield from _wrong_object(schema, cast("dict[str, Any]", answer), where)
    elif isinstance(answer, list) and "items" in schema:
        for index, each in enumerate(cast("list[Any]", answer)):
            yield from _problems(schema["items"], each, f"{where}[{index}]")


def _wrong_size(schema: Schema, answer: Any, where: str) -> Iterator[str]:
    if _is_number(answer):
        for keyword, (fits, words) in _BOUNDS.items():
            if keyword in schema and not fits(answer, schema[keyword]):
                yield f"{where} must be {words} {schema[keyword]}, got {answer}"
    for keyword, (kind, fits, words) in _SIZES.items():
        if keyword in schema and isinstance(answer, kind):
            size = len(cast("list[Any] | str", answer))
            if not fits(size, schema[keyword]):
                yield f"{where} must have {words.format(schema[keyword])}, got {size}"
    if "format" in schema and isinstance(answer, str) and not _has_format(schema["format"], answer):
        yield f"{where} must be a {schema['format']}, got {_shown(answer)}"


def _wrong_object(schema: Schema, answer: dict[str, Any], where: str) -> Iterator[str]:
    properties: dict[str, Schema] = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in answer:
            yield f"{where} must have '{name}'"
    more: Any = schema.get("additionalProperties", True)
    for name, each in answer.items():
        if name in properties:
            yield from _problems(properties[name], each, f"{where}['{name}']")
        elif more is False:
            yield f"{where} must not have '{name}'"
        elif isinstance(more, dict):
            yield from _problems(cast("Schema", more), each, f"{where}['{name}']")


def _types_of(schema: Schema) -> list[str]:
    found: Any = schema.get("type", [])
    return cast("list[str]", found) if isinstance(found, list) else [found]


def _has_format(name: str, text: str) -> bool:
    try:
        msgspec.convert(text, FORMATS[name])
    except msgspec.ValidationError:
        return False
    return True


def _is_same(one: object, other: object) -> bool:
    """In JSON, true is not 1; and 1.0 is not a whole number here, as for the type."""
    return (
        one == other
        and isinstance(one, bool) == isinstance(other, bool)
        and (isinstance(other, int) or not isinstance(one, int))
    )


def _listed(names: list[Any]) -> str:
    return " or ".join(each if isinstance(each, str) else _shown(each) for each in names)


def _shown(value: object) -> str:
    return f"{value!r:.60}"
