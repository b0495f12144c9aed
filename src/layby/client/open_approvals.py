"""Approvals that wait for an answer, and answering them: for Runners, commands and links alike."""

from collections.abc import AsyncIterator
from typing import Any

from msgspec import Struct

from layby.client.interface import Client
from layby.client.paging import pages
from layby.client.request_ids import new_request_id
from layby.core.commands import AnswerApproval, GetPromise
from layby.core.fields import NOTHING
from layby.core.ids import ancestors_of
from layby.core.model import NEVER, Millis, Promise, PromiseState
from layby.core.queries import SearchPromises
from layby.core.questions import APPROVAL, BY, Question, asker_of, question_of
from layby.core.replies import PromiseData, PromisePage, SettlementData
from layby.errors import Conflict, error_for
from layby.wire import json_values

PAGE = 200


class OpenApproval(Struct, frozen=True):
    """A question that nobody has answered yet."""

    id: str
    prompt: str
    schema: dict[str, Any] | None
    """What the value of a yes must look like, as a JSON Schema; None if none is wanted."""
    task: str
    """The task that asks, as `run/RUN:TASK`."""
    asked_at: Millis
    deadline: Millis | None
    """Until when it can be answered; None for ever."""


async def open_approvals(
    client: Client, limit: int, below: str | None = None
) -> list[OpenApproval]:
    """Those whose tasks have not ended, at most `limit`, by id; `below` an id if given."""
    found: list[OpenApproval] = []
    is_open: dict[str, bool] = {}
    async for promise in _approvals(client, "pending", below):
        asker, question = asker_of(promise), question_of(promise)
        if asker is None or question is None:
            continue
        if asker not in is_open:
            is_open[asker] = await is_promise_pending(client, asker)
        if is_open[asker]:
            found.append(_open_approval(promise, asker, question))
        if len(found) >= limit:
            break
    return found


async def last_answered(client: Client, below: str) -> Promise | None:
    """Of the approvals below an id the one that was settled last."""
    found = [each async for each in _approvals(client, None, below) if not each.is_pending]
    return max(found, key=lambda each: each.settled_at or 0, default=None)


async def _approvals(
    client: Client, state: PromiseState | None, below: str | None
) -> AsyncIterator[Promise]:
    async def ask(query: SearchPromises) -> PromisePage:
        reply = await client.send(query)
        if not isinstance(reply.data, PromisePage):
            raise error_for(reply.status, f"the list of approvals cannot be read: {reply.data}")
        return reply.data

    query = SearchPromises(state=state, tags={APPROVAL: "true"}, prefix=below, limit=PAGE)
    async for page in pages(ask, query):
        for promise in page.promises:
            if below is None or below in ancestors_of(promise.id):
                yield promise


async def answer(
    client: Client,
    approval_id: str,
    *,
    approved: bool,
    value: Any = None,
    by: str = "",
    reason: str = "",
    via: str = "",
) -> SettlementData:
    """Raises if it is unknown, not an approval, or the value does not fit the question."""
    what = f"approval '{approval_id}'"
    reply = await client.send(GetPromise(id=approval_id))
    if not isinstance(reply.data, PromiseData):
        raise error_for(reply.status, f"{what}: {reply.data}", remedy=_remedy(reply.status))
    asker = asker_of(reply.data.promise)
    if reply.data.promise.is_pending and asker and not await is_promise_pending(client, asker):
        raise Conflict(f"{what} is not needed any more: {asker} has ended")
    command = AnswerApproval(
        id=approval_id,
        approved=approved,
        value=json_values.to_value(value, "the answer") if approved else NOTHING,
        by=by,
        reason=reason,
        via=via,
        settlement_id=new_request_id(),
    )
    answered = await client.send(command)
    if not isinstance(answered.data, SettlementData):
        raise error_for(answered.status, f"{what}: {answered.data}")
    return answered.data


def told_who(promise: Promise) -> str:
    """Who has answered it; empty if that is not known."""
    return json_values.headers_of(promise.value).get(BY, "")


def is_same_answer(promise: Promise, *, approved: bool, value: Any) -> bool:
    """Whether it was settled with just this."""
    if not approved:
        return promise.state == "rejected"
    return promise.state == "resolved" and json_values.from_text(promise.value) == value


async def is_promise_pending(client: Client, promise_id: str) -> bool:
    """Not if it is settled, or gone."""
    data = (await client.send(GetPromise(id=promise_id))).data
    return isinstance(data, PromiseData) and data.promise.is_pending


def _open_approval(promise: Promise, asker: str, question: Question) -> OpenApproval:
    deadline = None if promise.timeout_at == NEVER else promise.timeout_at
    return OpenApproval(
        promise.id, question.prompt, question.schema, asker, promise.created_at, deadline
    )


def _remedy(status: int) -> str | None:
    return ": `layby approvals` lists those that are open" if status == 404 else None
