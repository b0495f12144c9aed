"""Answers that wait to be read: in pieces, and bounded over all readers together."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from layby.server.answers_under_way import PIECE_BYTES, AnswersUnderWay
from layby.server.turns import PAUSE_S


class Reader:
    """Reads as many pieces as it is told; then the connection is full."""

    def __init__(self, pieces: int = 10**6) -> None:
        self.read: list[bytes] = []
        self.head: Any = None
        self.is_over = False
        self.is_aborted = False
        self._room = asyncio.Semaphore(pieces)

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.head = message
            return
        if not self.is_aborted:
            await self._room.acquire()
        if not self.is_aborted:
            self.read.append(message["body"])
            self.is_over = not message.get("more_body")

    def go_on(self, pieces: int) -> None:
        for _ in range(pieces):
            self._room.release()

    # --- as a transport ---

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True
        self._room.release()

    def get_extra_info(self, _: str) -> Any:
        return self

    def setsockopt(self, *_: object) -> None:
        pass


class ListOfParts:
    def __init__(self, *parts: bytes | None) -> None:
        self._parts = list(parts)
        self.made = 0

    @property
    def is_done(self) -> bool:
        return not self._parts

    async def next(self) -> bytes | None:
        self.made += 1
        return self._parts.pop(0)


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await scene()

    asyncio.run(run())


def begin(answers: AnswersUnderWay, reader: Any, size: int) -> "asyncio.Task[None]":
    return asyncio.ensure_future(answers.send(reader.send, reader, 200, b"x" * size))


async def settled() -> None:
    """Nothing but the reader is waited for."""
    for _ in range(10):
        await asyncio.sleep(PAUSE_S)


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES])
def test_an_answer_arrives_whole(size: int) -> None:
    async def scene() -> None:
        reader = Reader()
        await begin(AnswersUnderWay(), reader, size)
        assert b"".join(reader.read) == b"x" * size
        assert reader.is_over
        assert (b"content-length", b"%d" % size) in reader.head["headers"]
        assert max(map(len, reader.read)) <= PIECE_BYTES

    play(scene)


@pytest.mark.parametrize("last", [b"", b"y", b"y" * 3 * PIECE_BYTES])
def test_parts_arrive_whole_and_are_made_when_they_can_be_sent(last: bytes) -> None:
    async def scene() -> None:
        reader: Any = Reader(1)
        parts = ListOfParts(b"x", b"xx", last)
        sending = asyncio.ensure_future(
            AnswersUnderWay().send_parts(reader.send, reader, 200, parts)
        )
        await settled()
        assert parts.made == 2  # the second waits for room
        reader.go_on(10)
        await sending
        assert b"".join(reader.read) == b"xxx" + last
        assert reader.is_over

    play(scene)


def test_one_part_is_an_answer_like_any_other() -> None:
    async def scene() -> None:
        reader: Any = Reader()
        await AnswersUnderWay().send_parts(reader.send, reader, 200, ListOfParts(b"xyz"))
        assert (reader.read, reader.is_over) == ([b"xyz"], True)
        assert (b"content-length", b"3") in reader.head["headers"]

    play(scene)


@pytest.mark.parametrize("parts", [(None,), (b"x", None, b"y")])
def test_who_is_gone_gets_no_more(parts: tuple[bytes | None, ...]) -> None:
    async def scene() -> None:
        reader: Any = Reader()
        await AnswersUnderWay().send_parts(reader.send, reader, 200, ListOfParts(*parts))
        assert not reader.is_over
        assert reader.read == [each for each in parts[:1] if each]

    play(scene)


def test_who_was_silent_for_longest_makes_room_for_others() -> None:
    """Not who has begun first: what counts is who takes something."""

    async def scene() -> None:
        answers = AnswersUnderWay(room=25 * PIECE_BYTES)
        slow, silent, newest = Reader(1), Reader(1), Reader()
        sending = [begin(answers, each, 10 * PIECE_BYTES) for each in (slow, silent)]
        await settled()
        slow.go_on(1)
        await settled()
        sending.append(begin(answers, newest, 10 * PIECE_BYTES))
        await asyncio.wait(sending[1:])
        assert silent.is_aborted
        assert newest.is_over
        assert not slow.is_aborted
        slow.go_on(10)
        await asyncio.gather(*sending)
        assert slow.is_over
        await begin(answers, large := Reader(), 24 * PIECE_BYTES)  # everything is free again
        assert large.is_over

    play(scene)


def test_a_lone_answer_needs_no_room() -> None:
    async def scene() -> None:
        answers = AnswersUnderWay(room=PIECE_BYTES)
        for _ in range(2):
            await begin(answers, reader := Reader(), 10 * PIECE_BYTES)
            assert reader.is_over

    play(scene)


def test_small_answers_are_never_given_up() -> None:
    async def scene() -> None:
        answers = AnswersUnderWay(room=0)
        readers = [Reader(0) for _ in range(5)]
        sending = [begin(answers, each, PIECE_BYTES) for each in readers]
        await settled()
        assert not any(each.is_aborted for each in readers)
        for each in readers:
            each.go_on(1)
        await asyncio.gather(*sending)

    play(scene)


def test_a_text_is_sent_piece_by_piece_and_tells_its_size_if_that_is_known() -> None:
    async def scene() -> None:
        for letter, is_known in {"x": True, "é": False}.items():
            reader: Any = Reader()
            text = letter * 3 * PIECE_BYTES
            await AnswersUnderWay().send(reader.send, reader, 200, (b"<", text, b">"))
            assert b"".join(reader.read) == f"<{text}>".encode()
            assert len(reader.read) == 5
            told = (b"content-length", b"%d" % (3 * PIECE_BYTES + 2))
            assert (told in reader.head["headers"]) == is_known

    play(scene)


def test_large_answers_take_turns_with_their_pieces() -> None:
    async def scene() -> None:
        answers, sent = AnswersUnderWay(), list[str]()

        def reading(name: str) -> Any:
            reader = Reader()

            async def send(message: Any) -> None:
                if message["type"] == "http.response.body":
                    sent.append(name)

            reader.send = send
            return reader

        await asyncio.gather(*(begin(answers, reading(each), 4 * PIECE_BYTES) for each in "abc"))
        assert sent == list("abc" * 4)

    play(scene)
