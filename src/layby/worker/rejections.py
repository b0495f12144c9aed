"""What a settled promise means to the code that waited for it: a value, or an exception."""

from typing import Any

from layby.core.model import Promise
from layby.errors import PromiseCancelled, PromiseRejected, PromiseTimedOut, ResultExpired
from layby.wire.json_values import from_text

_RAISES = {
    "rejected": PromiseRejected,
    "rejected_canceled": PromiseCancelled,
}


def value_of(promise: Promise) -> Any:
    """The value of a resolved promise; a rejected one raises, and so does a pruned one."""
    if promise.is_expired:
        raise ResultExpired(f"promise '{promise.id}'", promise.state)
    value = from_text(promise.value)
    if promise.state == "resolved":
        return value
    raised = PromiseTimedOut if promise.is_timed_out else _RAISES[promise.state]
    raise raised(promise.id, *_name_and_message(value), value)


def _name_and_message(value: object) -> tuple[str, str]:
    """Rejections are read leniently: they may have been written by anybody."""
    if isinstance(value, dict):
        fields: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
        return str(fields.get("name", "")), str(fields.get("message", fields))
    return "", "" if value is None else str(value)
