"""How a person answers an approval: yes with a value that fits the question, or no."""

from typing import Final

from layby.core import birth, validate, values
from layby.core.draft import Draft
from layby.core.fields import NOTHING, Value
from layby.core.kinds import Problems, Sender, declare, handles
from layby.core.promises import NOT_FOUND, SettlingCommand, settlement
from layby.core.questions import BY, DENIED, REASON, VIA, asker_of, misfit
from layby.core.replies import Reply, SettlementData, refuse

MAX_WORD_CHARS: Final = 1_000
"""Of the name of whoever answers, and of their reason."""


@declare("layby.promise.answer", sender=Sender.CLIENT, answer=SettlementData)
class AnswerApproval(SettlingCommand, frozen=True):
    """Answer an approval. Who answers is what the caller says; `via` is how, if not directly."""

    approved: bool = True
    value: Value = NOTHING
    by: str = ""
    reason: str = ""
    via: str = ""

    def problems(self) -> Problems:
        yield from super().problems()
        yield from validate.size(self.value, "value")
        yield from validate.words(by=self.by, reason=self.reason, via=self.via)
        for name, text in (("by", self.by), ("reason", self.reason), ("via", self.via)):
            if len(text) > MAX_WORD_CHARS:
                yield f"{name} must have at most {MAX_WORD_CHARS} characters"


@handles(AnswerApproval)
def answer(d: Draft, c: AnswerApproval) -> Reply:
    promise = d.promise(c.id)
    if promise is None:
        return NOT_FOUND
    if asker_of(promise) is None:
        return refuse(409, "It is not an approval: resolve or reject it")
    refused = misfit(promise, c.value) if c.approved else None
    if refused is not None:
        return refused
    state = "resolved" if c.approved else "rejected"
    return settlement(d, promise, c, state, birth.encoded(_signed(c)))


def _signed(c: AnswerApproval) -> Value:
    """What the promise is settled with; its headers say who did it."""
    told = ((BY, c.by), (REASON, c.reason), (VIA, c.via))
    data = c.value.data if c.approved else values.error_value(DENIED, _denial(c)).data
    return Value(
        headers={name: text for name, text in told if text},
        data=data or values.wrap(b"null").data,
    )


def _denial(c: AnswerApproval) -> str:
    return c.reason or f"denied by {c.by or 'somebody'}"
