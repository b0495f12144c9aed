"""The tries of a task and how each spent its time, kept short however often it waits.

Every function takes a history and returns the next one. What comes late or twice changes
nothing: the end of a span that is not open, a try that has already started.
"""

from typing import Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from layby.core.model import Millis, Task
from layby.core.replies import Resumed
from layby.core.validate import MAX_TOLD_BYTES
from layby.wire.json_values import shortened
from layby.wire.stack_text import ROOM_FOR_CUT

MAX_TRIES: Final = 20
MAX_SPANS: Final = 50
MAX_WHO_CHARS: Final = 200
"""Of who resumed a try and why; the promise that resumed it has all of it."""
SHORT_ERROR_CHARS: Final = 400
"""Of each error, where all of them do not fit."""

SpanKind = Literal["queued", "running", "parked"]
Why = Literal["first", "retry", "resumed", "recovered", "continued", "other code"]


class Span(Struct, frozen=True, gc=False, array_like=True):
    kind: SpanKind
    start: Millis
    end: Millis | None = None


class Try(Struct, frozen=True, gc=False, omit_defaults=True):
    """A claim that began the task's body, the first, second, ... of them."""

    number: int
    why: str
    """One of `Why`; later versions may add others."""
    spans: tuple[Span, ...] = ()
    outcome: str | None = None
    """None until it ends: Completed, Failed, Cancelled, Suspended, Halted, Released, Blocked, Lost.

    A worker that dies says nothing: its try is Lost when the next one starts.
    """
    error: str | None = None
    retry_at: Millis | None = None
    """When the next try is due, if this one failed and there is to be another."""
    folded: int = 0
    """How many of its earlier spans are no longer kept."""
    code: str | None = None
    """The name of the code that its body ran with, if it was told."""
    callback: str | None = None
    """The function that it began at, if not at that of the task."""
    event: str | None = None
    """The promise that resumed it: its value is the payload."""
    by: str | None = None
    """Who resumed it, if it was a person."""
    reason: str | None = None

    @property
    def is_open(self) -> bool:
        return self.outcome is None


class History(Struct, frozen=True, gc=False, omit_defaults=True):
    tries: tuple[Try, ...] = ()
    folded: int = 0
    """How many earlier tries are no longer kept."""

    @property
    def last(self) -> Try | None:
        return self.tries[-1] if self.tries else None

    def to_text(self) -> str:
        """As it is stored. One that is too long for that has its errors cut first, and then
        fewer tries.
        """
        if len(text := _encode(self)) > MAX_TOLD_BYTES:
            short = replace(self, tries=tuple(map(_with_short_error, self.tries)))
            while len(text := _encode(short)) > MAX_TOLD_BYTES and len(short.tries) > 1:
                short = History(short.tries[1:], short.folded + 1)
        return text.decode()


class TaskHistory:
    """The history of a claimed task while its worker runs it."""

    __slots__ = ("_code", "_history", "_queued_at", "_resumed", "_try_number")

    def __init__(
        self,
        task: Task,
        queued_at: Millis | None = None,
        code: str | None = None,
        resumed: Resumed | None = None,
    ) -> None:
        self._code = code
        self._resumed = resumed
        self._history = read_history(task.history)
        self._try_number = task.try_number
        self._queued_at = queued_at

    @property
    def text(self) -> str:
        return self._history.to_text()

    def started(self, now: Millis) -> None:
        """If earlier claims have left no trace, this one takes up what they have lost."""
        why = why_next(self._history)
        self._history = started(
            self._history, self._try_number, why, now, self._queued_at, self._code, self._resumed
        )

    def parked(self, now: Millis) -> None:
        self._history = parked(self._history, now)

    def resumed(self, now: Millis) -> None:
        self._history = resumed(self._history, now)

    def ended(
        self, now: Millis, outcome: str, error: str | None = None, retry_at: Millis | None = None
    ) -> None:
        self._history = ended(self._history, now, outcome, error, retry_at)


class ClaimHistory(TaskHistory):
    """The history of a claimed task, grown by this try; it outlives the claim while parked."""

    __slots__ = ()

    def completed(self, now: Millis) -> str:
        """The text to store with the result; if that is refused, the try can still fail."""
        return ended(self._history, now, "Completed").to_text()

    def handed_back(self, now: Millis, outcome: str) -> str:
        """The text to store; `outcome` is `Released`, `Halted` or `Suspended`."""
        return ended(self._history, now, outcome).to_text()

    def blocked(self, now: Millis, why: str) -> str:
        return ended(self._history, now, "Blocked", why).to_text()

    def failed(self, now: Millis, error: str, retry_at: Millis | None) -> None:
        self.ended(now, "Failed", error, retry_at)


def _with_short_error(each: Try) -> Try:
    if each.error is None or len(each.error) <= SHORT_ERROR_CHARS + ROOM_FOR_CUT:
        return each
    return replace(each, error=shortened(each.error, SHORT_ERROR_CHARS))


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(History)
_WHY: Final[dict[str | None, Why]] = {
    "Failed": "retry",
    "Suspended": "resumed",
    "Halted": "continued",
    "Blocked": "other code",
}


def read_history(text: str | None) -> History:
    """The stored history; empty when there is none, or another version wrote it."""
    try:
        return _decoder.decode(text) if text else History()
    except (msgspec.MsgspecError, UnicodeError):
        return History()


def why_next(history: History) -> Why:
    """Why there is another try after these; one left open was lost with its worker."""
    return "first" if history.last is None else _WHY.get(history.last.outcome, "recovered")


def started(
    history: History,
    try_number: int,
    why: str,
    now: Millis,
    queued_at: Millis | None = None,
    code: str | None = None,
    resumed: Resumed | None = None,
) -> History:
    """A worker has claimed the task. A try still open then was lost with its worker."""
    if history.last is not None and history.last.number >= try_number:
        return history
    told = ended(history, now, "Lost")
    history = without_gap(told, try_number, resumed)
    if history != told:
        why = why_next(history)
    queued = () if queued_at is None else (Span("queued", min(queued_at, now), now),)
    begun = Try(try_number, why, (*queued, Span("running", now)), code=code)
    return _folded(history, begun if resumed is None else _begun_by(begun, resumed))


def _begun_by(begun: Try, resumed: Resumed) -> Try:
    event = resumed.event
    by, reason = (text[:MAX_WHO_CHARS] or None for text in (event.by, event.reason))
    return replace(begun, callback=resumed.name, event=event.id, by=by, reason=reason)


def without_gap(history: History, try_number: int, resumed: Resumed | None = None) -> History:
    """Earlier tries that left no trace were lost before they could report anything.

    Whatever the next one is resumed with, they were, too.
    """
    told = 0 if history.last is None else history.last.number
    first = max(told + 1, try_number - MAX_TRIES)
    lost = (
        Try(each, why_next(history) if each == told + 1 else "recovered", outcome="Lost")
        for each in range(first, try_number)
    )
    missing = lost if resumed is None else (_begun_by(each, resumed) for each in lost)
    skipped = max(0, first - told - 1)
    return _folded(replace(history, folded=history.folded + skipped), *missing)


def _folded(history: History, *more: Try) -> History:
    tries = (*history.tries, *more)
    too_many = max(0, len(tries) - MAX_TRIES)
    return History(tries[too_many:], history.folded + too_many)


def parked(history: History, now: Millis) -> History:
    """The slot is released."""
    return _turned(history, now, "parked")


def resumed(history: History, now: Millis) -> History:
    """The slot is held again."""
    return _turned(history, now, "running")


def ended(
    history: History,
    now: Millis,
    outcome: str,
    error: str | None = None,
    retry_at: Millis | None = None,
) -> History:
    last = history.last
    if last is None or not last.is_open:
        return history
    spans = _closed(last.spans, now)
    return _with_last(
        history, replace(last, spans=spans, outcome=outcome, error=error, retry_at=retry_at)
    )


def _turned(history: History, now: Millis, kind: SpanKind) -> History:
    last = history.last
    if last is None or not last.is_open or last.spans[-1].kind == kind:
        return history
    spans = (*_closed(last.spans, now), Span(kind, now))
    too_many = max(0, len(spans) - MAX_SPANS)
    return _with_last(history, replace(last, spans=spans[too_many:], folded=last.folded + too_many))


def _closed(spans: tuple[Span, ...], now: Millis) -> tuple[Span, ...]:
    *earlier, last = spans
    return (*earlier, replace(last, end=max(now, last.start)))


def _with_last(history: History, last: Try) -> History:
    return replace(history, tries=(*history.tries[:-1], last))
