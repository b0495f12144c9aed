"""What the tests of SDKs hear of their processes, however late the pipes are read."""

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.sdk.peers import Peer
from tests.sdk.sdks import Sdk

TELLS = """
import json, sys
def tell(said, **fields):
    print(json.dumps({"said": said, **fields}), flush=True)
tell("connected")
for line in sys.stdin:
    match json.loads(line):
        case {"do": "ping"}:
            tell("pong")
        case {"do": "leave"}:
            tell("effect", what="left")
            break
        case {"what": what}:
            tell("effect", what=what)
"""


class ReadLate(Peer):
    """Once `is_slow`, hears nothing until it is asked to catch up: as if its reader were kept from
    running.
    """

    def __init__(self, *args: Any) -> None:
        self.is_slow = False
        self._goes_on = threading.Event()
        super().__init__(*args)

    def _note(self, message: dict[str, Any]) -> None:
        if self.is_slow:
            self._goes_on.wait()
        super()._note(message)

    def order(self, do: str, **fields: Any) -> None:
        if do == "ping":
            self._goes_on.set()
        super().order(do, **fields)

    def kill(self) -> None:
        self._goes_on.set()
        super().kill()


@pytest.fixture
def peer(tmp_path: Path):
    peer = ReadLate(Sdk("none", (sys.executable, "-c", TELLS)), {}, tmp_path / "peer.log")
    try:
        peer.hear("connected")
        yield peer
    finally:
        peer.kill()


def effects(peer: Peer) -> list[str]:
    return [each["what"] for each in peer.heard("effect")]


def test_all_that_was_told_is_heard(peer: ReadLate):
    """Though another peer, which was told later, may be heard earlier: here the reader is late."""
    peer.is_slow = True
    peer.order("tell", what="began")
    peer.order("tell", what="ended")
    assert effects(peer) == ["began", "ended"]
    peer.order("tell", what="again")
    assert effects(peer) == ["began", "ended", "again"]


def test_one_that_has_ended_is_heard_to_its_last_word(peer: ReadLate):
    """It answers no ping, and is not waited for."""
    peer.is_slow = True
    peer.order("leave")
    peer.process.wait()
    assert effects(peer) == ["left"]


def test_one_that_was_killed_is_heard_to_its_last_word(peer: ReadLate):
    """Its pipes are closed already."""
    peer.order("tell", what="began")
    peer.hear("effect")
    peer.kill()
    assert effects(peer) == ["began"]
