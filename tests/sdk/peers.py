"""Processes that use an SDK, and what they tell: nobody sleeps, everybody listens.

Each process has a pipe and a reader of its own, and nobody promises an order between two pipes:
that one peer has been heard says nothing of what another told before. What a peer has told
(`heard`) is therefore looked at only once it has answered a ping, as its own pipe keeps the order.
"""

import contextlib
import json
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.sdk.sdks import Sdk

PATIENCE_S = 90
"""Only a test that fails needs it."""


class Peer:
    """A process of an SDK: takes orders on stdin, tells on stdout, complains on stderr."""

    def __init__(self, sdk: Sdk, options: dict[str, Any], complaints: Path) -> None:
        self.told: list[dict[str, Any]] = []
        self._is_over = False
        self._pings = 0
        self._news = threading.Condition()
        self._complaints = complaints
        with complaints.open("w") as stderr:
            self.process = subprocess.Popen(
                [*sdk.command, json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._note(json.loads(line))
        with self._news:
            self._is_over = True
            self._news.notify_all()

    def _note(self, message: dict[str, Any]) -> None:
        with self._news:
            self.told.append(message)
            self._news.notify_all()

    def order(self, do: str, **fields: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
        self.process.stdin.flush()

    def rpc(self, call: str, name: str, *args: Any, target: str = "default") -> None:
        """`call` is the id of the promise, `target` the group that shall do it."""
        self.order("rpc", id=call, name=name, args=args, target=target)

    def run(self, call: str, name: str, *args: Any) -> None:
        self.order("run", id=call, name=name, args=args)

    def heard(self, said: str, **fields: Any) -> list[dict[str, Any]]:
        """What it has told so far that has these fields; nothing is still on its way."""
        self._catch_up()
        return self._found(said, fields)

    def hear(self, said: str, times: int = 1, **fields: Any) -> dict[str, Any]:
        """Wait until it has told this so many times."""
        self._listen(lambda: len(self._found(said, fields)) >= times)
        found = self._found(said, fields)
        assert len(found) >= times, f"not told: {said} {fields}\n{self.account()}"
        return found[times - 1]

    def result(self, call: str) -> Any:
        """What this call came to; an error fails the test at once."""
        by_id = {"id": call}
        self._listen(lambda: bool(self._found("result", by_id) or self._found("error", by_id)))
        found = self._found("result", by_id)
        assert found, f"no result of {call}\n{self.account()}"
        return found[0]["value"]

    def _found(self, said: str, fields: dict[str, Any]) -> list[dict[str, Any]]:
        wanted = {"said": said, **fields}.items()
        return [message for message in list(self.told) if wanted <= message.items()]

    def _catch_up(self) -> None:
        """Its answer to a ping comes behind all that it told before. One that has ended gives no
        answer: then its pipe has been read to the end.
        """
        if self._is_over:
            return
        self._pings += 1
        with contextlib.suppress(BrokenPipeError):
            self.order("ping")
        self._listen(lambda: len(self._found("pong", {})) >= self._pings)
        is_caught_up = self._is_over or len(self._found("pong", {})) >= self._pings
        assert is_caught_up, f"no answer to a ping\n{self.account()}"

    def _listen(self, is_enough: Callable[[], bool]) -> None:
        """Until it is enough, or the process has ended: then it tells nothing more."""
        with self._news:
            self._news.wait_for(lambda: is_enough() or self._is_over, PATIENCE_S)

    def account(self) -> str:
        told = "\n".join(json.dumps(message) for message in self.told)
        return f"told:\n{told}\ncomplained:\n{self._complaints.read_text()[-5_000:]}"

    def kill(self) -> None:
        """As kill -9 does; what it told before is still heard."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):  # an order that it has not read
                stream.close()
