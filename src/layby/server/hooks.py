"""`/hooks/TOKEN`: links that settle one promise, for people and systems without a token of ours.

The signature is the permission: for that promise, until it expires, and for nothing else. Looking
(GET) never settles, since programs that check mail open every link. What cannot be verified costs
no read of the store, and is told nothing.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

import msgspec
from msgspec.structs import replace

from layby.client.interface import Client
from layby.client.open_approvals import (
    answer,
    is_promise_pending,
    is_same_answer,
    told_who,
)
from layby.client.request_ids import new_request_id
from layby.core.commands import GetPromise, ResolvePromise
from layby.core.model import Millis, Promise
from layby.core.questions import VIA, Question, needed_by, question_of
from layby.core.replies import LinkData, PromiseData, SettlementData
from layby.errors import Conflict, LaybyError, UsageError
from layby.server.hook_forms import value_in
from layby.server.hook_pages import (
    HookAnswer,
    at,
    confirm_page,
    document,
    page,
    question_page,
)
from layby.server.hook_tokens import HookToken, sign, verify
from layby.wire import json_values
from layby.wire.decode import MALFORMED

MAX_BODY: Final = 64 * 1024
MAX_FIELDS: Final = 200
PER_MINUTE: Final = 60
"""Requests with one link; more get 429."""
REMEMBERED: Final = 10_000
FORM: Final = "application/x-www-form-urlencoded"


class LinkRefusal(NamedTuple):
    """Why a link is not answered, as a page for a person or a document for a program."""

    status: int
    title: str
    why: str

    def told(self, *, is_form: bool) -> HookAnswer:
        if is_form:
            return page(self.status, self.title, self.why)
        return document(self.status, error=self.why)


UNKNOWN: Final = LinkRefusal(
    404, "Unknown link", "This link is not valid. Was it copied as a whole?"
)
EXPIRED: Final = LinkRefusal(410, "Too late", "This link has expired.")
TOO_OFTEN: Final = LinkRefusal(
    429, "Too often", "This link was used too often: try again in a minute."
)
ENDED: Final = LinkRefusal(
    410, "Too late", "Nobody needs an answer any more: the task that waited for it has ended."
)
AWAY: Final = LinkRefusal(503, "Not now", "This cannot be answered now: try again in a moment.")
ANSWER_FIELDS: Final = ("approved", "value", "by", "reason")
"""Of an answer as JSON. Any other is refused, not ignored: it may be the condition of a yes."""
CANCELLED: Final = "Nobody needs an answer any more: it was cancelled or withdrawn."
TIME_IS_OVER: Final = "The time to answer is over."


class Hooks:
    def __init__(
        self, client: Client, key: bytes, url: Callable[[], str], now: Callable[[], Millis]
    ) -> None:
        self._client = client
        self._key = key
        self._url = url
        self._now = now
        self._uses = LinkUses()

    def link(self, promise_id: str, expires_at: Millis, /) -> LinkData:
        token = sign(HookToken(promise_id, expires_at), self._key)
        return LinkData(f"{self._url().rstrip('/')}/hooks/{token}", expires_at)

    async def show(self, text: str) -> HookAnswer:
        """What GET answers. It changes nothing."""
        found = await self._found(text)
        if isinstance(found, LinkRefusal):
            return found.told(is_form=True)
        if not found.is_pending:
            return _standing(found, 200 if found.state in ("resolved", "rejected") else 410)
        question = question_of(found)
        return confirm_page() if question is None else question_page(question, {})

    async def settle(self, text: str, content_type: str, body: bytes) -> HookAnswer:
        """What POST answers: by a form, or by JSON from a program."""
        is_form = content_type.partition(";")[0].strip().lower() == FORM
        found = await self._found(text)
        if isinstance(found, LinkRefusal):
            return found.told(is_form=is_form)
        try:
            given = _form(body) if is_form else _json(body)
            return await self._settled(found, given, is_form=is_form)
        except Conflict as conflict:
            return LinkRefusal(410, "Too late", str(conflict)).told(is_form=is_form)
        except UsageError as misfit:
            return _misfit(found, body, str(misfit), is_form=is_form)
        except LaybyError:
            return AWAY.told(is_form=is_form)

    # --- what is behind a link -----------------------------------------------------------

    async def _found(self, text: str) -> Promise | LinkRefusal:
        token = verify(text, self._key)
        if token is None:
            return UNKNOWN
        if token.expires_at <= self._now():
            return EXPIRED
        if not self._uses.may_use(token.promise_id, self._now()):
            return TOO_OFTEN
        try:
            return await self._read(token.promise_id)
        except LaybyError:
            return AWAY

    async def _read(self, promise_id: str) -> Promise | LinkRefusal:
        reply = await self._client.send(GetPromise(id=promise_id))
        if not isinstance(reply.data, PromiseData) or reply.data.promise.is_expired:
            return EXPIRED
        promise = reply.data.promise
        task = needed_by(promise) if promise.is_pending else None
        if task is not None and not await is_promise_pending(self._client, task):
            return ENDED
        return promise

    async def _settled(self, promise: Promise, given: Any, *, is_form: bool) -> HookAnswer:
        question = question_of(promise)
        if question is None:
            return await self._resolved(promise, given, is_form=is_form)
        approved, value, by, reason = _decision(question, given, is_form=is_form)
        if not promise.is_pending:
            same = is_same_answer(promise, approved=approved, value=value)
            return _again(promise, is_same=same, is_form=is_form)
        settled = await answer(
            self._client,
            promise.id,
            approved=approved,
            value=value,
            by=by,
            reason=reason,
            via="link",
        )
        if not settled.won:
            same = is_same_answer(settled.promise, approved=approved, value=value)
            return _again(settled.promise, is_same=same, is_form=is_form)
        return _thanks(settled.promise, is_form=is_form)

    async def _resolved(self, promise: Promise, given: Any, *, is_form: bool) -> HookAnswer:
        if not promise.is_pending:
            same = is_same_answer(promise, approved=True, value=given)
            return _again(promise, is_same=same, is_form=is_form)
        value = replace(json_values.to_value(given, "the body"), headers={VIA: "link"})
        resolve = ResolvePromise(id=promise.id, value=value, settlement_id=new_request_id())
        reply = await self._client.send(resolve)
        if not isinstance(reply.data, SettlementData):
            raise Conflict(str(reply.data))
        if not reply.data.won:
            same = is_same_answer(reply.data.promise, approved=True, value=given)
            return _again(reply.data.promise, is_same=same, is_form=is_form)
        return _thanks(reply.data.promise, is_form=is_form)


class LinkUses:
    """How often each link was used in this minute, as far as it is remembered."""

    def __init__(self) -> None:
        self._counts: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def may_use(self, promise_id: str, now: Millis) -> bool:
        minute = now // 60_000
        known, count = self._counts.pop(promise_id, (minute, 0))
        count = count + 1 if known == minute else 1
        self._counts[promise_id] = (minute, count)
        if len(self._counts) > REMEMBERED:
            self._counts.popitem(last=False)
        return count <= PER_MINUTE


# --- what was sent ------------------------------------------------------------------------------


def _form(body: bytes) -> dict[str, str]:
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS))
    except ValueError:
        raise UsageError("the form cannot be read") from None


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body) if body.strip() else None
    except MALFORMED:
        raise UsageError("the body must be JSON, or a form, and not nested without end") from None


def _decision(question: Question, given: Any, *, is_form: bool) -> tuple[bool, Any, str, str]:
    """Whether it is a yes, its value, who and why."""
    if not isinstance(given, dict):
        raise UsageError("the body must be an object with approved, and value, by and reason")
    fields: dict[str, Any] = given  # pyright: ignore[reportUnknownVariableType]
    by, reason = str(fields.get("by") or ""), str(fields.get("reason") or "")
    if is_form:
        if fields.get("decision") not in ("approve", "deny"):
            raise UsageError("choose yes or no")
        approved = fields["decision"] == "approve"
        return approved, value_in(question.schema, fields) if approved else None, by, reason
    for name in fields:
        if name not in ANSWER_FIELDS:
            raise UsageError(f"{name[:100]!r} is not known: give {', '.join(ANSWER_FIELDS)}")
    approved = fields.get("approved")
    if not isinstance(approved, bool):
        raise UsageError("approved must be true or false")
    for name in ("by", "reason"):
        if not isinstance(fields.get(name), str | None):
            raise UsageError(f"{name} must be text")
    return approved, fields.get("value") if approved else None, by, reason


# --- what is answered ---------------------------------------------------------------------------


def _misfit(promise: Promise, body: bytes, problem: str, *, is_form: bool) -> HookAnswer:
    question = question_of(promise)
    if not is_form or question is None or not promise.is_pending:
        return LinkRefusal(400, "Not like this", problem).told(is_form=is_form)
    try:
        given = _form(body)
    except UsageError:
        given = {}
    return question_page(question, given, problem)


def _thanks(promise: Promise, *, is_form: bool) -> HookAnswer:
    if is_form:
        return page(200, "Thank you", f"{_outcome(promise)}. You can close this page.")
    return document(200, state=promise.state, settledAt=promise.settled_at, by=told_who(promise))


def _again(promise: Promise, *, is_same: bool, is_form: bool) -> HookAnswer:
    """The same answer again, such as a second click, is fine; another one is too late."""
    if (gone := _gone(promise)) is not None:
        return LinkRefusal(410, "Too late", gone).told(is_form=is_form)
    status = 200 if is_same else 409
    if is_form:
        return _standing(promise, status)
    return document(
        status,
        state=promise.state,
        settledAt=promise.settled_at,
        by=told_who(promise),
        error=f"Already answered: {_outcome(promise)}",
    )


def _standing(promise: Promise, status: int) -> HookAnswer:
    if (gone := _gone(promise)) is not None:
        return page(status, "Too late", gone)
    return page(status, "Already answered", f"{_outcome(promise)}.")


def _gone(promise: Promise) -> str | None:
    """Why nobody can answer any more, if nobody has."""
    if promise.is_timed_out:
        return TIME_IS_OVER
    return CANCELLED if promise.state == "rejected_canceled" else None


def _outcome(promise: Promise) -> str:
    if question_of(promise) is None:
        return f"It was confirmed on {at(promise.settled_at)}"
    word = "yes" if promise.state == "resolved" else "no"
    return f"The answer is {word}, by {told_who(promise) or 'somebody'} on {at(promise.settled_at)}"
