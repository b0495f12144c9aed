"""What every request has in common."""

from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from layby.core.footprint import Footprint

if TYPE_CHECKING:
    from layby.core.takes import Take


class Command(Struct, frozen=True, rename="camel", kw_only=True):
    """A request to change state (or to read rows by id)."""

    kind: ClassVar[str]
    unqueues: ClassVar[bool] = True
    """Whether it may take ready tasks it names out of the queue, otherwise than by a take."""

    def footprint(self, into: Footprint) -> None:
        """Declare every row the step may read; the store adds one hop (waits and awaiters)."""
        raise NotImplementedError(type(self).__name__)

    @property
    def asks(self) -> "Take | None":
        """The take that it is, or that rides on it."""
        return None


class ById(Command, frozen=True):
    id: str

    def footprint(self, into: Footprint) -> None:
        into.ids.add(self.id)
