"""Tasks that came with an answer: when nobody is there to take them they are handed back."""

from collections.abc import Iterator, Sequence

from layby.core.commands import Command, Released, ReleaseTask, ReleaseTasks
from layby.core.queries import Query
from layby.core.replies import (
    Claim,
    ClaimData,
    Reply,
    TakeData,
    TakingData,
)


def releases(
    request: Command | Query, answer: Reply | BaseException | None
) -> Iterator[ReleaseTask | ReleaseTasks]:
    """What hands back all that this answer claims: released with its place, never forgotten."""
    data = answer.data if isinstance(answer, Reply) else None
    take, claims = request.asks, _taken(data)
    if take is not None and claims:
        tasks = tuple(
            Released(each.task.id, each.task.version, each.ready_at, begun=False) for each in claims
        )
        yield ReleaseTasks(pid=take.pid, incarnation=take.incarnation, tasks=tasks)
    if isinstance(data, ClaimData) and data.task.state == "acquired":
        yield ReleaseTask(id=data.task.id, version=data.task.version)


def _taken(data: object) -> Sequence[Claim]:
    if isinstance(data, TakeData):
        return data.claims
    return data.taken.claims if isinstance(data, TakingData) else ()
