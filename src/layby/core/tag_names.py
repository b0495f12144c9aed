"""The tags that core knows: what each means, which of them no request may set, and how one is found
among those of a promise.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from layby.core.fields import Tags

_tags = msgspec.json.Decoder(Tags)

TARGET: Final = "resonate:target"
DELAY: Final = "resonate:delay"
TIMER: Final = "resonate:timer"
EXTERNAL: Final = "resonate:external"
BRANCH: Final = "resonate:branch"
NAME: Final = "layby:name"
KIND: Final = "layby:kind"
PLACEHOLDER: Final = "layby:placeholder"
KEEPS: Final = "layby:keeps"
"""On a task that runs again: the same task in an earlier life, whose checkpoints it keeps. On an
item: the same item in an earlier join of its `map`."""
PRIORITY: Final = "layby:priority"
"""On a node: its priority. On a root: that of its run, which is part of its nodes'."""
SLOTS: Final = "layby:slots"
"""On a node: how many slots of its worker its body holds."""
SCHEDULE: Final = "resonate:schedule"
AFTER: Final = "layby:after"
"""On the root of a run that was queued: the roots it waits for, as a JSON list."""
LIMITS: Final = "layby:limits"
"""On a task of a run: names of the limits it runs under, as a JSON list."""
PARENT: Final = "layby:parent"
"""On the root of a child run: the (first) root of the run that it belongs to."""
CALLER: Final = "layby:caller"
"""On the root of a child run: the task that has started it."""
DETACHED: Final = "layby:detached"
"""On the root of a child run: what ends its parent does not end it."""
EXPIRED: Final = "layby:expired"
"""On what is left of a pruned promise: when that was."""
EXIT: Final = "layby:exit"
"""On a promise below a task: what a person has decided about one of its waits. The task."""
MAPS: Final = "layby:maps"
"""On a join: which task it runs for each item, by a name that other processes find it by."""
COLLECTS: Final = "layby:collects"
"""On a join that failures of its items do not end."""
LIMITED: Final = "layby:limit"
"""On a join that limits them: how many of its items may be open at once."""
TRIGGER: Final = "layby:trigger"
"""On a trigger: the task that waits for it."""
ON_CANCEL: Final = "layby:on-cancel"
"""On a trigger: when it is cancelled or times out, something has to be done about it."""
CANCELS: Final = "layby:cancels"
"""On the task that does it: the trigger."""
PRINCIPAL: Final = "layby:principal"
"""On a trigger: for whom it asks, if a server has said so. Polls are shared by those for whom it is
the same.
"""
MOVABLE: Final = "layby:movable"
"""Of a promise that a task has made to wait for: its deadline may be moved by hand."""

_BY_RUNS: Final = "starting a run"
_BY_CHILDREN: Final = "a task that starts a run"
_BY_DEFERS: Final = "layby.task.defer"
_BY_MAPS: Final = "layby.map.add"
RESERVED: Final[Mapping[str, str]] = {
    PLACEHOLDER: "waiting for a promise that does not exist",
    KEEPS: "what runs again",
    AFTER: "a schedule of runs",
    LIMITS: _BY_RUNS,
    PARENT: _BY_CHILDREN,
    CALLER: _BY_CHILDREN,
    DETACHED: _BY_CHILDREN,
    EXPIRED: "pruning",
    EXIT: "layby.task.wake and layby.task.extend",
    TRIGGER: _BY_DEFERS,
    ON_CANCEL: _BY_DEFERS,
    CANCELS: "the end of a trigger",
    PRINCIPAL: _BY_DEFERS,
    MAPS: _BY_MAPS,
    COLLECTS: _BY_MAPS,
    LIMITED: _BY_MAPS,
}
"""Tags that are believed as they stand, and what alone sets them. A request with one would speak of
tasks, and act for others, that its token need not cover.
"""


def has_tag(tags: str, name: str) -> bool:
    """Whether it is among these encoded tags."""
    return tag_of(tags, name) is not None


def tag_of(tags: str, name: str) -> str | None:
    """Of encoded tags, which are decoded only if it may be there: hardly any promise has it. In a
    text, the name of another tag may end like it, after a quote.
    """
    return _tags.decode(tags).get(name) if f'"{name}":' in tags else None
