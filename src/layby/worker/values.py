"""Python values in the one form layby writes: `{"headers":{},"data":base64(JSON)}`."""

import base64
import binascii

import msgspec

from layby.core.commands import Value

_decode = msgspec.json.Decoder(Value).decode


def to_value(payload: object) -> Value:
    data = base64.b64encode(msgspec.json.encode(payload)).decode()
    return Value(headers={}, data=data)


def read_value(text: str) -> object:
    """What stands in an encoded value; one that is not so encoded is handed over as it is."""
    data = _decode(text).data
    if not isinstance(data, str):
        return None
    try:
        return msgspec.json.decode(base64.b64decode(data, validate=True))
    except (binascii.Error, msgspec.MsgspecError, ValueError, RecursionError):
        return data
