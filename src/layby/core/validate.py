"""Field rules: what is refused with 400 before any row is looked at."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from layby.core import address, birth, commands, queries
from layby.core.commands import (
    MAX_CLAIMS,
    MAX_NAMES,
    MAX_NODES,
    MAX_TAGS,
    MAX_WAITS,
    AcquireTask,
    AnnotateTask,
    Command,
    ContinueTask,
    CreateBelow,
    CreatePromise,
    CreateRunSchedule,
    CreateSchedule,
    CreateTask,
    FailTask,
    FenceTask,
    FinishTask,
    FulfillTask,
    HaltTask,
    HeartbeatTasks,
    HeartbeatWorker,
    RegisterCallback,
    RegisterListener,
    Released,
    ReleaseTasks,
    ResolvePromise,
    RootVerdict,
    SettlePromise,
    StartRun,
    SuspendTask,
    Tags,
    Take,
    TaskVersion,
    Value,
)
from layby.core.model import NEVER, RUN_OF_SCHEDULE, occurrence_id
from layby.core.queries import (
    DeclineTasks,
    GetRecords,
    GetRun,
    ListHeld,
    ListRuns,
    ListWaiting,
    Query,
    Search,
    SearchSchedules,
)
from layby.core.search import timed_key

Problems = Iterator[str]

MAX_ID_BYTES = 1024
"""Two of them fit into one index key of either database."""
MAX_VALUE_CHARS = 4 * 2**20
SETTLE_STATES = ("resolved", "rejected", "rejected_canceled")
MAX_PAGE = 1000
MAX_FREE = 100_000
MAX_AHEAD = 64
MAX_VERDICT_CHARS = 2**16
MAX_TAGS_CHARS = 2**16
MAX_DEPENDENCIES = 100_000


def problems(request: Command | Query) -> str | None:
    """Everything wrong with the request, as one text; None when nothing is."""
    rule = RULES.get(type(request))
    found = "; ".join(rule(request)) if rule else ""
    return found or None


def _id(text: str, what: str) -> Problems:
    if not text:
        yield f"{what} is required"
    elif len(text) > MAX_ID_BYTES // 4 and len(text.encode(errors="replace")) > MAX_ID_BYTES:
        yield f"{what} must not be longer than {MAX_ID_BYTES} bytes"
    if "\0" in text:
        yield f"{what} must not contain NUL"
    if not text.isascii() and _is_halved(text):
        yield f"{what} must be valid Unicode"


def _is_halved(text: str) -> bool:
    """Half of a surrogate pair stands alone: no database and no wire can carry it."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def _promise_id(c: Any) -> Problems:
    yield from _id(c.id, "Promise ID")


def _task_id(c: Any) -> Problems:
    yield from _id(c.id, "Task ID")


def _schedule_id(c: Any) -> Problems:
    yield from _id(c.id, "Schedule ID")


def _claim(c: AcquireTask | CreateTask | Take) -> Problems:
    yield from _id(c.pid, "Process ID")
    if c.ttl < 1:
        yield "ttl must be positive"


def _version(version: int) -> Problems:
    if version < 0:
        yield "version must be non-negative"


def _settle_state(state: str) -> Problems:
    if state not in SETTLE_STATES:
        yield f"state must be one of {', '.join(SETTLE_STATES)}"


def _size(value: Value, what: str, most: int = MAX_VALUE_CHARS) -> Problems:
    """A batch is one transaction: a huge value would hold up everyone else in it."""
    data = value.data if isinstance(value.data, str) else ""
    headers = value.headers if isinstance(value.headers, dict) else {}
    size = len(data) + sum(len(key) + len(each) for key, each in headers.items())
    if size > most:
        remedy = "store it elsewhere and pass its address"
        yield f"{what} has {size:,} characters, more than {most:,}: {remedy}"


def _count(count: int, most: int, what: str) -> Problems:
    """Each is a row or a piece of a query: very many would hold up everyone else for long.

    From the wire so many do not even come here; from this process they do.
    """
    if count > most:
        yield f"{what}: {count:,} are more than {most:,}"


def _create(c: CreatePromise) -> Problems:
    yield from _id(c.id, "Promise ID")
    yield from _size(c.param, "param")
    if c.timeout_at < 0:
        yield "timeoutAt must be non-negative"
    if c.tags:
        yield from _delay(c)
        yield from _tags(c.tags)


def _tags(tags: Tags) -> Problems:
    yield from _target(tags)
    yield from _columns(tags)
    yield from _count(len(tags), MAX_TAGS, "tags")
    size = sum(len(key) + len(value) for key, value in tags.items())
    yield from _count(size, MAX_TAGS_CHARS, "characters of tags")


def _delay(c: CreatePromise) -> Problems:
    if birth.DELAY not in c.tags:
        return
    delay = birth.delay_of(c.tags)
    if delay is None:
        yield "resonate:delay must be a non-negative integer"
    elif delay >= c.timeout_at:
        yield "resonate:delay must be less than timeoutAt"
    if birth.TARGET not in c.tags:
        yield "resonate:delay requires a resonate:target tag"


def _target(tags: Tags) -> Problems:
    target = tags.get(birth.TARGET)
    if target is not None and not _is_address(target):
        yield "Invalid resonate:target address"


def _columns(tags: Tags) -> Problems:
    """Tags that stand in a column of their own have to fit into it."""
    for name in (birth.BRANCH, birth.NAME):
        if value := tags.get(name):
            yield from _id(value, name)


def _is_address(text: str) -> bool:
    return address.is_valid(text) and "\0" not in text and len(text.encode()) <= MAX_ID_BYTES


def _settle(c: SettlePromise | ResolvePromise) -> Problems:
    yield from _id(c.id, "Promise ID")
    yield from _size(c.value, "value")
    yield from _settle_state(c.state)


def _callback(c: RegisterCallback) -> Problems:
    yield from _id(c.awaited, "Awaited promise ID")
    yield from _id(c.awaiter, "Awaiter promise ID")
    if c.awaited == c.awaiter:
        yield "Awaited and awaiter must be different promises"


def _listener(c: RegisterListener) -> Problems:
    yield from _id(c.awaited, "Awaited promise ID")
    if not _is_address(c.address):
        yield "Invalid listener address"


def _create_task(c: CreateTask) -> Problems:
    yield from _claim(c)
    yield from _create(c.action.data)
    if birth.TARGET not in c.action.data.tags:
        yield "Action must have a resonate:target tag"


def _acquire(c: AcquireTask) -> Problems:
    yield from _fenced(c)
    yield from _claim(c)


def _fenced(c: Any) -> Problems:
    yield from _id(c.id, "Task ID")
    yield from _version(c.version)


def _fulfill(c: FulfillTask) -> Problems:
    yield from _fenced(c)
    if c.action.data.id != c.id:
        yield "Action ID must match the task ID"
    yield from _size(c.action.data.value, "value")
    yield from _settle_state(c.action.data.state)


def _suspend(c: SuspendTask) -> Problems:
    yield from _fenced(c)
    if not c.actions:
        yield "Actions array cannot be empty"
    for action in c.actions:
        yield from _id(action.data.awaited, "Awaited promise ID")
        if action.data.awaiter != c.id:
            yield "Awaiter must match the task ID"
        if action.data.awaited == c.id:
            yield "Awaited and awaiter must be different promises"


def _fence(c: FenceTask) -> Problems:
    yield from _fenced(c)
    if c.inner is None:
        yield "Invalid fence action kind"
        return
    if c.inner.id == c.id:
        yield "Action ID must not equal the task ID"
    yield from _create(c.inner) if isinstance(c.inner, CreatePromise) else _settle(c.inner)


def _heartbeat(c: HeartbeatTasks) -> Problems:
    yield from _id(c.pid, "Process ID")
    for task in c.tasks:
        yield from _id(task.id, "Task ID")
        yield from _version(task.version)


def _unfenced(c: HaltTask | ContinueTask) -> Problems:
    yield from _id(c.id, "Task ID")
    yield from _version(c.version or 0)


def _create_schedule(c: CreateSchedule) -> Problems:
    yield from _id(c.id, "Schedule ID")
    yield from _id(c.cron, "Cron expression")
    yield from _id(c.promise_id, "Promise ID")
    yield from _size(c.promise_param, "promiseParam")
    if c.promise_timeout < 0:
        yield "promiseTimeout must be non-negative"
    if birth.TARGET not in c.promise_tags:
        yield "promiseTags must include a resonate:target tag"
    yield from _tags(c.promise_tags)


def _search(
    c: Search | SearchSchedules | ListHeld | ListRuns | GetRun | GetRecords | ListWaiting,
) -> Problems:
    if not 1 <= c.limit <= MAX_PAGE:
        yield f"limit must be between 1 and {MAX_PAGE}"


def _list_runs(c: ListRuns) -> Problems:
    yield from _search(c)
    if c.newest_first and c.cursor is not None and timed_key(c.cursor) is None:
        yield "cursor must be one that an answer gave"


def _list_waiting(c: ListWaiting) -> Problems:
    yield from _search(c)
    if c.cursor is not None and timed_key(c.cursor) is None:
        yield "cursor must be one that an answer gave"


def _get_run(c: GetRun) -> Problems:
    yield from _id(c.id, "Run ID")
    yield from _search(c)


def _get_records(c: GetRecords) -> Problems:
    yield from _task_id(c)
    yield from _search(c)


def _decline(c: DeclineTasks) -> Problems:
    yield from _id(c.pid, "Process ID")
    for each in c.tasks:
        yield from _task_id(each)
        yield from _version(each.version)


def _take(c: Take) -> Problems:
    yield from _claim(c)
    yield from _id(c.incarnation, "Incarnation")
    yield from _group(c.group)
    yield from _count(len(c.names), MAX_NAMES, "names")
    if not 0 <= c.free <= MAX_FREE:
        yield f"free must be between 0 and {MAX_FREE}"
    if not 0 <= c.ahead <= MAX_AHEAD:
        yield f"ahead must be between 0 and {MAX_AHEAD}"
    if c.begun:
        yield from _claims(c.begun)


def _release(c: ReleaseTasks) -> Problems:
    yield from _worker(c)
    yield from _claims(c.tasks)
    for each in c.tasks:
        if each.delay < 0 or (each.ready_at or 0) < 0:
            yield "delay and readyAt must be non-negative"


def _claims(claims: Sequence[TaskVersion | Released]) -> Problems:
    yield from _count(len(claims), MAX_CLAIMS, "claims")
    for each in claims:
        yield from _fenced(each)


def _group(text: str) -> Problems:
    """A group is part of addresses, so it must be found there again."""
    yield from _id(text, "Group")
    if text and address.group_of(address.target_of(text)) != text:
        yield "Group must not contain '/' or '?'"


def _worker(c: HeartbeatWorker | ReleaseTasks) -> Problems:
    yield from _id(c.pid, "Process ID")
    yield from _id(c.incarnation, "Incarnation")


def _finish(c: FinishTask) -> Problems:
    yield from _fenced(c)
    yield from _size(c.value, "value")
    yield from _settle_state(c.state)
    yield from _ridden(c)
    yield from _verdict(c.root)


def _fail(c: FailTask) -> Problems:
    yield from _fenced(c)
    yield from _size(c.error, "error")
    yield from _ridden(c)
    yield from _verdict(c.root)
    if c.retry_in is not None and c.retry_in < 0:
        yield "retryIn must be non-negative"


def _verdict(verdict: RootVerdict | None) -> Problems:
    """Every finish may carry one though few use it, so a large one goes by itself."""
    if verdict is not None:
        yield from _settle_state(verdict.state)
        yield from _size(verdict.value, "value of root", MAX_VERDICT_CHARS)


def _annotate(c: AnnotateTask) -> Problems:
    yield from _fenced(c)
    yield from _size(c.record, "record")
    if c.record_id is not None:
        yield from _id(c.record_id, "Record ID")
        if not c.record_id.startswith(c.id + "."):
            yield f"Record ID must begin with '{c.id}.'"
    yield from _waits(c)


def _waits(c: AnnotateTask) -> Problems:
    yield from _count(len(c.waits), MAX_WAITS, "waits")
    yield from _count(len(c.ended), MAX_WAITS, "ended waits")
    for key, length in c.waits.items():
        yield from _id(key, "ID of a wait")
        if length < 0:
            yield f"The length of wait '{key}' must be non-negative"


def _create_below(c: CreateBelow) -> Problems:
    yield from _fenced(c)
    yield from _id(c.promise_id, "Promise ID")
    yield from _size(c.param, "param")
    if c.promise_id == c.id:
        yield "Promise ID must not equal the task ID"
    if c.timeout < 0:
        yield "timeout must be non-negative"
    if birth.DELAY in c.tags:
        yield "resonate:delay is an instant: create the promise by promise.create"
    yield from _tags(c.tags)


def _ridden(c: FinishTask | FailTask | StartRun) -> Problems:
    if c.take is not None:
        yield from _take(c.take)


def _start_run(c: StartRun) -> Problems:
    yield from _id(c.id, "Run ID")
    yield from _plan(c, c.id)
    yield from _ridden(c)
    if c.timeout < 1:
        yield "timeout must be positive"
    if ":" in c.id:
        yield f"Run ID '{c.id}' must not contain ':' (it separates run and node)"


def _create_run_schedule(c: CreateRunSchedule) -> Problems:
    yield from _id(c.id, "Schedule ID")
    yield from _id(c.cron, "Cron expression")
    yield from _id(c.timezone, "Time zone")
    yield from _plan(c, occurrence_id(RUN_OF_SCHEDULE, c.id, NEVER))
    if c.timeout < 1:
        yield "timeout must be positive"
    for separator in (each for each in ":./" if each in c.id):
        yield f"Schedule ID '{c.id}' must not contain '{separator}' (it is part of run IDs)"


def _plan(c: StartRun | CreateRunSchedule, run_id: str) -> Problems:
    """What a run needs, whenever it is started."""
    yield from _id(c.name, f"Name of run '{c.id}'")
    yield from _group(c.group)
    yield from _size(c.param, "param")
    dependencies = sum(len(node.after) for node in c.nodes)
    too_many = [
        *_count(len(c.nodes), MAX_NODES, "nodes"),
        *_count(dependencies, MAX_DEPENDENCIES, "dependencies of nodes"),
    ]
    yield from too_many or _nodes(c, run_id)


def _nodes(c: StartRun | CreateRunSchedule, run_id: str) -> Problems:
    ids = Counter(node.id for node in c.nodes)
    if not ids:
        yield f"Run '{c.id}' has no nodes"
    for twice in sorted(node_id for node_id, times in ids.items() if times > 1):
        yield f"Node '{twice}' is given twice"
    for node in c.nodes:
        yield from _size(node.param, f"param of node '{node.id}'")
        yield from _id(f"{run_id}:{node.id}" if node.id else "", "Node ID")
        yield from _id(node.name, f"Name of node '{node.id}'")
        yield from _group(node.group) if node.group is not None else ()
        for unknown in sorted({each for each in node.after if each not in ids}):
            yield f"Node '{node.id}' depends on unknown node '{unknown}'"
    yield from _cycle(c)


def _cycle(c: StartRun | CreateRunSchedule) -> Problems:
    if not any(node.after for node in c.nodes):
        return
    try:
        TopologicalSorter({node.id: node.after for node in c.nodes}).prepare()
    except CycleError as cycle:
        yield f"Dependencies form a cycle: {' -> '.join(cycle.args[1])}"


RULES: dict[type[Command | Query], Callable[[Any], Problems]] = {
    commands.GetPromise: _promise_id,
    CreatePromise: _create,
    SettlePromise: _settle,
    RegisterCallback: _callback,
    RegisterListener: _listener,
    commands.GetTask: _task_id,
    CreateTask: _create_task,
    AcquireTask: _acquire,
    commands.ReleaseTask: _fenced,
    FulfillTask: _fulfill,
    SuspendTask: _suspend,
    FenceTask: _fence,
    HeartbeatTasks: _heartbeat,
    HaltTask: _unfenced,
    ContinueTask: _unfenced,
    commands.GetSchedule: _schedule_id,
    CreateSchedule: _create_schedule,
    commands.DeleteSchedule: _schedule_id,
    Take: _take,
    HeartbeatWorker: _worker,
    commands.LeaveWorker: _worker,
    commands.CheckHolder: _worker,
    ReleaseTasks: _release,
    FinishTask: _finish,
    FailTask: _fail,
    commands.AnnotateTask: _annotate,
    CreateBelow: _create_below,
    ResolvePromise: _settle,
    commands.EnsurePromise: _promise_id,
    commands.CancelPromise: _promise_id,
    commands.WatchPromise: _promise_id,
    StartRun: _start_run,
    CreateRunSchedule: _create_run_schedule,
    queries.SearchPromises: _search,
    queries.SearchTasks: _search,
    SearchSchedules: _search,
    ListHeld: _search,
    queries.GetRun: _get_run,
    GetRecords: _get_records,
    DeclineTasks: _decline,
    ListRuns: _list_runs,
    ListWaiting: _list_waiting,
    queries.ExplainPromise: _promise_id,
}
