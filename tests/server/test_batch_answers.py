"""The answer to a batch, slice by slice: what is asked when, what is refused, and who stops it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from layby.core.replies import Empty, Reply, ok, refuse
from layby.engine.items import NOT_BEGUN, Allowance
from layby.server.batch_answers import (
    ASK_ALONE,
    BEHIND,
    FIRST_SLICE,
    READ_BYTES,
    BatchAnswers,
    Serving,
)
from layby.server.slice_sizes import SLICE
from layby.wire.decode import Request
from layby.wire.encode import encode
from tests.helpers.raw_http import envelope

MEGABYTES = 4 * 2**20


class Served:
    """Serves requests whose answers have the sizes that are asked for: `{"id": "NAME SIZE"}`."""

    def __init__(self, fitting: int = 1_000) -> None:
        self.slices: list[list[str]] = []
        self.is_gone = False
        self.slice_size = SLICE
        self.turns = 0
        self.replies: dict[str, Reply] = {}
        self._fitting = fitting
        self._allowance: Allowance | None = None

    def batch(self, requests: list[bytes]) -> BatchAnswers:
        service = Serving(self._ask, self._wait, self._encode, lambda: self.slice_size)
        raws = [Raw(each) for each in requests]
        return BatchAnswers("c", raws, service, self._turn, lambda: self.is_gone)

    @property
    def done(self) -> list[str]:
        return [each for one in self.slices for each in one]

    def _ask(self, request: Request, allowance: Allowance) -> "asyncio.Future[Reply] | Reply":
        if allowance is not self._allowance:
            self._allowance = allowance
            self.slices.append([])
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        if len(self.slices[-1]) < self._fitting and not allowance.has_failed:
            self.slices[-1].append(_id(request))
            reply = self.replies.get(_id(request), ok(Empty()))
            allowance.has_failed = reply.status == 503
            answer.set_result(reply)
        else:
            answer.set_result(NOT_BEGUN)
        return answer

    async def _wait(self, asked: "asyncio.Future[Reply]") -> Reply:
        return await asked

    def _encode(self, request: Request, reply: Reply) -> bytes:
        size = int(_id(request).split()[1]) if reply.is_ok else 0
        encoded = encode(request.kind, request.corr_id, reply)
        return encoded + b" " * size

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[None]:
        self.turns += 1
        yield


def _id(request: Request) -> str:
    return getattr(request.body, "id", "")


def read(name: str, size: int = 0) -> bytes:
    return envelope("promise.get", {"id": f"{name} {size}"})


def write(name: str, size: int = 0) -> bytes:
    return envelope("promise.settle", {"id": f"{name} {size}", "state": "resolved"})


def statuses(parts: list[bytes]) -> list[int]:
    told = msgspec.json.decode(b"".join(parts))
    assert (told["kind"], told["head"]["status"]) == ("layby.batch", 200)
    return [each["head"]["status"] for each in told["data"]["replies"]]


async def all_of(batch: BatchAnswers) -> list[bytes]:
    parts: list[bytes] = []
    while True:
        part = await batch.next()
        if part is None:
            return parts
        assert isinstance(part, bytes)
        parts.append(part)
        if batch.is_done:
            return parts


def play(scene: Callable[[], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        return await scene()

    return asyncio.run(run())


@pytest.mark.parametrize("count", [0, 1, SLICE])
def test_a_small_batch_is_one_part_and_needs_no_turn(count: int) -> None:
    served = Served()
    parts = play(lambda: all_of(served.batch([write(str(n)) for n in range(count)])))
    assert len(parts) == 1
    assert statuses(parts) == [200] * count
    assert served.turns == 0


def test_a_large_batch_is_cut_into_slices_each_with_a_turn() -> None:
    served = Served()
    asked = [write(str(n)) for n in range(3 * SLICE + 1)]
    parts = play(lambda: all_of(served.batch(asked)))
    assert statuses(parts) == [200] * len(asked)
    assert [len(each) for each in served.slices] == [16, 32, SLICE, SLICE, 17]
    assert served.turns == len(parts) == 5


def test_a_slice_is_bounded_in_bytes_too() -> None:
    served = Served()
    large = envelope(
        "promise.create", {"id": "a 0", "timeoutAt": 1, "param": {"data": "x" * 10**6}}
    )
    parts = play(lambda: all_of(served.batch([large] * 3)))
    assert statuses(parts) == [200] * 3
    assert [len(each) for each in served.slices] == [1, 1, 1]
    assert served.turns == 3


def test_the_next_slice_is_not_begun_before_it_is_asked_for() -> None:
    served = Served()

    async def scene() -> None:
        batch = served.batch([write(str(n)) for n in range(5 * SLICE)])
        await batch.next()
        assert len(served.done) == FIRST_SLICE
        served.is_gone = True
        assert await batch.next() is None
        assert len(served.done) == FIRST_SLICE

    play(scene)


def test_reads_beyond_the_bound_are_to_be_asked_again_and_writes_are_done() -> None:
    """A write gets its own answer however large it is: it has been applied."""
    served = Served(fitting=1)
    asked = [read("first", READ_BYTES + 1), read("second", 7), write("third", MEGABYTES), read("4")]
    parts = play(lambda: all_of(served.batch(asked)))
    assert statuses(parts) == [200, 429, 200, 429]
    assert served.done == [f"first {READ_BYTES + 1}", f"third {MEGABYTES}"]
    assert "alone" in str(ASK_ALONE.data)


def test_the_bound_is_of_one_batch() -> None:
    served = Served(fitting=1)
    asked = [read("a", READ_BYTES + 1), read("b")]
    assert statuses(play(lambda: all_of(served.batch(asked)))) == [200, 429]
    assert statuses(play(lambda: all_of(served.batch(asked[1:])))) == [200]


def test_what_comes_after_a_request_that_cannot_be_served_is_not_begun() -> None:
    """It may be meant to happen after that one. What is refused stops nobody."""
    served = Served()
    served.replies = {"no 0": refuse(403, "not this"), "bad 0": refuse(503, "full")}
    before = [write(str(n)) for n in range(2 * SLICE)]
    asked = [*before, write("no"), write("bad"), *(write(f"after{n}") for n in range(SLICE))]
    parts = play(lambda: all_of(served.batch(asked)))
    assert statuses(parts) == [200] * len(before) + [403, 503] + [429] * SLICE
    assert served.done == [*(f"{n} 0" for n in range(2 * SLICE)), "no 0", "bad 0"]
    assert "in this order" in str(BEHIND.data)


@given(
    asked=st.lists(st.tuples(st.booleans(), st.sampled_from([0, 9, 2**20])), max_size=150),
    fitting=st.integers(1, 100),
)
def test_every_request_is_answered_once_and_in_order(asked, fitting) -> None:
    """Whatever the engine puts off: all writes are done, in order, and no request twice."""
    served = Served(fitting)
    requests = [
        write(str(number), size) if is_write else read(str(number), size)
        for number, (is_write, size) in enumerate(asked)
    ]
    found = statuses(play(lambda: all_of(served.batch(requests))))
    assert len(found) == len(asked)
    done = [f"{n} {size}" for n, (_, size) in enumerate(asked) if found[n] == 200]
    assert served.done == done
    assert all(
        status == 200 for status, (is_write, _) in zip(found, asked, strict=True) if is_write
    )
