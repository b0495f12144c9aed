"""How the store talks to a database: a few ways to read and to write, whatever the driver."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec

from layby.core.model import Millis
from layby.errors import StoreError
from layby.store.bulk import Bulk, Wide
from layby.store.tables import encode

T = TypeVar("T")
Queued = tuple[Millis, str, str | None]
"""Of a ready task: since when, its id and its name."""
InLane = tuple[str, str, str, Millis, str]
"""Of a task that waits for a permit: the limit, its group, name, place and id."""
Reading = tuple[str, "msgspec.json.Decoder[Any]", Sequence[Any]]
"""A statement, what its rows are, and its arguments."""

TEXTS: Final = msgspec.json.Decoder(list[str])
QUEUED: Final = msgspec.json.Decoder(list[Queued])
QueuedTurn = tuple[int, Millis, str, str | None]
"""The same, after its priority."""
QUEUED_TURNS: Final = msgspec.json.Decoder(list[QueuedTurn])
IN_LANES: Final = msgspec.json.Decoder(list[InLane])


class Session(Protocol):
    """One connection, used by one thread. Reads are answered at once; writes, at the latest by the
    commit.
    """

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What the driver raises."""
        ...

    def explained(self, error: Exception, name: str) -> Exception | StoreError:
        """The same failure in words that say what to do."""
        ...

    def begin(self) -> None: ...

    def commit(self) -> None: ...

    def roll_back(self) -> None:
        """Does nothing outside a transaction."""
        ...

    def read(self, statement: str, decoder: "msgspec.json.Decoder[T]", *arguments: Any) -> T: ...

    def read_sized(
        self, statement: str, decoder: "msgspec.json.Decoder[T]", *arguments: Any
    ) -> tuple[T, int]:
        """And roughly how many characters that was."""
        ...

    def read_together(self, readings: Sequence[Reading]) -> list[Any]:
        """Several at once; each may see what the ones before it could not."""
        ...

    def row(self, statement: str, arguments: Sequence[Any] | Mapping[str, Any] = ()) -> Any:
        """One row of plain cells."""
        ...

    def rows(self, statement: str, arguments: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Rows of plain cells."""
        ...

    def texts_of(
        self, table: str, columns: Sequence[str], statement: str, arguments: Mapping[str, Any]
    ) -> list[tuple[str, ...]]:
        """What a dialect's `filled` finds. Nobody else has to wait while a large text is read."""
        ...

    def read_alone(self, statement: str, decoder: "msgspec.json.Decoder[T]", *arguments: Any) -> T:
        """As a transaction of its own."""
        ...

    def queue(
        self, statement: str, arguments: Mapping[str, Any]
    ) -> tuple[list[Queued], list[Queued], bool, bool]:
        """Ready nodes and roots; whether there are some that code has refused, and whether there
        are some with a priority.
        """
        ...

    def texts(self, statement: str, arguments: Mapping[str, Any]) -> list[str]: ...

    def queued_turns(self, statement: str, arguments: Mapping[str, Any]) -> list[QueuedTurn]: ...

    def in_lanes(self, statement: str, arguments: Mapping[str, Any]) -> list[InLane]: ...

    def execute(self, statement: str, arguments: Sequence[Any] = ()) -> None: ...

    def write(self, bulk: Bulk, rows: Sequence[Any]) -> None: ...

    def write_wide(self, wide: Wide, rows: Sequence[tuple[Any, ...]]) -> None:
        """Rows may be shorter than others: the cells at the end are then NULL."""
        ...

    def packed(self, bulk: Bulk, rows: Sequence[Any]) -> str:
        """Rows as the one parameter of such a statement."""
        ...

    def close(self) -> None: ...


def packed(rows: Sequence[Any]) -> str:
    """Texts, or rows as arrays, as one parameter."""
    return encode(rows).decode()
