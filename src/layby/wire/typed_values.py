"""JSON read as a class that users declare: TypedDict, dataclass, msgspec Struct, pydantic model.

pydantic is never imported here: whoever has a model has imported it, so it is found in
`sys.modules`.
"""

import dataclasses
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, cast

import msgspec

from layby.errors import LaybyError, UsageError
from layby.wire.schema_formats import add_formats

MAX_SHOWN_CHARS: Final = 60
MAX_NESTED: Final = 40
MAX_TOLD: Final = 3
"""How many errors a message names; pydantic finds all at once."""

_PLACE = re.compile(r"(?P<text>.*?)(?: - at `\$(?P<path>.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.(?P<key>[^.\[\]]+)|\[(?P<index>\d+|\.\.\.)\]")
_EXPECTED = re.compile(r"Expected `(?P<wanted>.+?)`(?P<more>.*?)(?:, got `(?P<got>.+)`)?")
_MISSING = re.compile(r"Object missing required field `(?P<key>.+)`")

Step = str | int
Read = Callable[[bytes, str], Any]
"""Reads JSON as one class; the text names the whole value in errors."""


class Misfit(LaybyError):
    """JSON that does not fit a class: says where, what was expected and what came."""


def read_typed(kind: type[Any], encoded: bytes, what: str) -> Any:
    """The JSON as this class, checked; `what` names it in the error."""
    return reader_of(kind)(encoded, what)


def plain_of(instance: object) -> Any:
    """What `read_typed` made, as JSON values again."""
    if _is_pydantic(type(instance)):
        adapter = _pydantic().TypeAdapter(type(instance))
        return adapter.dump_python(instance, mode="json", by_alias=True)
    return msgspec.to_builtins(instance, enc_hook=_write_nested)


def is_of(kind: type[Any], value: object) -> bool:
    """`isinstance`; instances of a TypedDict are dicts like any other."""
    return not _is_typed_dict(kind) and isinstance(value, kind)


def is_declarable(kind: object) -> bool:
    """Whether a context can be declared by it: a class that maps keys to types."""
    if not isinstance(kind, type):
        return False
    if issubclass(kind, msgspec.Struct):
        return not kind.__struct_config__.array_like
    named = cast("type[Any]", kind)
    return _is_typed_dict(named) or _is_pydantic(named) or dataclasses.is_dataclass(named)


def json_schema_of(kind: type[Any]) -> dict[str, Any]:
    """The JSON Schema of a class, without references; UsageError if it has none."""
    try:
        if _is_pydantic(kind):
            found: dict[str, Any] = _pydantic().TypeAdapter(kind).json_schema()
        else:
            found = msgspec.json.schema(kind)
    except (TypeError, ValueError, NameError) as error:
        raise UsageError(f"{_name_of(kind)} has no JSON Schema: {error}") from None
    schema = _inlined(found, found.get("$defs", {}), kind, 0)
    if not _is_pydantic(kind):
        add_formats(schema, kind)
    return schema


def _inlined(schema: Any, known: Mapping[str, Any], kind: type[Any], depth: int) -> Any:
    if depth > MAX_NESTED:
        raise UsageError(f"{_name_of(kind)} contains itself, or is nested too deeply for a schema")
    if isinstance(schema, list):
        return [_inlined(each, known, kind, depth + 1) for each in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    fields = cast("dict[str, Any]", schema)
    reference = fields.get("$ref")
    if isinstance(reference, str):
        return _inlined(known[reference.rpartition("/")[2]], known, kind, depth + 1)
    return {
        key: _inlined(each, known, kind, depth + 1)
        for key, each in fields.items()
        if key != "$defs"
    }


def keys_of(kind: type[Any]) -> frozenset[str] | None:
    """The keys that a class declares; None when it also takes any other."""
    if _is_pydantic(kind):
        return _pydantic_keys(kind)
    if _is_typed_dict(kind):
        typed_dict = cast("Any", kind)
        return frozenset(typed_dict.__required_keys__ | typed_dict.__optional_keys__)
    if issubclass(kind, msgspec.Struct):
        tag_field = kind.__struct_config__.tag_field
        return frozenset((*kind.__struct_encode_fields__, *([tag_field] if tag_field else [])))
    return frozenset(each.name for each in dataclasses.fields(kind) if each.init)


@lru_cache(maxsize=256)
def reader_of(kind: type[Any]) -> Read:
    """Raises UsageError for a class that cannot be read from JSON."""
    return _pydantic_reader(kind) if _is_pydantic(kind) else _msgspec_reader(kind)


def _is_typed_dict(kind: type[Any]) -> bool:
    return dict in kind.__mro__ and hasattr(kind, "__required_keys__")


# --- msgspec: everything but pydantic's models -----------------------------------------------


def _msgspec_reader(kind: type[Any]) -> Read:
    try:
        decoder = msgspec.json.Decoder(kind, dec_hook=_read_nested)
    except (TypeError, ValueError, NameError) as error:
        raise UsageError(f"{_name_of(kind)} cannot be read from JSON: {error}") from None

    def read(encoded: bytes, what: str) -> Any:
        try:
            return decoder.decode(encoded)
        except msgspec.ValidationError as error:
            raise Misfit(_explained(str(error), encoded, what)) from None

    return read


def _read_nested(kind: type[Any], value: Any) -> Any:
    """A pydantic model inside another class."""
    if not _is_pydantic(kind):
        raise NotImplementedError(f"{_name_of(kind)} cannot be read from JSON")
    return _pydantic().TypeAdapter(kind).validate_python(value)


def _write_nested(value: object) -> Any:
    if not _is_pydantic(type(value)):
        raise NotImplementedError(f"{_name_of(type(value))} has no JSON form")
    return plain_of(value)


def _explained(message: str, encoded: bytes, what: str) -> str:
    found = _PLACE.fullmatch(message)
    assert found is not None
    steps = [_step(each) for each in _STEP.finditer(found["path"] or "")]
    if missing := _MISSING.fullmatch(found["text"]):
        return f"{_place(what, [*steps, missing['key']])} is missing"
    came = _shown(_value_at(msgspec.json.decode(encoded), steps))
    wanted = _EXPECTED.fullmatch(found["text"])
    if wanted is None:
        return f"{_place(what, steps)}: {found['text']}{came and f', got {came}'}"
    got = " ".join(each for each in (wanted["got"], came) if each)
    return f"{_place(what, steps)}: expected {wanted['wanted']}{wanted['more']}, got {got}"


def _step(found: re.Match[str]) -> Step:
    index = found["index"]
    return int(index) if index and index.isdigit() else found["key"] or "..."


# --- pydantic ----------------------------------------------------------------------------------


def _is_pydantic(kind: type[Any]) -> bool:
    return hasattr(kind, "__pydantic_validator__")


def _pydantic() -> Any:
    return sys.modules["pydantic"]


def _pydantic_reader(kind: type[Any]) -> Read:
    pydantic = _pydantic()
    try:
        adapter = pydantic.TypeAdapter(kind)
        adapter.rebuild(raise_errors=True)
    except (pydantic.errors.PydanticUserError, NameError) as error:
        raise UsageError(f"{_name_of(kind)} cannot be read from JSON: {error}") from None

    def read(encoded: bytes, what: str) -> Any:
        try:
            return adapter.validate_json(encoded)
        except pydantic.ValidationError as error:
            raise Misfit(_told(error.errors(include_url=False), what)) from None

    return read


def _told(errors: list[dict[str, Any]], what: str) -> str:
    told = [_pydantic_error(each, what) for each in errors[:MAX_TOLD]]
    more = len(errors) - len(told)
    return "; ".join(told) + (f"; and {more} more" if more else "")


def _pydantic_error(error: Mapping[str, Any], what: str) -> str:
    place = _place(what, error["loc"])
    if error["type"] == "missing":
        return f"{place} is missing"
    return f"{place}: {error['msg']}, got {type(error['input']).__name__} {_shown(error['input'])}"


def _pydantic_keys(kind: Any) -> frozenset[str] | None:
    config = getattr(kind, "model_config", None) or getattr(kind, "__pydantic_config__", {})
    if config.get("extra") == "allow":
        return None
    fields: dict[str, Any] = kind.__pydantic_fields__
    aliases = (alias for field in fields.values() for alias in _aliases(field))
    return frozenset([*fields, *aliases])


def _aliases(field: Any) -> Iterable[str]:
    given = field.validation_alias
    for each in getattr(given, "choices", [given]):
        path = getattr(each, "path", [each])
        if isinstance(path[0], str):
            yield path[0]


# --- words -------------------------------------------------------------------------------------


def _place(what: str, steps: Iterable[Step]) -> str:
    return what + "".join(
        f"[{each}]" if isinstance(each, int) or each == "..." else f'["{each}"]' for each in steps
    )


def _value_at(value: Any, steps: Iterable[Step]) -> Any:
    try:
        for each in steps:
            value = value[each]
    except (KeyError, IndexError, TypeError):  # inside a dict, msgspec does not say under which key
        return msgspec.UNSET
    return value


def _shown(value: object) -> str:
    if value is msgspec.UNSET:
        return ""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}..."


def _name_of(kind: object) -> str:
    return getattr(kind, "__name__", repr(kind))
