"""What the rules get from outside: a few numbers and switches, and a calendar."""

from collections.abc import Callable
from typing import Final, Literal

from msgspec import Struct

from layby.core.model import Millis

Lineage = Literal["off", "dot", "colon"]
"""How ids show their origin: the text before the first '.' or ':'; off: not at all."""


PRUNE_ROWS: Final = 8
"""The fewest that `layby prune` asks for at once: it takes as long as a small command."""


LONGEST_RETENTION_MS: Final[Millis] = 36_500 * 24 * 3_600_000
"""A hundred years: who means longer means for ever."""


class RetentionPolicy(Struct, frozen=True):
    """How long ended runs are kept, and then their ids; None: for ever."""

    completed_ms: Millis | None = None
    failed_ms: Millis | None = None
    ids_ms: Millis | None = None


class Settings(Struct, frozen=True):
    """The few numbers and switches the rules depend on; the defaults accept what SDKs send."""

    retry_ms: Millis = 30_000
    max_crashes: int = 5
    hop_limit: int = 1_000
    """Waits handled in the transaction that settles their promise, and listeners told; the rest is
    armed as a tick.
    """
    preload_limit: int = 1_000
    roots_per_take: int = 64
    strict_lineage: Lineage = "off"
    """Lineage tags must match their id, and waits must stay within one origin."""
    strict_external: bool = False
    """Nobody may wait for a promise without a target, timer or external tag: it is internal."""

    retention: RetentionPolicy | None = None
    """What is pruned without being asked; None: only dead holders."""
    prune_rows: int = 2 * PRUNE_ROWS

    @classmethod
    def strict(cls) -> "Settings":
        """The specification's answers, with the lineage rule of the newest SDKs."""
        return cls(strict_lineage="colon", strict_external=True)


class NoInstant(Struct, frozen=True):
    """What a calendar answers when there is no next instant."""

    why: str


Calendar = Callable[[str, Millis, str], Millis | NoInstant]
"""The next instant of a cron rule strictly after a given one, in a time zone."""
