"""What keeps a server from starting is told together with the remedy."""

import asyncio
import os
import socket
import sys
from pathlib import Path

import pytest

from layby.errors import UsageError
from layby.server.server import SWITCH_S, Server
from layby.server.server_config import HttpConfig, ServerConfig, load


def refusal(config: ServerConfig) -> str:
    with pytest.raises(UsageError) as refused:
        asyncio.run(Server(config).start())
    return str(refused.value)


@pytest.mark.parametrize("db", ["mysql://me:hush@host/db", "http://host:8001", "unix:/a.sock"])
def test_an_address_of_another_kind_is_no_file(
    db: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be taken for the path of one; and its password is not repeated."""
    monkeypatch.chdir(tmp_path)
    told = refusal(ServerConfig(db=db))
    assert told.startswith(f"db cannot be {db.replace('hush', '***')}: ")
    assert told.endswith("write for example sqlite:layby.db")
    assert list(tmp_path.iterdir()) == []


def test_debugging_is_not_for_a_database_that_others_use() -> None:
    """It would stop time for them too."""
    flags = {"db": "postgresql://me:hush@host/db", "debug": "true"}
    with pytest.raises(UsageError, match="other servers share this db") as refused:
        load(flags)
    assert "hush" not in str(refused.value)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    """Nor does it get a lock beside it; the root of all has not even a name."""
    for folder in (tmp_path, Path("/")):
        told = refusal(ServerConfig(db=f"sqlite:{folder}"))
        assert told == f"{folder} is a folder: give the path of a file in it"
    assert not tmp_path.with_name(f"{tmp_path.name}.lock").exists()


def test_a_file_that_may_not_be_written_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by every request. An administrator may write any, so the system's word is made up."""
    file = tmp_path / "a.db"
    file.touch()
    monkeypatch.setattr(os, "access", lambda path, mode: (path, mode) != (file, os.W_OK))
    told = refusal(ServerConfig(db=f"sqlite:{file}"))
    assert told == f"{file} is read-only: give this process write access to it"
    assert list(tmp_path.iterdir()) == [file]


def test_a_port_in_use_is_told_with_its_flag() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = refusal(ServerConfig(db="memory:", server=HttpConfig(port=port)))
        why = "address already in use"
        assert told.startswith(f"cannot listen on 127.0.0.1 port {port} ({why}): ")
        assert told.endswith(": stop the process that uses it, or choose another port with --port")
        http = HttpConfig(port=0, metrics_port=port)
        assert refusal(ServerConfig(db="memory:", server=http)).endswith("with --metrics-port")


@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid"])
def test_an_address_that_is_not_ours_is_told_with_its_flag(host: str) -> None:
    """Another port would not help."""
    told = refusal(ServerConfig(db="memory:", server=HttpConfig(host=host, port=0)))
    assert told.startswith(f"cannot listen on {host} port 0 (")
    assert told.endswith(": give an address of this machine with --host")


def test_threads_are_switched_often_as_long_as_a_server_runs() -> None:
    """Otherwise its writer waits up to 5 ms after every statement while anything else is busy."""

    async def between() -> float:
        server = Server(ServerConfig(db="memory:", server=HttpConfig(port=0)))
        await server.start()
        try:
            return sys.getswitchinterval()
        finally:
            await server.stop()

    before = sys.getswitchinterval()
    assert asyncio.run(between()) == pytest.approx(SWITCH_S)
    assert sys.getswitchinterval() == before
