"""Replies and messages as the server sends them."""

from collections.abc import Sequence

import msgspec

from layby.core.model import Message, Promise
from layby.core.replies import Reply
from layby.wire import large_texts
from layby.wire.answers import shown
from layby.wire.decode import VERSION, Batch
from layby.wire.large_texts import Encoded
from layby.wire.records import MessageRecord

_encode = msgspec.json.Encoder().encode


def encode(kind: str, corr_id: str, reply: Reply) -> bytes:
    head = {"corrId": corr_id, "status": reply.status, "version": VERSION}
    return _encode({"kind": kind, "head": head, "data": shown(reply, corr_id)})


def encode_in_pieces(kind: str, corr_id: str, reply: Reply) -> Encoded:
    with large_texts.set_aside() as texts:
        return large_texts.with_texts(encode(kind, corr_id, reply), texts)


class BatchEncoder:
    """The answer to a batch, made in pieces: one answer for each request, in order."""

    def __init__(self, corr_id: str) -> None:
        head = {"corrId": corr_id, "status": 200, "version": VERSION}
        self._before = _encode({"kind": Batch.kind, "head": head})[:-1] + b',"data":{"replies":['

    def piece(self, answers: Sequence[Encoded], *, is_last: bool) -> Encoded:
        before, self._before = self._before, b"," if answers else self._before
        between = large_texts.joined(b",", answers)
        return large_texts.joined(b"", [before, between, b"]}}" if is_last else b""])


def encode_message(row: Message, about: Promise | None, server_url: str) -> bytes:
    """A message as it is sent; an execute tells its receiver where to answer."""
    head = {"serverUrl": server_url} if row.kind == "execute" else {}
    return _encode(MessageRecord.of(row, about, **head))
