"""What can go wrong outside the rules; refusals by the rules are replies, not exceptions.

Each class says which statuses of a reply it stands for, and how a command ends that raises it. The
same mistake raises the same class, whether the engine is in this process or behind a server.
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, ClassVar


class LaybyError(Exception):
    """Anything layby raises on purpose. The message says what, which id and what to do."""

    statuses: ClassVar[tuple[int, ...]] = ()
    """The statuses of replies, as in HTTP, that are raised as this class."""
    exit_code: ClassVar[int] = 2
    """Of a command that ends with it: 1, it ran and the answer is no; 2, it could not run."""


class UsageError(LaybyError):
    """The caller asked for something impossible: change the call."""

    statuses = (400, 413)


class NotFound(UsageError, LookupError):
    """There is no run, task, schedule, promise or workflow of that name."""

    statuses = (404,)
    exit_code = 1


class ResultExpired(NotFound):
    """It ended so long ago that it was pruned: its id is known, its result is not."""

    statuses = ()

    def __init__(self, what: str, state: str = "") -> None:
        super().__init__(what, state)
        self.what = what
        self.state = state
        """How its promise was settled."""

    def __str__(self) -> str:
        how = f" ({self.state})" if self.state else ""
        return (
            f"{self.what} has ended{how} and was pruned, so its result is gone: "
            "keep it longer (retention), or start it under another id"
        )


class Conflict(UsageError):
    """What is there already does not allow it: another one of that id, or one in another state."""

    statuses = (409, 422)
    exit_code = 1


class NotAllowed(LaybyError):
    """The server does not accept the token (401), or the token does not allow this (403)."""

    statuses = (401, 403)


class Unavailable(LaybyError, ConnectionError):
    """Nobody could answer: a server, a file or a Runner that is away, full or closed.

    It may work later; what was asked may have been done nevertheless if the answer was lost.
    """

    statuses = (503,)


class WireError(LaybyError):
    """The peer sent something that does not follow the protocol."""


class StoreError(LaybyError):
    """The store refused or failed; nothing in the batch was written."""


class StoreUnavailable(StoreError, Unavailable):
    """The store cannot serve now (full disk, locked, read-only); the same call may work later."""


class StoreAway(StoreUnavailable):
    """The database cannot be reached: it is stopped, restarting, or refuses the connection."""


class StoreRefused(StoreAway):
    """The database does not let us in: a wrong user, password or name of a database.

    Or its address cannot be understood, or asks for what cannot be had, such as TLS.

    A process that is starting ends with it. One that had been let in tries again, as when the
    database is away: somebody may be changing the password just now.
    """


class StoreBusy(StoreUnavailable):
    """Another program has held a lock on the file for longer than we wait."""


class StoreGone(StoreUnavailable):
    """The store was taken away while it was in use: its file was deleted, replaced or overwritten.

    The batch that noticed may be in the file that was taken away; nothing is written after it.
    """


class StoreMigrated(StoreGone):
    """A newer layby has changed the database so that this version must not use it any more.

    Nothing is read or written after that: end this process, and start the newer version.
    """


class ReadRefused(StoreError, UsageError):
    """A read that would hold too much, or has lasted too long: ask for less, or page by page."""

    statuses = ()


class StoreOwned(StoreError):
    """Another process owns this file."""


class StoreOpenHere(StoreOwned):
    """This process itself has the file open."""


class StoreUnreadable(StoreError):
    """The file is not one this version of layby can read."""


class EngineStopped(Unavailable):
    """The engine has been stopped; nothing was written for this command."""


class RunnerClosed(EngineStopped, UsageError):
    """This Runner has been closed: open another one."""


class WorkflowError(UsageError):
    """An invalid task or workflow: the message names the ids and the remedy."""


class ContextError(UsageError):
    """A value that cannot travel between tasks: not JSON, or too large."""


class RuleError(LaybyError):
    """A rule function raised, so it is unknown whether its task should run."""


class TaskFailed(LaybyError):
    """How a task failed, told by what is stored: its error is not here, only what it said.

    `type` is the name of the error's type. The traceback is also a note, so that Python shows it.
    """

    def __init__(
        self,
        task_id: str,
        type: str,  # noqa: A002 - the name users read
        message: str = "",
        traceback: str = "",
        try_number: int = 0,
    ) -> None:
        super().__init__(task_id, type, message, traceback, try_number)
        self.task_id = task_id
        self.type = type
        self.message = message
        self.traceback = traceback
        self.try_number = try_number
        """The try that failed for good; 0 when the task had not begun."""
        if traceback:
            self.add_note(traceback)

    def __str__(self) -> str:
        tried = f" in try {self.try_number}" if self.try_number else ""
        what = f"{self.type}: {self.message}" if self.message else self.type
        return f"task '{self.task_id}' failed{tried}: {what}"


class RunFailed(LaybyError):
    """The run ended without its result. `failed` maps task ids to what went wrong in them.

    `errors` has more of each: type, message, traceback and number of the try. They are the
    `__cause__` too: the one there is, or a group of them. `context` is what the run had made.
    """

    exit_code = 1

    def __init__(
        self,
        run_id: str,
        failed: Mapping[str, str],
        reason: str = "",
        errors: Mapping[str, TaskFailed] | None = None,
        context: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(run_id, failed, reason)
        self.run_id = run_id
        self.failed = dict(failed)
        self.reason = reason
        self.errors: Mapping[str, TaskFailed] = dict(errors or {})
        self.context: Any = {} if context is None else context
        """A `Context`, with `context.result(task)`, if a run raised this."""
        if self.errors:
            self.__cause__ = _together(run_id, list(self.errors.values()))

    def __str__(self) -> str:
        told = [self.reason] if self.reason else []
        told += [f"task '{task}' failed: {error}" for task, error in self.failed.items()]
        return f"run '{self.run_id}' failed: {'; '.join(told) or 'no reason was given'}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Made again from everything it was made from: a pickled error loses its cause."""
        made_from = (self.run_id, self.failed, self.reason, self.errors, self.context)
        return type(self), made_from, self.__dict__


def _together(run_id: str, errors: list[TaskFailed]) -> TaskFailed | ExceptionGroup[TaskFailed]:
    if len(errors) == 1:
        return errors[0]
    return ExceptionGroup(f"{len(errors)} tasks of run '{run_id}' failed", errors)


class ProcessFailed(LaybyError):
    """A body in a process of its own raised, or its process died.

    What it raised stays there: `type`, `message` and `traceback` say what it was.
    """

    def __init__(self, message: str, type: str = "", traceback: str = "") -> None:  # noqa: A002
        super().__init__(message, type, traceback)
        self.message = message
        self.type = type
        self.traceback = traceback

    def __str__(self) -> str:
        return ": ".join(text for text in (self.type, self.message) if text)


class RunCancelled(LaybyError):
    """Somebody cancelled the run."""

    exit_code = 1

    def __init__(self, run_id: str, by: str = "", reason: str = "") -> None:
        super().__init__(run_id, by, reason)
        self.run_id = run_id
        self.by = by
        self.reason = reason

    def __str__(self) -> str:
        who = f" by {self.by}" if self.by else ""
        why = f": {self.reason}" if self.reason else ""
        return f"run '{self.run_id}' was cancelled{who}{why}"


class TaskTimeout(LaybyError):
    """The task held its slot for longer than its `timeout`; parked time does not count."""

    traceback: str = ""
    """Where a body in a process of its own stood; of others, Python has the traceback."""


class DeferTimeout(LaybyError):
    """What the task waited for did not come in time."""


class NoneSucceeded(LaybyError):
    """`any_of` has nothing left to wait for: each of its waits has failed.

    `errors` are what they failed with, in their order.
    """

    def __init__(self, task_id: str, errors: Sequence[Exception]) -> None:
        super().__init__(task_id, errors)
        self.task_id = task_id
        self.errors = tuple(errors)

    def __str__(self) -> str:
        told = "; ".join(f"{type(each).__name__}: {each}" for each in self.errors)
        return f"{self.task_id}: none of {len(self.errors)} waits succeeded: {told}"


class ItemFailed(LaybyError):
    """How an item of a `map` failed: its number, the id of its promise, and what it said.

    `type` is the name of the error's type. The traceback is also a note, so that Python shows it.
    """

    def __init__(
        self,
        index: int,
        promise_id: str,
        type: str,  # noqa: A002 - the name users read
        message: str = "",
        traceback: str = "",
    ) -> None:
        super().__init__(index, promise_id, type, message, traceback)
        self.index = index
        self.promise_id = promise_id
        self.type = type
        self.message = message
        self.traceback = traceback
        if traceback:
            self.add_note(traceback)

    def __str__(self) -> str:
        what = f"{self.type}: {self.message}" if self.message else self.type
        return f"item {self.index} ({self.promise_id}) failed: {what}"


class ConditionError(LaybyError):
    """The condition of a `defer_until` raised too many times in a row."""


class TriggerError(LaybyError):
    """The trigger a task waited for failed."""


class ReplayMismatch(LaybyError):
    """The body asks for something other than what was recorded under the same key."""


class WorkerLost(LaybyError):
    """The task's worker died too often while the task held a slot."""


class PromiseRejected(LaybyError):
    """The promise a task waited for was rejected; `data` is whatever the rejection carried."""

    verb = "was rejected"

    def __init__(
        self, promise_id: str, name: str = "", message: str = "", data: Any = None
    ) -> None:
        super().__init__(promise_id, name, message, data)
        self.promise_id = promise_id
        self.name = name
        self.message = message
        self.data = data

    def __str__(self) -> str:
        why = ": ".join(text for text in (self.name, self.message) if text)
        return f"promise '{self.promise_id}' {self.verb}{': ' if why else ''}{why}"


class PromiseCancelled(PromiseRejected):
    """The promise was cancelled before it had a value."""

    verb = "was cancelled"


class PromiseTimedOut(PromiseRejected):
    """The promise passed its own deadline (a wait's timeout is `DeferTimeout`)."""

    verb = "timed out"


_BY_STATUS: dict[int, type[LaybyError]] = {
    status: each
    for each in (UsageError, NotFound, Conflict, NotAllowed, Unavailable)
    for status in each.statuses
}


_REMEDIES = {
    401: ": the server needs a valid token; give one (token= or --token)",
    403: ": the token does not allow this; give one that does (token= or --token)",
}


def error_for(status: int, text: str, *, remedy: str | None = None) -> LaybyError:
    """The exception for a reply that refuses; a token is the remedy if no other is given."""
    remedy = _REMEDIES.get(status, "") if remedy is None else remedy
    return _BY_STATUS.get(status, LaybyError)(f"{text}{remedy}")


def nearest_name(name: str, known: Sequence[str]) -> str | None:
    """The known name that an unknown one may mean, for its error."""
    return next(iter(get_close_matches(name, known, n=1)), None)
