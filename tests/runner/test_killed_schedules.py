"""Schedules in a process that is killed while an occurrence is being made."""

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from layby.core.invariants import check
from layby.core.state import State
from layby.engine.calendar import next_after
from tests.helpers.places import address_of, state_of

CHILD = Path(__file__).with_name("schedule_child.py")
KILLS = (("inside", 2), ("after", 2))
PATIENCE_S = 60


def test_every_occurrence_has_its_run_or_is_counted(tmp_path: Path) -> None:
    """Killed before the commit, none of it is there; after it, all of it: row, root and nodes."""
    file = tmp_path / "layby.db"
    for where, times in KILLS:
        assert _lives(file, where, times) == -signal.SIGKILL
        _check(state_of(file))
    assert _lives(file, "never", 3) == 0
    state = state_of(file)
    _check(state)
    assert {each.skipped > 0 for each in state.schedules.values()} == {True}


def _lives(file: Path, where: str, times: int) -> int:
    child = [sys.executable, str(CHILD), address_of(file), where, str(times)]
    return subprocess.run(child, timeout=PATIENCE_S, check=False).returncode


def _check(state: State) -> None:
    roots = [each for each in state.promises if each.startswith("run/") and ":" not in each]
    for schedule in state.schedules.values():
        made = [each for each in roots if each.startswith(f"run/{schedule.id}-")]
        first = next_after(schedule.cron, schedule.created_at)
        assert isinstance(first, int)
        occurred = (schedule.next_run_at - first) // 1_000
        assert len(made) + schedule.skipped == occurred
        if made:
            assert schedule.last_run_at == max(int(each.rpartition("-")[2]) for each in made)
    nodes = Counter(each.partition(":")[0] for each in state.tasks if ":" in each)
    assert nodes == dict.fromkeys(roots, 2)
    assert check(state, max((p.created_at for p in state.promises.values()), default=0)) == []
