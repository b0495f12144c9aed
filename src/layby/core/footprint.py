"""The rows that a batch declares before it is loaded."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from layby.core.endings import Look
from layby.core.model import Millis
from layby.core.queue import Offer, TakeKey
from layby.core.schedule_row import Schedule

LEASES_AT_ONCE: Final = 500
"""Leases that one batch renews without their ids; the heartbeat goes on after them."""
FEWEST_LEASES: Final = 16
"""So many of each process, however many of them have a heartbeat in one batch."""


class OutsideFootprint(Exception):
    """A step read a row it did not declare: a bug in the command's footprint."""


class Footprint(Struct):
    """The rows a batch declares."""

    ids: set[str] = field(default_factory=set)
    beside: set[str] = field(default_factory=set)
    """Promises that a step may read, wait for, listen to, or create, but never settles: who else
    waits for them or listens is not loaded.
    """
    valueless: set[str] = field(default_factory=set)
    """Others like these, whose values no step reads: there may be many, and they may be large."""
    compared: set[str] = field(default_factory=set)
    """What the params of those are compared with: one that is none of these is read as empty."""
    maybe_new: set[str] = field(default_factory=set)
    """Promises that a step creates if they are absent: of those that exist nothing else is read."""
    pairs: set[tuple[str, str]] = field(default_factory=set)
    """Waits (awaited, awaiter) a step may add: it must see one that already exists."""
    branches_of: set[str] = field(default_factory=set)
    branches: set[str] = field(default_factory=set)
    born_into: set[tuple[str, str]] = field(default_factory=set)
    """Id and branch of promises this batch may create. Their branches are read if it also reads by
    id; in any case somebody else may be told of what is in them.
    """
    schedules: set[str] = field(default_factory=set)
    runs_of: set[str] = field(default_factory=set)
    """Schedules whose open runs a step may look at."""
    starts: set[tuple[str, str]] = field(default_factory=set)
    """Schedules, and roots of runs they may start: their nodes are known to the schedule alone."""
    node_ids: dict[str, set[str]] = field(default_factory=dict)
    """Nodes that this batch may give to the runs of a schedule."""
    pids: set[str] = field(default_factory=set)
    leases_of: set[str] = field(default_factory=set)
    renewals: dict[str, str] = field(default_factory=dict)
    """By process: the id after which its leases are renewed. Params and values of these tasks are
    not read, and there may be more of them than are loaded.
    """
    notices: set[str] = field(default_factory=set)
    takes: dict[TakeKey, int] = field(default_factory=dict)
    """How much room the takes that ask for the same tasks have."""
    take_count: int = 0
    oldest: int = 0
    """How many takes ask for the oldest task, whatever its priority."""
    ahead: int = 0
    """How many tasks all takes together may be handed ahead of their slots."""
    waiting: Sequence[Offer] = ()
    """Takes that wait in the engine: nothing is handed out ahead that they have room for."""
    root_params: bool = False
    """All claims bring the params of their roots: each task of a run is loaded with its root.

    Those of tasks that had deferred always do: who takes them has long forgotten their runs.
    """
    claims: bool = False
    """Tasks are claimed other than by a take. Whoever claims a task that had deferred is told what
    its trigger said, so that is loaded too.
    """
    exits: set[str] = field(default_factory=set)
    """Tasks whose waits a person ends: the record of such a wait is loaded too."""
    leasing: set[tuple[str, str]] = field(default_factory=set)
    """Tasks that may be acquired in this batch with a lease of their own, and by which process."""
    told: dict[str, list[str]] = field(default_factory=dict)
    """By task: what its holder says in this batch that it waits for. A person may mean that."""
    limits: set[str] = field(default_factory=set)
    """Limits that a step may change, or whose tasks it may create; those of loaded tasks are
    found by themselves.
    """
    defines: bool = False
    """The numbers of limits may change: so may how many are let in."""
    leaving: int = 0
    """How many rows may leave the queue other than by a take."""
    also: set[str] = field(default_factory=set)
    """Promises that are locked besides: last time it was found that they are needed."""
    also_pids: set[str] = field(default_factory=set)
    also_limits: set[str] = field(default_factory=set)
    locks: bool = True
    """Whether other processes are kept from changing these rows: not if the batch only reads."""
    may_wait: bool = True
    """Whether rows that another process is changing are waited for; else they are left out."""
    look: Look | None = None
    """What a batch of pruning looks at: the store finds the rows, and loads them lean."""
    lean: set[str] = field(default_factory=set)
    """Rows of which params, values and what tasks said are not needed: they are pruned."""
    since: Millis = 0
    """When the first command of the batch happens: nothing past its deadline by then is ready."""

    until: Millis = 0
    """When the last one happens, if that is later than now."""

    def expect(self, key: TakeKey, free: int, ahead: int, *, oldest: bool = False) -> None:
        """A take will look at the queue."""
        self.oldest += oldest
        self.takes[key] = self.takes.get(key, 0) + free
        self.take_count += 1
        self.ahead += ahead

    def renew(self, pid: str, after: str) -> None:
        self.renewals[pid] = min(after, self.renewals.get(pid, after))

    @property
    def renewed(self) -> int:
        """How many leases of each process are renewed."""
        return max(FEWEST_LEASES, LEASES_AT_ONCE // max(1, len(self.renewals)))

    @property
    def may_claim(self) -> bool:
        return self.claims or bool(self.takes)

    def nodes_of(self, group: str) -> int:
        """How many ready nodes of a group may be handed out, and one more: the oldest left."""
        asked = sum(free for key, free in self.takes.items() if key[0] == group)
        kept = sum(free for _, key, free in self.waiting if key[0] == group) if self.ahead else 0
        return asked + self.ahead + kept + self.leaving + 1

    def roots(self, per_take: int) -> int:
        return per_take * self.take_count + self.leaving

    @property
    def refused(self) -> int:
        """How many of those that some code has refused may be handed out: one to a take."""
        return self.take_count + self.leaving + 1

    def started_by(self, schedules: Mapping[str, Schedule | None]) -> set[str]:
        """All ids of the runs that these schedules, as they are stored, may start."""
        return {
            each
            for schedule_id, root_id in self.starts
            for each in (root_id, *self._nodes_below(root_id, schedules[schedule_id], schedule_id))
        }

    def _nodes_below(
        self, root_id: str, schedule: Schedule | None, schedule_id: str
    ) -> Iterator[str]:
        stored = () if schedule is None else schedule.node_ids
        for node_id in (*stored, *self.node_ids.get(schedule_id, ())):
            yield f"{root_id}:{node_id}"

    def branches_added_to(self) -> set[str]:
        """Those in which this batch may create something."""
        return self.branches | {branch for _, branch in self.born_into}

    def all_branches(self) -> set[str]:
        return self.branches | {branch for key, branch in self.born_into if key in self.branches_of}
