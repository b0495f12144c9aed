import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples" / "executors").glob("*.py"))

SAYS = {
    "asynchronous.py": "all ten are parked, 2 of 2 slots are free",
    "deterministic.py": "by zero",
    "process.py": "discarded: [(1, 'task cancelled')]",
    "slots.py": "free at the end: 1",
    "threaded.py": "100 finished",
}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_and_says_what_it_promises(example):
    """Documentation that does not run is a rumour."""
    done = subprocess.run(
        [sys.executable, "-W", "error", example],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert SAYS[example.name] in done.stdout
    assert done.stderr == ""
