"""Which request struct each kind of the wire is decoded into."""

from typing import Final

from layby.core import (
    blocks,
    flows,
    lives,
    promises,
    queries,
    runs,
    schedules,
    stats,
    takes,
    tasks,
    ticks,
    workers,
)
from layby.core.kinds import public_kinds

KINDS: Final = public_kinds(
    promises, tasks, schedules, takes, workers, blocks, flows, runs, lives, queries, stats, ticks
)
