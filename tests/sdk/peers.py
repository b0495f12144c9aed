"""Processes that use an SDK, and what they tell: nobody sleeps, everybody listens."""

import json
import subprocess
import threading
import time
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
            self.told.append({**message, "at": time.monotonic()})
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
        """What it has told so far that has these fields."""
        wanted = {"said": said, **fields}.items()
        return [message for message in list(self.told) if wanted <= message.items()]

    def hear(self, said: str, times: int = 1, **fields: Any) -> dict[str, Any]:
        """Wait until it has told this so many times."""
        self._listen(lambda: len(self.heard(said, **fields)) >= times)
        found = self.heard(said, **fields)
        assert len(found) >= times, f"not told: {said} {fields}\n{self.account()}"
        return found[times - 1]

    def result(self, call: str) -> Any:
        """What this call came to; an error fails the test at once."""
        self._listen(lambda: bool(self.heard("result", id=call) or self.heard("error", id=call)))
        found = self.heard("result", id=call)
        assert found, f"no result of {call}\n{self.account()}"
        return found[0]["value"]

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
            stream.close()
