"""A `/poll` stream, as an SDK reads it."""

import socket
import threading
from contextlib import suppress
from typing import Any

from tests.helpers.raw_http import PATIENCE_S, Line


class Stream:
    """What it carries can be waited for."""

    def __init__(self, port: int, group: str, name: str) -> None:
        self._line = Line(port)
        self._line.send(f"GET /poll/{group}/{name} HTTP/1.1\r\nhost: here\r\n\r\n".encode())
        assert self._line.head()[0] == 200
        self._has_grown = threading.Condition()
        self.heard: list[Any] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with suppress(OSError, EOFError):
            for each in self._line.events():
                with self._has_grown:
                    self.heard.append(each)
                    self._has_grown.notify_all()

    def close(self) -> None:
        with suppress(OSError):
            self._line.socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._line.socket.close()

    def until(self, count: int, seconds: float = PATIENCE_S) -> list[Any]:
        with self._has_grown:
            assert self._has_grown.wait_for(lambda: len(self.heard) >= count, seconds), self.heard
            return self.heard

    def until_settled(self, promise_id: str) -> None:
        """Until it has told that this promise is settled."""
        with self._has_grown:
            assert self._has_grown.wait_for(lambda: promise_id in self._settled, PATIENCE_S), (
                promise_id,
                self.heard,
            )

    @property
    def _settled(self) -> set[str]:
        return {each["data"]["promise"]["id"] for each in self.heard if each["kind"] == "unblock"}

    @property
    def tasks(self) -> list[str]:
        """Without the group."""
        ids = [each["data"]["task"]["id"] for each in self.heard if each["kind"] == "execute"]
        return [each.partition(".")[2] for each in ids]
