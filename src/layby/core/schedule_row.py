"""A schedule as the store has it, and the ids of what it creates: a row like those of `model`."""

from functools import lru_cache
from typing import Final, Literal

from msgspec import Struct, json
from msgspec.structs import replace

from layby.core.model import NEVER, Millis

Overlap = Literal["allow", "skip", "queue_one"]
RUN_OF_SCHEDULE: Final = "run/{{.id}}-{{.timestamp}}"
MOST_OPEN_RUNS: Final = 8
"""So many runs of a schedule, the newest, are looked at when another one may overlap with them."""


class Schedule(Struct, frozen=True, array_like=True, gc=False):
    """A cron rule that creates promises or starts runs; then the promises are their roots."""

    id: str
    cron: str
    promise_id: str
    promise_timeout: Millis
    promise_param: str
    promise_tags: str
    created_at: Millis
    next_run_at: Millis
    last_run_at: Millis | None = None
    timezone: str = "UTC"
    catch_up: bool = True
    """Whether each missed occurrence fires, or only the latest."""
    flow: str | None = None
    """The workflow whose runs it starts; None when it creates promises."""
    nodes: str = "[]"
    """The nodes of such a run, encoded."""
    overlap: Overlap = "allow"
    """What becomes of an occurrence that comes while an earlier run is open."""
    paused_at: Millis | None = None
    """Since when it is paused; then it has no next occurrence."""
    skipped: int = 0
    """How many occurrences have no run because of `overlap`."""
    full_until: Millis | None = None
    """While it catches up in portions: occurrences up to here were missed together with those that
    have their runs already, so they are skipped.
    """

    @property
    def node_ids(self) -> tuple[str, ...]:
        return _node_ids(self.nodes)

    @property
    def node_limits(self) -> frozenset[str]:
        """Limits of the tasks of its runs."""
        return _node_limits(self.nodes)

    def fired(self, at: Millis, next_run_at: Millis) -> "Schedule":
        return replace(self, last_run_at=at, next_run_at=next_run_at)

    def passed_over(self, next_run_at: Millis) -> "Schedule":
        return replace(self, skipped=self.skipped + 1, next_run_at=next_run_at)

    def filled(self, until: Millis | None) -> "Schedule":
        return self if self.full_until == until else replace(self, full_until=until)

    def paused(self, now: Millis) -> "Schedule":
        return replace(self, paused_at=now, next_run_at=NEVER, full_until=None)

    def unpaused(self, next_run_at: Millis) -> "Schedule":
        return replace(self, paused_at=None, next_run_at=next_run_at)

    def replaced_by(self, other: "Schedule") -> "Schedule":
        """With another definition; what it has done, and whether it is paused, stays."""
        is_same_rule = (self.cron, self.timezone) == (other.cron, other.timezone)
        keeps_next = is_same_rule or self.paused_at is not None
        return replace(
            other,
            created_at=self.created_at,
            next_run_at=self.next_run_at if keeps_next else other.next_run_at,
            last_run_at=self.last_run_at,
            paused_at=self.paused_at,
            skipped=self.skipped,
            full_until=self.full_until if is_same_rule else None,
        )

    def promise_id_at(self, at: Millis) -> str:
        return occurrence_id(self.promise_id, self.id, at)


class _NamedNode(Struct, frozen=True):
    id: str
    limits: tuple[str, ...] = ()


_named_nodes = json.Decoder(tuple[_NamedNode, ...])


@lru_cache(maxsize=64)
def _node_ids(encoded: str) -> tuple[str, ...]:
    return tuple(node.id for node in _named_nodes.decode(encoded))


@lru_cache(maxsize=64)
def _node_limits(encoded: str) -> frozenset[str]:
    return frozenset(each for node in _named_nodes.decode(encoded) for each in node.limits)


def occurrence_id(template: str, schedule_id: str, at: Millis | str) -> str:
    return template.replace("{{.id}}", schedule_id).replace("{{.timestamp}}", str(at))


def is_run_of(schedule_id: str, promise_id: str) -> bool:
    """Whether it looks like one: nodes do, and runs that somebody else has given such an id."""
    low, high = run_ids_between(schedule_id)
    return low <= promise_id < high


def run_ids_between(schedule_id: str) -> tuple[str, str]:
    """The ids of its runs, and of their later lives, are not below the first and below the second.

    A digit follows the schedule's own id; ':' is what follows the digits.
    """
    return (
        occurrence_id(RUN_OF_SCHEDULE, schedule_id, "0"),
        occurrence_id(RUN_OF_SCHEDULE, schedule_id, ":"),
    )
