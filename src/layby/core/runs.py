"""Starting a run: one command creates the root and all nodes; afterwards nobody holds a graph.

A node with dependencies is born suspended with one counting wait for each; the settlement
that brings its count to zero makes it pending. The root waits for all nodes the same way.

A node that cleans up waits for the ends of all others, and outlives the run: neither its deadline
nor its cancellation ends such a node.
"""

from collections import Counter
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta, Struct

from layby.core import birth, children, tag_names, validate
from layby.core.address import target_of
from layby.core.children import Caller
from layby.core.draft import Draft
from layby.core.fields import MAX_NODES, NOTHING, Int64, Tags, Value
from layby.core.footprint import Footprint
from layby.core.ids import life_id
from layby.core.kinds import ById, Ids, Problems, Sender, declare, handles
from layby.core.limit import limit_names
from layby.core.model import NEVER, Millis, Promise, Wait, WaitMode, deadline
from layby.core.replies import Reply, RunData, ok, refuse
from layby.core.takes import Take, take_next

if TYPE_CHECKING:
    from layby.core.lives import NodeAgain
    from layby.core.run_schedules import CreateRunSchedule


class Node(Struct, frozen=True, rename="camel"):
    """One vertex of a run: runs after all of `after` have settled, whatever their outcome.

    `cleanup`: it runs after the bodies of all nodes without this mark have ended as well.
    `priority` is added to that of the run. `slots`: how many of its worker's its body holds.
    """

    id: str
    name: str
    after: tuple[str, ...] = ()
    group: str | None = None
    param: Value = NOTHING
    cleanup: bool = False
    priority: Int64 = 0
    slots: Int64 = 1
    limits: tuple[str, ...] = ()
    """Limits that it runs under, if they are known before its context is."""


Awaited = tuple[str, WaitMode]
"""A promise, and whether its settlement is awaited or the end of its body as well."""
MAX_DEPENDENCIES = 100_000
LISTED = 20
"""Of nodes whose ids are in use, in the refusal."""
MAX_CLEANUPS = 100
"""Fewer than a step resumes, so that waits for the end of a body never hide all others."""
Nodes = Annotated[tuple[Node, ...], Meta(max_length=MAX_NODES)]


@declare("layby.run.start", sender=Sender.CLIENT, answer=RunData, unqueues=False)
class StartRun(ById, frozen=True):
    """Create the root and all nodes at once; an existing run is answered as it is.

    `timeout`: how long after now the run may take. `priority`: of all its nodes; what a node has of
    its own is added. `caller`: the task that starts it, as a child of its run. Of a child that
    exists, `life` is the latest life that the caller has heard of.
    """

    name: str
    group: str
    nodes: Nodes
    timeout: Int64 = NEVER
    param: Value = NOTHING
    take: Take | None = None
    priority: Int64 = 0
    caller: Caller | None = None
    life: Int64 = 1

    def footprint(self, into: Footprint) -> None:
        into.ids.update((self.id, self.life_id))
        into.ids.update(self.node_id(node.id) for node in self.nodes)
        into.limits.update(each for node in self.nodes for each in node.limits)
        if self.caller is not None:
            self.caller.footprint(into, self.life_id)
        if self.take is not None:
            self.take.footprint(into)

    @property
    def asks(self) -> Take | None:
        return self.take

    @property
    def life_id(self) -> str:
        return life_id(self.id, self.life)

    def node_id(self, node: str) -> str:
        return f"{self.id}:{node}"

    def named_ids(self) -> Ids:
        """Nodes have ids that begin with the one named."""
        yield self.id
        if self.caller is not None:
            yield from self.caller.named_ids()
        if self.take is not None:
            yield from self.take.named_ids()

    def problems(self) -> Problems:
        yield from validate.identifier(self.id, "Run ID")
        yield from plan_problems(self, self.id)
        if self.take is not None:
            yield from self.take.problems()
        if self.caller is not None:
            yield from self.caller.problems(self.id)
        if self.timeout < 1:
            yield "timeout must be positive"
        if self.life < 1:
            yield "life must be 1 or more"
        if ":" in self.id:
            yield f"Run ID '{self.id}' must not contain ':' (it separates run and node)"


@handles(StartRun)
def start(d: Draft, c: StartRun) -> Reply:
    if refusal := children.refusal(d, c.caller):
        return refusal
    existing = d.promise(c.id)
    if existing is not None and not birth.is_absent(existing):
        return _existing(d, c, existing)
    if taken_ids := _taken_ids(d, c):
        more = f" and {len(taken_ids) - LISTED:,} more" if len(taken_ids) > LISTED else ""
        listed = ", ".join(taken_ids[:LISTED])
        return refuse(409, f"Run '{c.id}': node ids already in use: {listed}{more}")
    tags = root_tags(c)
    _create(d, c, d.now, tags if c.caller is None else tags | c.caller.tags)
    children.begun(d, c.caller)
    children.bind(d, c.caller, c.id)
    return ok(RunData(d.promises[c.id], created=True, taken=take_next(d, c.take)))


def _existing(d: Draft, c: StartRun, first: Promise) -> Reply:
    """A run that its parent, in an earlier life maybe, has started is the caller's from now on."""
    latest, task = d.promise(c.life_id), d.task(c.id)
    if latest is not None and c.caller is not None and children.is_child_of(first, c.caller):
        children.bind(d, c.caller, c.life_id)
    return ok(RunData(first, created=False, lives=None if task is None else task.lives))


def start_scheduled(
    d: Draft, c: StartRun, at: Millis, schedule_id: str, after: Sequence[str] = ()
) -> None:
    """The run of one occurrence, unless its id is in use; past its deadline it is born over.

    `after`: roots of other runs that its first nodes wait for.
    """
    if birth.is_absent(d.promise(c.id)) and not _taken_ids(d, c):
        tags = root_tags(c) | {tag_names.SCHEDULE: schedule_id}
        if after:
            tags[tag_names.AFTER] = msgspec.json.encode(after).decode()
        _create(d, c, at, tags, after)


def root_tags(c: "StartRun | CreateRunSchedule") -> Tags:
    tags = _tags_of(c.group, c.name, "root")
    return tags | {tag_names.PRIORITY: str(c.priority)} if c.priority else tags


def _node_tags(c: StartRun, node: Node) -> Tags:
    tags = _tags_of(node.group or c.group, node.name, "node")
    if priority := c.priority + node.priority:
        tags[tag_names.PRIORITY] = str(priority)
    if node.slots != 1:
        tags[tag_names.SLOTS] = str(node.slots)
    if node.limits:
        tags[tag_names.LIMITS] = msgspec.json.encode(node.limits).decode()
    return tags


def _tags_of(group: str, name: str, kind: str) -> Tags:
    return {tag_names.TARGET: target_of(group), tag_names.NAME: name, tag_names.KIND: kind}


def _taken_ids(d: Draft, c: StartRun) -> list[str]:
    return [node.id for node in c.nodes if not birth.is_absent(d.promise(c.node_id(node.id)))]


def _create(
    d: Draft, c: StartRun, at: Millis, root_tags: Tags, first_after: Sequence[str] = ()
) -> None:
    """`timeout` counts from `at`. `first_after`: what the nodes wait for that wait for no other."""
    timeout_at = children.capped(d, c.caller, deadline(at, c.timeout))
    awaited: list[Awaited] = [
        (c.node_id(node.id), "end" if node.cleanup else "all") for node in c.nodes
    ]
    create_after(d, c.id, timeout_at, birth.encoded(c.param), root_tags, at, awaited)
    for node in c.nodes:
        node_id, tags = c.node_id(node.id), _node_tags(c, node)
        param = birth.encoded(node.param)
        if node.cleanup:
            ends = _ends_before(c, node, is_over=timeout_at <= d.now)
            create_after(d, node_id, NEVER, param, tags, at, ends)
        else:
            before = map(c.node_id, dict.fromkeys(node.after)) if node.after else first_after
            after: list[Awaited] = [(each, "all") for each in before]
            create_after(d, node_id, timeout_at, param, tags, at, after)


def _ends_before(c: StartRun, node: Node, *, is_over: bool) -> list[Awaited]:
    """What a node that cleans up waits for; of a run that is born over, nothing else runs."""
    others = {each.id: each.cleanup for each in c.nodes}
    ordinary = (each for each, cleanup in others.items() if not cleanup)
    awaited = dict.fromkeys((*ordinary, *node.after))
    return [(c.node_id(each), "end") for each in awaited if others[each] or not is_over]


def create_after(
    d: Draft,
    promise_id: str,
    timeout_at: Millis,
    param: str,
    tags: Tags,
    at: Millis,
    awaited: Sequence[Awaited],
) -> None:
    """A root or node that runs when all it awaits has settled, or ended. Each is awaited once."""
    if not awaited or timeout_at <= d.now:
        birth.create(d, promise_id, timeout_at, param, tags, at)
        return
    birth.create_suspended(d, promise_id, timeout_at, param, tags, at, len(awaited))
    for each, mode in awaited:
        d.wait(Wait(each, promise_id, mode))


def body_of(d: Draft, earlier: Promise) -> list[Awaited]:
    """What runs again does not begin beside its body of an earlier time, if that has not ended."""
    task = d.task(earlier.id)
    may_run = task is not None and (earlier.is_pending or task.is_kept)
    return [(earlier.id, "end")] if may_run else []


def plan_problems(c: "StartRun | CreateRunSchedule", run_id: str) -> Problems:
    """What a run needs, whenever it is started."""
    yield from validate.identifier(c.name, f"Name of run '{c.id}'")
    yield from validate.group(c.group)
    yield from validate.size(c.param, "param")
    yield from validate.priority(c.priority, f"priority of run '{c.id}'")
    cleanups = sum(node.cleanup for node in c.nodes)
    dependencies = sum(len(node.after) for node in c.nodes)
    dependencies += cleanups * (len(c.nodes) - cleanups)
    too_many = [
        *validate.count(len(c.nodes), MAX_NODES, "nodes"),
        *validate.count(cleanups, MAX_CLEANUPS, "nodes that clean up"),
        *validate.count(dependencies, MAX_DEPENDENCIES, "dependencies of nodes"),
    ]
    yield from too_many or _node_problems(c, run_id)


def _node_problems(c: "StartRun | CreateRunSchedule", run_id: str) -> Problems:
    if not c.nodes:
        yield f"Run '{c.id}' has no nodes"
    elif all(node.cleanup for node in c.nodes):
        yield f"Run '{c.id}' has only nodes that clean up"
    for node in c.nodes:
        yield from validate.size(node.param, f"param of node '{node.id}'")
        yield from validate.identifier(f"{run_id}:{node.id}" if node.id else "", "Node ID")
        yield from validate.identifier(node.name, f"Name of node '{node.id}'")
        yield from validate.group(node.group) if node.group is not None else ()
        yield from validate.priority(node.priority, f"priority of node '{node.id}'")
        yield from validate.slots(node.slots, f"slots of node '{node.id}'")
        yield from limit_names(node.limits, f"node '{node.id}'") if node.limits else ()
    yield from edge_problems(c.nodes)


def edge_problems(nodes: "Sequence[Node | NodeAgain]") -> Problems:
    """What is wrong with the ids of nodes and with what they come after."""
    ids = {node.id for node in nodes}
    cleanups = {node.id for node in nodes if node.cleanup}
    yield from _duplicates(nodes) if len(ids) < len(nodes) else ()
    for node in nodes:
        for unknown in sorted({each for each in node.after if each not in ids}):
            yield f"Node '{node.id}' depends on unknown node '{unknown}'"
        for last in () if node.cleanup else sorted(cleanups & set(node.after)):
            yield f"Node '{node.id}' depends on '{last}', which cleans up after it"
    if not any(node.after for node in nodes):
        return
    try:
        TopologicalSorter({node.id: node.after for node in nodes}).prepare()
    except CycleError as cycle:
        yield f"Dependencies form a cycle: {' -> '.join(cycle.args[1])}"


def _duplicates(nodes: "Sequence[Node | NodeAgain]") -> Problems:
    times = Counter(node.id for node in nodes)
    return (f"Duplicate node '{each}'" for each in sorted(times) if times[each] > 1)
