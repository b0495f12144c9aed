"""The one encoding of values layby writes, and a lenient reading of what others wrote.

A value is `{"headers":{},"data":base64(JSON)}`. Only what comes back as it went in counts as JSON
here: no NaN, no bytes, no keys other than strings. Tuples are the exception: they become lists.
"""

import base64
import binascii
import math
import re
from dataclasses import is_dataclass
from typing import Any, Final, cast

import msgspec

from layby.core import values
from layby.core.commands import Value
from layby.core.nesting import is_too_deep
from layby.errors import ContextError, ProcessFailed, TaskTimeout
from layby.wire.stack_text import ROOM_FOR_CUT, bounded, stack_text

MAX_MESSAGE_CHARS: Final = 4_000
STACK: Final = "stack"
"""The key of the traceback in an error, as the SDKs write it."""
MIN_INT: Final = -(2**63)
MAX_INT: Final = 2**64 - 1

_LONG_NUMBER = re.compile(rb"\d{19}")
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()
_value_decoder = msgspec.json.Decoder(Value)


text_of, wrap = values.text_of, values.wrap


class ErrorText(msgspec.Struct, frozen=True):
    """An error as written by any SDK: `details` is everything else it carried."""

    name: str
    message: str
    details: dict[str, Any] = {}

    @property
    def stack(self) -> str:
        """Its traceback; empty when none was sent."""
        told = self.details.get(STACK)
        return told if isinstance(told, str) else ""

    def __str__(self) -> str:
        return f"{self.name}: {self.message}" if self.message else self.name


def encode(value: object, where: str = "value") -> bytes:
    """The value as JSON; `where` names it in the error if it cannot be JSON."""
    try:
        return _encode(value, where)
    except RecursionError:
        raise ContextError(f"{where} is nested too deeply, or contains itself") from None


def encode_bounded(value: object, where: str, most: int) -> bytes:
    """The same for what may have so many bytes."""
    encoded = encode(value, where)
    if len(encoded) > most:
        raise ContextError(
            f"{where} has {len(encoded):,} bytes as JSON, more than {most:,}: store it elsewhere "
            "and pass its address"
        )
    return encoded


def decode(encoded: bytes) -> Any:
    return _decoder.decode(encoded)


def to_value(value: object, where: str = "value") -> Value:
    return wrap(encode(value, where))


def from_text(text: str) -> Any:
    """The Python value of an encoded `Value`; anything that is not JSON comes as the raw string."""
    data = data_of(text)
    try:
        return decode(base64.b64decode(data, validate=True)) if data else None
    except (binascii.Error, ValueError):
        return data


def shown(text: str) -> Any:
    """The same for people: what is nested so deeply that not every reader could read it, in a list
    of many maybe, comes as the raw string, too.
    """
    try:
        is_deep = is_too_deep(bytes_of(text))
    except ValueError:
        is_deep = False
    return data_of(text) if is_deep else from_text(text)


def bytes_of(text: str) -> bytes:
    """The JSON inside an encoded `Value`; raises ValueError when there is none."""
    return base64.b64decode(data_of(text), validate=True)


def data_of(text: str) -> str:
    """The `data` of an encoded `Value`; a text that is not one is taken as the data itself."""
    try:
        return _value_decoder.decode(text).data or ""
    except (msgspec.MsgspecError, UnicodeError):
        return text


def headers_of(text: str) -> dict[str, str]:
    """The `headers` of an encoded `Value`: they say who settled it and why."""
    try:
        return _value_decoder.decode(text).headers or {}
    except (msgspec.MsgspecError, UnicodeError):
        return {}


def error_value(error: BaseException) -> Value:
    """The error in the form the SDKs write theirs, with its traceback."""
    told = describe(error)
    return named_error_value(told.name, told.message, stack=told.stack)


def error_text(error: BaseException) -> str:
    """The error in one line, as text that can always be stored."""
    if isinstance(error, ProcessFailed) and error.type:
        return str(error)
    return _clean(f"{type(error).__name__}: {_message_of(error)}")


def describe(error: BaseException) -> ErrorText:
    """The error as text that can always be stored; one from a child process as it was there."""
    if isinstance(error, ProcessFailed) and error.type:
        message = shortened(error.message, MAX_MESSAGE_CHARS + ROOM_FOR_CUT)
        return ErrorText(error.type, message, {STACK: bounded(error.traceback)})
    name, message = _clean(type(error).__name__), _clean(_message_of(error))
    told = error.traceback if isinstance(error, TaskTimeout) else ""
    return ErrorText(name, message, {STACK: _clean(told or stack_text(error))})


def named_error_value(name: str, message: str, **details: Any) -> Value:
    return values.error_value(_clean(name), _clean(message), **details)


def read_error(text: str | None) -> ErrorText:
    """The value of a rejection, read as an error, whatever it is."""
    found = shown(text) if text else None
    if isinstance(found, dict):
        return _error_from(cast("dict[str, Any]", found))
    return ErrorText("Error", "" if found is None else str(found))


def _encode(value: object, where: str) -> bytes:
    try:
        encoded = _encoder.encode(value)
    except (TypeError, ValueError, OverflowError) as error:
        _refuse_non_json(value, where)
        raise ContextError(f"{where} is not JSON: {error}") from None
    # Reading it back in C is much cheaper than walking through the value in Python.
    if _LONG_NUMBER.search(encoded) or _decoder.decode(encoded) != value:
        _refuse_non_json(value, where)
    return encoded


def _error_from(told: dict[str, Any]) -> ErrorText:
    known = ("__type", "name", "message")
    details = {key: value for key, value in told.items() if key not in known}
    if "message" not in told and "name" not in told:
        return ErrorText("Error", _encoder.encode(told).decode(), details)
    return ErrorText(str(told.get("name") or "Error"), str(told.get("message") or ""), details)


def _message_of(error: BaseException) -> str:
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - a broken __str__ must not hide that there was an error
        return "(its message cannot be shown)"
    return shortened(message, MAX_MESSAGE_CHARS)


def shortened(text: str, most: int) -> str:
    """Its first characters, and how many more there were."""
    cut = len(text) - most
    return f"{text[:-cut]}... ({cut} characters left out)" if cut > 0 else text


def _clean(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def _refuse_non_json(value: object, where: str) -> None:
    """Say what is wrong, and where; silent when nothing is."""
    if isinstance(value, dict):
        for key, each in cast("dict[object, object]", value).items():
            _refuse_key(key, where)
            _refuse_non_json(each, f'{where}["{key}"]')
    elif isinstance(value, list | tuple):
        for number, each in enumerate(cast("list[object]", value)):
            _refuse_non_json(each, f"{where}[{number}]")
    else:
        refuse_scalar(value, where)


def _refuse_key(key: object, where: str) -> None:
    if not isinstance(key, str):
        raise ContextError(f"{where} has the key {key!r}: JSON keys are strings, use {str(key)!r}")
    _refuse_text(key, f"a key of {where}")


def refuse_scalar(value: object, where: str) -> None:
    match value:
        case None | bool():
            pass
        case str():
            _refuse_text(value, where)
        case int() if not MIN_INT <= value <= MAX_INT:
            raise ContextError(
                f"{where} is an int beyond 64 bits, which other languages misread: "
                "store it as a string"
            )
        case float() if not math.isfinite(value):
            raise ContextError(f"{where} is {value}, which JSON does not have: use None")
        case int() | float():
            pass
        case _:
            kind = type(value).__name__
            raise ContextError(f"{where} is of type {kind}, which JSON does not have{_hint(value)}")


def _refuse_text(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ContextError(f"{where} is broken text (a lone surrogate)") from None


def _hint(value: object) -> str:
    return f": {_remedy(value) or 'use a dict, list, text, number, bool or None'}"


def _remedy(value: object) -> str:
    kinds: tuple[tuple[str, str], ...] = (
        ("bytes bytearray memoryview", "decode it, or store base64 text"),
        ("set frozenset", "use sorted(...)"),
        ("datetime date time", "use .isoformat()"),
        ("Decimal UUID Path PosixPath WindowsPath", "use str(...)"),
        ("coroutine Task Future", "await it first"),
        ("generator range map filter zip dict_keys dict_values", "use list(...)"),
        ("async_generator", "use [each async for each in ...]"),
    )
    known = [text for names, text in kinds if type(value).__name__ in names.split()]
    if known:
        return known[0]
    if is_dataclass(value):
        return "use dataclasses.asdict(...)"
    if isinstance(value, msgspec.Struct):
        return "use msgspec.to_builtins(...)"
    return "use .model_dump(mode='json')" if hasattr(value, "model_dump") else ""
