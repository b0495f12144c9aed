"""Envelopes that cannot be read: refused in the protocol's order, with an answer that fits."""

import pytest

from layby.core.commands import GetPromise
from layby.core.replies import Reply
from layby.wire.decode import Request, decode, decode_data

GOOD = '{"kind":"promise.get","head":{"corrId":"c","version":"2026-04-01"},"data":{"id":"x"}}'


def refused(body: str | bytes) -> tuple[Request, str]:
    request = decode(body.encode() if isinstance(body, str) else body)
    assert isinstance(request.body, Reply)
    assert request.body.status == 400
    assert isinstance(request.body.data, str)
    return request, request.body.data


def test_a_good_envelope_is_read() -> None:
    """Unknown fields are ignored."""
    assert decode(GOOD.encode()) == Request("promise.get", "c", None, None, GetPromise(id="x"))


@pytest.mark.parametrize(
    ("body", "kind", "corr_id"),
    [
        ("", "unknown", "0"),
        ("{", "unknown", "0"),
        ("[]", "unknown", "0"),
        ("7", "unknown", "0"),
        ("null", "unknown", "0"),
        ("{}", "unknown", "0"),
        ('{"kind":7,"head":{"corrId":"c"}}', "unknown", "c"),
        ('{"kind":"k","head":{"corrId":7,"version":"v"},"data":{}}', "k", "0"),
        ('{"kind":"k","head":{"version":"2026-04-01"},"data":{}}', "k", "0"),
        ('{"kind":"k","head":{"corrId":"c"},"data":{}}', "k", "c"),
        ('{"kind":"k","head":[],"data":{}}', "k", "0"),
        ('{"kind":"k","head":{"corrId":"c","version":"2026-04-01"}}', "k", "c"),
        ('{"kind":"k","head":{"corrId":"c","version":1},"data":{}}', "k", "c"),
        (GOOD.replace('"c"', '"c","resonate:debug_time":1.5'), "promise.get", "c"),
        (GOOD.replace('"c"', '"c","auth":7'), "promise.get", "c"),
        (b"\xff\xfe", "unknown", "0"),
        (b'{"kind":"\xff"}', "unknown", "0"),
        ('{"kind":' * 3_000, "unknown", "0"),
    ],
)
def test_what_is_no_envelope(body: str | bytes, kind: str, corr_id: str) -> None:
    """The answer uses the kind and id of the request as far as they can be read."""
    request, why = refused(body)
    assert (request.kind, request.corr_id) == (kind, corr_id)
    assert why.startswith("Invalid request envelope: ")


def test_failures_are_found_in_the_protocols_order() -> None:
    """Kind, data, version, operation, then the fields: the first one wrong is named."""
    wrong = '{"kind":"","head":{"corrId":"c","version":"old"},"data":[]}'
    assert refused(wrong)[1].startswith("Missing or invalid 'kind' field")
    wrong = wrong.replace('"kind":""', '"kind":"no.such"')
    assert refused(wrong)[1] == "Invalid 'data' field - must be an object"
    wrong = wrong.replace("[]", "{}")
    assert refused(wrong)[1] == (
        "Unsupported protocol version 'old', supported versions: [\"2026-04-01\"]"
    )
    wrong = wrong.replace("old", "2026-04-01")
    assert refused(wrong)[1] == "Unknown operation: no.such"
    wrong = wrong.replace("no.such", "promise.get")
    assert refused(wrong)[1].startswith("Invalid request: ")


@pytest.mark.parametrize("data", ["7", '"x"', "[]", "null", "true"])
def test_data_must_be_an_object(data: str) -> None:
    """Whatever else it is."""
    assert refused(GOOD.replace('{"id":"x"}', data))[1].startswith("Invalid 'data' field")


@pytest.mark.parametrize("depth", [600, 5_000, 200_000])
def test_deep_json_is_refused_and_breaks_nothing(depth: int) -> None:
    """In a field that is read, and in one that is ignored it may pass."""
    deep = "[" * depth + "]" * depth
    assert refused(GOOD.replace('"x"', deep))[0].kind in ("promise.get", "unknown")
    ignored = decode(GOOD.replace('"x"', f'"x","more":{deep}').encode())
    assert isinstance(ignored.body, GetPromise | Reply)


@pytest.mark.parametrize(
    "number", ["1e400", "-1e400", "1e30", "9223372036854775808", "9" * 5_000, "1.5", "-0.5", "NaN"]
)
def test_numbers_that_are_no_int64_are_refused(number: str) -> None:
    """However they are written."""
    reply = decode_data("promise.create", f'{{"id":"x","timeoutAt":{number}}}'.encode())
    assert isinstance(reply, Reply)
    assert reply.status == 400


@pytest.mark.parametrize(("number", "value"), [("5e3", 5_000), ("7.0", 7), ("-0.0", 0)])
def test_integral_floats_are_integers(number: str, value: int) -> None:
    """Some JSON writers make no difference."""
    request = decode_data("promise.create", f'{{"id":"x","timeoutAt":{number}}}'.encode())
    assert not isinstance(request, Reply)
    assert request.timeout_at == value  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("text", [r'"\ud800"', '"\\u0000"', b'"\xed\xa0\x80"'])
def test_odd_texts_are_refused_or_kept_whole(text: str | bytes) -> None:
    """A lone surrogate cannot be stored, so it never gets in."""
    raw = text.encode() if isinstance(text, str) else text
    request = decode_data("promise.get", b'{"id":' + raw + b"}")
    if isinstance(request, GetPromise):
        request.id.encode()
    else:
        assert isinstance(request, Reply)
