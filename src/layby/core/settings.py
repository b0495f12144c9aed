"""What the rules get from outside: a few numbers and switches, and a calendar."""

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from layby.core.model import Millis

Lineage = Literal["off", "dot", "colon"]
"""How ids show their origin: the text before the first '.' or ':'; off: not at all."""


class Settings(Struct, frozen=True):
    """The few numbers and switches the rules depend on; the defaults accept what SDKs send."""

    retry_ms: Millis = 30_000
    max_crashes: int = 5
    hop_limit: int = 1_000
    """Waits handled in the transaction that settles their promise; the rest is armed as a tick."""
    preload_limit: int = 1_000
    roots_per_take: int = 64
    strict_lineage: Lineage = "off"
    """Lineage tags must match their id, and waits must stay within one origin."""
    strict_external: bool = False
    """Nobody may wait for a promise without a target, timer or external tag: it is internal."""

    @classmethod
    def strict(cls) -> "Settings":
        """The specification's answers, with the lineage rule of the newest SDKs."""
        return cls(strict_lineage="colon", strict_external=True)


class NoInstant(Struct, frozen=True):
    """What a calendar answers when there is no next instant."""

    why: str


Calendar = Callable[[str, Millis, str], Millis | NoInstant]
"""The next instant of a cron rule strictly after a given one, in a time zone."""
