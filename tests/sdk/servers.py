"""The server under the SDKs, and questions to it by the bare protocol."""

import base64
import json
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.helpers import server_process as processes
from tests.helpers.places import violations
from tests.sdk.peers import PATIENCE_S


class Server(processes.ServerProcess):
    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def violations(self) -> list:
        """What `layby doctor` finds wrong in the file; the server must be down."""
        return violations(self.file)

    def ask(self, kind: str, **data: Any) -> processes.Answer:
        caller = processes.Peer(self.port)
        try:
            return caller.ask(kind, data)
        finally:
            caller.close()

    def settle(self, promise: str, state: str, value: Any) -> None:
        data = base64.b64encode(json.dumps(value).encode()).decode()
        answer = self.ask("promise.settle", id=promise, state=state, value={"data": data})
        assert (answer.status, answer.data["promise"]["state"]) == (200, state)

    def await_task(self, task: str, *states: str) -> None:
        """Wait until the task is in one of these states."""

        def is_there() -> bool:
            answer = self.ask("task.get", id=task)
            return answer.status == 200 and answer.data["task"]["state"] in states

        until(
            is_there,
            lambda: f"{task} never became {' or '.join(states)}: {self.ask('task.get', id=task)}",
        )


def until(condition: Callable[[], bool], account: Callable[[], str]) -> None:
    """Look again until it holds, for what tells nobody."""
    pause, deadline = threading.Event(), time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, account()
        pause.wait(0.02)
