"""One process owns a file, and whoever comes second is told who and what to do."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from layby.core.settings import Settings
from layby.engine.calendar import next_after
from layby.errors import StoreOwned, StoreUnavailable
from layby.store.ownership import Ownership, misled_owner
from layby.store.sqlite import SqliteReader, SqliteStore

OWNER = """
import sys
from layby.core.settings import Settings
from layby.engine.calendar import next_after
from layby.store.sqlite import SqliteStore
store = SqliteStore(sys.argv[1], Settings(), next_after)
print("open", flush=True)
sys.stdin.read()
"""


def opened(file: Path) -> SqliteStore:
    return SqliteStore(file, Settings(), next_after)


@pytest.fixture
def other(tmp_path):
    """Another process that owns `shared.db` until its input ends."""
    script = tmp_path / "owner.py"
    script.write_text(OWNER)
    file = tmp_path / "shared.db"
    command = [sys.executable, str(script), str(file)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process, file
        process.kill()


def test_a_second_process_is_told_the_owner_and_the_remedy(other):
    """The error names the file, the owner's pid, host and command, and what to do."""
    process, file = other
    with pytest.raises(StoreOwned) as refused:
        opened(file)
    text = str(refused.value)
    for part in (str(file), str(process.pid), socket.gethostname(), "owner.py", "stop that"):
        assert part in text


def test_a_refused_opening_leaves_the_owner_in_possession(other):
    """Trying twice gives the same answer: the first attempt has not loosened the lock."""
    _, file = other
    for _ in range(2):
        with pytest.raises(StoreOwned):
            opened(file)


def test_a_reader_needs_no_ownership(other):
    """Looking at a file works while another process owns it."""
    _, file = other
    reader = SqliteReader(file, Settings(), next_after)
    assert reader.dump().promises == {}
    reader.close()


def test_the_lock_dies_with_its_process(other):
    """After kill -9 the file opens at once: no stale lock has to be removed by hand."""
    process, file = other
    process.kill()
    process.wait()
    opened(file).close()


def test_the_same_file_twice_in_one_process_is_refused(tmp_path):
    """Record locks belong to the process, so this needs a list of our own."""
    store = opened(tmp_path / "a.db")
    with pytest.raises(StoreOwned, match=r"a\.db is already open in this process"):
        opened(tmp_path / "a.db")
    store.close()
    opened(tmp_path / "a.db").close()


def test_a_link_is_the_file_it_points_to(tmp_path):
    """Two names for one file are one file: the second opening is refused."""
    store = opened(tmp_path / "a.db")
    (tmp_path / "link.db").symlink_to(tmp_path / "a.db")
    with pytest.raises(StoreOwned):
        opened(tmp_path / "link.db")
    store.close()


def test_closing_twice_does_not_take_the_file_from_its_next_owner(tmp_path):
    """A store that was closed before owns nothing, whatever has been opened since."""
    first = opened(tmp_path / "a.db")
    first.close()
    second = opened(tmp_path / "a.db")
    first.close()
    with pytest.raises(StoreOwned):
        opened(tmp_path / "a.db")
    second.close()


def test_a_failed_opening_gives_the_file_back(tmp_path):
    """Ownership does not outlive an opening that failed."""
    (tmp_path / "bad.db").write_bytes(b"this is no database" * 100)
    for _ in range(2):
        with pytest.raises(Exception, match="not a layby database"):
            opened(tmp_path / "bad.db")


def test_a_missing_folder_is_named(tmp_path):
    """The error says which folder is missing, and nothing is created."""
    with pytest.raises(StoreUnavailable, match="check that the folder exists"):
        opened(tmp_path / "nowhere" / "a.db")
    assert not (tmp_path / "nowhere").exists()


def test_the_lock_file_says_who_owns_it_until_it_is_released(tmp_path):
    """A person can read the lock file; afterwards it is empty."""
    lock = tmp_path / "a.db.lock"
    ownership = Ownership(tmp_path / "a.db")
    signed = json.loads(lock.read_text())
    assert signed["pid"] == os.getpid()
    ownership.release()
    assert lock.read_text() == ""


def test_a_signature_that_cannot_be_written_is_no_reason_to_fail(tmp_path, monkeypatch):
    """On a full disk the lock still holds; only the courtesy of a name is missing."""

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    ownership = Ownership(tmp_path / "a.db")
    with pytest.raises(StoreOwned):
        Ownership(tmp_path / "a.db")
    ownership.release()
    Ownership(tmp_path / "a.db").release()


def test_a_copy_of_the_folder_is_nobodys(other, tmp_path):
    """It has a copy of the lock file, too: its owner uses the original, and is not misled."""
    process, file = other
    copy = tmp_path / "copy"
    copy.mkdir()
    for each in tmp_path.glob("shared.db*"):
        shutil.copy(each, copy / each.name)
    assert misled_owner(copy / file.name) is None
    file.with_name("shared.db-wal").rename(tmp_path / "gone")
    assert f"process {process.pid}" in (misled_owner(file) or "")
