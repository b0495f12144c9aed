"""The demo is real: it must work, look right without a terminal, be quick and leave nothing."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from layby.clock import SystemClock
from tests.cli.test_main import run
from tests.helpers.command_line import heed_interrupts
from tests.helpers.postgres import PASSWORD, cluster

ALWAYS = (
    "packed: 200 of 200 parcels, none of them twice",
    "delivered: 200 of 200 parcels, none of them twice",
    "never more than 4 of 4 slots held",
    "invariants hold",
)
"""However busy the machine is."""


def test_the_demo_shows_what_it_promises():
    """200 waits on 4 slots, work meanwhile, a kill, nothing lost, nothing twice; all is cleaned up.

    In a narrow window that knows ASCII only: an old console must not be the reason for a
    traceback, nor a long line for a mess.
    """
    started, waited_before = SystemClock().now(), waited_ms()
    env = {**os.environ, "COLUMNS": "40", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = run("demo", env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert SystemClock().now() - started - (waited_ms() - waited_before) < 30_000
    said = re.sub(r"\s+", " ", done.stdout)
    check_what_is_shown(said)
    check_that_work_went_on(said)
    check_that_nothing_is_left(said)
    check_the_looks(done.stdout)


def waited_ms() -> float:
    """How long something on this machine has waited for a processor, as far as Linux tells."""
    try:
        some = Path("/proc/pressure/cpu").read_text().splitlines()[0]
    except OSError:
        return 0
    return int(some.rpartition("total=")[2]) / 1000


@pytest.mark.shared
def test_the_demo_shows_the_same_on_a_database():
    """Twice on one, whose password nobody sees: each demo has ids of its own."""
    url = cluster().tcp_url(cluster().new_database())
    for _ in range(2):
        done = run("demo", "--db", url)
        assert (done.returncode, done.stderr) == (0, "")
        said = re.sub(r"\s+", " ", done.stdout)
        assert PASSWORD not in said
        assert "happens in a PostgreSQL database" in said
        for part in (*ALWAYS, "its runs stay there"):
            assert part in said


def test_a_database_that_cannot_be_written_is_told_in_one_line():
    """It is no bug of ours that somebody should report."""
    name = cluster().new_database()
    url = cluster().url(name)
    assert run("migrate", "--db", url).returncode == 0
    cluster().execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    done = run("demo", "--db", url)
    assert done.returncode == 2
    [said] = done.stderr.splitlines()
    assert said.startswith(f"layby: {url}: it only allows reading: is this a standby?")


def test_a_file_is_not_named_for_the_demo():
    done = run("demo", "--db", "sqlite:my.db")
    assert done.returncode == 2
    assert "postgresql://USER@HOST/DATABASE" in done.stderr


def check_what_is_shown(said: str) -> None:
    for part in (
        "200 parcels wait: 67 for a door, 67 for a signature, 66 for their hour",
        "with 200 tasks waiting and others at work",
        "after the kill all 200 wait again",
        *ALWAYS,
    ):
        assert part in said


def check_that_work_went_on(said: str) -> None:
    """Letters of 50 ms on 4 slots: far more than none in three seconds, on any machine.

    Of a task that is cut off, the body was running or its report was under way: that is two at most
    for each slot.
    """
    meanwhile = re.search(r"meanwhile (\d+) letters went through 4 slots", said)
    cut_off = re.search(r"(\d+) that were cut off", said)
    assert meanwhile is not None
    assert cut_off is not None
    assert int(meanwhile[1]) > 20
    woken = re.search(r"(\d+) parcels woken and delivered", said)
    assert woken is not None
    assert 134 <= int(woken[1]) <= 200  # on a slow machine some of the sleeping ones are up
    assert int(cut_off[1]) <= 8


def check_that_nothing_is_left(said: str) -> None:
    [folder] = {Path(path).parent for path in re.findall(r"/\S*layby-demo-\S*", said)}
    assert not folder.exists()
    pids = re.findall(r"(?:slots|process|kill -9)[: ]+(\d+)", said)
    assert len(set(pids)) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def check_the_looks(stdout: str) -> None:
    assert stdout.isascii()
    assert "\x1b" not in stdout
    lines = [line.rstrip() for line in stdout.splitlines()]
    assert [line for line in lines if len(line) > 40 and "layby-demo-" not in line] == []


def test_an_interrupted_demo_says_so_and_cleans_up():
    """Ctrl-C while everything waits: one line, exit code 130, no process and no folder left."""
    command = [sys.executable, "-m", "layby.cli", "demo"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,  # noqa: PLW1509 - the child has one thread
    ) as demo:
        assert demo.stdout is not None
        assert demo.stderr is not None
        said = ""
        while " wait, " not in said:
            said += demo.stdout.readline()
        demo.send_signal(signal.SIGINT)
        said += demo.stdout.read()
        assert demo.stderr.read() == "layby: interrupted\n"
    assert demo.returncode == 130
    [folder] = re.findall(r"/\S*layby-demo-[^/\s]+", said)
    assert not Path(folder).exists()
    [pid] = re.findall(r"slots: (\d+)", said)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
