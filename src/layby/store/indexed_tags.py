"""Which tags are found through the side table, and in what form they are stored there."""

from collections.abc import Iterator
from hashlib import sha256
from typing import Final

import msgspec

from layby.core import tag_names
from layby.core.commands import Tags
from layby.core.model import EMPTY, Promise
from layby.core.tag_names import MOVABLE

COLUMN_OF: Final = {
    tag_names.TARGET: "task_target",
    tag_names.BRANCH: "branch",
    tag_names.NAME: "task_name",
}
"""Tags that have a column: the column's index serves them. Without a target there is no task,
and so no column for its name: then the name is stored like any other tag."""
UNINDEXED: Final = frozenset(
    {
        tag_names.KIND,
        tag_names.PLACEHOLDER,
        tag_names.KEEPS,
        tag_names.AFTER,
        tag_names.EXPIRED,
        tag_names.CALLER,
        tag_names.DETACHED,
        tag_names.TRIGGER,
        tag_names.ON_CANCEL,
        tag_names.CANCELS,
        tag_names.PRINCIPAL,
        tag_names.EXIT,
        MOVABLE,
    }
)
"""Tags that nobody looks up: they are on too many rows to narrow anything, or found by id."""
LONGEST: Final = 512

_decode = msgspec.json.Decoder(Tags).decode


def of(promise: Promise) -> Iterator[tuple[str, str, str]]:
    if promise.tags == EMPTY:
        return
    tags = _decode(promise.tags)
    for key, value in tags.items():
        if is_indexed(key) or (key == tag_names.NAME and tag_names.TARGET not in tags):
            yield stored(key), stored(value), promise.id


def is_indexed(key: str) -> bool:
    return key not in COLUMN_OF and key not in UNINDEXED


def stored(text: str) -> str:
    """As stored in the index: what is too long or unfit for a key is replaced by its digest."""
    if len(text) <= LONGEST and "\0" not in text:
        return text
    return "sha256:" + sha256(text.encode()).hexdigest()
