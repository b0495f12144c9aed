"""Which wait the body of a task is in, so that it looks no newer when the body is begun again."""

from typing import Final

from msgspec import MsgspecError, Struct, json

MAX_WAIT_CHARS: Final = 1_000
"""So much is kept of what a wait is known by."""


class LeftWait(Struct, frozen=True, array_like=True):
    """The wait in which a claim has ended."""

    wait: str
    since: int

    def to_text(self) -> str:
        return json.encode(self).decode()


class _ShownWait(Struct, frozen=True):
    sentence: str = ""
    record_id: str | None = None


_left_waits = json.Decoder(LeftWait)
_shown_waits = json.Decoder(_ShownWait)


def read_left_wait(text: str) -> LeftWait:
    return _left_waits.decode(text)


def shown_wait(waiting_on: str | None) -> str:
    """Which wait of a body this is, by its name; some have none, and are known by what they say."""
    if waiting_on is None:
        return ""
    try:
        shown = _shown_waits.decode(waiting_on)
    except (MsgspecError, UnicodeError, RecursionError):  # any worker may have written it
        return ""
    return (shown.record_id or shown.sentence)[:MAX_WAIT_CHARS]
