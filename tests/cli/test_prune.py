"""`layby prune`: what goes, what is told, on a file and through whoever owns it."""

import json
import sqlite3

from layby.cli.prune_pace import PrunePace
from layby.core.commands import EnsurePromise, GetPromise
from layby.core.settings import Settings
from layby.engine.calendar import next_after
from layby.errors import StoreUnavailable
from layby.store.shrinking import INCREMENTAL
from layby.store.sqlite import SqliteStore
from tests.cli.test_rerun import failed
from tests.helpers import requests as r
from tests.helpers.command_line import Desk, typed


def test_what_has_ended_goes(desk: Desk):
    """And the counts are told."""
    failed(desk, "a")
    failed(desk, "b")
    desk.do(EnsurePromise(id="idle"))
    assert typed("prune", "--failed", "0s", "--ids", "1d").lines == [
        "2 runs pruned, with 4 promises below"
    ]
    assert typed("prune", "--failed", "0s", "--ids", "0s").lines == [
        "0 runs pruned, with 0 promises below",
        "2 ids, 1 placeholder forgotten",
    ]
    assert typed("doctor", "layby.db").code == 0


def test_a_dry_run_only_counts(desk: Desk):
    """Without opening the file for writing."""
    failed(desk)
    assert typed("prune", "--failed", "0s", "--dry-run").lines == [
        "1 run would be pruned, with 2 promises below"
    ]
    counted = typed("prune", "--failed", "0s", "--dry-run", "--json").json
    assert (counted["roots"], counted["rows"], counted["dry_run"]) == (1, 2, True)
    assert desk.do(GetPromise(id="run/o:first"))[0].promise.state == "resolved"


def test_what_is_kept_is_told(desk: Desk):
    failed(desk)
    desk.do(r.promise("run/o:first.promise.x"))
    desk.do(r.claimed("other"))
    desk.do(r.suspend("other", 1, "run/o:first.promise.x"))
    said = typed("prune", "--failed", "0s")
    assert said.lines[1].startswith("1 run kept: somebody waits")


def test_other_commands_know_what_was_pruned(desk: Desk):
    """Nobody is told that such a run was never there."""
    failed(desk)
    typed("prune", "--failed", "0s")
    for command in ("tree o", "why o", "rerun o", "wake o", "extend o --timeout 1h"):
        typed(*command.split()).complains(1, "run 'o' has ended (rejected) and was pruned")
    assert typed("runs", "--json").json["runs"] == []
    assert typed("promises", "get", "run/o").code == 0


def test_promises_that_are_not_of_a_run_are_not_called_runs(desk: Desk):
    """They go by trees, and so do runs."""
    desk.do(r.promise("order:1"))
    desk.do(r.promise("bill"))
    desk.do(r.settle("bill"))
    failed(desk)
    assert typed("prune", "--completed", "0s", "--failed", "0s", "--foreign").lines == [
        "2 trees pruned, with 2 promises below"
    ]


def test_something_must_be_asked_for(desk: Desk):
    typed("prune").complains(2, "nothing to prune", "--completed 7d")
    typed("prune", "--completed", "soon").complains(2, "soon")
    typed("prune", "--completed", "40000d").complains(2, "--completed", "at most 36500d")
    typed("prune", "--compact", "--url", "http://127.0.0.1:1").complains(2, "--compact")


def test_nothing_is_pruned_if_the_file_cannot_be_compacted(desk: Desk, tmp_path):
    """Somebody uses it: that is said before anything is deleted."""
    failed(desk)
    owner = SqliteStore(tmp_path / "layby.db", Settings(), next_after)
    typed("prune", "--failed", "0s", "--compact").complains(2, "layby.db")
    owner.close()
    assert desk.do(GetPromise(id="run/o:first"))[0].promise.state == "resolved"


def test_what_was_deleted_is_told_in_any_case(desk: Desk, monkeypatch):
    failed(desk)

    def fails(store: SqliteStore) -> None:
        raise StoreUnavailable("the disk is full")

    monkeypatch.setattr(SqliteStore, "compact", fails)
    said = typed("prune", "--failed", "0s", "--compact")
    assert (said.code, said.out) == (2, "1 run pruned, with 2 promises below\n")


def test_what_a_pass_has_deleted_is_told_when_it_is_cut_off(desk: Desk, monkeypatch):
    """Its server dies after the first batch, or somebody presses Ctrl-C."""
    failed(desk)
    why: list[BaseException] = [StoreUnavailable("nobody listens there"), KeyboardInterrupt()]

    def cut_off(pace: PrunePace, seconds: float) -> float:
        raise why[0]

    monkeypatch.setattr(PrunePace, "pause_after", cut_off)
    typed("prune", "--failed", "0s", "--dry-run").complains(2, "nobody listens there")
    said = typed("prune", "--failed", "0s")
    assert (said.code, said.out) == (2, "1 run pruned so far, with 2 promises below\n")
    assert said.err == "layby: nobody listens there\n"
    failed(desk, "b")
    why.pop(0)
    said = typed("prune", "--failed", "0s", "--json")
    assert (said.code, said.err) == (130, "layby: interrupted\n")
    assert (json.loads(said.out)["roots"], json.loads(said.out)["complete"]) == (1, False)


def test_an_old_file_learns_to_shrink(desk: Desk, tmp_path):
    """A file made before files could shrink is written anew, once."""
    failed(desk)
    file = tmp_path / "layby.db"
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.execute("PRAGMA auto_vacuum = NONE")
    connection.execute("VACUUM")
    assert connection.execute("PRAGMA auto_vacuum").fetchone() == (0,)
    connection.close()
    assert typed("prune", "--compact").code == 0
    connection = sqlite3.connect(file)
    assert connection.execute("PRAGMA auto_vacuum").fetchone() == (INCREMENTAL,)
    connection.close()
    assert desk.do(GetPromise(id="run/o:first"))[0].promise.state == "resolved"
