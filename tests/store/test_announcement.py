"""What processes tell each other after their commits, in the few words there is room for."""

import msgspec
from msgspec import Struct

from layby.core.model import Message
from layby.store.announcement import (
    EVERYTHING,
    MOST_BYTES,
    Announcement,
    of_text,
    to_text,
)


class Former(Struct, frozen=True, omit_defaults=True, array_like=True):
    """As it was before messages were told."""

    settled: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    pids: frozenset[str] = frozenset()
    addresses: frozenset[str] = frozenset()
    earliest: int = 0
    everything: bool = False


def written(count: int, address: str = "poll://uni@g/w") -> Announcement:
    messages = frozenset(Message(f"p{number}", "unblock", address) for number in range(count))
    return Announcement(addresses=frozenset([address]), messages=messages)


def test_several_are_told_as_one() -> None:
    told = of_text(to_text([written(2), written(3, "poll://uni@g/x")]))
    assert told.addresses == {"poll://uni@g/w", "poll://uni@g/x"}
    assert len(told.messages) == 5


def test_of_very_many_messages_only_the_addresses_are_told() -> None:
    """And of very many addresses nothing but that."""
    told = of_text(to_text([written(1_000)]))
    assert told == Announcement(addresses=frozenset(["poll://uni@g/w"]))
    many = [written(1, f"poll://uni@g/{number}") for number in range(MOST_BYTES // 14)]
    assert of_text(to_text(many)) == EVERYTHING


def test_older_and_newer_code_understand_each_other() -> None:
    """Several versions may share a database while they are upgraded."""
    former = Former(addresses=frozenset(["poll://uni@g/w"]), earliest=7)
    told = of_text(msgspec.json.encode(former).decode())
    assert told == Announcement(addresses=former.addresses, earliest=7)
    text = to_text([msgspec.structs.replace(written(1), earliest=7)])
    assert msgspec.json.decode(text, type=Former) == former


def test_what_cannot_be_read_may_mean_anything() -> None:
    assert of_text("[]") == Announcement()
    for text in ("", "{}", '{"settled": []}', "[[1]]"):
        assert of_text(text) == EVERYTHING
