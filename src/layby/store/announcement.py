"""What a process tells others that share its store: what it has committed, in a few words.

It is only a hint. If it is lost, others find out by themselves within a second.
"""

from collections.abc import Collection, Iterable
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from layby.core.changes import Changes
from layby.core.model import FAR, Message, Millis

MOST_BYTES: Final = 7_500
"""PostgreSQL carries a little less than 8,000."""


class Announcement(Struct, frozen=True, omit_defaults=True, array_like=True):
    settled: frozenset[str] = frozenset()
    """Promises that somebody may watch."""
    groups: frozenset[str] = frozenset()
    """Of tasks that are ready."""
    pids: frozenset[str] = frozenset()
    """Of holders that are gone."""
    addresses: frozenset[str] = frozenset()
    """Of messages."""
    earliest: Millis = FAR
    """The earliest deadline."""
    everything: bool = False
    """Too much to be told: look at everything."""
    messages: frozenset[Message] = frozenset()
    """Those for the addresses, unless there are too many: who wants one need not look for it."""
    closed: frozenset[str] = frozenset()
    """Names of tasks for which slots may be kept though they cannot begin now."""

    @property
    def is_empty(self) -> bool:
        return self == NOTHING

    def with_more(self, other: "Announcement") -> "Announcement":
        return Announcement(
            self.settled | other.settled,
            self.groups | other.groups,
            self.pids | other.pids,
            self.addresses | other.addresses,
            min(self.earliest, other.earliest),
            self.everything or other.everything,
            self.messages | other.messages,
            self.closed | other.closed,
        )


NOTHING: Final = Announcement()
EVERYTHING: Final = Announcement(everything=True)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Announcement).decode


def announcement_of(changes: Changes, offered: Collection[Message] = ()) -> Announcement:
    """`offered`: messages that this process offers itself; others need not hear of them."""
    written = {each for each in changes.messages.values() if each is not None}
    messages = frozenset(written.difference(offered))
    tasks = (changes.tasks[key] for key in changes.readied)
    ready = [*(task for task in tasks if task.is_ready), *changes.large_gone]
    return Announcement(
        settled=frozenset(changes.settled),
        groups=frozenset(task.group for task in ready if task.group is not None),
        pids=frozenset(pid for (pid, _), holder in changes.holders.items() if not holder.is_alive),
        addresses=frozenset(each.address for each in messages),
        earliest=changes.earliest,
        messages=messages,
        closed=frozenset(changes.closed),
    )


def to_text(told: Collection[Announcement]) -> str:
    """All of them as one."""
    together = _together(told)
    texts = (_encode(each) for each in (together, replace(together, messages=frozenset())))
    return next((each for each in texts if len(each) <= MOST_BYTES), _encode(EVERYTHING)).decode()


def of_text(text: str) -> Announcement:
    """What cannot be read comes from another version: it may mean anything."""
    try:
        return _decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        return EVERYTHING


def _together(told: Iterable[Announcement]) -> Announcement:
    made = NOTHING
    for each in told:
        made = made.with_more(each)
    return made
