"""The doctor finds what is wrong, says so in one line each, and changes nothing."""

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from layby.cli.doctor import examine
from layby.cli.main import cli
from layby.clock import SystemClock
from layby.core.commands import (
    CreatePromise,
    CreateSchedule,
    Node,
    RegisterListener,
    SettlePromise,
    StartRun,
    Take,
)
from layby.core.invariants import INVARIANTS, check
from layby.core.lives import NodeAgain, RerunRun
from layby.core.model import NEVER
from layby.core.settings import Settings
from layby.engine.calendar import next_after
from layby.engine.engine import Engine
from layby.errors import LaybyError
from layby.store import pages
from layby.store.sqlite import SqliteReader, SqliteStore
from tests.cli.test_main import run
from tests.helpers import requests as r

OURS = {"resonate:target": "poll://any@layby.g", "layby:name": "n"}
FOREIGN = {"resonate:target": "poll://any@default"}


def doctor(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, ["doctor", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def opened(file: Path) -> Engine:
    engine = Engine(SqliteStore(file, Settings(), next_after), SystemClock())
    engine.start_inline()
    return engine


def change(file: Path, statement: str) -> None:
    connection = sqlite3.connect(file)
    with connection:
        connection.executescript(statement)
    connection.close()


@pytest.fixture(scope="module")
def sound_file(tmp_path_factory):
    """A file with a bit of everything in it."""
    file = tmp_path_factory.mktemp("sound") / "a.db"
    engine = opened(file)
    for number in range(7):
        engine.call(CreatePromise(id=f"p{number}", timeout_at=NEVER))
        engine.call(CreatePromise(id=f"t{number}", timeout_at=NEVER, tags=OURS))
        engine.call(CreatePromise(id=f"f{number}", timeout_at=NEVER, tags=FOREIGN))
        engine.call(RegisterListener(awaited=f"p{number}", address="http://x/y"))
    nodes = (Node("a", "n"), Node("b", "n", after=("a",)), Node("c", "n", after=("a", "b")))
    engine.call(StartRun(id="run/r", name="n", group="g", nodes=nodes))
    engine.call(SettlePromise(id="p0", state="resolved"))
    engine.call(SettlePromise(id="t6", state="rejected"))
    engine.call(Take(pid="w", incarnation="1", group="g", names=("n",), free=3, embedded=True))
    engine.call(
        CreateSchedule(
            id="s", cron="0 0 1 1 *", promise_id="x", promise_timeout=1, promise_tags=FOREIGN
        )
    )
    engine.stop()
    return file


@pytest.fixture
def file(tmp_path, sound_file):
    """A copy of it."""
    return Path(shutil.copy(sound_file, tmp_path))


def test_a_sound_file_is_told_what_was_checked(file):
    """Counts of everything, the verdict last, exit 0."""
    code, said, _ = doctor(file)
    assert code == 0
    lines = [line.split() for line in said.splitlines()]
    assert lines[0] == [str(file)]
    counts = {line[0]: line[1] for line in lines[1:-1]}
    assert counts == {
        "promises": "25",
        "tasks": "18",
        "waits": "6",
        "listeners": "6",
        "holders": "1",
        "messages": "8",
        "schedules": "1",
        "limits": "0",
    }
    assert said.splitlines()[-1] == f"ok, {len(INVARIANTS)} invariants hold"


def test_a_clock_that_was_put_back_is_told(file):
    """The file is an hour ahead of this machine: no error, but worth knowing."""
    change(file, f"UPDATE store_time SET at = {SystemClock().now() + 3_600_000}")
    code, said, _ = doctor(file)
    assert code == 0
    assert "ahead of the clock: it was set back" in said
    assert "59 min" in said or "1 h" in said
    report = json.loads(doctor(file, "--json")[1])
    assert 3_000_000 < report["store_time_ahead"] <= 3_600_000


def test_tasks_are_counted_by_state(file):
    """The line of tasks says how many are in which state."""
    _, said, _ = doctor(file)
    [line] = [line for line in said.splitlines() if line.strip().startswith("tasks")]
    for part in ("pending 11", "acquired 3", "suspended 3", "fulfilled 1"):
        assert part in line


def test_json_carries_the_same(file):
    """For scripts: one object, the same exit code."""
    code, said, _ = doctor(file, "--json")
    report = json.loads(said)
    assert code == 0
    assert report["ok"] is True
    assert report["counts"]["tasks"]["acquired"] == 3
    assert report["violations"] == []


def test_it_works_while_an_owner_runs_and_writes_nothing(file):
    """Looking disturbs nobody: the owner goes on, and the file is as it was."""
    engine = opened(file)
    before = file.read_bytes()
    done = run("doctor", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    assert file.read_bytes() == before
    assert engine.call(CreatePromise(id="after", timeout_at=NEVER)).is_ok
    engine.stop()


OPEN = '{"kind":"k","at":1,"trigger":"f1"}'
OVER = '{"kind":"k","at":1,"trigger":"f1","own":true,"deadline":"l","won":"l"}'

BREAKS = {
    "pending_task_no_ttimeout": "UPDATE promises SET task_wake_at = NULL WHERE id = 'f3'",
    "acquired_task_no_lease": "DELETE FROM holders",
    "suspended_no_callback": "DELETE FROM waits WHERE awaiter = 'run/r'",
    "suspended_with_consumed_callbacks": (
        "UPDATE promises SET state = 'resolved', settled_at = created_at WHERE id = 'run/r:a'"
    ),
    "suspended_task_has_ttimeout": (
        "UPDATE promises SET task_wake_at = 5 WHERE task_state = 'suspended'"
    ),
    "fulfilled_task_has_ttimeout": "UPDATE promises SET task_wake_at = 5 WHERE id = 't6'",
    "promise_times_in_order": "UPDATE promises SET settled_at = 1 WHERE id = 'p1'",
    "timeout_settles_at_deadline": (
        "UPDATE promises SET state = 'rejected_timedout', settled_at = 7 WHERE id = 'p0'"
    ),
    "task_iff_target": "UPDATE promises SET tags = '{}' WHERE id = 't5'",
    "fulfilled_iff_settled": "UPDATE promises SET task_state = 'fulfilled' WHERE id = 'f5'",
    "settled_has_no_waits": "INSERT INTO waits VALUES ('p0', 'f1', 'any')",
    "settled_has_no_listeners": "INSERT INTO listeners VALUES ('p0', 'http://z')",
    "expired_is_bare": "UPDATE promises SET expired_at = 1 WHERE id = 'p1'",
    "internal_is_not_awaited": "UPDATE promises SET internal = 1 WHERE id = 'p1'",
    "internal_is_plain": "UPDATE promises SET internal = 1 WHERE id = 'f1'",
    "what_was_read_is_there": "INSERT INTO waits VALUES ('gone', 'f1', 'read')",
    "child_is_there": "INSERT INTO waits VALUES ('p1', 'f1', 'child')",
    "only_joins_have_items": "UPDATE promises SET task_items = 1 WHERE id = 'f2'",
    "joins_end_in_time": (
        "UPDATE promises SET task_kind = 'join', task_name = NULL WHERE id = 'run/r'"
    ),
    "awaiter_is_alive": "INSERT INTO waits VALUES ('p1', 'p2', 'any')",
    "claim_only_while_acquired": "UPDATE promises SET task_pid = 'w' WHERE id = 'f2'",
    "halted_task_has_ttimeout": "UPDATE promises SET task_state = 'halted' WHERE id = 'f2'",
    "version_non_negative": "UPDATE promises SET task_version = -1 WHERE id = 'f2'",
    "suspended_or_fulfilled_has_no_resumes": (
        "UPDATE promises SET task_resumes = '[\"x\"]' WHERE id = 't6'"
    ),
    "count_equals_waits": "UPDATE promises SET task_waits_left = 9 WHERE id = 'run/r'",
    "clean_up_comes_last": (
        "INSERT INTO waits SELECT 'p1', id, 'end' FROM promises"
        " WHERE task_state = 'acquired' AND task_holder IS NOT NULL"
    ),
    "ready_only_while_pending": "UPDATE promises SET task_ready_at = 3 WHERE id = 't6'",
    "turns_are_of_nodes": "UPDATE promises SET task_priority = 1 WHERE id = 'run/r'",
    "tries_are_claims_that_began": "UPDATE promises SET task_tries = 99 WHERE id = 't6'",
    "waiting_since_while_waiting": "UPDATE promises SET task_waiting_since = 1 WHERE id = 't6'",
    "refusals_are_of_nodes": (
        """UPDATE promises SET task_refused = '["other",[],null]' WHERE id = 't6'"""
    ),
    "deferred_waits_for_its_trigger": f"UPDATE promises SET task_resume = '{OPEN}' WHERE id = 'f3'",
    "triggers_end_with_their_waits": (
        f"""UPDATE promises SET task_resume = '{OVER}' WHERE id = 'f3'"""
    ),
    "triggers_have_awaiters": "UPDATE promises SET task_group = 'triggers' WHERE id = 'run/r:a'",
    "named_life_exists": "UPDATE promises SET task_lives = 2 WHERE id = 'run/r'",
    "one_living_holder_per_pid": (
        "DROP INDEX holders_living; "
        'INSERT INTO holders (pid, incarnation, "group", embedded, ttl, expires_at, standing, held,'
        " names) SELECT pid, '2', \"group\", embedded, ttl, expires_at, standing, 0, names"
        " FROM holders"
    ),
    "held_count_is_true": "UPDATE holders SET held = 8",
    "execute_is_current": "UPDATE messages SET version = 4 WHERE id = 'f1'",
    "unblock_is_settled": "INSERT INTO messages VALUES ('p3', 'unblock', 'http://z', 0, '', 0)",
    "schedule_runs_forward": "UPDATE schedules SET last_run_at = next_run_at",
    "held_permits_are_out": "UPDATE promises SET task_permits = '[\"api\"]' WHERE id = 'f3'",
    "gates_are_of_limits": "UPDATE promises SET task_gate = 'api', task_gate_at = 1"
    " WHERE id = 'f3'",
    "openings_are_counted": "UPDATE promises SET task_gate_at = 1, task_limits = '[\"api\"]',"
    " task_name = 'f' WHERE id = 'f3'",
}
IMPOSSIBLE = {"orphan_tasks"}
"""A task is part of its promise's row here, so it cannot lose it."""


def test_a_run_that_was_run_again_is_sound(file, monkeypatch):
    """Its latest life may be on another page."""
    monkeypatch.setattr(pages, "PAGE", 1)
    engine = Engine(SqliteStore(file, Settings(), next_after), SystemClock())
    engine.start_inline()
    engine.call(SettlePromise(id="run/r", state="rejected"))
    assert engine.call(RerunRun(id="run/r", life=2, nodes=(NodeAgain("a"),))).is_ok
    engine.stop()
    assert doctor(file)[0] == 0


def test_every_invariant_is_broken_once():
    """A new invariant needs a line in the table above, so that the doctor is seen to find it."""
    assert BREAKS.keys() | IMPOSSIBLE == {each.__name__ for each in INVARIANTS}


@pytest.mark.parametrize("name", BREAKS)
def test_a_violation_is_found_and_named(file, name):
    """Exit 1, one line with the invariant's name and the id; a second look says the same."""
    change(file, BREAKS[name])
    code, said, _ = doctor(file)
    assert code == 1
    assert [line for line in said.splitlines() if line.startswith(f"{name}: ")]
    assert f"of {len(INVARIANTS)} invariants" in said.splitlines()[-1]


@pytest.mark.parametrize("page", [1, 2, 5_000])
@pytest.mark.parametrize("name", [None, *BREAKS])
def test_page_by_page_finds_what_the_whole_shows(file, monkeypatch, name, page):
    """Any size of page gives exactly the violations of a check of the whole file in memory."""
    if name is not None:
        change(file, BREAKS[name])
    monkeypatch.setattr(pages, "PAGE", page)
    reader = SqliteReader(file, Settings(), next_after)
    whole = {(v.invariant, v.what) for v in check(reader.dump(), SystemClock().now())}
    reader.close()
    report = examine(file, limit=0)
    assert {(v.invariant, v.what) for v in report.violations} == whole
    assert (name in {invariant for invariant, _ in whole}) == (name is not None)


def test_many_violations_are_counted_beyond_the_limit(file):
    """The list is cut, the count is not."""
    change(file, "UPDATE promises SET settled_at = 1 WHERE state = 'pending'")
    code, said, _ = doctor(file, "--limit", 2)
    assert code == 1
    found = [line for line in said.splitlines() if line.startswith("promise_times_in_order")]
    assert len(found) == 2
    assert "more (--limit 0 lists all)" in said


# --- files that cannot be used -----------------------------------------------------------


def unusable(file: Path) -> str:
    """The one line on stderr; nothing on stdout; exit 2."""
    code, said, complained = doctor(file)
    assert (code, said) == (2, "")
    assert complained.startswith("layby: ")
    assert complained.count("\n") == 1
    assert str(file) in complained
    return complained


def test_a_missing_file(tmp_path):
    """It is named, and not created."""
    assert "does not exist" in unusable(tmp_path / "gone.db")
    assert list(tmp_path.iterdir()) == []


def test_a_folder(tmp_path):
    """It says that this is a folder."""
    assert "is a folder" in unusable(tmp_path)


def test_a_device():
    """Neither missing nor a folder, and still nothing to look at."""
    assert "is not a regular file" in unusable(Path("/dev/null"))


def test_a_file_that_is_no_database(tmp_path):
    """It says that this is not one of ours."""
    (tmp_path / "notes.txt").write_text("hello " * 1000)
    assert "not a layby database" in unusable(tmp_path / "notes.txt")


def test_a_database_of_another_program(tmp_path):
    """A SQLite file without our ledger is not ours."""
    change(tmp_path / "b.db", "CREATE TABLE t (a)")
    assert "not a layby database" in unusable(tmp_path / "b.db")


def test_a_newer_file(file):
    """It says to upgrade."""
    change(file, "INSERT INTO layby_migrations VALUES (99, 'later', 'x', 99)")
    assert "upgrade layby" in unusable(file)


def test_a_damaged_file(file):
    """Damage that SQLite sees is told before any invariant is looked at."""
    content = bytearray(file.read_bytes())
    for page in range(3, len(content) // 4096):
        content[page * 4096 : page * 4096 + 16] = b"\xaa" * 16
    file.write_bytes(content)
    assert "backup" in unusable(file)


def test_a_row_from_elsewhere(file):
    """A word that no layby writes is reported, not a traceback."""
    change(file, "UPDATE promises SET state = 'nonsense' WHERE id = 'p1'")
    assert "layby never writes" in unusable(file)


def test_ids_are_shown_as_they_are(tmp_path):
    """Brackets in an id are no markup for the terminal."""
    engine = opened(tmp_path / "a.db")
    engine.call(CreatePromise(id="[bold]x[/]", timeout_at=NEVER))
    engine.stop()
    change(tmp_path / "a.db", "UPDATE promises SET settled_at = 1")
    code, said, _ = doctor(tmp_path / "a.db")
    assert code == 1
    assert "promise [bold]x[/] is pending" in said


def test_progress_is_told(file):
    """Whoever shows a bar hears how far it is, and of how many."""
    told: list[tuple[int, int]] = []
    examine(file, limit=0, progress=lambda done, total: told.append((done, total)))
    assert told == [(25, 25)]


def test_a_broken_demo_file_would_be_an_error():
    """`examine` raises only what layby raises on purpose."""
    with pytest.raises(LaybyError):
        examine(Path("/nowhere/at/all.db"), limit=0)


def test_a_limit_is_no_less_than_none(file):
    """Exit code 2, as for every list."""
    code, _, said = doctor(file, "--limit", -1)
    assert code == 2
    assert "not in the range" in said


def test_a_file_is_named_as_elsewhere(file):
    """By itself, or as `--db`; not both."""
    plainly = doctor(file)
    assert plainly[0] == 0
    assert doctor("--db", f"sqlite:{file}") == plainly
    code, _, said = doctor(file, "--db", "other.db")
    assert (code, "give one of them" in said) == (2, True)


def test_deferred_tasks_are_sound_page_by_page(file, monkeypatch):
    """Whatever page the task, its trigger and its deadline are on."""
    engine = opened(file)
    taken: Any = engine.call(r.take(2, names=("n",), pid="v")).data
    for claim, spec in zip(
        taken.claims, (r.trigger("Poll"), r.trigger("Event", name="e")), strict=True
    ):
        assert engine.call(r.defer(claim.task.id, 1, spec, 60_000)).is_ok
    engine.stop()
    monkeypatch.setattr(pages, "PAGE", 1)
    assert doctor(file)[0] == 0
