"""`make bench`: every bar, with its reference loops beside it. Name benches to run only those.

`--part 5` runs those of a part of benchmarks/RESULTS.md; `--repeat 5` runs them five times and
prints the median and the spread.
"""

import argparse
import compileall
import os
import platform
import sqlite3
import sys
from pathlib import Path

import bench_children
import bench_core
import bench_deferring
import bench_graph
import bench_limits
import bench_map
import bench_parked
import bench_postgres
import bench_reads
import bench_retention
import bench_rude
import bench_server
import bench_shared
import bench_slots
import bench_suspended
import bench_triggers
import bench_worker
import reference
from bars import Bench, run

import layby

PARTS: dict[int, tuple[Bench, ...]] = {
    1: bench_core.BENCHES,
    3: bench_worker.BENCHES,
    4: bench_server.BENCHES,
    5: (*bench_slots.BENCHES, *bench_parked.BENCHES),
    6: bench_graph.BENCHES,
    12: (*bench_reads.BENCHES, *bench_rude.BENCHES, *bench_retention.BENCHES),
    13: (*bench_postgres.BENCHES, *bench_suspended.BENCHES, *bench_shared.BENCHES),
    14: (*bench_deferring.BENCHES, *bench_triggers.BENCHES),
    15: (*bench_limits.BENCHES, *bench_map.BENCHES, *bench_children.BENCHES),
}
"""Part 2, the executors, is a script of its own: bench_executors.py."""


def asked_for(arguments: list[str], there: list[str]) -> argparse.Namespace:
    """Ends with help, or with what there is, where that is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Exit code 0: every bar was met; 1: one was not. All of them take minutes, "
        "and mean something only on a machine that does nothing else.",
    )
    parser.add_argument("bench", nargs="*", help=f"one of {', '.join(there)}; all unless given")
    parser.add_argument("--part", type=int, action="append", choices=PARTS, default=[])
    parser.add_argument("--repeat", type=int, default=1, help="so many runs; the median counts")
    asked = parser.parse_args(arguments)
    if unknown := sorted(set(asked.bench) - set(there)):
        parser.error(f"there is no {', '.join(unknown)}; there are: {', '.join(there)}")
    return asked


def main(arguments: list[str]) -> int:
    benches = {bench.__name__: bench for part in PARTS.values() for bench in part}
    asked = asked_for(arguments, list(benches))
    wanted = asked.bench + [each.__name__ for part in asked.part for each in PARTS[part]]
    # As pip does when it installs: children would compile all of it, each time, where bytecode
    # may not be written.
    compileall.compile_dir(Path(layby.__file__).parent, quiet=1)
    python, sqlite = platform.python_version(), sqlite3.sqlite_version
    print(
        f"Python {python}, SQLite {sqlite}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    commits = reference.commits_per_s()
    quiet = "a quiet minute" if commits >= reference.QUIET_COMMITS_PER_S else "NOT a quiet minute"
    print(f"bare FULL commit loop: {commits:,.0f} commits/s, {quiet}")
    print(f"bare processor loop: {reference.turns_per_s():,.0f} turns/s\n")
    met = run([benches[name] for name in (wanted or benches)], asked.repeat)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
