"""The queue of ready tasks in a database: what takes may be handed, by turns."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from layby.core.codes import read_refusals
from layby.core.footprint import Footprint
from layby.core.model import Codes, Millis
from layby.core.queue import Dated, Queue, Ready, TakeKey, queues_of
from layby.store.dialect import Dialect
from layby.store.session import Session, packed

FRONT = 8
"""How many more ready tasks than needed are read, in case some are not for this worker."""


class ReadyQueue:
    """Only reads: whoever hands out what it finds has to lock that."""

    def __init__(self, session: Session, dialect: Dialect, roots_per_take: int) -> None:
        self._session = session
        self._dialect = dialect
        self._roots_per_take = roots_per_take

    def find(self, key: TakeKey, footprint: Footprint, until: Millis) -> Ready:
        """Ready tasks of some names, in order.

        A worker usually knows every name of its group: one look at the front of the queue
        is enough. Only if unknown names are in front is each name looked up separately.
        """
        group, names, prefix, codes = key
        if not names:
            return Ready.of(Queue(), Queue(), Queue())
        at = {"group": group, "now": until, "since": footprint.since, "prefix": prefix}
        nodes, roots = footprint.nodes_of(group), footprint.roots(self._roots_per_take)
        known = frozenset(names)
        plain, found_roots, has_refused, has_prior = self._plain(at, known, nodes, roots)
        by_priority: dict[int, Sequence[Dated]] = {0: plain[:nodes]}
        if has_prior:
            by_priority |= self._prior(at, known, nodes)
        in_turn, oldest = queues_of(by_priority, nodes)
        first_roots = Queue(((0, *each) for each in found_roots[:roots]), roots)
        most = footprint.refused
        refused = self._refused(at, names, codes, most) if has_refused else Queue()
        return Ready.of(in_turn, first_roots, refused, oldest)

    def _plain(
        self, at: dict[str, Any], names: frozenset[str], nodes: int, roots: int
    ) -> tuple[list[Dated], list[Dated], bool, bool]:
        """Nodes without a priority, and roots; and whether there are nodes that code has refused,
        or with a priority.
        """
        look = {"nodes": nodes + FRONT, "roots": roots + FRONT}
        *front, has_refused, has_prior = self._session.queue(self._dialect.front, at | look)
        mine = [[each for each in part if each[2] in names] for part in front]
        if any(
            len(found) < wanted and len(part) == limit
            for found, wanted, part, limit in zip(
                mine, (nodes, roots), front, look.values(), strict=True
            )
        ):
            limits = {"names": packed(sorted(names)), "nodes": nodes, "roots": roots}
            *named, _, _ = self._session.queue(self._dialect.by_name, at | limits)
            mine = [sorted(each) for each in named]
        ours, roots_of_ours = ([(at, key) for at, key, _ in part] for part in mine)
        return ours, roots_of_ours, has_refused, has_prior

    def _prior(
        self, at: dict[str, Any], names: frozenset[str], most: int
    ) -> dict[int, list[Dated]]:
        """The oldest ready nodes of each priority, in the same two steps."""
        look = most + FRONT
        front = self._session.queued_turns(self._dialect.prior, at | {"most": look})
        seen = Counter(priority for priority, *_ in front)
        mine = [each for each in front if each[3] in names]
        found = Counter(priority for priority, *_ in mine)
        hidden = [each for each in seen if seen[each] == look and found[each] < most]
        if hidden:
            by_name = {"names": packed(sorted(names)), "priorities": packed(hidden), "most": most}
            named = self._session.queued_turns(self._dialect.prior_by_name, at | by_name)
            mine = [*(each for each in mine if each[0] not in hidden), *named]
        by_priority: defaultdict[int, list[Dated]] = defaultdict(list)
        for priority, ready_at, task_id, _ in sorted(mine):
            by_priority[priority].append((ready_at, task_id))
        return by_priority

    def _refused(self, at: dict[str, Any], names: Sequence[str], codes: Codes, most: int) -> Queue:
        """Ready tasks that some code has refused, but none of these; oldest first."""
        refusals = map(read_refusals, self._session.texts(self._dialect.refusals, at))
        ours = [each.to_text() for each in refusals if each.name in names and each.allow(codes)]
        if not ours:
            return Queue()
        look = {"refusals": packed(ours), "most": most}
        turns = self._session.queued_turns(self._dialect.refused, at | look)
        oldest = sorted((ready_at, task_id, -priority) for priority, ready_at, task_id, _ in turns)
        entries = ((negative, ready_at, task_id) for ready_at, task_id, negative in oldest[:most])
        return Queue(sorted(entries))
