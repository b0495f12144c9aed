"""The formats of dates and times in the JSON Schema of a class.

msgspec describes most of them as any text. An answer that is checked by such a schema would be
accepted, and then refused by whoever reads it as the class.
"""

from typing import Any, Final, cast

from msgspec import inspect

_ZONES: Final = {None: "", True: "-offset", False: "-local"}


def add_formats(schema: dict[str, Any], kind: type[Any]) -> None:
    """To a schema of this class that has no references."""
    _add(schema, inspect.type_info(kind))


def _add(schema: dict[str, Any], info: inspect.Type) -> None:
    match info:
        case inspect.Metadata(type=inner):
            _add(schema, inner)
        case inspect.DateTimeType(tz=zone):
            schema["format"] = f"date-time{_ZONES[zone]}"
        case inspect.TimeType(tz=zone):
            schema["format"] = f"time{_ZONES[zone]}"
        case inspect.UnionType(types=types):
            _add_to_union(schema, types)
        case (
            inspect.StructType(fields=fields)
            | inspect.DataclassType(fields=fields)
            | inspect.TypedDictType(fields=fields)
        ):
            for each in fields:
                if each.encode_name in schema.get("properties", {}):
                    _add(schema["properties"][each.encode_name], each.type)
        case inspect.CollectionType(item_type=item) if "items" in schema:
            _add(schema["items"], item)
        case inspect.DictType(value_type=item) if "additionalProperties" in schema:
            _add(schema["additionalProperties"], item)
        case _:
            pass


def _add_to_union(schema: dict[str, Any], types: tuple[inspect.Type, ...]) -> None:
    """msgspec puts null last in a schema, wherever the class has it."""
    members = cast("list[dict[str, Any]]", schema["anyOf"])
    ordered = sorted(types, key=lambda each: isinstance(each, inspect.NoneType))
    for member, each in zip(members, ordered, strict=True):
        _add(member, each)
