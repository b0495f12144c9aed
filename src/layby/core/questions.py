"""What an approval asks: a promise of a task with a question in its param, for a person to answer.

Yes resolves it, with a value if the question wants one; no rejects it. The headers of what a
promise was settled with say who did it, why, and how.
"""

import base64
from typing import Any, Final

import msgspec
from msgspec import Struct

from layby.core.answer_schema import answer_problem
from layby.core.fields import Value
from layby.core.model import Promise
from layby.core.nesting import TOO_DEEP, is_too_deep
from layby.core.replies import Reply, refuse
from layby.core.tag_names import has_tag, tag_of

APPROVAL: Final = "layby:approval"
"""The tag of approvals; it is `true`."""
ASKER: Final = "layby:asker"
"""The tag that names the task that asks, or gave out the token."""
BY: Final = "layby:by"
REASON: Final = "layby:reason"
VIA: Final = "layby:via"
DENIED: Final = "Denied"
MAX_PROMPT_CHARS: Final = 10_000

_read_value = msgspec.json.Decoder(Value).decode


class Question(Struct, frozen=True, omit_defaults=True):
    """The param of an approval."""

    prompt: str
    schema: dict[str, Any] | None = None
    """What the value of a yes must look like; None if a yes has no value."""

    def problem_with(self, answer: object) -> str | None:
        if self.schema is not None:
            return answer_problem(self.schema, answer)
        return None if answer is None else "the answer must have no value: only yes or no is asked"


_read_question = msgspec.json.Decoder(Question).decode


def asker_of(promise: Promise) -> str | None:
    """The task that asks; None if the promise is not an approval."""
    return needed_by(promise) if has_tag(promise.tags, APPROVAL) else None


def needed_by(promise: Promise) -> str | None:
    """The task without which settling an approval or a token means nothing; None if unknown.

    Both are below their task. Whoever may create a promise elsewhere does not ask in its name.
    """
    asker = tag_of(promise.tags, ASKER)
    return asker if asker and promise.id.startswith(f"{asker}.") else None


def question_of(promise: Promise) -> Question | None:
    """What an approval asks; None if this is not one, or somebody else wrote its param."""
    if asker_of(promise) is None:
        return None
    try:
        written = base64.b64decode(_read_value(promise.param).data or "")
        return None if is_too_deep(written) else _read_question(written)
    except (ValueError, msgspec.MsgspecError):
        return None


def misfit(promise: Promise, value: Value) -> Reply | None:
    """Refuses a value that a pending approval cannot be resolved with."""
    question = question_of(promise) if promise.is_pending else None
    if question is None:
        return None
    try:
        given = base64.b64decode(value.data or "")
        if is_too_deep(given):
            return refuse(400, f"Invalid answer: it {TOO_DEEP}")
        answer = msgspec.json.decode(given) if value.data else None
    except (ValueError, msgspec.MsgspecError):
        return refuse(400, "Invalid answer: it is not JSON")
    problem = question.problem_with(answer)
    return None if problem is None else refuse(400, f"Invalid answer: {problem}")


def settled_by(promise: Promise) -> tuple[str, str]:
    """Who has settled it and why, as its value says; empty where that is not known."""
    if f'"{BY}":' not in promise.value and f'"{REASON}":' not in promise.value:
        return "", ""
    headers = _read_value(promise.value).headers or {}
    return headers.get(BY, ""), headers.get(REASON, "")
