"""Pushes to the machine the server runs on: whether it lets itself be used for them."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from layby.core.model import NEVER
from layby.server.auth_config import AuthConfig
from layby.server.server import LOOPBACK, Server
from layby.server.server_config import CorsConfig, HttpConfig, ServerConfig
from tests.helpers.raw_http import Line
from tests.helpers.server_process import ServerProcess

PATIENCE_S = 90


class Hook(HTTPServer):
    """A worker at an address of this machine."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Hears)
        self.has_heard = threading.Event()

    @property
    def url(self) -> str:
        return f"http://localhost:{self.server_port}/work"


class _Hears(BaseHTTPRequestHandler):
    server: Any

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()
        self.server.has_heard.set()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def hook() -> Iterator[Hook]:
    with Hook() as hook:
        thread = threading.Thread(target=hook.serve_forever)
        thread.start()
        yield hook
        hook.shutdown()
        thread.join()


def create_for(server: ServerProcess, url: str) -> None:
    tags = {"resonate:target": url}
    with Line(server.port) as line:
        assert (
            line.ask("promise.create", {"id": "p", "timeoutAt": NEVER, "tags": tags}).status == 200
        )


def test_a_server_of_this_machine_alone_pushes_to_it(tmp_path: Path, hook: Hook) -> None:
    with ServerProcess(tmp_path) as server:
        create_for(server, hook.url)
        assert hook.has_heard.wait(PATIENCE_S)


def test_a_server_for_others_does_not(tmp_path: Path, hook: Hook) -> None:
    """Or they could reach through it what is hidden from them."""
    with ServerProcess(tmp_path, "--host", "0.0.0.0") as server:
        create_for(server, hook.url)
        server.until_it_says("push.allow")
        assert not hook.has_heard.is_set()


@pytest.mark.parametrize(
    "config",
    [
        ServerConfig(server=HttpConfig(host="0.0.0.0")),
        ServerConfig(server=HttpConfig(url="https://layby.example.org")),
        ServerConfig(cors=CorsConfig(origins=("https://app.example.org",))),
        ServerConfig(auth=AuthConfig(public_key="none")),
    ],
)
def test_every_sign_of_others_counts(config: ServerConfig) -> None:
    """Those behind a proxy do not show in the address it listens on."""
    assert Server(config)._push_config() == config.push
    assert Server(ServerConfig())._push_config().allow == LOOPBACK
