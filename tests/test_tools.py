"""The scripts in tools/ run, and count right."""

import runpy
import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).parents[1] / "tools"


def test_walk_counts_three_requests():
    """Every request goes through some files, more functions, and the packages that it must."""
    command = [sys.executable, str(TOOLS / "walk.py"), "--repeat", "1", "--files"]
    out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    table, total, *lists = out.split("\n\n")
    counted = [line[14:].split() for line in table.splitlines()[1:]]
    assert len(counted) == len(lists) == 3
    assert total.endswith("statements in src/layby")
    for (files, functions, switches), listed in zip(counted, lists, strict=True):
        assert len(listed.splitlines()) - 1 == int(files) < int(functions)
        assert int(switches) > 0
        assert "core/step.py" in listed
        assert "store/sqlite.py" in listed or "store/sql.py" in listed


def test_statements_are_counted_without_what_does_nothing():
    """Docstrings, `pass` and `...` are free; a block counts one, and each statement in it."""
    count = runpy.run_path(str(TOOLS / "statements.py"))["statements_of"]
    assert count("") == 0
    assert count("a = 1; b = [\n    2,\n    3,\n]") == 2
    assert count('def f():\n    """What it does."""\n    ...') == 1
    assert count('class A:\n    x: int\n    """A field."""\n    def f(self): pass') == 3
    assert count("if a:\n    b()\nelif c:\n    d()\nelse:\n    e()") == 5
