"""Where a call comes from, in the tags from which the SDKs draw their trees."""

from typing import Any, Final

import msgspec
from msgspec import Struct

from layby.core.commands import Tags
from layby.core.ids import root_of
from layby.core.model import Promise
from layby.core.tag_names import BRANCH, TARGET

ORIGIN: Final = "resonate:origin"
PARENT: Final = "resonate:parent"
PREFIX: Final = "resonate:prefix"
SCOPE: Final = "resonate:scope"


class CallLineage(Struct, frozen=True):
    """The call that everything began with, and what detached ids begin with."""

    origin: str
    prefix: str


def lineage_of(promise: Promise) -> CallLineage | None:
    """None for a task of a run: its id says where it belongs."""
    if f'"{ORIGIN}"' not in promise.tags:
        return None
    tags: dict[str, Any] = msgspec.json.decode(promise.tags)
    origin = tags.get(ORIGIN) or root_of(promise.id)
    return CallLineage(origin, tags.get(PREFIX) or origin)


def tags_below(parent_id: str, lineage: CallLineage | None, call_id: str, target: str) -> Tags:
    """As an SDK tags the call of one function by another."""
    root = root_of(parent_id)
    return {
        SCOPE: "global",
        TARGET: target,
        BRANCH: call_id,
        PARENT: parent_id,
        ORIGIN: root if lineage is None else lineage.origin,
        PREFIX: root if lineage is None else lineage.prefix,
    }
