"""Answers: the `data` of each reply, as the server shows it and as a client reads it back.

What is shown follows from the reply: a row in it is shown by its record (`records`), a field that
is None is absent, and a reply within a reply (what a take was given) is shown in its place.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, Final, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Raw, Struct, defstruct
from msgspec.json import Decoder

from layby.core.kinds import BaseRequest
from layby.core.model import Message, Promise, Task
from layby.core.replies import (
    AnnotateData,
    Claim,
    ClaimData,
    DeferData,
    ExitData,
    Explanation,
    FenceData,
    LimitedData,
    LimitStanding,
    Reply,
    TakeData,
)
from layby.core.schedule_row import Schedule
from layby.core.state import State
from layby.errors import WireError
from layby.wire.decode import KINDS, VERSION, Replies
from layby.wire.records import (
    AnnotatedTaskRecord,
    ClaimedTaskRecord,
    ClaimRecord,
    ExplanationRecord,
    HeldTaskRecord,
    LimitRecord,
    MessageRecord,
    NoticeRecord,
    Pair,
    PairRecord,
    PromiseRecord,
    ScheduleRecord,
    TaskRecord,
    WireRecord,
    promises_of,
)
from layby.wire.snapshot_record import SnapshotRecord


class AnswerHead(Struct, frozen=True, rename="camel"):
    corr_id: str
    status: int
    version: str = VERSION


class AnswerEnvelope(Struct, frozen=True):
    kind: str
    head: AnswerHead
    data: Raw


class FenceRecord(WireRecord, frozen=True):
    """The answer to a command on a promise, within the answer to its fence."""

    action: AnswerEnvelope
    preload: list[PromiseRecord]

    @classmethod
    def of(cls, row: FenceData, corr_id: str = "0") -> "FenceRecord":
        head = AnswerHead(corr_id, row.reply.status)
        data = Raw(msgspec.json.encode(shown(row.reply, corr_id)))
        return cls(AnswerEnvelope(row.kind, head, data), promises_of(row.preload))

    def row(self) -> FenceData:
        kind = self.action.kind
        if kind not in KINDS:
            raise WireError(f"the answer to task.fence is about an unknown kind: {kind}")
        preload = [each.row() for each in self.preload]
        return FenceData(kind, _reply(KINDS[kind], self.action), preload)


RECORDS: Final[dict[Any, Any]] = {
    Promise: PromiseRecord,
    Task: TaskRecord,
    Schedule: ScheduleRecord,
    Message: NoticeRecord,
    Claim: ClaimRecord,
    Pair: PairRecord,
    Explanation: ExplanationRecord,
    LimitStanding: LimitRecord,
    State: SnapshotRecord,
    FenceData: FenceRecord,
    ClaimData: ClaimedTaskRecord,
}
SHOWN_OTHERWISE: Final[dict[tuple[type[Any], str], Any]] = {
    (AnnotateData, "task"): AnnotatedTaskRecord,
    (DeferData, "task"): HeldTaskRecord,
    (ExitData, "task"): HeldTaskRecord,
    (LimitedData, "task"): HeldTaskRecord,
}
UNSHOWN: Final = ((TakeData, "again"), (TakeData, "look_at"))


class Codec(NamedTuple):
    """The type that shows a value on the wire, and the conversions in both directions."""

    shape: Any
    show: Callable[[Any], Any]
    read: Callable[[Any], Any]


class Form:
    """A codec of replies, made from their fields."""

    def __init__(self, data: type[Any]) -> None:
        self._data = data
        self._codecs = dict(_codecs(data))
        self.shape = defstruct(data.__name__, self.fields(), bases=(WireRecord,), frozen=True)

    def show(self, data: Any) -> Any:
        return self.shape(*self.values(data))

    def read(self, shown: Any) -> Any:
        values = {
            name: codec.read(shown if isinstance(codec, Form) else getattr(shown, name))
            for name, codec in self._codecs.items()
        }
        return self._data(**values)

    def fields(self) -> list[Any]:
        """Names, types and defaults, including those of a reply within this one."""
        found: list[Any] = []
        for name, codec in self._codecs.items():
            if isinstance(codec, Form):
                found += codec.fields()
            else:
                optional = (None,) if _is_optional(codec.shape) else ()
                found.append((name, codec.shape, *optional))
        return found

    def values(self, data: Any) -> Iterator[Any]:
        """In the order of `fields`."""
        for name, codec in self._codecs.items():
            value = getattr(data, name)
            if isinstance(codec, Form):
                yield from codec.values(value)
            else:
                yield codec.show(value)


@cache
def codec_of(wanted: Any) -> Codec | Form:
    """Of a reply, or of any type that occurs in one."""
    if wanted in RECORDS:
        return _by(RECORDS[wanted])
    if get_origin(wanted) is Sequence:
        each = codec_of(get_args(wanted)[0])
        return Codec(list[each.shape], partial(_each, each.show), partial(_each, each.read))
    if _is_optional(wanted):
        some = codec_of(get_args(wanted)[0])
        return Codec(some.shape | None, partial(_if_any, some.show), partial(_if_any, some.read))
    if isinstance(wanted, type) and issubclass(wanted, Struct):
        return Form(wanted)
    return Codec(wanted, _same, _same)


def _codecs(data: type[Any]) -> Iterator[tuple[str, Codec | Form]]:
    types = get_type_hints(data)
    for name in data.__struct_fields__:
        if (data, name) in SHOWN_OTHERWISE:
            yield name, _by(SHOWN_OTHERWISE[data, name])
        elif (data, name) not in UNSHOWN:
            yield name, codec_of(types[name])


def _by(record: Any) -> Codec:
    return Codec(record, record.of, record.row)


def _is_optional(wanted: Any) -> bool:
    return type(None) in get_args(wanted)


def _each(convert: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
    return [convert(value) for value in values]


def _if_any(convert: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else convert(value)


def _same(value: Any) -> Any:
    return value


def shown(reply: Reply, corr_id: str) -> Any:
    """The `data` of a reply, ready to be encoded."""
    if isinstance(reply.data, FenceData):
        return FenceRecord.of(reply.data, corr_id)
    return codec_of(type(reply.data)).show(reply.data)


# --- as a client reads them ------------------------------------------------------------------


_envelopes = Decoder(AnswerEnvelope)
_texts = Decoder(str)
_batches = Decoder(Replies)
_messages = Decoder(MessageRecord)


def read(request: BaseRequest, body: bytes) -> Reply:
    """The reply to this request; WireError if the body is not an answer to it."""
    return _read(body, lambda envelope: _reply(type(request), envelope))


def read_batch(body: bytes) -> Reply | tuple[bytes, ...]:
    """The answers to the requests of a batch; a Reply when the batch was refused as a whole."""

    def answers(envelope: AnswerEnvelope) -> Any:
        if envelope.head.status >= 400:
            return Reply(envelope.head.status, _texts.decode(envelope.data))
        return tuple(bytes(each) for each in _batches.decode(envelope.data).replies)

    return _read(body, answers)


def read_message(body: bytes) -> MessageRecord:
    return _read_as(_messages, body)


def _read(body: bytes, then: Callable[[AnswerEnvelope], Any]) -> Any:
    envelope = _read_as(_envelopes, body)
    try:
        return then(envelope)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WireError(f"the server's answer to {envelope.kind} cannot be read: {error}") from None


def _read_as(decoder: "Decoder[Any]", body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        shown = body[:200].decode(errors="replace")
        raise WireError(f"this is not an answer from a layby server ({error}): {shown!r}") from None


def _reply(request: type[BaseRequest], envelope: AnswerEnvelope) -> Reply:
    status = envelope.head.status
    if status >= 400:
        return Reply(status, _texts.decode(envelope.data))
    shown = _decoder(request.answer).decode(envelope.data)
    return Reply(status, codec_of(request.answer).read(shown))


@cache
def _decoder(answer: type[Any]) -> "Decoder[Any]":
    return Decoder(codec_of(answer).shape)
