"""The demo is real: it must work, look right without a terminal, and be quick."""

import os
import re
from pathlib import Path

import pytest

from layby.engine.clock import SystemClock
from tests.cli.test_main import run


@pytest.mark.parametrize("columns", ["100", "40"])
def test_the_demo_shows_three_things_and_a_sound_file(columns):
    """Promise, killed worker at version 2, timer on time, verdict; in a pipe, in any width."""
    started = SystemClock().now()
    done = run("demo", env={**os.environ, "COLUMNS": columns})
    assert (done.returncode, done.stderr) == (0, "")
    said = re.sub(r"\s+", " ", done.stdout)
    for part in (
        "created the promise approval",
        "the waiter has yes, by Ada",
        "worker: took charge-card at version 1",
        "kill -9",
        "at version 2, after 1 crash",
        "refused (409)",
        "finished: charged once",
        "invariants hold",
    ):
        assert part in said
    late = re.search(r"woken (\d+) ms after its time", said)
    assert late is not None
    assert int(late[1]) < 2_000
    assert "\x1b" not in done.stdout
    assert all(len(line) <= int(columns) or "layby-demo-" in line for line in lines(done))
    assert SystemClock().now() - started < 15_000


def test_the_demo_cleans_up():
    """Its folder is gone afterwards, and so is its worker."""
    done = run("demo")
    [folder] = {Path(path).parent for path in re.findall(r"/\S*layby-demo-\S*", done.stdout)}
    assert not folder.exists()
    killed = re.search(r"kill -9 (\d+)", done.stdout)
    assert killed is not None
    with pytest.raises(ProcessLookupError):
        os.kill(int(killed[1]), 0)


def test_the_demo_survives_a_terminal_that_knows_ascii_only():
    """An old console must not be the reason for a traceback."""
    done = run("demo", env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()


def lines(done) -> list[str]:
    return [line.rstrip() for line in done.stdout.splitlines()]
