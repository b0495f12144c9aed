"""Starting a run: the root and all nodes are born in one command; afterwards nobody holds a graph.

A node with dependencies is born suspended with one counting wait for each; the settlement
that brings its count to zero makes it pending. The root waits for all nodes the same way.
"""

from layby.core import birth
from layby.core.address import target_of
from layby.core.commands import Node, StartRun, Tags
from layby.core.draft import Draft
from layby.core.model import Wait
from layby.core.replies import Reply, RunData, ok, refuse
from layby.core.workers import take_next


def start(d: Draft, c: StartRun) -> Reply:
    existing = d.promise(c.id)
    if existing is not None and not birth.is_absent(existing):
        return ok(RunData(existing, created=False))
    taken_ids = [node.id for node in c.nodes if not birth.is_absent(d.promise(c.node_id(node.id)))]
    if taken_ids:
        return refuse(409, f"Run '{c.id}': node ids already in use: {', '.join(taken_ids)}")
    if c.timeout_at <= d.now:
        return refuse(400, f"Run '{c.id}': its deadline has already passed")
    _create_root(d, c)
    for node in c.nodes:
        _create_node(d, c, node)
    return ok(RunData(d.promises[c.id], created=True, taken=take_next(d, c.take)))


def _create_root(d: Draft, c: StartRun) -> None:
    tags = _tags(c.group, c.name, "root")
    param = birth.encoded(c.param)
    birth.create_suspended(d, c.id, c.timeout_at, param, tags, waits_left=len(c.nodes))
    for node in c.nodes:
        d.wait(Wait(c.node_id(node.id), c.id, "all"))


def _create_node(d: Draft, c: StartRun, node: Node) -> None:
    node_id = c.node_id(node.id)
    tags = _tags(node.group or c.group, node.name, "node")
    param = birth.encoded(node.param)
    if not node.after:
        birth.create(d, node_id, c.timeout_at, param, tags)
        return
    waits_left = len(set(node.after))
    birth.create_suspended(d, node_id, c.timeout_at, param, tags, waits_left)
    for dependency in node.after:
        d.wait(Wait(c.node_id(dependency), node_id, "all"))


def _tags(group: str, name: str, kind: str) -> Tags:
    return {birth.TARGET: target_of(group), birth.NAME: name, birth.KIND: kind}
