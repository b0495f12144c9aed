"""Requests as a client sends them: the envelope around a command."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from layby.core.commands import Command, FenceTask
from layby.core.queries import Query
from layby.wire.decode import VERSION, Batch

INCARNATION: Final = "Layby-Incarnation"
"""The header that opens a worker's stream: a key in the URL would end up in proxy logs."""

_encode = msgspec.json.Encoder().encode


def ask(request: Command | Query, corr_id: str, token: str | None = None) -> bytes:
    return _encode({"kind": request.kind, "head": _head(corr_id, token), "data": _data(request)})


def ask_all(envelopes: Sequence[bytes], corr_id: str, token: str | None = None) -> bytes:
    data = {"requests": [Raw(each) for each in envelopes]}
    return _encode({"kind": Batch.kind, "head": _head(corr_id, token), "data": data})


def _head(corr_id: str, token: str | None) -> dict[str, str]:
    head = {"corrId": corr_id, "version": VERSION}
    return head if token is None else head | {"auth": token}


def _data(request: Command | Query) -> Any:
    if not isinstance(request, FenceTask):
        return request
    inner = request.inner
    kind = "" if inner is None else inner.kind
    action: dict[str, Any] = {"kind": kind, "head": {}, "data": {} if inner is None else inner}
    return {"id": request.id, "version": request.version, "action": action}
