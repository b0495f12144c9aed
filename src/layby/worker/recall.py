"""Reads what the store knows about a task that has been begun before."""

from collections.abc import Sequence

from msgspec.structs import replace

from layby.client.interface import Client
from layby.client.paging import pages
from layby.client.patience import known
from layby.core.birth import keeps
from layby.core.model import Promise, Task
from layby.core.queries import GetRecords
from layby.core.replies import Claim, RowPage
from layby.errors import error_for
from layby.worker.replay import CALLS, CHECKPOINTS, NEW, Recalled


def has_nothing(claim: Claim) -> bool:
    """Whether nobody has begun the task before, in this life or an earlier one that counts.

    It may have been claimed before, ahead of a slot, and handed back. Or it was begun, and has
    deferred before it kept anything: neither can there be anything to recall.
    """
    task, resumed = claim.task, claim.resumed
    is_bare = task.try_number <= 1 or (resumed is not None and resumed.bare)
    is_first = task.version <= 1 or (task.is_ours and is_bare)
    return is_first and keeps(claim.promise) is None


async def recall(client: Client, claim: Claim) -> tuple[Claim, Recalled]:
    """The claim, completed with what the protocol's claim leaves out, and what is recalled."""
    if has_nothing(claim) or claim.task.is_root:
        return claim, NEW
    records: Sequence[Promise] = ()
    if claim.task.version > 1:
        rows = await _read(client, claim.task.id)
        claim, records = _with_row(claim, rows[0][1]), [promise for promise, _ in rows]
    return claim, await _with_earlier(client, claim.promise, records)


async def _with_earlier(client: Client, task: Promise, records: Sequence[Promise]) -> Recalled:
    kept: dict[str, Promise] = {}
    earlier: list[str] = []
    above: Promise | None = task
    while above is not None and (source := keeps(above)) is not None:
        rows = await _read(client, source)
        for promise, _ in rows:
            if promise.id.startswith(f"{source}.{CHECKPOINTS}."):
                own = f"{task.id}{promise.id.removeprefix(source)}"
                kept.setdefault(own, replace(promise, id=own))
        earlier.append(source)
        above = rows[0][0] if rows else None
    return Recalled(records, tuple(kept.values()), tuple(earlier), task.created_at)


async def _read(client: Client, task_id: str) -> list[tuple[Promise, Task | None]]:
    async def ask(query: GetRecords) -> RowPage:
        reply = known(await client.send(query))
        if not isinstance(reply.data, RowPage):
            raise error_for(reply.status, f"the records of {task_id} cannot be read: {reply.data}")
        return reply.data

    found: list[tuple[Promise, Task | None]] = []
    async for page in pages(ask, GetRecords(id=task_id)):
        found += page.rows
        if (page.cursor or "") > f"{task_id}.{CALLS}":
            break
    return found


def _with_row(claim: Claim, row: Task | None) -> Claim:
    """A claim by the protocol does not say how earlier tries ended."""
    if claim.task.is_ours or row is None:
        return claim
    task = replace(
        claim.task,
        failures=row.failures,
        error=row.error,
        history=row.history,
        deadlines=row.deadlines,
        awaited=row.awaited,
    )
    return replace(claim, task=task)
