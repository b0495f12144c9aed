"""Owns a channel: an edge while it runs, from publication to its reader, within its bounds.

    publish -> `next` -> (end of the epoch) `ready` -> (beginning of the next) `waiting` -> reader

On an immediate edge `next` goes to `waiting` at the next barrier, without `ready`. What is in
`next` and `ready` is in flight. A channel takes no lock and calls nobody: its publisher guards it.

`room` is how many more can be published as things are, so that publishing has one thing to ask.
Whatever changes it but a publication works it out again. What a reader has taken and may still put
back (`lent`) takes its room like what waits.
"""

from collections import deque
from typing import NamedTuple

from layby.graph.definition import Edge
from layby.graph.messages import FAILURES, Entry, Message, MessageMetadata
from layby.graph.refusals import channel_full, inflight_full


class Moment(NamedTuple):
    """When a message became visible: by the clock, and by the number of the boundary."""

    at: float = 0.0
    boundary: int = 0


class Channel:
    __slots__ = (
        "capacity",
        "closed",
        "dropped",
        "dropped_inflight",
        "edge",
        "held",
        "id",
        "is_async",
        "is_latched",
        "lent",
        "max_inflight",
        "moments",
        "next",
        "overwrites",
        "overwritten",
        "overwritten_early",
        "overwritten_inflight",
        "peak_inflight",
        "peak_waiting",
        "reads_by_moment",
        "ready",
        "refused_by_capacity",
        "refused_by_inflight",
        "reports_lost",
        "room",
        "sequence",
        "trigger_kind",
        "waiting",
    )

    def __init__(self, edge: Edge, trigger_kind: str) -> None:
        self.edge = edge
        self.id = edge.id
        self.trigger_kind = trigger_kind
        policy = edge.policy
        self.is_async = edge.is_async
        self.is_latched = policy.mode == "latched"
        self.capacity = policy.capacity
        self.max_inflight = policy.max_inflight
        self.overwrites = policy.overwrites
        self.next: deque[Entry] = deque()
        self.ready: deque[Entry] = deque()
        self.waiting: deque[Entry] = deque()
        self.held: tuple[int, Entry] | None = None
        """What a latched channel goes on showing after it was taken."""
        self.sequence = 0
        """Of the newest message that became visible; those that wait count down from it."""
        self.lent = 0
        """Taken by a reader that has not finished: it may put them back."""
        self.reads_by_moment = trigger_kind in ("batch", "debounce")
        self.moments: deque[tuple[int, Moment]] = deque()
        """Of those that wait, if their reader asks: the last sequence of each boundary."""
        self.overwritten = self.overwritten_early = self.overwritten_inflight = 0
        """By capacity; those of them that never were visible; and by `max_inflight`."""
        self.dropped = self.dropped_inflight = 0
        self.refused_by_capacity = self.refused_by_inflight = 0
        self.reports_lost = 0
        """Reports of failures that were overwritten, of whatever was."""
        self.peak_inflight = self.peak_waiting = 0
        self.closed = False
        self.room = 0
        self.find_room()

    @property
    def inflight(self) -> int:
        return len(self.next) + len(self.ready)

    def find_room(self) -> None:
        """An edge that overwrites makes its room at the boundary, by dropping what still waits."""
        inflight = len(self.next) + len(self.ready)
        room = self.capacity - inflight
        if not self.overwrites:
            room -= len(self.waiting) + self.lent
        if self.max_inflight:
            room = min(room, self.max_inflight - inflight)
        self.room = 0 if self.closed else room

    def close(self) -> None:
        """No room from now on, whatever is still taken."""
        self.closed = True
        self.room = 0

    # -- publishing

    def refusal(self) -> str:
        """Why it takes nothing more, or empty if it does, perhaps at the oldest's cost."""
        if self.room > 0 or self.overwrites:
            return ""
        overflow = self.edge.policy.overflow
        if self.is_full_inflight:
            return inflight_full(self.id, overflow)
        return channel_full(self.id, overflow, self.capacity)

    @property
    def is_full_inflight(self) -> bool:
        return 0 < self.max_inflight <= self.inflight

    def count_refusal(self) -> None:
        is_dropped = self.edge.policy.overflow == "drop_newest"
        if self.is_full_inflight:
            self.refused_by_inflight += 1
            self.dropped_inflight += is_dropped
        else:
            self.refused_by_capacity += 1
            self.dropped += is_dropped

    def stage(self, entry: Entry) -> bool:
        """Put it in flight; True when the oldest in flight had to go for it."""
        evicts = self.room <= 0
        if evicts:
            if self.is_full_inflight:
                self.overwritten_inflight += 1
            else:
                self.overwritten += 1
                self.overwritten_early += 1
            self._lose((self.ready or self.next).popleft())
        else:
            self.room -= 1
        self.next.append(entry)
        return evicts

    # -- becoming visible

    def end_epoch(self) -> None:
        """Nothing that was ready can be left: the epoch began with it."""
        self.ready, self.next = self.next, self.ready

    def commit(self, arrived: deque[Entry], now: float, boundary: int) -> int:
        """Show these to the reader; how many older ones were dropped for them."""
        waiting = self.waiting
        self.peak_inflight = max(self.peak_inflight, self.inflight)
        self.sequence += len(arrived)
        waiting.extend(arrived)
        arrived.clear()
        if self.reads_by_moment:
            self.moments.append((self.sequence, Moment(now, boundary)))
        over = self._trim()
        self.peak_waiting = max(self.peak_waiting, len(waiting))
        self.find_room()
        return over

    def _trim(self) -> int:
        over = len(self.waiting) - self.capacity
        if over <= 0:
            return 0
        for _ in range(over):
            self._lose(self.waiting.popleft())
        self._forget_moments()
        self.overwritten += over
        return over

    def _lose(self, entry: Entry) -> None:
        self.reports_lost += isinstance(entry[0], FAILURES)

    # -- moments

    @property
    def oldest(self) -> Moment:
        """When the oldest of those that wait became visible."""
        return self.moments[0][1]

    @property
    def newest(self) -> Moment:
        return self.moments[-1][1]

    def _forget_moments(self) -> None:
        """Of what does not wait any more: there are never more of them than messages."""
        moments = self.moments
        gone = self.sequence - len(self.waiting)
        while moments and moments[0][0] <= gone:
            moments.popleft()

    def _remember(self, sequence: int, moment: Moment) -> None:
        if self.reads_by_moment and not (self.moments and self.oldest == moment):
            self.moments.appendleft((sequence, moment))

    # -- reading

    def take(self) -> tuple[int, Entry]:
        """The oldest that waits, with its sequence."""
        sequence = self.sequence - len(self.waiting) + 1
        entry = self.waiting.popleft()
        if self.is_latched:
            self.held = sequence, entry
        self._forget_moments()
        self.find_room()
        return sequence, entry

    def lend(self) -> tuple[int, Entry]:
        """As `take`, and it holds its room until it is given back or `settle`d."""
        self.lent += 1
        return self.take()

    def give_back(self, sequence: int, entry: Entry, moment: Moment) -> None:
        """The invocation that had it did not end: it waits again, where it waited."""
        self.waiting.appendleft(entry)
        self._remember(sequence, moment)

    @property
    def shown(self) -> tuple[int, Entry] | None:
        """Of a latched channel: the newest that is visible, taken or not."""
        if not self.is_latched:
            return None
        return (self.sequence, self.waiting[-1]) if self.waiting else self.held

    def take_all(self) -> tuple[int, deque[Entry]]:
        """All that wait, and the sequence of the first. They hold their room until `settle`."""
        taken, self.waiting = self.waiting, deque()
        self.lent = len(taken)
        first = self.sequence - len(taken) + 1
        if self.is_latched and taken:
            self.held = self.sequence, taken[-1]
        return first, taken

    def settle(self, left: deque[Entry] | None = None) -> None:
        """The reader is through; what it has left waits again, before all that came since."""
        self.lent = 0
        if left:
            self.waiting.extendleft(reversed(left))
        self._trim()
        self.find_room()

    def message(self, sequence: int, entry: Entry) -> Message:
        payload, lineage = entry
        own_id = f"{self.id}#{sequence}"
        correlation = lineage.correlation_id or own_id
        source = self.edge.source
        metadata = MessageMetadata(
            correlation_id=correlation,
            transaction_id=lineage.transaction_id or correlation,
            epoch_id=lineage.epoch,
            source_component=source.component,
            source_port=source.port,
            causation_id=own_id,
            trigger_kind=self.trigger_kind,
        )
        return Message(payload, metadata, sequence)
