"""A worker in TypeScript defers its tasks, and goes on with them when their triggers have fired."""

import base64
import json
import subprocess

import pytest

from tests.sdk.sdks import JS, NODE
from tests.sdk.servers import Server, until

pytestmark = pytest.mark.sdk

GROUP = "typescript"


def create(server: Server, promise: str) -> None:
    tags = {"resonate:target": f"poll://any@{GROUP}"}
    answer = server.ask("promise.create", id=promise, timeoutAt=2**53 - 2, tags=tags)
    assert answer.status == 200


def outcome(server: Server, promise: str) -> object:
    """What it is resolved with, once it is."""

    def read() -> dict:
        return server.ask("promise.get", id=promise).data["promise"]

    until(lambda: read()["state"] != "pending", lambda: str(read()))
    return json.loads(base64.b64decode(read()["value"]["data"]))


def test_it_defers_and_is_resumed(server: Server) -> None:
    """With the payload, its function and its arguments; or with the timeout. It need not be there
    while they wait.
    """
    command = [NODE, JS / "deferring.ts", server.url, GROUP]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        try:
            assert worker.stdout.readline() == "connected\n"
            for promise in ("job", "late"):
                create(server, promise)
                server.await_task(promise, "suspended" if promise == "job" else "fulfilled")
            assert outcome(server, "late") == "no: rejected_timedout"
        finally:
            worker.kill()
    data = base64.b64encode(b'{"amount": 7}').decode()
    assert server.ask("layby.promise.resolve", id="paid-job", value={"data": data}).status == 200
    server.await_task("job", "pending")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as worker:
        try:
            assert outcome(server, "job") == 700
        finally:
            worker.kill()
