"""Whether a JSON answer says what was waited for: a JSON pointer and a comparison, never code."""

from collections.abc import Callable
from operator import ge, gt, le, lt
from typing import Any, Final, Literal, cast, get_args

from msgspec import Struct

from layby.errors import UsageError

Comparison = Literal["==", "!=", "<", "<=", ">", ">=", "in", "exists"]

_ORDERS: Final[dict[str, Callable[[Any, Any], bool]]] = {"<": lt, "<=": le, ">": gt, ">=": ge}
_MISSING: Final = object()


class Compare(Struct, frozen=True, forbid_unknown_fields=True):
    """`Compare("/job/state", "in", ["done", "failed"])`; the pointer is one of RFC 6901.

    A pointer that leads nowhere makes every comparison false, `!=` too: nothing was said yet.
    `in` asks whether what is found is one of the listed values; `exists` whether there is any.
    Numbers are ordered with numbers and texts with texts; anything else is not ordered: false.
    """

    pointer: str
    op: Comparison = "exists"
    value: Any = None

    def __post_init__(self) -> None:
        if self.op not in get_args(Comparison):
            known = ", ".join(get_args(Comparison))
            raise UsageError(f"{self.op!r} is not a comparison: use one of {known}")
        if self.pointer and not self.pointer.startswith("/"):
            raise UsageError(
                f"{self.pointer!r} is not a JSON pointer: write for example /job/state, "
                "or an empty text for the whole answer"
            )
        if self.op == "in" and not isinstance(self.value, list):
            raise UsageError(f"`in` compares with a list of values, got {self.value!r}")

    def holds(self, document: object) -> bool:
        found = point_at(document, self.pointer)
        if found is _MISSING:
            return False
        match self.op:
            case "exists":
                return True
            case "==":
                return _is_same(found, self.value)
            case "!=":
                return not _is_same(found, self.value)
            case "in":
                return any(_is_same(found, each) for each in cast("list[object]", self.value))
            case _:
                return _is_ordered(found, self.value) and _ORDERS[self.op](found, self.value)


def point_at(document: object, pointer: str) -> object:
    """What the pointer leads to; `_MISSING` when it leads nowhere."""
    found = document
    for part in pointer.split("/")[1:]:
        found = _step(found, part.replace("~1", "/").replace("~0", "~"))
        if found is _MISSING:
            break
    return found


def _step(found: object, key: str) -> object:
    if isinstance(found, dict):
        return cast("dict[str, object]", found).get(key, _MISSING)
    if isinstance(found, list):
        items = cast("list[object]", found)
        is_index = key.isascii() and key.isdigit() and (key == "0" or key[0] != "0")
        if is_index and len(key) <= 18 and int(key) < len(items):
            return items[int(key)]
    return _MISSING


def _is_same(found: object, wanted: object) -> bool:
    """JSON's equality: `true` is not `1`."""
    return isinstance(found, bool) == isinstance(wanted, bool) and found == wanted


def _is_ordered(found: object, wanted: object) -> bool:
    if isinstance(found, bool) or isinstance(wanted, bool):
        return False
    is_number = isinstance(found, int | float) and isinstance(wanted, int | float)
    return is_number or (isinstance(found, str) and isinstance(wanted, str))
