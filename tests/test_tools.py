"""The scripts in tools/ run."""

import subprocess
import sys
from pathlib import Path

WALK = Path(__file__).parents[1] / "tools" / "walk.py"


def test_walk_counts_three_requests():
    """Every request goes through some files, more functions, and the packages that it must."""
    command = [sys.executable, str(WALK), "--repeat", "1", "--files"]
    out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    table, *lists = out.split("\n\n")
    counted = [line[14:].split() for line in table.splitlines()[1:]]
    assert len(counted) == len(lists) == 3
    for (files, functions, switches), listed in zip(counted, lists, strict=True):
        assert len(listed.splitlines()) - 1 == int(files) < int(functions)
        assert int(switches) > 0
        assert "core/step.py" in listed
        assert "store/sqlite.py" in listed or "store/sql.py" in listed
