"""The check that no test leaves a process behind sees what it is to see."""

import subprocess
import sys

from tests.helpers.child_processes import left_behind


def test_a_child_is_seen_until_it_has_been_waited_for():
    """Running, and as a zombie; not after that."""
    command = [sys.executable, "-c", "input()"]
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert child.stdin is not None
    assert child.stdout is not None
    mine = [each for each in left_behind() if each.startswith(f"{child.pid} ")]
    assert mine
    child.stdin.close()
    assert child.stdout.read() == b""  # it has ended, or is about to
    assert [each for each in left_behind() if each.startswith(f"{child.pid} ")]
    child.wait()
    child.stdout.close()
    assert not [each for each in left_behind() if each.startswith(f"{child.pid} ")]
