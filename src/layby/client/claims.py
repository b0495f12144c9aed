"""Tasks that came with an answer: when nobody is there to take them they are handed back."""

from collections.abc import Iterator

from layby.core.commands import ReleaseTask
from layby.core.replies import Claim, ClaimData, FailData, FinishData, Reply, RunData, TakeData


def releases(answer: Reply | BaseException | None) -> Iterator[ReleaseTask]:
    """One for each task that this answer claims: released, never forgotten."""
    for claim in _claims(answer):
        yield ReleaseTask(id=claim.task.id, version=claim.task.version)


def _claims(answer: Reply | BaseException | None) -> Iterator[Claim]:
    data = answer.data if isinstance(answer, Reply) else None
    if isinstance(data, TakeData):
        yield from data.claims
    elif isinstance(data, FinishData | FailData | RunData):
        yield from data.taken.claims
    elif isinstance(data, ClaimData) and data.task.state == "acquired":
        yield Claim(data.task, data.promise)
