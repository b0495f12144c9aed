"""What a task asks people: an approval that is opened, waited for, and answered with yes or no."""

import logging
from collections.abc import Generator, Mapping
from inspect import currentframe
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from msgspec import Struct, to_builtins

from layby.core.answer_schema import schema_problem
from layby.core.model import NEVER, Millis, Promise
from layby.core.questions import (
    APPROVAL,
    ASKER,
    BY,
    DENIED,
    MAX_PROMPT_CHARS,
    REASON,
    Question,
    question_of,
)
from layby.core.tag_names import MOVABLE
from layby.core.waits import WaitingOn
from layby.errors import DeferTimeout, UsageError
from layby.wire import json_values
from layby.wire.durations import limit_of, millis_of
from layby.wire.typed_values import Misfit, json_schema_of, read_typed
from layby.worker.attempt import Attempt, Unasked
from layby.worker.begun_waits import PromiseWait, WaitEnd, begin_promise, deadline_of
from layby.worker.rejections import value_of
from layby.worker.replay import Record, check_key, digest_of
from layby.worker.wait_terms import Seconds, WaitTerm

if TYPE_CHECKING:
    from layby.worker.blocking_handle import BlockingHandle
    from layby.worker.handle import TaskHandle

logger = logging.getLogger(__name__)

SHOWN_PROMPT: Final = 200
"""Characters of a prompt in what is shown of a wait."""
_TOLD: Final[set[str]] = set()
"""Places that make approvals, and nobody was asked."""


class ApprovalAnswer(Struct, frozen=True):
    """What a person has answered. True if they said yes."""

    approved: bool
    value: Any
    """What they filled in, as the schema says; None after a no, and if nothing else was asked."""
    by: str
    """Who, as they or their program said; empty if it is not known."""
    reason: str
    answered_at: Millis
    """In milliseconds since 1970, by the clock of the store."""

    def __bool__(self) -> bool:
        return self.approved


class ApprovalTerm(WaitTerm, frozen=True):
    """An approval as a wait, with what is needed to open it."""

    promise_id: str
    question: Question
    kind: type[Any] | None = None
    """The class of the value."""
    within: float | None = None

    def called(self) -> Record:
        return Record("approval", digest_of(self.question.prompt, self.question.schema))

    def sentence(self) -> str:
        return f"an answer to: {_shown(self.question.prompt)}"

    async def open(self, attempt: Attempt) -> Promise:
        """The promise, new or from an earlier run; the question stays as it was first asked."""
        tags = {"resonate:external": "true", APPROVAL: "true", ASKER: attempt.id}
        length, param = millis_of(self.within), json_values.to_value(to_builtins(self.question))
        if length < NEVER:
            tags[MOVABLE] = "true"
        promise = await attempt.create(self.promise_id, length, param, tags, capped=True)
        asked = question_of(promise) or Question("")
        found = Record("approval", digest_of(asked.prompt, asked.schema))
        is_earlier = attempt.try_number > 1
        attempt.replay.check(self.promise_id, found, self.called(), is_earlier=is_earlier)
        return promise

    def answer_in(self, promise: Promise) -> ApprovalAnswer:
        """Raises if it was cancelled, nobody answered in time, or the value was not checked."""
        headers = json_values.headers_of(promise.value)
        by, reason = headers.get(BY, ""), headers.get(REASON, "")
        if promise.is_timed_out:
            raise DeferTimeout(f"nobody answered approval {promise.id} in time")
        if promise.state == "rejected":
            by_other_means = reason or _said(promise)
            return ApprovalAnswer(
                approved=False, value=None, by=by, reason=by_other_means, answered_at=_at(promise)
            )
        value = self._typed(value_of(promise))
        return ApprovalAnswer(
            approved=True, value=value, by=by, reason=reason, answered_at=_at(promise)
        )

    def _typed(self, value: Any) -> Any:
        """Whoever settles by the protocol bypasses the check, so it is made again."""
        problem = self.question.problem_with(value)
        try:
            if problem is None and self.kind is not None:
                return read_typed(self.kind, json_values.encode(value), "the answer")
        except Misfit as misfit:
            problem = str(misfit)
        if problem is not None:
            raise UsageError(f"approval {self.promise_id} was answered wrongly: {problem}")
        return value


class ApprovalWait(PromiseWait):
    __slots__ = ("_term",)

    def __init__(
        self, attempt: Attempt, record_id: str, term: ApprovalTerm, promise: Promise, begun: Any
    ) -> None:
        super().__init__(attempt, record_id, promise.id, begun)
        self._term = term
        sentence = f"waiting for {term.sentence()}"
        self.waiting = WaitingOn(
            "approval",
            sentence,
            deadline=deadline_of(promise),
            awaited=promise.id,
            record_id=promise.id,
            asks_value=term.question.schema is not None,
        )
        if self.end is not None:
            self.end = _counted(self.end)

    def ended(self, future: Any) -> WaitEnd:
        return _counted(super().ended(future))

    def value(self) -> ApprovalAnswer:
        assert self.end is not None
        assert self.end.promise is not None
        return self._term.answer_in(self.end.promise)


class Approval:
    """A question to a person: `await` it for the answer. It is opened by then at the latest."""

    __slots__ = ("_handle", "_key", "_term", "_unasked")

    def __init__(
        self,
        handle: "TaskHandle",
        key: str,
        term: ApprovalTerm,
        *,
        unasked: dict[str, Unasked] | None = None,
    ) -> None:
        """`unasked`: where it stands by its id until somebody is asked."""
        self._handle = handle
        self._key = key
        self._term = term
        self._unasked = unasked

    @property
    def id(self) -> str:
        """The promise that is settled by the answer."""
        return self._term.promise_id

    @property
    def term(self) -> ApprovalTerm:
        """As a wait: whoever takes it asks somebody."""
        if self._unasked is not None:
            self._unasked.pop(self.id, None)
        return self._term

    async def open(self) -> str:
        """Let people see it, without waiting yet; returns its id."""
        return await self._handle.open_approval(self.term)

    async def url(self, expires: Seconds | None = None) -> str:
        """A link to answer with, the same each time; it opens the approval.

        It is good for `expires` (30 days) since it was opened; after the approval's timeout, which
        a person may move, it says that the time is over.
        """
        await self.open()
        return await self._handle.link(self.id, expires)

    def __bool__(self) -> NoReturn:
        """A forgotten `await` must not be a yes."""
        raise UsageError(
            f"approval {self.id} is a question, not an answer: write `await` before it first"
        )

    def __await__(self) -> Generator[Any, Any, ApprovalAnswer]:
        return self.wait().__await__()

    async def wait(self) -> ApprovalAnswer:
        return await self._handle.wait_for_approval(self.term, self._key)

    async def withdraw(self) -> None:
        """Nobody needs to answer any more; who tries is told so. An answer that stands, stands."""
        await self._handle.withdraw_approval(self.term)


class BlockingApproval:
    """The same for plain `def`."""

    def __init__(self, handle: "BlockingHandle", approval: Approval) -> None:
        self._handle = handle
        self._approval = approval

    @property
    def id(self) -> str:
        return self._approval.id

    @property
    def term(self) -> ApprovalTerm:
        """As a wait of a bundle."""
        return self._approval.term

    def __bool__(self) -> NoReturn:
        """A forgotten `wait()` must not be a yes."""
        raise UsageError(
            f"approval {self.id} is a question, not an answer: call its wait() for the answer"
        )

    def open(self) -> str:
        return self._handle.call(self._approval.open())

    def url(self, expires: Seconds | None = None) -> str:
        return self._handle.call(self._approval.url(expires))

    def wait(self) -> ApprovalAnswer:
        return self._handle.wait(self._approval.wait())

    def withdraw(self) -> None:
        self._handle.call(self._approval.withdraw())


async def begin_approval(attempt: Attempt, record_id: str, term: ApprovalTerm) -> ApprovalWait:
    promise = await term.open(attempt)
    begun = promise
    if promise.is_pending:
        begun = await begin_promise(attempt, record_id, promise.id, None)
    return ApprovalWait(attempt, record_id, term, promise, begun)


def new_approval(
    handle: "TaskHandle",
    attempt: Attempt,
    prompt: str,
    schema: type[Any] | Mapping[str, Any] | None,
    timeout: Seconds | None,
    key: str | None,
) -> Approval:
    """Each has a key, given or counted; the promise is the same in every try."""
    check_key(prompt, "the prompt of an approval", MAX_PROMPT_CHARS)
    name = f"key.{check_key(key)}" if key is not None else attempt.replay.numbered("approval")
    within = limit_of(timeout, "timeout of an approval")
    kind = schema if isinstance(schema, type) else None
    promise_id = attempt.replay.record_id(f"approval.{name}", lasting=True)
    question = Question(prompt, _checked_schema(schema))
    _note_unasked(attempt, promise_id, prompt)
    term = ApprovalTerm(promise_id, question, kind, within)
    return Approval(handle, f"approval.{name}", term, unasked=attempt.unasked)


def _note_unasked(attempt: Attempt, promise_id: str, prompt: str) -> None:
    """A checkpoint that has opened it in an earlier run of the body is not run again."""
    if attempt.replay.has(promise_id):
        return
    if attempt.unasked is None:
        attempt.unasked = {}
    attempt.unasked[promise_id] = Unasked(_shown(prompt), _place())


def _place() -> str:
    """Where the code of the task has made it."""
    frame = currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("layby."):
        frame = frame.f_back
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def tell_unasked(attempt: Attempt) -> None:
    """Of a body that has returned: Python says as much of a coroutine that nobody has awaited, but
    a question looks as if it had been asked.
    """
    for promise_id, question in (attempt.unasked or {}).items():
        if question.place in _TOLD:
            continue
        _TOLD.add(question.place)
        logger.warning(
            "%s has ended, and nobody was asked %r (approval %s, made at %s): write `await` before "
            "handle.approval(...) for the answer, in a plain def call its wait(), or make it only "
            "where it is asked; this is said once for each place",
            attempt.id,
            question.prompt,
            promise_id,
            question.place,
        )


def _shown(prompt: str) -> str:
    shown = prompt if len(prompt) <= SHOWN_PROMPT else f"{prompt[:SHOWN_PROMPT]}..."
    return " ".join(shown.split())


def _checked_schema(schema: type[Any] | Mapping[str, Any] | None) -> dict[str, Any] | None:
    if schema is None:
        return None
    given = cast("Any", schema)  # whatever it is, it is checked
    found = json_schema_of(given) if isinstance(given, type) else given
    problem = schema_problem(found)
    if problem is not None:
        raise UsageError(f"approval: {problem}")
    return dict(found)


def _counted(end: WaitEnd) -> WaitEnd:
    """A no is an answer: it does not raise, but it is not what `any_of` waits for."""
    is_no = end.promise is not None and end.promise.state == "rejected"
    return WaitEnd(end.at, end.promise, end.error, denied=is_no)


def _said(promise: Promise) -> str:
    """Of a rejection by other means than an answer."""
    error = json_values.read_error(promise.value)
    return "" if error.name == DENIED else error.message


def _at(promise: Promise) -> Millis:
    return promise.settled_at or 0
