"""Why a task has no permit, in words: who holds them all, until when its rate keeps it waiting."""

from msgspec import Struct

from layby.core.limit import PRIVATE
from layby.core.model import Millis
from layby.core.replies import LimitStanding
from layby.core.waits import limited_sentence
from layby.workflow.moments import ahead
from layby.workflow.outcome import moment
from layby.workflow.short_ids import quoted


class FullLimit(Struct, frozen=True):
    """All who hold a permit of a limit that has none left, and the command that makes one more."""

    holders: tuple[str, ...]
    raising: str | None


def no_permit(gate: str, standing: LimitStanding | None, now: Millis) -> str:
    """`standing`: the limit, as far as it is known."""
    sentence = limited_sentence(gate)
    if standing is None:
        return sentence
    if standing.rule is None:
        return f"{sentence}, but limit '{gate}' is not defined: {how_to_define(gate)}"
    if _is_closed(standing):
        return f"{sentence}, but its concurrency is 0"
    if _is_full(standing):
        return f"{sentence} ({standing.held} of {standing.concurrency} held{_by(standing)})"
    if standing.next_at is not None:
        when = f"{ahead(standing.next_at, now)} ({moment(standing.next_at)}, {standing.rate})"
        return f"{sentence}: the next one may begin {when}"
    return f"{sentence}: those that came earlier are let in first, and no worker has taken them yet"


def _is_closed(standing: LimitStanding) -> bool:
    return standing.concurrency == 0 and standing.held == 0


def _is_full(standing: LimitStanding) -> bool:
    return standing.concurrency is not None and standing.held >= standing.concurrency


def _by(standing: LimitStanding) -> str:
    more = standing.held - len(standing.holders)
    others = f" and {more} more" if more > 0 and standing.holders else ""
    return f" by {', '.join(standing.holders)}{others}" if standing.holders else ""


def how_to_define(name: str) -> str:
    return f"runner.limit({name!r}, …) or layby limits set {quoted(name)} --concurrency N"


def who_gives_permit(standing: LimitStanding | None) -> str:
    if standing is None:
        return "whoever holds a permit"
    if standing.rule is None:
        return "whoever defines the limit"
    if _is_closed(standing):
        return "whoever raises the limit"
    if standing.next_at is not None or standing.name.startswith(PRIVATE):
        return ""  # only time; or other items of its map, which say themselves who holds them up
    return "whoever holds a permit" if _is_full(standing) else "a worker that takes those before it"


def defining_command(name: str, standing: LimitStanding | None) -> str | None:
    if standing is None or name.startswith(PRIVATE):
        return None
    if standing.rule is None:
        return f"layby limits set {quoted(name)} --concurrency N"
    return f"layby limits show {quoted(name)}"


def full_limit(name: str, standing: LimitStanding | None) -> FullLimit | None:
    """None if there are permits, or if not all who hold them are known."""
    if standing is None or standing.concurrency is None or not standing.holders:
        return None
    if not _is_full(standing) or len(standing.holders) < standing.held:
        return None
    raising = f"layby limits set {quoted(name)} --concurrency {standing.held + 1}"
    return FullLimit(standing.holders, None if name.startswith(PRIVATE) else raising)
