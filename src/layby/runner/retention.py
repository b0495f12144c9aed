"""How long ended runs are kept, as users say it."""

from msgspec import Struct

from layby.core.model import Millis
from layby.core.settings import LONGEST_RETENTION_MS, RetentionPolicy
from layby.errors import UsageError
from layby.wire import durations
from layby.wire.durations import limit_of, millis_of
from layby.workflow.duration_checks import Duration


class Retention(Struct, frozen=True, kw_only=True):
    """How long runs are kept after they have ended: `completed` ones, and `failed` ones, which are
    those that failed, were cancelled or passed their deadline. Then their tasks and values are
    deleted, and their ids are kept for `ids` more: starting one of them again finds it, and asking
    for its result raises `ResultExpired`. Seconds or a timedelta; None keeps for ever.
    """

    completed: Duration | None = None
    failed: Duration | None = None
    ids: Duration | None = None

    def __post_init__(self) -> None:
        policy_of(self)


def policy_of(retention: Retention) -> RetentionPolicy:
    names = ("completed", "failed", "ids")
    return RetentionPolicy(*(_length(retention, name) for name in names))


def _length(retention: Retention, name: str) -> Millis | None:
    seconds = limit_of(getattr(retention, name), f"{name} of a Retention")
    if seconds is None:
        return None
    if seconds * 1000 > LONGEST_RETENTION_MS:
        most = durations.shown(LONGEST_RETENTION_MS)
        raise UsageError(f"{name} of a Retention must be at most {most}; None keeps for ever")
    return millis_of(seconds)
