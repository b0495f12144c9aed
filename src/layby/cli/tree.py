"""`layby tree`: draws a run with its tasks, or a call with the calls it made."""

from collections import ChainMap, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import click
import msgspec
from msgspec import Struct, field
from rich.text import Text
from rich.tree import Tree

from layby.cli import showing
from layby.cli.connection import Place, ask, now_at
from layby.cli.expected_replies import Row, expect, explained, pages, run_rows
from layby.cli.options import as_json, reaching
from layby.cli.printable import printable
from layby.client.interface import Client
from layby.core.commands import Tags
from layby.core.ids import LIFE
from layby.core.joins import is_below_join
from layby.core.model import Millis, Promise, Task
from layby.core.queries import CountItems, SearchPromises
from layby.core.replies import Explanation, ItemCounts
from layby.core.tag_names import TARGET, TIMER
from layby.wire import json_values
from layby.workflow import plan
from layby.workflow.child_states import (
    MOST_CHILDREN,
    ChildState,
    caller_named,
    child_states,
    children_of,
)
from layby.workflow.next_life import LifeRows, rows_of_life
from layby.workflow.shape import Shape
from layby.workflow.status import (
    NodeRow,
    RunStatus,
    TaskExecution,
    exits_by_task,
    joins_by_caller,
    run_status,
    task_execution,
)
from layby.workflow.wait_sentences import mapped_name

ORIGIN = "resonate:origin"
PARENT = "resonate:parent"
SCOPE = "resonate:scope"
MOST_DRAWN: Final = 50
"""Child runs whose own tasks are drawn."""

TIMES: Final = "\N{MULTIPLICATION SIGN}"
JOIN_STATES: Final = {
    "pending": "Running",
    "resolved": "Completed",
    "rejected": "Failed",
    "rejected_canceled": "Cancelled",
    "rejected_timedout": "Failed",
}
_tags = msgspec.json.Decoder(Tags).decode


class Branch(Struct):
    """One line of the tree, and the lines below it."""

    id: str
    state: str
    told: str = ""
    traceback: str = ""
    """With `--verbose`: where it failed."""
    children: list["Branch"] = field(default_factory=list)


@click.command(
    epilog="""\b
Examples:
  layby tree order-7             a run: each task below the last one it waits for
  layby tree order-7 --all       with the promises its tasks made
  layby tree order-7 --verbose   with where its tasks failed
  layby tree order-7~ship~1      a child run; it is drawn below its parent's task as well
  layby tree hello-1             a call made by an SDK, and the calls below it"""
)
@click.argument("asked", metavar="ID")
@click.option("--all", "everything", is_flag=True, help="Include what tasks have recorded.")
@click.option("--verbose", "-v", is_flag=True, help="Include the tracebacks of what failed.")
@reaching
@as_json
def tree(place: Place, asked: str, *, everything: bool, verbose: bool, as_json: bool) -> None:
    """Draw a run, or a tree of calls, with the state of everything in it."""
    now = now_at(place)
    drawn = ask(place, lambda client: _drawn(client, asked, now, everything=everything))
    if not verbose:
        _leave_out_tracebacks(drawn)
    if as_json:
        showing.print_json({"tree": drawn})
    else:
        showing.print_wide(_rendered(drawn))


async def _drawn(client: Client, asked: str, now: Millis, *, everything: bool) -> Branch:
    about = await explained(client, asked)
    node = plan.parse_node_id(about.promise.id)
    run_id = plan.parse_root_id(about.promise.id) or (node and node.run_id)
    if run_id is not None and about.task is not None and about.task.is_ours:
        items = everything or is_below_join(about.promise.id)
        family = FamilyTree(client, now, everything=everything, items=items)
        found = await family.branches(run_id)
        is_whole = node is None and LIFE not in asked  # with all its lives
        drawn = found[plan.root_id(run_id) if is_whole else about.promise.id]
        parent = caller_named(about.promise) if node is None else None
        if parent is not None:
            drawn.told = f"{drawn.told}; child of {parent}"
        return drawn
    return await _calls(client, about)


async def _counts(client: Client, rows: Iterable[Row]) -> dict[str, ItemCounts]:
    """Of each join among these rows."""
    joins = [promise.id for promise, task in rows if task is not None and task.is_join]
    return {
        each: expect(await client.send(CountItems(id=each)), ItemCounts, each) for each in joins
    }


# --- child runs --------------------------------------------------------------------------


class FamilyTree:
    """A run with the runs that its tasks have started, and those of their tasks in turn.

    Of the first few their tasks are drawn as well.
    """

    def __init__(self, client: Client, now: Millis, *, everything: bool, items: bool) -> None:
        self._client = client
        self._items = items
        self._now = now
        self._everything = everything
        self._left = MOST_DRAWN

    async def branches(self, run_id: str) -> dict[str, Branch]:
        """Every row of the run, each child below the task that started it."""
        rows = await run_rows(self._client, plan.root_id(run_id), items=self._items)
        counts = await _counts(self._client, rows)
        found = run_branches(rows, self._now, everything=self._everything, counts=counts)
        for child in await self._children(run_id):
            branch = await self._branch(child)
            for above in _callers(child, run_id, found):
                above.children.append(branch)
        return found

    async def _children(self, run_id: str) -> list[ChildState]:
        roots: list[Promise] = []
        query = children_of(plan.root_id(run_id))
        async for page, _ in pages(self._client, query, limit=MOST_CHILDREN):
            roots += page
        return child_states(roots, self._now)

    async def _branch(self, child: ChildState) -> Branch:
        root_id, detached = plan.root_id(child.run_id), "; detached" if child.detached else ""
        if self._left == 0:
            return Branch(root_id, child.state, f"{child.flow}{detached}")
        self._left -= 1
        drawn = (await self.branches(child.run_id))[root_id]
        drawn.told += detached
        return drawn


def _callers(child: ChildState, run_id: str, found: Mapping[str, Branch]) -> list[Branch]:
    """The task that started it, in each life that it ran in since; for an item that is not drawn,
    its map; else the run itself.
    """
    caller = child.task
    while caller:
        ids = {
            node.life: branch
            for key, branch in found.items()
            if (node := plan.parse_node_id(key)) is not None
            if node.task_id == caller and node.life >= child.life
        }
        if ids:
            return list(ids.values())
        caller = caller.rpartition(":")[0]
    return [found[plan.root_id(run_id)]]


# --- a run -------------------------------------------------------------------------------


def run_branches(
    rows: Iterable[Row],
    now: Millis,
    *,
    everything: bool,
    counts: Mapping[str, ItemCounts] | None = None,
) -> dict[str, Branch]:
    """Every row of a run by id: tasks below tasks, and their promises below them.

    `counts`: by join, how many of its items are how.

    A run that was run again has a branch for each life; tasks that did not run again are in both.
    """
    found = list(rows)
    root_id = min((promise.id for promise, _ in found), key=len)
    run_id = plan.parse_root_id(root_id)
    assert run_id is not None
    latest = rows_of_life(run_id, found)
    lives = [rows_of_life(run_id, found, life) for life in range(1, latest.lives)] + [latest]
    drawn = [
        _life_branches(each, found, now, counts or {}, everything=everything) for each in lives
    ]
    if latest.lives == 1:
        return drawn[0]
    roots = [each[life.root[0].id] for each, life in zip(drawn, lives, strict=True)]
    top = Branch(
        root_id, roots[-1].state, f"{latest.param.flow}, {latest.lives} lives", children=roots
    )
    return {key: each for life in reversed(drawn) for key, each in life.items()} | {root_id: top}


def _life_branches(
    life: LifeRows,
    rows: Sequence[Row],
    now: Millis,
    counts: Mapping[str, ItemCounts],
    *,
    everything: bool,
) -> dict[str, Branch]:
    root, root_task = life.root
    joins, exits = joins_by_caller(rows), exits_by_task(rows)
    nodes = [
        NodeRow(
            promise,
            task,
            old_body=life.old_bodies.get(task_id),
            joins=joins.get(promise.id, ()),
            exits=exits.get(promise.id, ()),
        )
        for task_id, (promise, task) in life.nodes.items()
        if task is not None
    ]
    status = run_status(root, root_task, nodes, now, life.lives)
    branches = _task_branches(root.id, status, life.param.shape)
    branches |= _map_branches(rows, branches, counts, now)
    shown = (
        promise
        for promise, task in rows
        if plan.life_of(promise.id) == life.life
        if _is_call(promise, task) or (task is None and (everything or _is_open(promise)))
    )
    return branches | _made_branches(shown, branches)


def _is_call(promise: Promise, task: Task | None) -> bool:
    """Whether it calls a function of another worker; an SDK's sleeps have tasks too."""
    return task is not None and not task.is_ours and not promise.timer


def _is_open(promise: Promise) -> bool:
    """Whether somebody has to settle it; a timer settles itself."""
    return promise.is_pending and not promise.timer


def _task_branches(root_id: str, status: RunStatus, shape: Shape) -> dict[str, Branch]:
    """Each task once, below the last of its dependencies; its line names all of them."""
    flow = f"{status.flow}{_codes(status)}"
    flow = f"{flow}; cleaning up" if status.is_cleaning_up else flow
    branches = {root_id: Branch(root_id, status.state, flow)}
    for task_id in shape.after:
        execution = status.tasks[task_id]
        kept = f"kept from life {execution.life}" if execution.life < status.life else ""
        said = (
            _after(task_id, shape),
            kept,
            _says(execution),
            _resumed_by(execution),
            _exits(execution),
        )
        told = "; ".join(each for each in said if each)
        branch = Branch(
            execution.task_execution_id, execution.status, told, execution.traceback.rstrip()
        )
        branches[branch.id] = branch
    for task_id in shape.after:
        before = _before(task_id, shape)
        above = status.tasks[before[-1]].task_execution_id if before else root_id
        branches[above].children.append(branches[status.tasks[task_id].task_execution_id])
    return branches


def _map_branches(
    rows: Iterable[Row], tasks: Mapping[str, Branch], counts: Mapping[str, ItemCounts], now: Millis
) -> dict[str, Branch]:
    """Each join below its caller, with how far it is; and items, if they are among the rows."""
    found: dict[str, Branch] = {}
    known = ChainMap(found, dict(tasks))
    for promise, task in rows:
        above = known.get(promise.id.rpartition(":")[0])
        if task is None or above is None:
            continue
        if not task.is_join and not is_below_join(promise.id):
            continue  # a later life, whose id extends that of the first: it is drawn by itself
        if task.is_join:
            told = f"{mapped_name(promise)} {TIMES} {_counted(task, counts.get(promise.id))}"
            branch = Branch(promise.id, _join_state(promise.at(now), task), told)
        else:
            execution = task_execution(NodeRow(promise, task), now)
            told = _says(execution) or _value(promise)
            stack = execution.traceback.rstrip()
            branch = Branch(promise.id, execution.status, told, stack)
        found[promise.id] = branch
        above.children.append(branch)
    return found


def _join_state(promise: Promise, task: Task) -> str:
    return "Halted" if task.state == "halted" else JOIN_STATES[promise.state]


def _counted(join: Task, counts: ItemCounts | None) -> str:
    """`10,000: 9,120 done, 4 running`. Those that have succeeded in an earlier join are kept."""
    total = "?" if join.items is None else f"{join.items:,}"
    told: dict[str, int] = {} if counts is None else msgspec.to_builtins(counts)
    if counts is not None and join.items is not None:
        told = {"kept": max(0, join.items - sum(told.values())), **told}
    return f"{total}: " + ", ".join(f"{told[each]:,} {each}" for each in told if told[each])


def _resumed_by(execution: TaskExecution) -> str:
    """Who ended its waits by hand."""
    return ", ".join(
        f"try {each.number} was resumed by {each.by}{f' ({each.reason})' if each.reason else ''}"
        for each in execution.tries
        if each.by
    )


def _exits(execution: TaskExecution) -> str:
    """What people did about waits of its body."""
    return ", ".join(
        f"{_short_wait(each.wait, execution)} was {each.what} by {each.by or 'somebody'}"
        f"{f' ({each.reason})' if each.reason else ''}"
        for each in execution.exits
    )


def _short_wait(wait: str, execution: TaskExecution) -> str:
    return wait.removeprefix(f"{execution.task_execution_id}.")


def _codes(status: RunStatus) -> str:
    """Which codes have run its tasks, where that is more than one, and what it is pinned to."""
    pinned = "" if status.pin is None else f"; pinned to code {status.pin}"
    codes = f"; codes {', '.join(status.codes)}" if len(status.codes) > 1 else ""
    return f"{pinned}{codes}"


def _before(task_id: str, shape: Shape) -> list[str]:
    """What it depends on; for one that cleans up, only others that do: it comes after the rest."""
    cleans_up = task_id in shape.cleanups
    return [each for each in shape.after[task_id] if not cleans_up or each in shape.cleanups]


def _after(task_id: str, shape: Shape) -> str:
    if task_id in shape.cleanups:
        return "finally"
    before = _before(task_id, shape)
    return f"after {', '.join(before)}" if len(before) > 1 else ""


def _says(execution: TaskExecution) -> str:
    if execution.waiting_on is not None:
        return execution.waiting_on.sentence
    returned = execution.result
    what = "" if returned is None else f"returned {msgspec.json.encode(returned).decode()}"
    return execution.error or execution.reason or showing.shortened(what)


def _made_branches(made: Iterable[Promise], tasks: Mapping[str, Branch]) -> dict[str, Branch]:
    branches: dict[str, Branch] = {}
    for promise in sorted(made, key=lambda each: (each.created_at, each.id)):
        above = _nearest(promise.id, tasks, branches)
        if above is not None:
            told = call_of(promise) or _value(promise)
            branches[promise.id] = Branch(promise.id, promise.state, told, _stack(promise))
            above.children.append(branches[promise.id])
    return branches


def _nearest(promise_id: str, *known: Mapping[str, Branch]) -> Branch | None:
    """The closest ancestor: an id extends that of its creator by `.` and more."""
    above = promise_id
    while "." in above:
        above = above.rpartition(".")[0]
        for branches in known:
            if above in branches:
                return branches[above]
    return None


# --- a tree of calls ---------------------------------------------------------------------


async def _calls(client: Client, about: Explanation) -> Branch:
    origin = _tags(about.promise.tags).get(ORIGIN, about.promise.id)
    found = {about.promise.id: about.promise}
    async for rows, _ in pages(client, SearchPromises(tags={ORIGIN: origin}), limit=0):
        found |= {promise.id: promise for promise in rows}
    return call_branches(found.values(), about.promise.id)


def call_branches(promises: Iterable[Promise], top: str) -> Branch:
    """The tree below `top`, by parents; an unknown parent, or itself, does not count."""
    by_id = {promise.id: promise for promise in promises}
    below: defaultdict[str, list[Promise]] = defaultdict(list)
    for promise in sorted(by_id.values(), key=lambda each: (each.created_at, each.id)):
        below[_parent(promise, by_id, top)].append(promise)
    root = _call_branch(by_id[top])
    seen, open_branches = {top}, [root]
    while open_branches:
        branch = open_branches.pop()
        children = [each for each in below[branch.id] if each.id not in seen]
        seen.update(each.id for each in children)
        branch.children = [_call_branch(each) for each in children]
        open_branches += branch.children
    return root


def _call_branch(promise: Promise) -> Branch:
    return Branch(promise.id, promise.state, call_of(promise), _stack(promise))


def _parent(promise: Promise, known: Mapping[str, Promise], top: str) -> str:
    """Children of a parent that is not found appear below the origin."""
    tags = _tags(promise.tags)
    for each in (tags.get(PARENT), tags.get(ORIGIN)):
        if each is not None and each != promise.id and each in known:
            return each
    return "" if promise.id == top else top if tags.get(ORIGIN) == top else ""


def call_of(promise: Promise) -> str:
    """`rpc name`, `run name` or `sleep`, as far as the promise shows it."""
    tags = _tags(promise.tags)
    if tags.get(TIMER) == "true":
        return "sleep"
    param = json_values.shown(promise.param)
    func: Any = param.get("func") if isinstance(param, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    how = "rpc" if TARGET in tags else "run"
    if isinstance(func, str) and func:
        return f"{how} {func}"
    is_call = TARGET in tags or tags.get(SCOPE) == "local"  # a function need not have a name
    return how if is_call else ""


# --- the drawing -------------------------------------------------------------------------


def _leave_out_tracebacks(top: Branch) -> None:
    open_branches = [top]
    while open_branches:
        branch = open_branches.pop()
        branch.traceback = ""
        open_branches += branch.children


def _rendered(top: Branch) -> Tree:
    drawn = Tree(_line(top, ""))
    open_branches = [(top, drawn, top.id)]
    while open_branches:
        branch, place, run = open_branches.pop()
        if branch.traceback:
            place.add(Text(printable(branch.traceback), "dim"))
        for child in branch.children:
            own = child.id if _is_other_run(child.id, run) else run
            open_branches.append((child, place.add(_line(child, "" if own != run else run)), own))
    return drawn


def _is_other_run(branch_id: str, run: str) -> bool:
    run_id = plan.parse_root_id(branch_id)
    return run_id is not None and run_id != plan.run_id_of(run)


def _line(branch: Branch, top: str) -> Text:
    """In a run, the part of the id after the run's is enough, or after that of its life."""
    name = branch.id.removeprefix(f"{top}:") if top else branch.id
    if top and plan.parse_root_id(branch.id) is not None:
        name = f"life {plan.life_of(branch.id)}"
    elif name.startswith(LIFE):
        name = name.partition(":")[2]
    line = Text.assemble(
        printable(name), "  ", (branch.state, showing.STYLES.get(branch.state, ""))
    )
    told = " ".join(branch.told.split())
    return line.append(f"  {printable(told)}", "dim") if told else line


def _stack(promise: Promise) -> str:
    return showing.stack(promise.value) if promise.state == "rejected" else ""


def _value(promise: Promise) -> str:
    return "" if promise.is_pending else showing.value(promise.value)
