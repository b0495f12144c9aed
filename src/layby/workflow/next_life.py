"""Which tasks of a run that has ended run again, as the one command that begins its next life."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

from msgspec import Struct

from layby.core.commands import NodeAgain, RerunRun
from layby.core.model import Millis, Promise, Task
from layby.errors import Conflict, NotFound, UsageError
from layby.workflow import outcome, plan
from layby.workflow.names import close_match
from layby.workflow.outcome import NodeOutcome
from layby.workflow.shape import Shape
from layby.workflow.task import TaskDefinition

Row = tuple[Promise, Task | None]
Checkpoints = Literal["keep", "forget"]
From = str | TaskDefinition[..., Any]
"""A task of a workflow, by its id or itself."""


class LifeRows(Struct, frozen=True):
    """The rows of one life of a run, and of the tasks that it reuses from earlier ones."""

    run_id: str
    life: int
    lives: int
    root: Row
    nodes: Mapping[str, Row]
    """By task id, in the order of the workflow."""
    param: plan.RunParam
    old_bodies: Mapping[str, Task]
    """By task id: tasks of earlier lives whose bodies still run; the new ones wait for them."""

    @property
    def group(self) -> str | None:
        """Whose workers run its tasks."""
        task = self.root[1]
        return None if task is None else task.group


class NextLife(Struct, frozen=True):
    """`again` and `kept` are task ids, in the order of the workflow."""

    command: RerunRun
    again: tuple[str, ...]
    kept: tuple[str, ...]
    cleaned: tuple[str, ...] = ()
    """Tasks that cleaned up after the life before: they may have undone what the kept ones did."""


def rows_of_life(run_id: str, rows: Iterable[Row], life: int | None = None) -> LifeRows:
    """From all rows of a run; without a number, those of its latest life."""
    by_id = {promise.id: (promise, task) for promise, task in rows}
    first = by_id[plan.root_id(run_id)][1]
    assert first is not None
    lives = first.lives or 1
    life = lives if life is None else check_life(run_id, life, lives)
    root = by_id[plan.root_id(run_id, life)]
    param = plan.read_root_param(root[0].param)
    ids = ((each, plan.node_id(run_id, each, param.life_of(each))) for each in param.shape.after)
    nodes = {task_id: by_id[each] for task_id, each in ids if each in by_id}
    old_bodies = {
        node.task_id: task
        for promise, task in by_id.values()
        if task is not None and task.is_node and task.is_kept and not promise.is_pending
        if (node := plan.parse_node_id(promise.id)) is not None
        if node.life < param.life_of(node.task_id)
    }
    return LifeRows(run_id, life, lives, root, nodes, param, old_bodies)


def check_life(run_id: str, life: int, lives: int) -> int:
    """The number of a life that the run has had."""
    if isinstance(life, bool) or not isinstance(life, int) or life < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"a life of a run is a number from 1 on, got {life!r}")
    if life > lives:
        count = "1 life" if lives == 1 else f"{lives} lives"
        raise NotFound(f"run '{run_id}' has {count}: there is no life {life}")
    return life


def next_life(
    latest: LifeRows,
    from_: Sequence[From],
    checkpoints: Checkpoints,
    timeout: Millis,
    now: Millis,
) -> NextLife:
    """`latest`: the latest life, as it stands at `now`."""
    run_id, shape = latest.run_id, latest.param.shape
    _check_checkpoints(checkpoints)
    begin = {_task_id(each, latest) for each in from_}
    root = latest.root[0].at(now)
    _refuse_open(latest, root, now)
    seen = {task_id: row[0].at(now) for task_id, row in latest.nodes.items()}
    ended = {each: outcome.read(p) for each, p in seen.items() if not p.is_pending}
    again = runs_again(shape, ended, begin)
    if not again and root.state == "resolved":
        raise UsageError(
            f"run '{run_id}' has completed, so there is nothing to run again: "
            "name the task to begin from (from_=…, or --from on the command line)"
        )
    after = waits_in_next_life(shape, again)
    afresh = cleans_up_afresh(shape, ended, again)
    life = latest.lives + 1
    reused = {each: latest.param.life_of(each) for each in shape.after if each not in again}
    command = RerunRun(
        id=plan.root_id(run_id),
        life=life,
        nodes=tuple(
            NodeAgain(
                each,
                latest.param.life_of(each),
                after[each],
                succeeded=seen[each].state == "resolved",
                cleanup=each in shape.cleanups,
                keep=checkpoints == "keep" and each not in afresh,
            )
            for each in shape.after
            if each in again
        ),
        timeout=timeout,
        param=plan.next_life_param(root.param, life, reused, checkpoints),
    )
    cleaned = (e for e in shape.after if e in shape.cleanups and e in ended)
    return NextLife(
        command,
        tuple(e for e in shape.after if e in again),
        tuple(reused),
        tuple(e for e in cleaned if ended[e].status == "Completed"),
    )


def runs_again(
    shape: Shape, ended: Mapping[str, NodeOutcome], begin: Iterable[str] = ()
) -> frozenset[str]:
    """Everything unsuccessful; `begin` and everything after that.

    A task that was skipped by its own rule is decided again after anything that runs again: its
    body has not run, so nothing is repeated. What cleans up does so in every life in which
    something runs.
    """
    behind, again = set(begin), set[str]()
    for task_id in shape.order:
        before, how = shape.after[task_id], ended.get(task_id)
        if not behind.isdisjoint(before):
            behind.add(task_id)
        is_kept = _is_success(how) and (
            again.isdisjoint(before) or not _follows(task_id, how, shape)
        )
        if task_id in behind or not is_kept:
            again.add(task_id)
    return frozenset(again)


def cleans_up_afresh(
    shape: Shape, ended: Mapping[str, NodeOutcome], again: frozenset[str]
) -> frozenset[str]:
    """Those that clean up and forget their checkpoints: what they did was for the life before.

    One that was not successful goes on where it stopped, unless something that was successful is
    done again: then there is something new to undo.
    """
    statuses = {each: how.status for each, how in ended.items()}
    completed = {each for each in again if statuses.get(each) == "Completed"}
    ordinary = completed - shape.cleanups
    return shape.cleanups & again if ordinary else shape.cleanups & completed


def _follows(task_id: str, how: NodeOutcome | None, shape: Shape) -> bool:
    """Whether it runs again, though successful, if something before it does."""
    is_skipped = how is not None and how.status == "Skipped"
    return is_skipped or task_id in shape.cleanups


def _refuse_open(latest: LifeRows, root: Promise, now: Millis) -> None:
    if root.is_pending:
        raise Conflict(
            f"run '{latest.run_id}' is still running: wait until it has ended, or cancel it first"
        )
    open_ids = [
        task_id
        for task_id in latest.nodes
        if task_id in latest.param.shape.cleanups and latest.nodes[task_id][0].at(now).is_pending
    ]
    if open_ids:
        raise Conflict(
            f"run '{latest.run_id}' is still being cleaned up by {', '.join(open_ids)}: "
            "wait for that (run.cleaned_up())"
        )


def _is_success(how: NodeOutcome | None) -> bool:
    """Being skipped is one, unless that was because of a failure before it."""
    return how is not None and how.status in ("Completed", "Skipped") and not how.blocked


def waits_in_next_life(shape: Shape, again: frozenset[str]) -> dict[str, tuple[str, ...]]:
    """What each task waits for: the nearest that run again, also behind some that do not."""
    found: dict[str, tuple[str, ...]] = {}
    for task_id in shape.order:
        awaited: dict[str, None] = {}
        for each in shape.after[task_id]:
            awaited.update(dict.fromkeys((each,) if each in again else found[each]))
        found[task_id] = tuple(awaited)
    return found


def from_tasks(from_: "From | Sequence[From] | None") -> Sequence[From]:
    """As a list, however it was given."""
    if from_ is None:
        return ()
    if isinstance(from_, str | TaskDefinition):
        return (from_,)
    if isinstance(from_, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        given = tuple(from_)
        if all(isinstance(each, str | TaskDefinition) for each in given):  # pyright: ignore[reportUnnecessaryIsInstance]
            return given
    raise UsageError(f"from_ is a task, its id, or a list of them, got {from_!r}")


def _task_id(given: From, latest: LifeRows) -> str:
    task_id = given.id if isinstance(given, TaskDefinition) else given
    tasks = tuple(latest.param.shape.after)
    if task_id not in tasks:
        hint = close_match(str(task_id), tasks) or f"; it has {', '.join(tasks)}"
        raise NotFound(f"run '{latest.run_id}' has no task {task_id!r}{hint}")
    return task_id


def _check_checkpoints(checkpoints: object) -> None:
    if checkpoints not in get_args(Checkpoints):
        names = " or ".join(map(repr, get_args(Checkpoints)))
        raise UsageError(f"checkpoints must be {names}, got {checkpoints!r}")
