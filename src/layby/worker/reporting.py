"""Reports to the store how tries ended, and takes the next task in the same command.

A report is sent until it is answered. That of the last task of a run also says how the run ends, if
this worker knows how all other tasks ended.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from layby.client.interface import WatchingClient
from layby.client.patience import send_until_answered
from layby.core.commands import (
    BlockTask,
    DeferTask,
    FailTask,
    FinishTask,
    LimitTask,
    RootVerdict,
    Take,
    Value,
)
from layby.core.model import Millis, PromiseState, Task
from layby.core.replies import Reply
from layby.errors import EngineStopped, StoreError, UsageError, error_for
from layby.program import Program, Verdict
from layby.wire.json_values import read_error, text_of
from layby.worker.attempt import Attempt
from layby.worker.callbacks import Callback, Callbacks
from layby.worker.credit import NOTHING, Ask
from layby.worker.ending import Completed, Deferring, Failed, failed
from layby.worker.open_takes import OpenTakes

logger = logging.getLogger(__name__)

UNACCEPTABLE = (400, 413)
"""Refusals of the content, not of the sender or the moment."""
MAX_VERDICT_BYTES = 64 * 1024

Report = FinishTask | FailTask | DeferTask | BlockTask | LimitTask


class ReportHost(Protocol):
    """What reports need from the worker."""

    client: WatchingClient
    open_takes: OpenTakes

    def now(self) -> Millis: ...

    def ask(self) -> tuple[Ask, Take | None]:
        """What a report may bring back, and the take that says so."""
        ...

    def reported(self, report: Report, ask: Ask, reply: Reply | None) -> None:
        """None when the engine has been stopped."""
        ...

    def spawn(self, coroutine: Any) -> "asyncio.Task[Any]": ...


class Reporter:
    def __init__(self, host: ReportHost, program: Program, callbacks: Callbacks) -> None:
        self._host = host
        self._program = program
        self._callbacks = callbacks
        self._under_way: set[tuple[str, int]] = set()
        """Claims whose reports have not been answered."""

    def is_under_way(self, task_id: str, version: int) -> bool:
        """Whether a report of this claim has not been answered yet."""
        return (task_id, version) in self._under_way

    def report(self, attempt: Attempt, ending: Completed | Failed | Deferring) -> None:
        if isinstance(ending, Completed):
            self._finish(attempt, ending.value)
        elif isinstance(ending, Deferring):
            self._defer(attempt, ending)
        else:
            self._fail(attempt, ending)

    def settle(self, task: Task, verdict: Verdict) -> None:
        """A task that needs no body: a skipped node, a run that is over."""
        if verdict.state == "rejected" and not task.is_root:
            told = read_error(text_of(verdict.value))
            logger.error("%s failed: %s%s", task.id, told, _stack_below(verdict.value))
        ask, take = self._host.ask()
        root = None if task.is_root else self._root_verdict(task.id, verdict.state, verdict.value)
        finish = FinishTask(
            id=task.id,
            version=task.version,
            state=verdict.state,
            value=verdict.value,
            root=root,
            take=take,
        )
        self._send(finish, ask, self._settled)

    def block(self, command: BlockTask) -> None:
        """The code here does not fit: the task waits for a worker with other code."""
        told = "%s is blocked, because code '%s' does not fit: %s; it waits for other code"
        logger.warning(told, command.id, command.code, command.why)
        self._send(command, NOTHING, self._settled)

    def limit(self, command: LimitTask) -> None:
        """Its limits are known now: it waits for permits."""
        self._send(command, NOTHING, self._settled)

    def _finish(self, attempt: Attempt, value: Value) -> None:
        ask, take = self._host.ask()
        finish = FinishTask(
            id=attempt.id,
            version=attempt.version,
            state="resolved",
            value=value,
            history=attempt.loaded.history.completed(self._host.now()),
            root=self._root_verdict(attempt.id, "resolved", value),
            take=take,
        )
        self._send(finish, ask, partial(self._finished, attempt))

    def _defer(self, attempt: Attempt, ending: Deferring) -> None:
        ask, take = self._host.ask()
        deferral = ending.deferral
        defer = DeferTask(
            id=attempt.id,
            version=attempt.version,
            trigger=deferral.trigger,
            resume=deferral.resume(ending.context, bare=not attempt.has_kept),
            timeout=deferral.timeout,
            history=attempt.loaded.history.handed_back(self._host.now(), "Suspended"),
            take=take,
        )
        self._send(defer, ask, partial(self._deferred, attempt))

    def _fail(self, attempt: Attempt, failure: Failed) -> None:
        now, delay = self._host.now(), failure.delay
        retry_in = None if delay is None else round(delay * 1000)
        history = attempt.loaded.history
        history.failed(now, failure.text, None if retry_in is None else now + retry_in)
        what = (attempt.id, attempt.try_number, failure.text)
        if delay is None:
            logger.error("%s failed in try %d: %s%s", *what, _stack_below(failure.value))
        else:
            logger.warning("%s failed in try %d: %s; it is tried again in %.1f s", *what, delay)
        ask, take = self._host.ask()
        fail = FailTask(
            id=attempt.id,
            version=attempt.version,
            error=failure.value,
            retry_in=retry_in,
            history=history.text,
            root=self._root_verdict(attempt.id, "rejected", failure.value)
            if retry_in is None
            else None,
            take=take,
            still_running=attempt.outlasted,
        )
        self._send(fail, ask, partial(self._call, failure.then, attempt.id))

    def _root_verdict(self, task_id: str, state: PromiseState, value: Value) -> RootVerdict | None:
        """How the run ends, if this is its last task and that is known here."""
        verdict = self._program.conclude(task_id, state, value)
        if verdict is None or len(verdict.value.data or "") > MAX_VERDICT_BYTES:
            return None
        return RootVerdict(verdict.state, verdict.value)

    # --- answers -------------------------------------------------------------------------

    def _finished(self, attempt: Attempt, reply: Reply) -> None:
        """A result that the store refuses, for instance because it is too large, is a failure."""
        if reply.status in UNACCEPTABLE:
            error = UsageError(f"the result of {attempt.id} was refused: {reply.data}")
            self._fail(attempt, failed(attempt, error, may_retry=False))
        else:
            self._call(attempt.loaded.callback(None), attempt.id, reply)

    def _deferred(self, attempt: Attempt, reply: Reply) -> None:
        """What the store refuses to wait for is a failure; there is no callback for a wait.

        Whoever may not wait for it now may be allowed to when the task is tried again.
        """
        told = f"{attempt.id} cannot be deferred: {reply.data}"
        if reply.status == 403:
            self._fail(attempt, failed(attempt, error_for(403, told)))
        elif reply.status in (*UNACCEPTABLE, 422):
            self._fail(attempt, failed(attempt, UsageError(told), may_retry=False))

    def _settled(self, reply: Reply) -> None:
        """There is no callback."""

    def _call(self, then: Callback | None, task_id: str, reply: Reply) -> None:
        if then is not None and reply.is_ok:
            self._host.spawn(self._callbacks.call(then, task_id))

    # --- sending -------------------------------------------------------------------------

    def _send(self, report: Report, ask: Ask, then: Callable[[Reply], None]) -> None:
        self._host.open_takes.begin(report)
        self._under_way.add((report.id, report.version))
        answer = self._host.client.ask(report)
        answer.add_done_callback(partial(self._answered, report, ask, then))

    def _answered(
        self,
        report: Report,
        ask: Ask,
        then: Callable[[Reply], None],
        answer: "asyncio.Future[Reply]",
    ) -> None:
        failure = asyncio.CancelledError() if answer.cancelled() else answer.exception()
        if failure is None and answer.result().status != 401:
            self._done(report, ask, then, answer.result())
        elif isinstance(failure, EngineStopped | asyncio.CancelledError):
            self._reported(report, ask, None)
        elif failure is None or isinstance(failure, StoreError):
            self._host.spawn(self._again(report, ask, then))
        else:
            logger.error("a bug: the report of %s failed", report.id, exc_info=failure)
            self._reported(report, ask, None)

    async def _again(self, report: Report, ask: Ask, then: Callable[[Reply], None]) -> None:
        """The store did not answer: send the report until it does."""
        try:
            reply = await send_until_answered(self._host.client, report, is_unsure=True)
        except BaseException:
            self._reported(report, ask, None)
            raise
        self._done(report, ask, then, reply)

    def _done(self, report: Report, ask: Ask, then: Callable[[Reply], None], reply: Reply) -> None:
        self._reported(report, ask, reply)
        then(reply)

    def _reported(self, report: Report, ask: Ask, reply: Reply | None) -> None:
        self._under_way.discard((report.id, report.version))
        self._host.reported(report, ask, reply)


def _stack_below(error: Value) -> str:
    """The traceback on lines of its own, where there is one."""
    stack = read_error(text_of(error)).stack
    return f"\n{stack}" if stack else ""
