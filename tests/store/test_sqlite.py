"""Files that cannot be opened: what is wrong, with which file, and what to do about it."""

import sqlite3
import tempfile
from pathlib import Path

import pytest

from layby.core.commands import CreatePromise
from layby.core.model import NEVER
from layby.core.settings import Settings
from layby.engine.calendar import next_after
from layby.engine.engine import Engine
from layby.errors import StoreUnavailable, StoreUnreadable
from layby.store.sqlite import SqliteReader, SqliteStore
from tests.helpers.clocks import ManualClock
from tests.helpers.disks import read_only, small_disk


def opened(file: Path, busy_ms: int = 5_000) -> SqliteStore:
    return SqliteStore(file, Settings(), next_after, busy_ms=busy_ms)


def reader(file: Path) -> SqliteReader:
    return SqliteReader(file, Settings(), next_after)


def filled(file: Path, count: int = 10, text: str = "x") -> Path:
    """A file with promises in it, closed in order."""
    engine = Engine(opened(file), ManualClock())
    engine.start_inline()
    for number in range(count):
        tags = {"text": f"{text}-{number}"}
        engine.call(CreatePromise(id=f"p{number:05}", timeout_at=NEVER, tags=tags))
    engine.stop()
    return file


@pytest.fixture
def folder():
    """A folder whose parents anybody may enter, so that permissions are all that counts."""
    with tempfile.TemporaryDirectory(prefix="layby-test-") as name:
        Path(name).chmod(0o777)
        yield Path(name)


# --- no database -------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"no database at all" * 500, b"\x00" * 8192, b"SQLite"])
def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path, content):
    """The error names the file and asks for another path; not a byte is changed."""
    file = tmp_path / "notes.txt"
    file.write_bytes(content)
    for look in (opened, reader):
        with pytest.raises(StoreUnreadable, match=r"notes\.txt: .*not a layby database"):
            look(file)
    assert file.read_bytes() == content


def test_an_empty_file_is_a_new_database(tmp_path):
    """`touch` and then open works, as it does with SQLite itself."""
    (tmp_path / "a.db").touch()
    store = opened(tmp_path / "a.db")
    assert store.dump().promises == {}
    store.close()


def test_an_empty_file_holds_nothing_to_read(tmp_path):
    """A reader creates nothing, so for it there is no database yet."""
    (tmp_path / "a.db").touch()
    with pytest.raises(StoreUnreadable, match=r"a\.db: .*not a layby database"):
        reader(tmp_path / "a.db")
    assert (tmp_path / "a.db").read_bytes() == b""


def test_a_folder_is_no_database(tmp_path):
    """The error names the path, and no traceback of SQLite is seen."""
    (tmp_path / "dir").mkdir()
    with pytest.raises(StoreUnavailable, match=r"dir: the file cannot be opened"):
        opened(tmp_path / "dir")


def test_reading_a_missing_file_does_not_create_it(tmp_path):
    """A typing error in a path must not leave an empty database behind."""
    with pytest.raises(StoreUnavailable, match=r"gone\.db: "):
        reader(tmp_path / "gone.db")
    assert list(tmp_path.iterdir()) == []


# --- damage ------------------------------------------------------------------------------


def test_garbage_in_the_header_is_refused(tmp_path):
    """A file that starts wrong is no database; the rest of it is not touched."""
    file = filled(tmp_path / "a.db")
    damaged = b"\xff" * 100 + file.read_bytes()[100:]
    file.write_bytes(damaged)
    for look in (opened, reader):
        with pytest.raises(StoreUnreadable, match=r"a\.db: .*backup"):
            look(file)
    assert file.read_bytes() == damaged


def test_a_file_cut_short_is_refused(tmp_path):
    """Half a file, as an interrupted copy leaves it."""
    file = filled(tmp_path / "a.db", 300)
    file.write_bytes(file.read_bytes()[: 4096 * 3])
    with pytest.raises(StoreUnreadable, match=r"a\.db: .*damaged.*backup"):
        opened(file)


# --- read-only and full ------------------------------------------------------------------


def test_a_read_only_folder_is_refused_with_the_remedy(folder):
    """The error says what cannot be written, and afterwards the file is as before."""
    file = filled(folder / "a.db")
    before = file.read_bytes()
    with read_only(folder), pytest.raises(StoreUnavailable, match=r"a\.db.*is writable"):
        opened(file)
    assert file.read_bytes() == before
    opened(file).close()


def test_a_read_only_folder_can_be_read(folder):
    """Looking at a file needs no right to write beside it."""
    file = filled(folder / "a.db")
    with read_only(folder):
        look = reader(file)
        assert len(look.dump().promises) == 10
        look.close()


def test_a_full_disk_is_refused_and_nothing_is_half_made(folder):
    """No room for a new file: the error says so, and with room again it opens as new."""
    with small_disk(folder) as disk:
        probe = sqlite3.connect(":memory:")
        if disk.is_real:
            disk.fill(probe)
            with pytest.raises(StoreUnavailable, match=r"a\.db: .*(full|space)"):
                opened(folder / "a.db")
            disk.free(probe)
        probe.close()
        opened(folder / "a.db").close()


# --- locked ------------------------------------------------------------------------------


def test_a_file_locked_by_another_program_is_refused_while_it_is(tmp_path):
    """The error says that somebody holds it; when they let go it opens."""
    file = filled(tmp_path / "a.db")
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreUnavailable, match=r"a\.db: another program holds a lock"):
        opened(file, busy_ms=10)
    other.execute("ROLLBACK")
    other.close()
    opened(file).close()


def test_a_reader_sees_one_moment_while_the_owner_writes(tmp_path):
    """Inside a transaction every look shows the same state, whatever the owner does meanwhile."""
    engine = Engine(opened(tmp_path / "a.db"), ManualClock())
    engine.start_inline()
    engine.call(CreatePromise(id="first", timeout_at=NEVER))
    look = reader(tmp_path / "a.db")
    with look.transaction():
        before = look.dump()
        engine.call(CreatePromise(id="second", timeout_at=NEVER))
        assert look.dump() == before
    assert set(look.dump().promises) == {"first", "second"}
    look.close()
    engine.stop()
