"""Numbers as others have them, and JSON that other languages can read does not.

Nobody here can change what a service or a database says. So in a payload they become text; a
comparison sees them as they are.
"""

import math
from typing import Any, cast

from layby.wire.json_values import MAX_INT, MIN_INT


def as_text(payload: Any) -> Any:
    """The same payload, with a text for each number that could not be stored."""
    try:
        return _as_text(payload)
    except RecursionError:
        return payload  # how deep it may be is said where it is stored


def _as_text(value: Any) -> Any:
    match value:
        case bool():
            return value
        case int():
            return value if MIN_INT <= value <= MAX_INT else str(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case dict():
            named = cast("dict[str, Any]", value)
            return {name: _as_text(each) for name, each in named.items()}
        case list():
            return [_as_text(each) for each in cast("list[Any]", value)]
        case _:
            return value
