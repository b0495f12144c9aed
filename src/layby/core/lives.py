"""Running a run again: a new life with new promises below the run's own id.

The promises of earlier lives are settled and stay as they are. A new life has a root of its own
and a node for each task that runs again; what does not run again is not created: whoever wants its
result reads the promise of the earlier life. The first root knows the number of the latest life.
"""

from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from layby.core import birth, children, tag_names, validate, values
from layby.core.children import Caller
from layby.core.draft import Draft
from layby.core.fields import MAX_NODES, NOTHING, Int64, Tags, Value
from layby.core.footprint import Footprint
from layby.core.ids import life_id
from layby.core.kinds import ById, Ids, Problems, Sender, declare, handles
from layby.core.model import NEVER, Promise, Task, deadline
from layby.core.promises import WatchPromise, watch
from layby.core.replies import PromiseData, Reply, RunData, RunWatchData, ok, refuse
from layby.core.runs import (
    MAX_CLEANUPS,
    MAX_DEPENDENCIES,
    Awaited,
    body_of,
    create_after,
    edge_problems,
)
from layby.core.settlement import settle_all

_tags = msgspec.json.Decoder(Tags).decode


class NodeAgain(Struct, frozen=True, rename="camel"):
    """A task that runs again: after all of `after`, which run again as well.

    `life` is the latest in which it ran: its promise there is its source. `succeeded`: whether
    the source was seen resolved, and is to run again nevertheless. `cleanup`: as of a node of a run
    that is started. `keep`: whether it keeps the checkpoints of its source.
    """

    id: str
    life: Int64 = 1
    after: tuple[str, ...] = ()
    succeeded: bool = False
    cleanup: bool = False
    keep: bool = True


@declare("layby.run.rerun", sender=Sender.CLIENT, answer=RunData)
class RerunRun(ById, frozen=True):
    """Begin the next life of a run that has ended. Asked again for the same, the same life.

    `id` is the run's first root, `life` the number of the life to begin. Names, groups and params
    of nodes are those of their sources; `param` is that of the new root. `timeout`: how long after
    now the life may take. `caller`: the task whose run it is a child of.
    """

    life: Int64
    nodes: Annotated[tuple[NodeAgain, ...], Meta(max_length=MAX_NODES)] = ()
    timeout: Int64 = NEVER
    param: Value = NOTHING
    caller: Caller | None = None

    @property
    def root_id(self) -> str:
        return life_id(self.id, self.life)

    @property
    def before_id(self) -> str:
        """The root of the life before."""
        return life_id(self.id, self.life - 1)

    def node_id(self, node: str) -> str:
        return f"{self.root_id}:{node}"

    def source_id(self, node: NodeAgain) -> str:
        return f"{life_id(self.id, node.life)}:{node.id}"

    def footprint(self, into: Footprint) -> None:
        into.ids.update((self.id, self.before_id, self.root_id))
        for node in self.nodes:
            into.ids.update((self.node_id(node.id), self.source_id(node)))
        if self.caller is not None:
            self.caller.footprint(into, self.root_id)

    def named_ids(self) -> Ids:
        """All others begin with the one named."""
        return (self.id,) if self.caller is None else (self.id, *self.caller.named_ids())

    def problems(self) -> Problems:
        yield from validate.identifier(self.id, "Run ID")
        yield from validate.size(self.param, "param")
        if self.life < 2:
            yield "life must be 2 or more: the first is begun by starting the run"
        if self.timeout < 1:
            yield "timeout must be positive"
        if self.caller is not None:
            yield from self.caller.problems(self.id)
        if ":" in self.id:
            yield f"Run ID '{self.id}' must not contain ':' (it separates run and node)"
        dependencies = sum(len(node.after) for node in self.nodes)
        cleanups = sum(node.cleanup for node in self.nodes)
        dependencies += cleanups * len(self.nodes)
        too_many = [
            *validate.count(len(self.nodes), MAX_NODES, "nodes"),
            *validate.count(cleanups, MAX_CLEANUPS, "nodes that clean up"),
            *validate.count(dependencies, MAX_DEPENDENCIES, "dependencies of nodes"),
        ]
        yield from too_many or self._node_problems()

    def _node_problems(self) -> Problems:
        yield from edge_problems(self.nodes)
        for node in self.nodes:
            yield from validate.identifier(self.node_id(node.id) if node.id else "", "Node ID")
            if not 1 <= node.life < self.life:
                yield f"life of node '{node.id}' must be one before life {self.life}"


@handles(RerunRun)
def rerun(d: Draft, c: RerunRun) -> Reply:
    if refusal := children.refusal(d, c.caller):
        return refusal
    first = d.task(c.id)
    if first is None or not first.is_root:
        return refuse(404, f"Run '{c.id}' not found")
    existing = d.promise(c.root_id)
    if existing is not None:
        return _existing(d, c, existing)
    if why_not := _why_not(d, c, first):
        return refuse(409, f"It {why_not}")
    _end_what_is_left(d, c)
    _create(d, c)
    for earlier in {c.id, c.before_id}:
        root = d.task(earlier)
        assert root is not None
        d.put_task(root.followed_by(c.life))
    children.begun(d, c.caller)
    children.bind(d, c.caller, c.root_id)
    return ok(RunData(d.promises[c.root_id], created=True))


def _existing(d: Draft, c: RerunRun, life: Promise) -> Reply:
    """Somebody, maybe this caller, has begun this life: it is theirs if they asked for the same."""
    if c.caller is not None:
        children.bind(d, c.caller, c.root_id)
        return ok(RunData(life, created=False))
    is_same = (life.param, life.timeout_at) == (
        birth.encoded(c.param),
        deadline(life.created_at, c.timeout),
    )
    if is_same:
        return ok(RunData(life, created=False))
    return refuse(409, "It was run again by somebody else, who asked for something else")


def _why_not(d: Draft, c: RerunRun, first: Task) -> str | None:
    lives = first.lives or 1
    if c.life != lives + 1:
        return f"has {lives} {'life' if lives == 1 else 'lives'}: the next is {lives + 1}"
    latest = d.promise(c.before_id)
    if latest is None or latest.is_pending:
        return "is still running"
    for node in c.nodes:
        source = d.promise(c.source_id(node))
        if source is None or d.task(source.id) is None:
            return f"has no task '{node.id}' in life {node.life}"
        if source.is_pending and node.cleanup:
            return f"is still being cleaned up by task '{node.id}'"
        if source.state == "resolved" and not node.succeeded:
            return f"has ended meanwhile: task '{node.id}' has succeeded after all"
        if not birth.is_absent(d.promise(c.node_id(node.id))):
            return f"has a promise '{c.node_id(node.id)}' already"
    return None


def _end_what_is_left(d: Draft, c: RerunRun) -> None:
    """What a tick would do in a moment: the run is over, so its nodes are over."""
    ids = dict.fromkeys((c.before_id, *map(c.source_id, c.nodes)))
    settle_all(d, list(_ending(d, c.before_id, ids)), by="its run")


def _ending(d: Draft, root_id: str, ids: dict[str, None]) -> Iterator[Promise]:
    for promise_id in ids:
        stored = d.rows.promises[promise_id]
        seen = stored.at(d.now)
        if not seen.is_pending:
            if seen is not stored:
                yield seen
        else:
            yield seen.settled("rejected_canceled", values.run_has_ended(root_id), d.now)


def _create(d: Draft, c: RerunRun) -> None:
    before = d.promise(c.before_id)
    assert before is not None
    timeout_at = children.capped(d, c.caller, deadline(d.now, c.timeout))
    param = birth.encoded(c.param)
    awaited: list[Awaited] = [
        (c.node_id(node.id), "end" if node.cleanup else "all") for node in c.nodes
    ]
    root_tags = _tags(before.tags)
    root_tags.pop(tag_names.AFTER, None)  # it does not queue again
    if c.caller is not None:
        root_tags = children.without_caller(root_tags) | c.caller.tags
    create_after(d, c.root_id, timeout_at, param, root_tags, d.now, awaited)
    for node in c.nodes:
        source = d.promise(c.source_id(node))
        assert source is not None
        tags = {key: value for key, value in _tags(source.tags).items() if key != tag_names.KEEPS}
        if node.keep:
            tags[tag_names.KEEPS] = source.id
        ends_at = NEVER if node.cleanup else timeout_at
        awaited = [*_awaited(c, node), *body_of(d, source)]
        create_after(d, c.node_id(node.id), ends_at, source.param, tags, d.now, awaited)


def _awaited(c: RerunRun, node: NodeAgain) -> list[Awaited]:
    if not node.cleanup:
        return [(c.node_id(each), "all") for each in dict.fromkeys(node.after)]
    ordinary = (each.id for each in c.nodes if not each.cleanup)
    return [(c.node_id(each), "end") for each in dict.fromkeys((*ordinary, *node.after))]


@declare("layby.run.watch", sender=Sender.CLIENT, answer=RunWatchData, reads=True)
class WatchRun(WatchPromise, frozen=True):
    """Read the first root of a run, and how many lives the run has had.

    The engine holds the answer back until the run has ended, unless `hold` is false.
    """

    hold: bool = True

    @property
    def waits(self) -> bool:
        return self.hold


@handles(WatchRun)
def watch_run(d: Draft, c: WatchRun) -> Reply:
    reply, task = watch(d, c), d.task(c.id)
    if not isinstance(reply.data, PromiseData):
        return reply
    lives = 1 if task is None else task.lives or 1
    return ok(RunWatchData(reply.data.promise, lives))
