"""A server, and processes of one SDK that talk to it; all of them end with the test."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sdk.peers import Peer
from tests.sdk.sdks import LAYBY, SDKS, Sdk
from tests.sdk.servers import Server


class Peers:
    def __init__(self, sdk: Sdk, server: Server, folder: Path, **options: Any) -> None:
        """`options` are given to every peer."""
        self.sdk = sdk
        self.server = server
        self._folder = folder
        self._options = options
        self._peers: list[Peer] = []

    def worker(
        self,
        group: str = "default",
        ttl: int = 60_000,
        hangs: str | None = None,
        sdk: Sdk | None = None,
    ) -> Peer:
        """Has all our functions, and is connected when this returns."""
        return self._peer(sdk, group=group, ttl=ttl, hangs=hangs, functions=True)

    def client(self) -> Peer:
        """Has no function and is in a group of its own, so that it is given no work."""
        return self._peer(group="clients")

    def layby(self, group: str = "layby", ttl: int = 60_000, hangs: str | None = None) -> Peer:
        """A worker of our own: calls functions of the others, and serves some."""
        return self._peer(LAYBY, group=group, ttl=ttl, hangs=hangs)

    def _peer(self, sdk: Sdk | None = None, **options: Any) -> Peer:
        complaints = self._folder / f"peer-{len(self._peers)}.log"
        options = {"url": self.server.url} | self._options | options
        peer = Peer(sdk or self.sdk, options, complaints)
        self._peers.append(peer)
        peer.hear("connected")
        return peer

    def effects(self) -> list[str]:
        """What all steps of all processes did, the killed ones too."""
        return [each["what"] for peer in self._peers for each in peer.heard("effect")]

    def end(self) -> None:
        for peer in self._peers:
            peer.kill()


@pytest.fixture(params=SDKS, ids=str)
def sdk(request: pytest.FixtureRequest) -> Sdk:
    sdk: Sdk = request.param
    if sdk.is_installed:
        return sdk
    if sdk.may_be_missing:
        pytest.skip("`make sdk-setup` found no Python 3.12 or later")
    pytest.fail(f"{sdk.name} is not installed: run `make sdk-setup`")


@pytest.fixture
def server_options() -> tuple[str, ...]:
    """What `layby serve` is given; a module that needs something else defines it."""
    return ()


@pytest.fixture
def peer_options() -> dict[str, Any]:
    """What every peer is given; a module that needs something else defines it."""
    return {}


@pytest.fixture
def server(tmp_path: Path, server_options: tuple[str, ...]) -> Iterator[Server]:
    """At the end its file must be as sound as `layby doctor` asks."""
    with Server(tmp_path, *server_options) as server:
        yield server
    assert server.violations() == []


@pytest.fixture
def peers(
    sdk: Sdk, server: Server, tmp_path: Path, peer_options: dict[str, Any]
) -> Iterator[Peers]:
    peers = Peers(sdk, server, tmp_path, **peer_options)
    try:
        yield peers
    finally:
        peers.end()
