"""Anything at all in a body is answered: in the envelope, on the same connection, without a 500."""

import json
import random
from collections.abc import Generator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from layby.wire.decode import VERSION
from tests.helpers.quiet_server import served
from tests.helpers.raw_http import Line
from tests.helpers.spoiled_requests import IMPATIENT, paths, request, spoiled, spoiled_request

ONE_SERVER = settings(
    max_examples=100,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Generator[Line]:
    """One connection for all of it: nobody is hung up on for what is in a body."""
    with served(tmp_path_factory.mktemp("served")) as server, Line(server.port) as line:
        yield line


def answered(line: Line, body: bytes) -> None:
    told = line.post(body)
    assert told.status < 500, (body, told)
    answer = told.json
    assert answer.keys() == {"kind", "head", "data"}, (body, told)
    assert answer["head"]["status"] == told.status, (body, told)
    assert answer["head"]["version"] == VERSION
    assert told.status < 400 or isinstance(answer["data"], str), (body, told)
    try:
        asked = msgspec.json.decode(body)
        kind, corr_id = asked["kind"], asked["head"]["corrId"]
    except (msgspec.MsgspecError, UnicodeDecodeError, LookupError, TypeError):
        return
    assert answer["kind"] in as_answered(kind, "unknown"), (body, told)
    assert answer["head"]["corrId"] in as_answered(corr_id, "0"), (body, told)


def as_answered(asked: Any, otherwise: str) -> tuple[str, ...]:
    """What is no text, or an empty one, is as good as none."""
    return (asked,) if asked and isinstance(asked, str) else ("", otherwise)


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@st.composite
def envelopes(draw: st.DrawFn) -> bytes:
    """Good requests, a few parts of which are replaced by anything."""
    whole = request(draw(st.sampled_from(IMPATIENT)), f"fuzz/{draw(st.integers(0, 3))}/")
    where = list(paths(whole))
    for _ in range(draw(st.integers(0, 3))):
        whole = spoiled(whole, draw(st.sampled_from(where)), draw(json_values))
    return json.dumps(whole, ensure_ascii=draw(st.booleans())).encode(errors="surrogatepass")


@given(body=envelopes())
@ONE_SERVER
def test_any_envelope_is_answered(line: Line, body: bytes) -> None:
    answered(line, body)


@given(body=st.binary(max_size=60))
@ONE_SERVER
def test_any_bytes_are_answered(line: Line, body: bytes) -> None:
    answered(line, body)


@pytest.mark.parametrize("seed", range(3))
def test_spoiled_requests_are_answered(line: Line, seed: int) -> None:
    """A thousand requests that were good once."""
    spoil(line, seed, 1_000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 106))
def test_very_many_spoiled_requests_are_answered(line: Line, seed: int) -> None:
    spoil(line, seed, 20_000)


def spoil(line: Line, seed: int, times: int) -> None:
    chance = random.Random(seed)
    for _ in range(times):
        answered(line, spoiled_request(chance))
