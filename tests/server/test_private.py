"""A server's file has a private socket like any other owned file."""

from layby.store.ownership import socket_of
from tests.helpers.command_line import typed
from tests.helpers.server_process import ServerProcess

AUTH = """
[[auth.api_keys]]
name = "anna"
key = "layby_test_key_of_somebody_else"
role = "admin"
"""


def test_who_may_open_the_file_needs_no_token(tmp_path):
    """And no URL: a command beside the file finds the server by itself, and may write."""
    (tmp_path / "layby.toml").write_text(AUTH)
    with ServerProcess(tmp_path) as server:
        url = f"http://127.0.0.1:{server.port}"
        assert typed("resolve", "event", "--value", "1", "--url", url).code == 2
        assert typed("resolve", "event", "--value", "1", "--db", server.file).code == 0
        assert socket_of(server.file).stat().st_mode & 0o777 == 0o600
    assert not socket_of(server.file).exists()


def test_a_path_may_be_long(tmp_path):
    """Longer than the path of a socket can be: it is then found elsewhere."""
    folder = tmp_path / ("a" * 100)
    folder.mkdir()
    with ServerProcess(folder) as server:
        assert typed("resolve", "event", "--value", "1", "--db", server.file).code == 0
    assert not socket_of(server.file).exists()


def test_a_store_without_a_file_has_none(tmp_path):
    """There is nothing to stand beside."""
    with ServerProcess(tmp_path, "--db", "memory:"):
        assert not list(tmp_path.glob("*.sock"))
