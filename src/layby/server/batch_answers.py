"""Answers a batch in slices, each when the answers before it have been read.

A batch of a hundred kilobytes may ask for gigabytes. So a slice has few requests, loads little,
and its answers leave before the next slice begins. A peer that stops reading, or hangs up, stops
its batch: what has begun is carried out, the rest is not. So does a request that cannot be served
now: what comes after it gets BEHIND, since it may be meant to happen after it. All other writes get
their own answers; reads beyond `READ_BYTES` of answers get ASK_ALONE instead.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from itertools import islice
from typing import Final, NamedTuple

from msgspec import Raw

from layby.core.commands import Command
from layby.core.replies import ASK_AGAIN, UNAVAILABLE, Reply, refuse
from layby.engine.items import NOT_BEGUN, Allowance
from layby.server.slice_sizes import SLICE
from layby.server.turns import PAUSE_S
from layby.wire.decode import Request, decode
from layby.wire.encode import BatchEncoder
from layby.wire.large_texts import Encoded, size_of

SLICE_BYTES: Final = 2**18
"""About this much of the requests in a slice, so that reading them does not take long either."""
FIRST_SLICE: Final = 16
LOADED_CHARS: Final = 2**20
"""A slice ends after the request that brings what was loaded for it above this."""
UNTURNED_CHARS: Final = 2**17
"""What is loaded without a turn, for one request or a small batch: this much, or nothing."""
ENCODED_AT_ONCE: Final = 8
"""Answers to a slice, before others have the loop."""
HURRIED_BYTES: Final = 2**16
"""A larger request is not even decoded at once."""
HESITATION_S: Final = 0.002
"""Much less than a large batch takes; and most who hang up on one do so within this time."""
READ_BYTES: Final = 8 * 2**20
"""When the answers of a batch have this size, its reads are no longer served."""
ASK_ALONE: Final = refuse(
    ASK_AGAIN,
    f"Not read, since the answers of this batch have more than {READ_BYTES} bytes already: "
    "ask for it again alone, or in another batch",
)
BEHIND: Final = refuse(
    ASK_AGAIN,
    "Not begun, since a request before it in this batch could not be served: "
    "ask for both again, in this order",
)


class Serving(NamedTuple):
    """How one request of a batch is served."""

    ask: Callable[[Request, Allowance], "asyncio.Future[Reply] | Reply"]
    """Submits it; the answer is known already if it need not be asked."""
    wait: Callable[["asyncio.Future[Reply]"], Awaitable[Reply]]
    encode: Callable[[Request, Reply], Encoded]
    slice_size: Callable[[], int]
    """How many requests the next slice may have, now that its turn has come."""
    small: Callable[[], AbstractContextManager[None]] = nullcontext
    """A context for as long as something small is under way."""


class BatchAnswers:
    """The `Parts` of the answer to a batch: one for each slice."""

    def __init__(
        self,
        corr_id: str,
        requests: Sequence[Raw],
        service: Serving,
        turn: Callable[[], AbstractAsyncContextManager[None]],
        is_gone: Callable[[], bool],
    ) -> None:
        """`turn` is the caller's, `is_gone` whether the peer has hung up."""
        self._rest = deque(requests)  # not copied: a thousand small copies take their time
        self._service = service
        self._turn = turn
        self._is_gone = is_gone
        self._encoder = BatchEncoder(corr_id)
        size = sum(map(len, self._rest))
        self._is_small = len(self._rest) <= SLICE and size <= SLICE_BYTES
        self._was_decoded_late = size > HURRIED_BYTES
        self._answered_bytes = 0
        self._fitting = FIRST_SLICE
        self._has_failed = False
        """Whether one could not be served."""

    @property
    def is_done(self) -> bool:
        return not self._rest

    async def next(self) -> Encoded | None:
        """What fits into one slice and comes first needs no turn: it may share a commit."""
        answers = await self._without_turn() if self._is_small else None
        if not answers and not self.is_done:
            answers = await self._in_turn()
        return None if answers is None else self._encoder.piece(answers, is_last=self.is_done)

    async def _without_turn(self) -> list[Encoded]:
        """As far as the answers are small too."""
        self._is_small = False
        with self._service.small():
            return await self._answer_slice(SLICE, Allowance(UNTURNED_CHARS, strict=True))

    async def _in_turn(self) -> list[Encoded] | None:
        await self._hesitate()
        async with self._turn():
            await asyncio.sleep(PAUSE_S)
            answers = None if self._is_gone() else await self._answer_large_slice()
        return answers or None  # the peer hung up

    async def _hesitate(self) -> None:
        """Once, before a large batch begins: who hangs up at once is not worked for."""
        if not self._answered_bytes and not self._was_decoded_late:
            await asyncio.sleep(HESITATION_S)

    async def _answer_large_slice(self) -> list[Encoded]:
        """What does not fit has been decoded and asked for in vain: so few at first."""
        size = self._service.slice_size()
        if size <= SLICE:
            size = min(size, self._fitting)
        answers = await self._answer_slice(size, Allowance(LOADED_CHARS))
        self._fitting = 2 * len(answers)
        return answers

    async def _answer_slice(self, size: int, allowance: Allowance) -> list[Encoded]:
        requests = [decode(bytes(each)) for each in self._next_slice(size)]
        asked = [self._served(each, allowance) for each in requests]
        answers: list[Encoded] = []
        for request, each in zip(requests, asked, strict=True):
            reply = each if isinstance(each, Reply) else await self._service.wait(each)
            if reply is NOT_BEGUN:
                break
            self._has_failed |= reply.status == UNAVAILABLE
            answers.append(self._service.encode(request, reply))
            if len(answers) % ENCODED_AT_ONCE == 0:
                await asyncio.sleep(0)
        for _ in answers:
            self._rest.popleft()
        self._answered_bytes += sum(map(size_of, answers))
        return answers

    def _next_slice(self, size: int) -> list[Raw]:
        """At least one."""
        found: list[Raw] = []
        room = SLICE_BYTES
        for each in islice(self._rest, size):
            if found and len(each) > room:
                break
            found.append(each)
            room -= len(each)
        return found

    def _served(self, request: Request, allowance: Allowance) -> "asyncio.Future[Reply] | Reply":
        if self._has_failed:
            return BEHIND
        is_read = isinstance(request.body, Command) and request.body.reads
        if is_read and self._answered_bytes > READ_BYTES:
            return ASK_ALONE
        return self._service.ask(request, allowance)
