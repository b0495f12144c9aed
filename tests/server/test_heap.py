import os
import subprocess
import sys

import pytest

from layby.server.heap import KEPT_BYTES

pytestmark = pytest.mark.skipif(
    not hasattr(os, "confstr_names") or "CS_GNU_LIBC_VERSION" not in os.confstr_names,
    reason="only glibc has the setting",
)

AGAIN_AND_AGAIN = f"""
from resource import RUSAGE_SELF, getrusage
from layby.server.heap import keep_freed_memory

keep_freed_memory()

def use():
    large = [b"x" * {KEPT_BYTES // 5} for _ in range(4)]

use()
before = getrusage(RUSAGE_SELF).ru_minflt
for _ in range(10):
    use()
print(getrusage(RUSAGE_SELF).ru_minflt - before)
"""


def faults(**environ: str) -> int:
    """Pages that the kernel cleared while the same large memory was used ten times more."""
    command = [sys.executable, "-c", AGAIN_AND_AGAIN]
    clean = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    done = subprocess.run(command, env=clean | environ, capture_output=True, check=True, text=True)
    return int(done.stdout)


def test_large_memory_is_used_again_without_the_kernel() -> None:
    assert faults() < 100


def test_who_runs_the_server_may_choose() -> None:
    assert faults(MALLOC_MMAP_THRESHOLD_="131072") > 10_000
