"""A store pulled from under its owner: nothing is acknowledged that is not under the path."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from threading import Event, Thread

import pytest

from layby.core.commands import CreatePromise
from layby.core.model import NEVER
from layby.core.settings import Settings
from layby.engine.batch import apply
from layby.engine.calendar import next_after
from layby.errors import StoreGone, StoreOpenHere, StoreOwned, StoreUnreadable
from layby.store import wal_breaks
from layby.store.checkpoints import Checkpoints
from layby.store.sqlite import SqliteReader, SqliteStore, schema_in_file

READER = """
import sys
from layby.core.settings import Settings
from layby.engine.calendar import next_after
from layby.store.sqlite import SqliteReader
"""
SECOND_OWNER = """
import sys
from layby.core.settings import Settings
from layby.engine.calendar import next_after
from layby.errors import StoreOwned
from layby.store.sqlite import SqliteStore
try:
    SqliteStore(sys.argv[1], Settings(), next_after).close()
except StoreOwned as refused:
    print(refused)
"""


@pytest.fixture(autouse=True)
def frequent_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_breaks, "CHECKPOINT_FRAMES", 1_000)
    monkeypatch.setattr(Checkpoints, "ask", Checkpoints.make)  # at once, so that all is repeatable


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "a.db"


@pytest.fixture
def store(file: Path) -> Iterator[SqliteStore]:
    opened = on(file)
    write(opened, "first")
    yield opened
    opened.close()


def on(file: Path) -> SqliteStore:
    return SqliteStore(file, Settings(), next_after, durability="normal")


def write(store: SqliteStore, *ids: str, size: int = 0) -> None:
    """Each in a transaction of its own, and at a time of its own, as the engine writes."""
    for promise_id in ids:
        create = CreatePromise(id=promise_id, timeout_at=NEVER, tags={"x": "y" * size})
        now = store.store_time() + 1
        with store.transaction():
            apply(store, [(create, now)], now)


def fill(store: SqliteStore, name: str = "fill") -> None:
    """Until SQLite has copied its log into the database, more than once."""
    write(store, *(f"{name}{number}" for number in range(200)), size=60_000)


def read(file: Path) -> set[str]:
    reader = SqliteReader(file, Settings(), next_after)
    try:
        with reader.transaction():
            return set(reader.dump().promises)
    finally:
        reader.close()


def second_owner(file: Path) -> str:
    """What another process is told; nothing if it may have the file."""
    command = [sys.executable, "-c", SECOND_OWNER, str(file)]
    return subprocess.run(command, check=True, text=True, capture_output=True).stdout


# --- how it may happen -----------------------------------------------------------------------


def unlinked(file: Path) -> None:
    file.unlink()


def moved_away(file: Path) -> None:
    file.rename(file.with_name("b.db"))


def replaced(file: Path) -> None:
    other = file.with_name("other.db")
    on(other).close()
    other.replace(file)


def moved_and_linked(file: Path) -> None:
    """SQLite will look for the log beside the file, where it is now."""
    elsewhere = file.parent.with_name("elsewhere")
    elsewhere.mkdir()
    file.rename(elsewhere / file.name)
    file.symlink_to(elsewhere / file.name)


def folder_moved(file: Path) -> None:
    file.parent.rename(file.parent.with_name("elsewhere"))


def truncated(file: Path) -> None:
    os.truncate(file, 0)


def cut_short(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def overwritten(file: Path) -> None:
    """As `cp other.db a.db` does it: the inode stays."""
    other = file.with_name("other.db")
    filled = on(other)
    fill(filled)
    filled.close()
    file.write_bytes(other.read_bytes())


def log_removed(file: Path) -> None:
    file.with_name("a.db-wal").unlink()


def log_moved(file: Path) -> None:
    file.with_name("a.db-wal").rename(file.with_name("b.db-wal"))


def log_emptied(file: Path) -> None:
    os.truncate(file.with_name("a.db-wal"), 0)


def log_cut_short(file: Path) -> None:
    """Most of it is still there."""
    os.truncate(file.with_name("a.db-wal"), log_size(file) - 5_000)


def log_lacks_a_byte(file: Path) -> None:
    os.truncate(file.with_name("a.db-wal"), log_size(file) - 1)


def log_overwritten(file: Path) -> None:
    with file.with_name("a.db-wal").open("r+b") as log:
        log.write(bytes(4096))


def log_size(file: Path) -> int:
    """As far as the index says; what is behind it is left of an older log."""
    index = file.with_name("a.db-shm").read_bytes()
    return 32 + int.from_bytes(index[16:20], sys.byteorder) * (24 + 4096)


def index_removed(file: Path) -> None:
    file.with_name("a.db-shm").unlink()


WAYS: dict[Callable[[Path], None], str] = {
    unlinked: "gone from there",
    moved_away: "gone from there",
    replaced: "another file is in its place",
    moved_and_linked: "a.db was moved, and a link leads to it",
    folder_moved: "gone from there",
    truncated: "another program has written to the file",
    cut_short: "another program has written to the file",
    overwritten: "another program has written to the file",
    log_removed: "a.db-wal was removed or replaced",
    log_moved: "a.db-wal was removed or replaced",
    log_emptied: "a.db-wal was cut short or overwritten",
    log_cut_short: "a.db-wal was cut short or overwritten",
    log_lacks_a_byte: "a.db-wal was cut short or overwritten",
    log_overwritten: "a.db-wal was cut short or overwritten",
    index_removed: "a.db-shm was removed or replaced",
}


@pytest.mark.parametrize("happens", WAYS)
def test_nothing_is_acknowledged_into_nowhere(
    store: SqliteStore, file: Path, happens: Callable[[Path], None]
) -> None:
    """Writes and reads are refused with a sentence: which file, what happened, what to do."""
    fill(store)
    happens(file)
    for _ in range(2):
        with pytest.raises(StoreGone) as refused:
            write(store, "lost")
        assert str(file) in str(refused.value)
        assert WAYS[happens] in str(refused.value)
        assert "stop this process" in str(refused.value)
        with pytest.raises(StoreGone), store.transaction():
            store.living_pids()


@pytest.mark.parametrize("happens", WAYS)
def test_it_is_noticed_in_the_middle_of_a_transaction(
    store: SqliteStore, file: Path, happens: Callable[[Path], None]
) -> None:
    """A commit that succeeds where nobody will look for it is not acknowledged."""
    fill(store)
    with pytest.raises(StoreGone, match=WAYS[happens]), store.transaction():
        happens(file)


def test_a_link_that_points_elsewhere_is_another_file(tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    for name in ("a.db", "b.db"):
        on(tmp_path / name).close()
    link.symlink_to(tmp_path / "a.db")
    store = on(link)
    write(store, "first")
    link.unlink()
    link.symlink_to(tmp_path / "b.db")
    with pytest.raises(StoreGone, match=r"link\.db: another file is in its place"):
        write(store, "lost")
    store.close()
    assert read(tmp_path / "a.db") == {"first"}


def test_a_link_follows_no_file_that_is_renamed(tmp_path: Path) -> None:
    """Under its new name the file is the same, but SQLite would not find its log."""
    link, file = tmp_path / "link.db", tmp_path / "a.db"
    on(file).close()
    link.symlink_to(file)
    store = on(link)
    write(store, "first")
    file.rename(tmp_path / "b.db")
    link.unlink()
    link.symlink_to(tmp_path / "b.db")
    with pytest.raises(StoreGone, match=r"link\.db: a\.db was moved"):
        write(store, "lost")
    (tmp_path / "b.db").rename(file)
    link.unlink()
    link.symlink_to(file)
    write(store, "second")
    store.close()
    assert read(link) >= {"first", "second"}


def test_a_file_that_was_moved_and_linked_is_complete_after_an_orderly_end(
    store: SqliteStore, file: Path
) -> None:
    write(store, "second")
    moved_and_linked(file)
    with pytest.raises(StoreGone):
        write(store, "unknown")
    store.close()
    assert read(file) >= {"first", "second"}
    again = on(file)
    write(again, "third")
    again.close()
    assert read(file) >= {"first", "second", "third"}


def test_a_folder_may_become_a_link(store: SqliteStore, file: Path) -> None:
    """What is beside the file has moved with it, so whoever opens the path finds the log."""
    elsewhere = file.parent.with_name("elsewhere")
    file.parent.rename(elsewhere)
    file.parent.symlink_to(elsewhere)
    write(store, "second")
    assert read(file) == {"first", "second"}


def test_an_older_copy_of_the_same_store_is_noticed(store: SqliteStore, file: Path) -> None:
    """Though inode, size and first page may be as they were."""
    fill(store)
    copy = file.with_name("copy.db")
    shutil.copyfile(file, copy)
    fill(store, "more")
    size = file.stat().st_size
    with file.open("r+b") as opened:
        opened.write(copy.read_bytes())
        opened.truncate(size)
    with pytest.raises(StoreGone, match="another program has written"):
        write(store, "lost")


# --- what is not a loss ----------------------------------------------------------------------


def test_what_comes_back_is_served_again(store: SqliteStore, file: Path) -> None:
    """A folder that was moved and moved back: nothing has to be restarted, nothing was lost."""
    folder_moved(file)
    with pytest.raises(StoreGone):
        write(store, "refused")
    file.parent.with_name("elsewhere").rename(file.parent)
    write(store, "second")
    assert read(file) == {"first", "second"}


def test_checkpoints_and_other_readers_are_not_strangers(store: SqliteStore, file: Path) -> None:
    """SQLite writes to the file itself, asked to by us or by another program."""
    fill(store)
    with sqlite3.connect(file) as other:
        assert other.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()[0] == 0
        write(store, "a")
        assert other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
        write(store, "b")
    other.close()
    fill(store, "more")
    assert len(read(file)) == 403


@pytest.mark.parametrize("mode", ["PASSIVE", "RESTART", "TRUNCATE"])
def test_checkpoints_of_another_program_may_come_at_any_moment(
    store: SqliteStore, file: Path, mode: str
) -> None:
    """Also while we look: one that is under way writes several times."""
    stop = Event()

    def checkpoint() -> None:
        with closing(sqlite3.connect(file, timeout=0.1)) as other:
            while not stop.is_set():
                with suppress(sqlite3.OperationalError):  # locked: we are writing
                    other.execute(f"PRAGMA wal_checkpoint({mode})")

    thread = Thread(target=checkpoint)
    thread.start()
    try:
        for number in range(5):
            fill(store, f"{number}-")
    finally:
        stop.set()
        thread.join()
    assert len(read(file)) == 1001


def test_a_restarted_log_does_not_explain_a_write(store: SqliteStore, file: Path) -> None:
    """The first commit after a checkpoint starts the log again, and writes nothing to the file."""
    fill(store)
    with closing(sqlite3.connect(file)) as other:
        other.execute("PRAGMA wal_checkpoint(PASSIVE)")
    store._own_file.look()

    def commit() -> None:
        with store.transaction():
            store._connection.execute("UPDATE store_time SET at = at + 1")
            overwritten(file)

    with pytest.raises(StoreGone):
        commit()


def test_a_new_time_alone_is_not_a_loss(store: SqliteStore, file: Path) -> None:
    """`touch` changes nothing, nor does a file system that is late with its times."""
    fill(store)
    os.utime(file)
    write(store, "second")
    file.chmod(0o600)
    os.link(file, file.with_name("kept.db"))
    write(store, "third")


# --- how it ends -----------------------------------------------------------------------------


def test_a_file_that_was_overwritten_is_left_as_it_is(store: SqliteStore, file: Path) -> None:
    """The log belongs to another content: neither we nor the next owner add it to the file."""
    fill(store)
    overwritten(file)
    with pytest.raises(StoreGone):
        write(store, "lost")
    as_put = file.read_bytes()
    store.close()
    assert file.read_bytes() == as_put
    with pytest.raises(StoreUnreadable, match=r"remove a\.db-wal and a\.db-shm to use this one"):
        on(file)
    for name in ("a.db-wal", "a.db-shm"):
        file.with_name(name).unlink()
    on(file).close()
    assert "fill199" in read(file)


def test_a_file_in_its_place_is_left_as_it_is(store: SqliteStore, file: Path) -> None:
    """The same when it was noticed only at the end; and the original finds its log again."""
    original = file.with_name("original.db")
    os.link(file, original)
    replaced(file)
    as_put = file.read_bytes()
    store.close()
    assert file.read_bytes() == as_put
    with pytest.raises(StoreUnreadable, match="put that one back"):
        on(file)
    original.replace(file)
    on(file).close()
    assert read(file) == {"first"}


def test_a_log_that_was_removed_is_saved_at_the_end(store: SqliteStore, file: Path) -> None:
    """Everything acknowledged is in the file after an orderly end."""
    write(store, "second")
    log_removed(file)
    with pytest.raises(StoreGone):
        write(store, "unknown")
    store.close()
    assert read(file) >= {"first", "second"}


@pytest.mark.parametrize("happens", [log_removed, log_moved, index_removed, moved_and_linked])
def test_only_the_command_that_noticed_may_be_in_the_file(
    store: SqliteStore, file: Path, happens: Callable[[Path], None]
) -> None:
    """What was refused after it does not come true when the owner ends."""
    happens(file)
    for promise_id in ("noticed", "refused", "refused again"):
        with pytest.raises(StoreGone):
            write(store, promise_id)
    store.close()
    assert read(file) == {"first", "noticed"}


@pytest.mark.parametrize("happens", [log_emptied, log_cut_short, log_overwritten])
@pytest.mark.parametrize("is_filled", [False, True], ids=["left", "filled"])
def test_a_log_that_was_cut_is_never_copied_into_the_file(
    store: SqliteStore, file: Path, happens: Callable[[Path], None], *, is_filled: bool
) -> None:
    """SQLite would copy a hole of zeros. What it copied before is there for the next owner."""
    fill(store)
    copied = file.read_bytes()

    def commit() -> None:
        with store.transaction():
            if is_filled:  # with so much that SQLite would make a checkpoint at once
                tags = {"x": "y" * 60_000}
                many = [CreatePromise(id=f"{n}", timeout_at=NEVER, tags=tags) for n in range(100)]
                apply(store, [(each, 10_000) for each in many], 10_000)
            happens(file)

    with pytest.raises(StoreGone):
        commit()
    for _ in range(2):
        with pytest.raises(StoreGone, match="what the file holds"):
            write(store, "lost", size=5_000_000)
    store.close()
    assert file.read_bytes() == copied
    with pytest.raises(StoreUnreadable, match=r"a\.db-wal was overwritten or cut short.*a\.db-shm"):
        on(file)
    for name in ("a.db-wal", "a.db-shm"):
        file.with_name(name).unlink()
    again = on(file)
    write(again, "again")
    again.close()
    assert read(file) > {"first", "fill0", "again"}
    with closing(sqlite3.connect(file)) as other:
        assert other.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_log_that_was_cut_is_noticed_at_the_end_at_the_latest(
    store: SqliteStore, file: Path
) -> None:
    fill(store)
    copied = file.read_bytes()
    log_emptied(file)
    store.close()
    assert file.read_bytes() == copied


def test_readers_are_refused_when_the_log_was_cut(store: SqliteStore, file: Path) -> None:
    reader = store.open_reader(lambda: None)
    with reader.snapshot(1):
        pass
    log_emptied(file)
    with pytest.raises(StoreGone, match="cut short"), reader.snapshot(1):
        pass
    reader.close()


OPEN: list[Callable[[Path], None]] = [unlinked, replaced, moved_and_linked, truncated, cut_short]
OPEN += [overwritten, log_removed, log_emptied, index_removed]


@pytest.mark.parametrize("happens", OPEN)
def test_lists_are_refused_like_all_reads(
    store: SqliteStore, file: Path, happens: Callable[[Path], None]
) -> None:
    """By a reader that was there before, and by one that is opened only now."""
    fill(store)
    before = store.open_reader(lambda: None)
    with before.snapshot(1):
        pass
    happens(file)
    with pytest.raises(StoreGone):
        write(store, "lost")
    try:
        with pytest.raises(StoreGone), before.snapshot(1):
            pass
        with pytest.raises(StoreGone):
            store.open_reader(lambda: None)
    finally:
        before.close()


def test_a_reader_leaves_the_log_of_an_emptied_file(store: SqliteStore, file: Path) -> None:
    """SQLite removes the log of a database that is empty, whoever opens it."""
    truncated(file)
    with pytest.raises(StoreGone, match="cut it short"):
        store.open_reader(lambda: None)
    with pytest.raises(StoreGone, match="cut it short"):
        write(store, "lost")
    store.close()
    assert file.with_name("a.db-wal").stat().st_size


@pytest.mark.parametrize("look", [read, schema_in_file])
def test_looking_at_an_emptied_file_leaves_its_log(
    store: SqliteStore, file: Path, look: Callable[[Path], object]
) -> None:
    """Commands that only read come first when something is wrong: with the original file back at
    its path, everything goes on.
    """
    original = file.with_name("original.db")
    file.rename(original)
    file.touch()
    with pytest.raises(StoreUnreadable, match="not a layby database"):
        look(file)
    original.replace(file)
    write(store, "second")
    assert read(file) == {"first", "second"}


def test_a_file_that_was_emptied_is_not_begun_anew(store: SqliteStore, file: Path) -> None:
    """What the log held would be gone without a word."""
    truncated(file)
    with pytest.raises(StoreGone):
        write(store, "lost")
    store.close()
    with pytest.raises(StoreUnreadable, match=r"remove a\.db-wal and a\.db-shm to use this one"):
        on(file)
    file.with_name("a.db-wal").unlink()
    on(file).close()
    assert read(file) == set()


def test_a_file_that_was_deleted_can_be_begun_anew(store: SqliteStore, file: Path) -> None:
    unlinked(file)
    store.close()
    on(file).close()
    assert read(file) == set()


def test_a_copy_of_the_whole_folder_keeps_its_log(store: SqliteStore, file: Path) -> None:
    """A crashed owner's folder may be copied to another disk: all inodes differ there."""
    write(store, "second")
    copy = file.parent.with_name("copy")
    shutil.copytree(file.parent, copy)
    on(copy / "a.db").close()
    assert read(copy / "a.db") == {"first", "second"}


# --- second owners ---------------------------------------------------------------------------


def test_a_second_owner_through_a_hard_link_is_refused(store: SqliteStore, file: Path) -> None:
    """It has a lock file and a log of its own: it would damage the database."""
    link = file.with_name("link.db")
    os.link(file, link)
    assert "through another name of the same file" in second_owner(link)
    with pytest.raises(StoreOpenHere, match="already open in this process"):
        on(link)
    write(store, "second")
    assert "through another name of the same file" in second_owner(link)
    store.close()
    assert second_owner(link) == ""


def test_a_second_owner_after_the_lock_file_was_removed_is_refused(
    store: SqliteStore, file: Path
) -> None:
    file.with_name("a.db.lock").unlink()
    assert "although a.db.lock was removed" in second_owner(file)
    store.close()
    assert second_owner(file) == ""


def test_readers_in_the_same_process_do_not_loosen_the_lock(store: SqliteStore, file: Path) -> None:
    """Record locks end when a process closes the file anywhere; SQLite puts off its closes."""
    file.with_name("a.db.lock").unlink()
    assert read(file) == {"first"}
    with pytest.raises(StoreOwned):
        on(file)
    assert "stop that process" in second_owner(file)


# --- the program around us -------------------------------------------------------------------


linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has locks of open files")


@linux
def test_who_copies_the_file_does_not_loosen_the_locks(store: SqliteStore, file: Path) -> None:
    """Any close of the file in this process ends its record locks: SQLite's, which keep the log
    from being removed, and ours would be among them.
    """
    fill(store)
    shutil.copytree(file.parent, file.parent.with_name("copy"))
    link = file.with_name("link.db")
    os.link(file, link)
    assert "through another name of the same file" in second_owner(link)
    assert "stop that process" in second_owner(file)
    count = (
        "import sqlite3, sys; print(*sqlite3.connect(sys.argv[1]).execute('PRAGMA user_version'))"
    )
    subprocess.run([sys.executable, "-c", count, str(file)], check=True)
    write(store, "second")
    store.close()
    assert not file.with_name("a.db-wal").exists()
    assert "second" in read(file)


@linux
def test_a_forked_child_does_not_inherit_the_file(file: Path) -> None:
    """It may outlive the owner, and knows nothing of the file."""
    script = f"""
import os, signal, sys
{SECOND_OWNER.split("try:", 1)[0]}
store = SqliteStore(sys.argv[1], Settings(), next_after)
ready, told = os.pipe()
child = os.fork()
if child == 0:
    os.write(told, b"x")
    signal.pause()
os.read(ready, 1)
print(child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    command = [sys.executable, "-c", script, str(file)]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        child = int(owner.stdout.readline())
        owner.wait()
        try:
            assert second_owner(file) == ""
        finally:
            os.kill(child, signal.SIGKILL)


@linux
def test_a_reader_through_a_hard_link_is_told_the_reason(store: SqliteStore, file: Path) -> None:
    """The commits are in a log beside the other name."""
    link = file.with_name("link.db")
    os.link(file, link)
    look = READER + "SqliteReader(sys.argv[1], Settings(), next_after).close()"
    for name, told in ((link, "give the name that process uses"), (file, "")):
        command = [sys.executable, "-c", look, str(name)]
        said = subprocess.run(command, check=False, text=True, capture_output=True).stderr
        assert told in said
        assert bool(said) == bool(told)
    store.close()
    assert read(link) == {"first"}
