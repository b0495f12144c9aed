"""A real server process on a file, and questions to it by the bare protocol."""

import base64
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from layby.cli.doctor import examine
from tests.sdk.peers import PATIENCE_S

SERVE = [sys.executable, "-m", "layby.cli", "serve"]


class Server:
    """Can be killed and started again, on the same file and port."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "server.db"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        place = ["--db", f"sqlite:{self.file}", "--host", "127.0.0.1", "--port", str(self.port)]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [*SERVE, *place], cwd=self.file.parent, stdout=log, stderr=log
            )
        until(self._is_ready, self.account)

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.account()
        try:
            with urllib.request.urlopen(f"{self.url}/ready") as answer:
                return answer.status == 200
        except OSError:
            return False

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def violations(self) -> list:
        """What `layby doctor` finds wrong in the file; the server must be down."""
        return examine(self.file, limit=0).violations

    def account(self) -> str:
        return f"the server says:\n{self._log.read_text()}"

    def ask(self, kind: str, **data: Any) -> tuple[int, Any]:
        head = {"corrId": "test", "version": "2026-04-01"}
        body = json.dumps({"kind": kind, "head": head, "data": data}).encode()
        try:
            with urllib.request.urlopen(self.url, body) as answer:
                return answer.status, json.load(answer)["data"]
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, json.load(refusal)["data"]

    def settle(self, promise: str, state: str, value: Any) -> None:
        data = base64.b64encode(json.dumps(value).encode()).decode()
        status, answer = self.ask("promise.settle", id=promise, state=state, value={"data": data})
        assert (status, answer["promise"]["state"]) == (200, state)

    def await_task(self, task: str, state: str) -> None:
        """Wait until the task is in this state."""

        def is_there() -> bool:
            status, answer = self.ask("task.get", id=task)
            return status == 200 and answer["task"]["state"] == state

        until(is_there, lambda: f"{task} never became {state}: {self.ask('task.get', id=task)}")


def until(condition: Callable[[], bool], account: Callable[[], str]) -> None:
    """Look again until it holds, for what tells nobody."""
    pause, deadline = threading.Event(), time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, account()
        pause.wait(0.02)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
