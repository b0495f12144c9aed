"""What time does: commands that nobody sends, found by the store's `due`."""

from layby.core.commands import Command
from layby.core.footprint import Footprint
from layby.core.model import MessageKey, Millis


class Tick(Command, frozen=True):
    """An internal command. Each handler checks again: late or duplicate firing is harmless."""


class IdsTick(Tick, frozen=True):
    ids: tuple[str, ...]

    def footprint(self, into: Footprint) -> None:
        into.ids.update(self.ids)


class ExpirePromises(IdsTick, frozen=True):
    kind = "tick.expire_promises"


class RetryTasks(IdsTick, frozen=True):
    kind = "tick.retry_tasks"


class ExpireLeases(IdsTick, frozen=True):
    """`heard_since`: nobody could renew a lease before; None when there was no such gap."""

    kind = "tick.expire_leases"
    heard_since: Millis | None = None


class FinishSettlement(Tick, frozen=True):
    """Go on with the effects of a settlement that were too many for one transaction."""

    kind = "tick.finish_settlement"
    id: str
    nodes: tuple[str, ...] = ()

    def footprint(self, into: Footprint) -> None:
        into.ids.add(self.id)
        into.ids.update(self.nodes)


class ExpireHolders(Tick, frozen=True):
    """`opening`: embedded holders have died with the last owner of the store.

    `heard_since`: nobody could renew a lease before; None when there was no such gap.
    """

    kind = "tick.expire_holders"
    pids: tuple[str, ...]
    opening: bool = False
    heard_since: Millis | None = None

    def footprint(self, into: Footprint) -> None:
        into.pids.update(self.pids)
        if self.opening:
            into.leases_of.update(self.pids)


class FreeTasks(IdsTick, frozen=True):
    """Give back tasks of a holder that is gone."""

    kind = "tick.free_tasks"
    pid: str
    incarnation: str

    def footprint(self, into: Footprint) -> None:
        into.ids.update(self.ids)
        into.pids.add(self.pid)


class FireSchedule(Tick, frozen=True):
    """`occurrences`: each missed instant and the promise id it makes, oldest first.

    `nodes`: of the runs it starts.
    """

    kind = "tick.fire_schedule"
    id: str
    occurrences: tuple[tuple[Millis, str], ...]
    nodes: tuple[str, ...] = ()

    def footprint(self, into: Footprint) -> None:
        into.schedules.add(self.id)
        for _, promise_id in self.occurrences:
            into.ids.add(promise_id)
            into.ids.update(f"{promise_id}:{node}" for node in self.nodes)


class ForgetMessages(Tick, frozen=True):
    """Messages that have been delivered (or can never be)."""

    kind = "tick.forget_messages"
    keys: tuple[MessageKey, ...]

    def footprint(self, into: Footprint) -> None:
        """Touches the outbox only."""
