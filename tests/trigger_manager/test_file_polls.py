"""FileExists on real files, and the folders it may look into."""

import asyncio
import os
from pathlib import Path

import pytest

from layby.testing import current_clock, virtual_test
from layby.trigger_manager import file_polls
from layby.trigger_manager.access_checks import AccessChecks, AccessRefused
from layby.trigger_manager.file_polls import FilePolls, TooYoung
from layby.trigger_manager.shared_polls import SharedPolls
from layby.trigger_manager.trigger_access import TriggerAccess
from layby.triggers import FileExists


@pytest.fixture(name="polls")
def _polls(tmp_path: Path) -> FilePolls:
    checks = AccessChecks(TriggerAccess(folders=(str(tmp_path / "in"),)))
    return FilePolls(checks, lambda _: None)


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def test_a_file_that_comes(polls, folder):
    """The payload says how large it is and when it was written."""
    wanted = FileExists(str(folder / "deep" / "report.csv"))
    assert polls.ask(wanted) is None
    (folder / "deep").mkdir()
    assert polls.ask(wanted) is None
    (folder / "deep" / "report.csv").write_text("abc")
    os.utime(wanted.path, (1_700_000_000, 1_700_000_000))
    assert polls.ask(wanted) == {
        "path": wanted.path,
        "size": 3,
        "modified_at": 1_700_000_000_000,
    }


def test_a_file_that_is_still_written(polls, folder):
    """Too small, or changed a moment ago: not yet."""
    file = folder / "report.csv"
    file.write_text("abc")
    assert polls.ask(FileExists(str(file), min_size=4)) is None
    with pytest.raises(TooYoung):
        polls.ask(FileExists(str(file), settled_for=60))
    os.utime(file, (1_700_000_000, 1_700_000_000))
    assert polls.ask(FileExists(str(file), settled_for=60)) is not None


def test_a_file_in_place_of_a_folder(polls, folder):
    """The path leads through a file: there is nothing, yet."""
    (folder / "deep").write_text("")
    assert polls.ask(FileExists(str(folder / "deep" / "report.csv"))) is None


@pytest.mark.parametrize("path", ["/etc/passwd", "{}/../out/x", "{}x/y", "{}/out/x", "{}/link"])
def test_paths_outside_of_the_folders(polls, folder, tmp_path, path):
    """Also by `..`, by a name that only begins alike, and through links."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x").write_text("")
    (folder / "out").symlink_to(tmp_path / "out")
    (folder / "link").symlink_to("/etc/passwd")
    with pytest.raises(AccessRefused, match=r"triggers\.folders"):
        polls.ask(FileExists(path.format(folder)))


def test_links_inside_of_the_folders(polls, folder):
    """They are followed."""
    (folder / "x").write_text("abc")
    (folder / "link").symlink_to(folder / "x")
    found = polls.ask(FileExists(str(folder / "link")))
    assert found is not None
    assert found["size"] == 3


WRITTEN = 1_700_000_000


@virtual_test
async def test_a_file_that_is_too_young_is_asked_for_when_it_is_old_enough(tmp_path, monkeypatch):
    """Not a whole `every` later. One from the future is asked for at the usual pace."""
    clock = current_clock()
    monkeypatch.setattr(file_polls, "file_time", lambda: WRITTEN + clock.elapsed)
    shared = SharedPolls(AccessChecks(TriggerAccess(folders=(str(tmp_path),))), lambda: 0)
    file, future = tmp_path / "file", tmp_path / "future"
    joined = []
    for path, at in ((file, WRITTEN), (future, WRITTEN + 1_000)):
        path.write_text("abc")
        os.utime(path, (at, at))
        wanted = FileExists(str(path), settled_for=7, every=60)
        joined.append(shared.join((str(path), b"", "", None), wanted, is_new=True, phase="a"))
    young, from_future = joined
    await young.payload()
    assert clock.elapsed == pytest.approx(7, abs=0.01)
    assert young.watched.polls == 2
    await asyncio.sleep(60)
    assert from_future.watched.polls == 2
    await shared.close()
