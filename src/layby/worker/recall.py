"""Reads what the store knows about a task that has been begun before."""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from layby.client.interface import Client
from layby.client.paging import pages
from layby.client.patience import known
from layby.core.model import Promise, Task
from layby.core.queries import GetRecords
from layby.core.replies import Claim, RowPage
from layby.errors import error_for
from layby.worker.replay import CALLS

NONE: Final[Sequence[Promise]] = ()


def is_first(claim: Claim) -> bool:
    """Whether nobody has begun the task before: then there is nothing to recall."""
    return claim.task.version <= 1


async def recall(client: Client, claim: Claim) -> tuple[Claim, Sequence[Promise]]:
    """The claim, completed with what the protocol's claim leaves out, and the task's records."""
    if is_first(claim) or claim.task.is_root:
        return claim, NONE
    rows = await _read(client, claim.task.id)
    return _with_row(claim, rows[0][1]), [promise for promise, _ in rows]


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
