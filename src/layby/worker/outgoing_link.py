"""Links for promises of a task: made by the server, the same in every run of the body.

When a link expires follows from its promise, not from now: who has stored it, or sends it in a
checkpoint, gets the same one again.
"""

from typing import Final

from layby.core.commands import MakeLink
from layby.core.model import later
from layby.core.replies import LinkData
from layby.errors import NotFound, UsageError, error_for
from layby.wire.durations import millis_of, seconds_of
from layby.worker.attempt import Attempt
from layby.worker.wait_terms import Seconds

GOOD_FOR_S: Final = 30 * 86_400.0
LONGEST_S: Final = 366 * 86_400.0


async def make_link(attempt: Attempt, promise_id: str, expires: Seconds | None) -> str:
    given = GOOD_FOR_S if expires is None else expires
    length = seconds_of(given, "expires of a link", finite=True, positive=True)
    if length > LONGEST_S:
        raise UsageError(f"a link is good for at most {LONGEST_S:g} s, got {length:g} s")
    promise = await attempt.read(promise_id)
    if promise is None:
        raise NotFound(f"promise {promise_id} does not exist any more: it has no link")
    expires_at = min(promise.told_timeout_at, later(promise.created_at, millis_of(length)))
    reply = await attempt.send(MakeLink(id=promise_id, expires_at=expires_at))
    if isinstance(reply.data, LinkData):
        return reply.data.url
    raise error_for(reply.status, f"there is no link for promise {promise_id}: {reply.data}")
