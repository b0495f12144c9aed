"""Replies and messages as the server sends them."""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from layby.core.model import Message, Promise
from layby.core.replies import Reply
from layby.wire.answers import shown
from layby.wire.decode import VERSION, Batch
from layby.wire.records import MessageRecord

PIECE_BYTES: Final = 2**20
_encode = msgspec.json.Encoder().encode


def encode(kind: str, corr_id: str, reply: Reply) -> bytes:
    head = {"corrId": corr_id, "status": reply.status, "version": VERSION}
    return _encode({"kind": kind, "head": head, "data": shown(reply, corr_id)})


def encode_batch(corr_id: str, answers: Iterable[bytes]) -> Iterator[bytes]:
    """The answer to a batch: one for each request, in order; in pieces when it is large."""
    head = {"corrId": corr_id, "status": 200, "version": VERSION}
    piece = bytearray(_encode({"kind": Batch.kind, "head": head})[:-1])
    separator = b',"data":{"replies":['
    for answer in answers:
        piece += separator + answer
        separator = b","
        if len(piece) > PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece) + (b"]}}" if separator == b"," else separator + b"]}}")


def encode_message(row: Message, about: Promise | None, server_url: str) -> bytes:
    """A message as it is sent; an execute tells its receiver where to answer."""
    head = {"serverUrl": server_url} if row.kind == "execute" else {}
    return _encode(MessageRecord.of(row, about, **head))
