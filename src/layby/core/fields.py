"""Types of the fields of requests. Field names are the wire's in camel case; `null` is absent."""

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

MAX_TAGS = 256
MAX_NAMES = 10_000
MAX_NODES = 10_000
MAX_CLAIMS = 100_000
"""Claims that one request names."""
MAX_WAITS = 10_000
MAX_PRIORITY = 100
"""Of a run, and of a task beside that, up or down; what counts is their sum."""
MAX_SLOTS = 1_000
"""Slots that one body may hold."""

Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Tags = Annotated[dict[str, str], Meta(max_length=MAX_TAGS)]
Waits = Annotated[dict[str, Int64], Meta(max_length=MAX_WAITS)]

if TYPE_CHECKING:
    Unread = Any
else:
    Unread = Raw  # not decoded: megabytes that nobody reads would hold up everyone else
"""A field that must be present but may be anything, because nobody looks at it."""


class Value(Struct, frozen=True, omit_defaults=True):
    """An opaque value; layby and the SDKs put base64 of JSON into `data`."""

    headers: dict[str, str] | UnsetType = UNSET
    data: str | UnsetType = UNSET


NOTHING = Value()
