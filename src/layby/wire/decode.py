"""Turns a request envelope into a command, or refuses it with 400 and a text."""

from importlib import import_module
from pkgutil import iter_modules
from typing import Annotated, Any, Final, TypeVar, cast

import msgspec
from msgspec import Meta, Raw, Struct

from layby import core
from layby.core.commands import Command, CreatePromise, FenceTask, Int64, SettlePromise, Unread
from layby.core.kinds import BaseRequest, Ids, Problems, Query, Sender, declare, public_kinds
from layby.core.model import Millis
from layby.core.replies import Reply, refuse

VERSION: Final = "2026-04-01"
MAX_BATCH: Final = 1_000
MAX_LENIENT: Final = 50_000
"""Most values in a request that is read leniently: nobody else is served in the meantime."""
MAX_VALUES: Final = 300_000
"""Most values in any request, for the same reason: a body may hold millions of them."""
_FENCED: Final[dict[str, type[CreatePromise | SettlePromise]]] = {
    "promise.create": CreatePromise,
    "promise.settle": SettlePromise,
}


class Head(Struct, frozen=True, rename={"corr_id": "corrId", "debug_time": "resonate:debug_time"}):
    corr_id: str
    version: str
    auth: str | None = None
    debug_time: Int64 | None = None


class Envelope(Struct, frozen=True):
    kind: str
    head: Head
    data: Raw


class Replies(Struct, frozen=True):
    replies: tuple[Raw, ...]


@declare("layby.batch", sender=Sender.CLIENT, answer=Replies)
class Batch(BaseRequest, frozen=True):
    """Several requests in one envelope; each is an envelope itself, and answered like one."""

    requests: Annotated[tuple[Raw, ...], Meta(max_length=MAX_BATCH)]

    def named_ids(self) -> Ids:
        """None: each of its requests is judged by itself."""
        return ()

    def problems(self) -> Problems:
        return iter(())


for _module in iter_modules(core.__path__, f"{core.__name__}."):
    import_module(_module.name)  # whatever declares a kind
KINDS: Final = public_kinds()
"""Which request struct each kind of the wire is decoded into."""


class Request(Struct, frozen=True):
    """How to answer, and either the request or why there is none."""

    kind: str
    corr_id: str
    auth: str | None
    debug_time: Millis | None
    body: Command | Query | Batch | Reply
    has_envelope: bool = True
    """False when not even the envelope is usable: then its sender is not checked."""


class FenceAction(Struct, frozen=True):
    kind: str
    data: Raw
    head: Unread = None


class FenceRequest(Struct, frozen=True):
    id: str
    version: Int64
    action: FenceAction


class LooseHead(Struct, frozen=True, rename={"corr_id": "corrId"}):
    corr_id: Raw = Raw(b"null")


class Loose(Struct, frozen=True):
    """The part of an envelope that can be read regardless of the rest."""

    kind: Raw = Raw(b"null")
    head: Raw = Raw(b"null")


T = TypeVar("T")
MALFORMED: Final = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, OverflowError)

_envelopes = msgspec.json.Decoder(Envelope)
_encode = msgspec.json.Encoder().encode
_decoders: dict[type[Any], "msgspec.json.Decoder[Any]"] = {
    each: msgspec.json.Decoder(each)
    for each in (*KINDS.values(), FenceRequest)
    if each is not FenceTask
}


def decode(body: bytes) -> Request:
    try:
        envelope = _envelopes.decode(body)
    except MALFORMED as error:
        return _unreadable(body, error)
    head = envelope.head
    problem = _envelope_problem(envelope)
    decoded = problem or decode_data(envelope.kind, bytes(envelope.data))
    whole = problem is None
    return Request(envelope.kind, head.corr_id, head.auth, head.debug_time, decoded, whole)


def decode_data(kind: str, data: bytes) -> Command | Query | Batch | Reply:
    """The `data` of one kind; a Reply is a refusal."""
    request_type = KINDS.get(kind)
    if request_type is None:
        return refuse(400, f"Unknown operation: {kind}")
    if _has_too_many_values(data):
        remedy = "send less at once, or as one text"
        return refuse(400, f"Invalid request: it has more than {MAX_VALUES:,} values: {remedy}")
    try:
        if request_type is FenceTask:
            return _fence(data)
        return _typed(request_type, data)
    except MALFORMED as error:
        return refuse(400, f"Invalid request: {error}")


def _fence(data: bytes) -> FenceTask:
    outer: FenceRequest = _typed(FenceRequest, data)
    inner_type = _FENCED.get(outer.action.kind)
    inner = None if inner_type is None else _typed(inner_type, bytes(outer.action.data))
    return FenceTask(id=outer.id, version=outer.version, inner=inner)


def _typed(request_type: type[Any], data: bytes) -> Any:
    """Strict first; only what fails is read again leniently (null is absent, 5e3 is 5000)."""
    decoder = _decoders[request_type]
    try:
        return decoder.decode(data)
    except msgspec.ValidationError:
        if _value_count(data) > MAX_LENIENT:
            raise
        return decoder.decode(_encode(_lenient(msgspec.json.decode(data))))


def _lenient(value: Any) -> Any:
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {key: _lenient(each) for key, each in fields.items() if each is not None}
    if isinstance(value, list):
        return [_lenient(each) for each in cast("list[Any]", value)]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _has_too_many_values(data: bytes) -> bool:
    """Almost always quick: commas are counted first, wherever they are."""
    return data.count(b",") > MAX_VALUES and _value_count(data) > MAX_VALUES


def _value_count(data: bytes) -> int:
    """About how many values there are, not counting anything inside a string."""
    plain = data.replace(rb"\\", b"").replace(rb"\"", b"")
    quotes = plain.count(b'"')
    if quotes > 2 * MAX_LENIENT:
        return quotes // 2
    outside = b"".join(plain.split(b'"')[::2])
    return sum(map(outside.count, (b",", b"[", b"{")))


def _envelope_problem(envelope: Envelope) -> Reply | None:
    if not envelope.kind:
        return refuse(400, "Missing or invalid 'kind' field - must be a non-empty string")
    if not bytes(envelope.data).lstrip().startswith(b"{"):
        return refuse(400, "Invalid 'data' field - must be an object")
    if envelope.head.version != VERSION:
        why = f"Unsupported protocol version '{envelope.head.version}'"
        return refuse(400, f'{why}, supported versions: ["{VERSION}"]')
    return None


def _unreadable(body: bytes, error: Exception) -> Request:
    """Answer as well as possible: with the kind and id of the request if they can be read."""
    outer = _read(Loose, body) or Loose()
    head = _read(LooseHead, outer.head) or LooseHead()
    kind, corr_id = _read(str, outer.kind) or "unknown", _read(str, head.corr_id) or "0"
    why = refuse(400, f"Invalid request envelope: {error}")
    return Request(kind, corr_id, None, None, why, has_envelope=False)


def _read(wanted: type[T], json: bytes | Raw) -> T | None:
    try:
        return msgspec.json.decode(json, type=wanted)
    except MALFORMED:
        return None
