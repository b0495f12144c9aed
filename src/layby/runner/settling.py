"""What whoever settles a promise is told: what stands now, and whether that was their doing."""

from typing import Any

from msgspec import Struct

from layby.core.model import Millis, PromiseState
from layby.core.questions import BY
from layby.core.replies import SettlementData
from layby.wire import json_values


class Settlement(Struct, frozen=True):
    """A promise as it stands after a call to settle it. True if this call settled it.

    Of several calls for one promise exactly one wins, even if all bring the same value.
    """

    id: str
    """The id of the promise; that of run `order-7` is `run/order-7`."""
    state: PromiseState
    value: Any
    """What the promise was settled with; for rejections, the error as a mapping."""
    won: bool
    settled_at: Millis
    """In milliseconds since 1970, by the clock of the store."""
    by: str = ""
    """Who settled it, if they said so: an answer to an approval, or a command."""

    def __bool__(self) -> bool:
        return self.won


def settlement_of(data: SettlementData) -> Settlement:
    promise = data.promise
    return Settlement(
        id=promise.id,
        state=promise.state,
        value=json_values.from_text(promise.value),
        won=data.won,
        settled_at=promise.settled_at or 0,
        by=json_values.headers_of(promise.value).get(BY, ""),
    )
