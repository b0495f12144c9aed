"""`make bench`: every bar, with its reference loop beside it. Name benches to run only those."""

import os
import platform
import sqlite3
import sys

import bench_core
import bench_server
import bench_worker
import reference
from bars import run


def main(wanted: list[str]) -> int:
    benches = {
        bench.__name__: bench
        for bench in (
            *bench_core.BENCHES,
            *bench_worker.BENCHES,
            *bench_server.BENCHES,
        )
    }
    unknown = set(wanted) - set(benches)
    if unknown:
        print(f"unknown: {', '.join(sorted(unknown))}; there are: {', '.join(benches)}")
        return 2
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
