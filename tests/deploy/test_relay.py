"""The balancer passes on what it gets, to whoever listens."""

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest
from deploy.topology.relay import Connection, Relay

from tests.helpers.troubled_link import TroubledLink

PATIENCE_S = 30
LARGE = bytes(range(256)) * 20_000


class Echo:
    """Answers everything with its name and what it got, when that has ended."""

    def __init__(self, name: bytes) -> None:
        self._name = name
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            taken, _ = self._listener.accept()
            with taken:
                got = received(taken)
                if got == b"end":
                    return
                taken.sendall(self._name + got)

    def close(self) -> None:
        with socket.create_connection(self.address) as caller:
            caller.sendall(b"end")
        self._thread.join()
        self._listener.close()


@pytest.fixture
def echoes() -> Iterator[list[Echo]]:
    made = [Echo(b"a"), Echo(b"b")]
    yield made
    for each in made:
        each.close()


def asked(port: int, content: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as caller:
        caller.sendall(content)
        caller.shutdown(socket.SHUT_WR)
        return received(caller)


def received(peer: socket.socket) -> bytes:
    """All that comes until it ends."""
    return b"".join(iter(lambda: peer.recv(1 << 16), b""))


def test_targets_take_turns(echoes: list[Echo]):
    """What is sent arrives whole, and an end in one direction is none in the other."""
    with Relay([each.address for each in echoes]) as relay:
        answers = [asked(relay.port, LARGE) for _ in range(3)]
    assert [each[:1] for each in answers] == [b"a", b"b", b"a"]
    assert all(each[1:] == LARGE for each in answers)


class Hasty(Relay):
    """Takes all that comes from a target, however slowly it is read at the other end."""

    async def carry(self, both: Connection, content: bytes, sink: asyncio.StreamWriter) -> None:
        sink.transport.set_write_buffer_limits(high=2 * len(LARGE))
        await super().carry(both, content, sink)

    async def has_passed_all(self) -> None:
        while self.connections:  # noqa: ASYNC110 - it tells nobody when one has ended
            await asyncio.sleep(0)


def test_who_reads_slowly_gets_all_of_it(echoes: list[Echo]):
    """Both ends have ended long before."""
    with (
        Hasty([echoes[0].address]) as relay,
        socket.create_connection(("127.0.0.1", relay.port), PATIENCE_S) as caller,
    ):
        caller.sendall(LARGE)
        caller.shutdown(socket.SHUT_WR)
        begun = caller.recv(1)
        relay.run(relay.has_passed_all())
        is_whole = begun + received(caller) == b"a" + LARGE  # no list of what differs in megabytes
    assert is_whole


def test_who_does_not_listen_is_passed_over(echoes: list[Echo]):
    """Whoever connects does not notice."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        gone = closed.getsockname()
    with Relay([gone, echoes[1].address]) as relay:
        assert [asked(relay.port, b"?") for _ in range(4)] == [b"b?"] * 4


def test_without_anybody_connections_end():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        gone = closed.getsockname()
    with Relay([gone]) as relay:
        assert asked(relay.port, b"") == b""


def test_a_silent_link_ends_for_nobody(echoes: list[Echo]):
    """Later connections are carried again."""
    with TroubledLink(echoes[0].address) as link:
        with socket.create_connection(("127.0.0.1", link.port), 0.3) as caller:
            caller.sendall(b"some")
            while not link.connections:
                threading.Event().wait(0.01)
            assert link.cut("silent") == 1
            caller.shutdown(socket.SHUT_WR)
            with pytest.raises(TimeoutError):
                caller.recv(1)
        link.close()
    assert asked(echoes[0].address[1], b"?") == b"a?"
