"""Replies for commands: the data they asked for, or an error that ends the command."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from layby.cli.showing import tell_aside
from layby.client import paging
from layby.client.interface import Client
from layby.core.commands import GetPromise, WatchRun
from layby.core.exit_refusals import NOT_WAITING
from layby.core.limits import ListLimits
from layby.core.meant_waits import NO_WAIT
from layby.core.model import FAR, Promise, Task
from layby.core.queries import (
    ExplainPromise,
    GetRun,
    ListRuns,
    ListWaiting,
    SearchPromises,
    SearchSchedules,
    SearchTasks,
)
from layby.core.replies import (
    Explanation,
    PromiseData,
    PromisePage,
    Reply,
    RowPage,
    RunWatchData,
)
from layby.core.waits import awaited_in_memory
from layby.errors import Conflict, LaybyError, NotFound, ResultExpired, error_for
from layby.workflow.names import close_match
from layby.workflow.plan import (
    ROOT_PREFIX,
    life_of,
    node_id,
    parse_node_id,
    parse_root_id,
    read_root_param,
    root_id,
)
from layby.workflow.short_ids import quoted, short_id

T = TypeVar("T")
Row = tuple[Promise, Task | None]
Paged = ListRuns | ListWaiting | SearchPromises | SearchTasks | SearchSchedules | ListLimits

REMEDIES = {
    401: ": the server needs a valid token; give --token, or set LAYBY_TOKEN",
    403: ": the token does not allow this; one for all ids does, by --token or LAYBY_TOKEN",
}
_TARGET = ": give --tag resonate:target=ADDRESS, for example poll://any@default"
_RULE = ": write five fields, for example '0 3 * * *' for every day at 3:00 UTC"
_HINTS = {
    "Action must have a resonate:target tag": _TARGET,
    "promiseTags must include a resonate:target tag": _TARGET,
    NOT_WAITING: ": `layby why {typed}` says what holds it up, and who can end that",
    NO_WAIT: ": `layby why {typed}` says what holds it up",
    "Invalid listener address": " '{given}': give an http:// URL, or poll://any@GROUP",
    "Invalid cron expression": f" '{{given}}'{_RULE}",
    "Cron expression is required": _RULE,
}
"""What the command line adds to texts of the protocol: it knows its options, and what was given."""
PAGE = 500
SEARCHED = 200
_SEARCHES = "`layby runs` or `layby promises search`"


class Refused(LaybyError):
    """The command ran, and the answer is no."""

    exit_code = 1


def expect(reply: Reply, kind: type[T], what: str, given: str = "") -> T:
    """The data of a reply; `what` names the subject in the error for a refusal.

    `given`: the argument that may be wrong.
    """
    if isinstance(reply.data, kind) and reply.is_ok:
        return reply.data
    text = f"{what}: {_lower_first(str(reply.data))}"
    hint = REMEDIES.get(reply.status) or _HINTS.get(str(reply.data), "").format(
        given=given, typed=quoted(given)
    )
    raise error_for(reply.status, text, remedy=hint)


async def found(client: Client, asked: str) -> Promise:
    """The promise with this id, or of the run or task without the prefix.

    Of a run that was run again, and of its tasks, those of its latest life. Unlike an explanation,
    this is allowed for a token with a prefix. An id that means two things is refused, since whoever
    asks is about to do something to one of them.
    """
    if await is_ambiguous(client, asked):
        raise ambiguous(asked)
    refused: list[Reply] = []
    for each in (asked, f"{ROOT_PREFIX}{asked}"):
        reply = await client.send(GetPromise(id=each))
        if isinstance(reply.data, PromiseData):
            return await _latest(client, reply.data.promise)
        refused.append(reply)
    if any(reply.status == 404 for reply in refused):
        raise await unknown(client, asked)
    return expect(refused[0], PromiseData, asked).promise


def ambiguous(asked: str) -> Conflict:
    return Conflict(
        f"'{asked}' is a promise, and a run or a task of one too: for that write "
        f"'{ROOT_PREFIX}{asked}'; for the promise use `layby promises` or `layby tasks`"
    )


async def is_ambiguous(client: Client, asked: str) -> bool:
    """Whether both the id as given and that of a run or task without the prefix are known."""
    for each in (asked, f"{ROOT_PREFIX}{asked}"):
        if not (await client.send(GetPromise(id=each))).is_ok:
            return False
    return True


async def open_promises(client: Client, root_id: str) -> list[str]:
    """What somebody could settle so that this run goes on: its own promises, and awaited ones."""
    rows = await run_rows(client, root_id)
    own = [p.id for p, task in rows if task is None and p.is_pending and not p.timer]
    awaited = [each for _, task in rows if task is not None for each in awaited_in_memory(task)]
    return list(dict.fromkeys((*own, *awaited)))


async def _latest(client: Client, promise: Promise) -> Promise:
    """The same root or task in the latest life of its run; a life that was named is meant."""
    run_id, node = parse_root_id(promise.id), parse_node_id(promise.id)
    run_id = run_id or (node and node.run_id)
    if promise.is_pending or run_id is None or life_of(promise.id) > 1:
        return promise
    watched = await client.send(WatchRun(id=root_id(run_id), hold=False))
    lives = watched.data.lives if isinstance(watched.data, RunWatchData) else 1
    if lives == 1:
        return promise
    root = expect(await client.send(GetPromise(id=root_id(run_id, lives))), PromiseData, run_id)
    if node is None:
        return root.promise
    life = read_root_param(root.promise.param).life_of(node.task_id)
    reply = await client.send(GetPromise(id=node_id(run_id, node.task_id, life)))
    return reply.data.promise if isinstance(reply.data, PromiseData) else promise


async def explained(client: Client, asked: str) -> Explanation:
    """What is known of a promise, or of a run or task without the prefix, in its latest life."""
    for each in (asked, f"{ROOT_PREFIX}{asked}"):
        reply = await client.send(ExplainPromise(id=each))
        if reply.status != 404:
            if each == asked and await is_ambiguous(client, asked):
                tell_aside(f"'{asked}' is a run or a task of one too: '{ROOT_PREFIX}{asked}'")
            about = expect(reply, Explanation, asked)
            refuse_expired(about.promise)
            latest = await _latest(client, about.promise)
            if latest.id == about.promise.id:
                return about
            return expect(await client.send(ExplainPromise(id=latest.id)), Explanation, asked)
    raise await unknown(client, asked)


async def unknown(client: Client, asked: str, what: str = "run, task or promise") -> NotFound:
    """The error for an unknown id, with a suggestion."""
    known = [
        id_ for each in (asked, f"{ROOT_PREFIX}{asked}") for id_ in await _similar_ids(client, each)
    ]
    if asked in known:  # only for tasks: a promise need not have one
        return NotFound(f"promise '{asked}' has no {what}")
    if (whole := f"{ROOT_PREFIX}{asked}") in known:  # only where ids are taken as they are
        return NotFound(f"there is no {what} '{asked}'; did you mean '{whole}'?")
    shown = [*known, *(short_id(each) for each in known)]
    searches = f"`layby {what}s search`" if what in {"task", "promise"} else _SEARCHES
    hint = close_match(asked, shown) or f": look with {searches}"
    return NotFound(f"there is no {what} '{asked}'{hint}")


async def run_rows(client: Client, root_id: str, *, items: bool = True) -> list[Row]:
    """Every row of a run; items of maps only if they are asked for."""

    async def ask(query: GetRun) -> RowPage:
        return expect(await client.send(query), RowPage, root_id)

    rows = [
        row
        async for page in paging.pages(ask, GetRun(id=root_id, items=items))
        for row in page.rows
    ]
    if rows:
        refuse_expired(rows[0][0])
    return rows


def refuse_expired(promise: Promise) -> None:
    if promise.is_expired:
        what = "promise" if parse_root_id(promise.id) is None else "run"
        raise ResultExpired(f"{what} '{short_id(promise.id)}'", promise.state)


async def pages(
    client: Client, query: Paged, limit: int
) -> AsyncIterator[tuple[Sequence[Any], bool]]:
    """Pages of rows, at most `limit` in all (0: all), each with whether there are more."""
    left = limit or FAR

    async def ask(query: Paged) -> Any:
        reply = await client.send(replace(query, limit=min(PAGE, left)))
        return expect(reply, object, "the list")

    async for page in paging.pages(ask, query):
        rows: Sequence[Any] = getattr(page, page.__struct_fields__[0])
        left -= len(rows)
        yield rows, page.cursor is not None
        if left == 0:
            return


async def _similar_ids(client: Client, asked: str) -> list[str]:
    """Ids with a similar beginning."""
    found: list[str] = []
    for length in {max(1, len(asked) * 2 // 3), min(len(asked), len(ROOT_PREFIX) + 1), 1}:
        query = SearchPromises(prefix=asked[:length], limit=SEARCHED)
        data = (await client.send(query)).data
        found += [each.id for each in data.promises] if isinstance(data, PromisePage) else []
    return found


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
