"""Questions as fields of a form, and what a browser sends as an answer to them."""

import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final, cast

import msgspec

from layby.core.answer_schema import Schema
from layby.errors import UsageError

VALUE: Final = "value"
"""The name of the field, and the beginning of those of properties."""
_INPUTS: Final = {
    "date": "date",
    "date-time": "datetime-local",
    "date-time-local": "datetime-local",
    "time": "time",
    "time-local": "time",
}
"""What a browser has for a format; it has nothing for times with an offset."""
_WITHOUT_SECONDS: Final = re.compile(r"(?:\d{4,}-\d\d-\d\dT)?\d\d:\d\d")
"""As browsers send a time of a whole minute."""


def fields_of(schema: Schema | None, given: Mapping[str, str]) -> str:
    """The form of a schema; `given` is what somebody has filled in already."""
    return "".join(
        f"<label>{escape(_title(name, each))}{'' if is_required else ' (optional)'}"
        f"{_control(name, each, given.get(name, _default(each)), is_required=is_required)}</label>"
        for name, each, is_required in _fields(schema)
    )


def value_in(schema: Schema | None, given: Mapping[str, str]) -> Any:
    """What was filled in, as JSON; whether it fits is not asked here."""
    if schema is None:
        return None
    found = {
        name: _read(name, each, given.get(name, ""))
        for name, each, is_required in _fields(schema)
        if given.get(name) or is_required or _type(each) == "boolean"
    }
    if not _is_form(schema):
        return found.get(VALUE)
    return {name.removeprefix(f"{VALUE}."): each for name, each in found.items()}


def _fields(schema: Schema | None) -> Iterator[tuple[str, Schema, bool]]:
    if schema is None:
        return
    if not _is_form(schema):
        yield VALUE, schema, True
        return
    for name, each in cast("dict[str, Schema]", schema["properties"]).items():
        yield f"{VALUE}.{name}", _without_null(each), name in schema.get("required", ())


def _is_form(schema: Schema) -> bool:
    return _type(schema) == "object" and bool(schema.get("properties"))


def _without_null(schema: Schema) -> Schema:
    """What may be null is optional in a form."""
    others = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    return others[0] if len(others) == 1 else schema


def _type(schema: Schema) -> str:
    found = schema.get("type", "")
    return found if isinstance(found, str) else ""


def _title(name: str, schema: Schema) -> str:
    title = schema.get("title") or name.removeprefix(f"{VALUE}.")
    about = schema.get("description")
    return f"{title}: {about}" if about else str(title)


def _default(schema: Schema) -> str:
    default = schema.get("default")
    if default is None or default is False:
        return ""
    return default if isinstance(default, str) else msgspec.json.encode(default).decode()


def _control(name: str, schema: Schema, given: str, *, is_required: bool) -> str:
    quoted, needed = f'name="{escape(name)}"', " required" if is_required else ""
    if "enum" in schema:
        return f"<select {quoted}{needed}>{_options(schema['enum'], given)}</select>"
    if _type(schema) == "boolean":
        checked = " checked" if given else ""
        return f'<input type="checkbox" {quoted} value="true"{checked}>'
    shown = escape(given)
    if _type(schema) in ("integer", "number"):
        step = "1" if _type(schema) == "integer" else "any"
        return f'<input type="number" step="{step}" {quoted} value="{shown}"{needed}>'
    if _type(schema) == "string" and "format" in schema:
        kind = _INPUTS.get(schema["format"], "text")
        return f'<input type="{kind}" {quoted} value="{shown}"{needed}>'
    if _type(schema) == "string":
        return f"<textarea rows=2 {quoted}{needed}>{shown}</textarea>"
    return f'<textarea rows=3 {quoted}{needed} placeholder="JSON">{shown}</textarea>'


def _options(values: list[Any], given: str) -> str:
    texts = [
        each if isinstance(each, str) else msgspec.json.encode(each).decode() for each in values
    ]
    return "".join(
        f"<option{' selected' if each == given else ''}>{escape(each)}</option>"
        for each in ("", *texts)
    )


def _read(name: str, schema: Schema, text: str) -> Any:
    if "enum" in schema:
        texts = {each if isinstance(each, str) else _json(each): each for each in schema["enum"]}
        return texts.get(text, text)
    if _type(schema) == "boolean":
        return bool(text)
    if _type(schema) == "string":
        is_short = schema.get("format") in _INPUTS and _WITHOUT_SECONDS.fullmatch(text)
        return f"{text}:00" if is_short else text
    try:
        return msgspec.json.decode(text)
    except msgspec.MsgspecError:
        title = _title(name, schema)
        wanted = "a number" if _type(schema) in ("integer", "number") else "JSON"
        raise UsageError(f"{title} must be {wanted}, got {text[:60]!r}") from None


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
