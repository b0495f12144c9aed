"""`make bench`: every bar, with its reference loop beside it. Name benches to run only those."""

import argparse
import os
import platform
import sqlite3
import sys

import bench_core
import bench_server
import bench_worker
import reference
from bars import run


def asked_for(arguments: list[str], there: list[str]) -> list[str]:
    """Ends with help, or with what there is, where that is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="Exit code 0: every bar was met; 1: one was not. All of them take minutes, "
        "and mean something only on a machine that does nothing else.",
    )
    parser.add_argument("bench", nargs="*", help=f"one of {', '.join(there)}; all unless given")
    wanted: list[str] = parser.parse_args(arguments).bench
    if unknown := sorted(set(wanted) - set(there)):
        parser.error(f"there is no {', '.join(unknown)}; there are: {', '.join(there)}")
    return wanted


def main(wanted: list[str]) -> int:
    benches = {
        bench.__name__: bench
        for bench in (
            *bench_core.BENCHES,
            *bench_worker.BENCHES,
            *bench_server.BENCHES,
        )
    }
    wanted = asked_for(wanted, list(benches))
    python, sqlite = platform.python_version(), sqlite3.sqlite_version
    print(
        f"Python {python}, SQLite {sqlite}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    commits = reference.commits_per_s()
    quiet = "a quiet minute" if commits >= reference.QUIET_COMMITS_PER_S else "NOT a quiet minute"
    print(f"bare FULL commit loop: {commits:,.0f} commits/s, {quiet}\n")
    met = run(benches[name] for name in (wanted or benches))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
