"""Owns all calls from an executor to its embedder's callbacks; what they raise stops here."""

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

from layby.executors.executor_reasons import COMPLETION_RAISED, DISCARD_RAISED
from layby.executors.health import HealthEvent, HealthEventSink
from layby.executors.task_records import AdmittedTask, Discard, DiscardCallback, TaskCompletion

Notice = HealthEvent | Discard
"""News for the embedder: collected while a lock is held, sent after it is released."""

_log = logging.getLogger("layby.executors")


class Notifier:
    def __init__(self, on_discard: DiscardCallback | None) -> None:
        self.sink: HealthEventSink | None = None
        self.callback_errors = 0
        self._on_discard = on_discard
        self._count_lock = threading.Lock()

    def notify(self, notices: Iterable[Notice]) -> None:
        for notice in notices:
            if isinstance(notice, HealthEvent):
                self._emit(notice)
            elif self._on_discard is not None:
                self._call(DISCARD_RAISED, notice.task_id, self._on_discard, *notice)

    def notify_completion(self, task: AdmittedTask, completion: TaskCompletion) -> None:
        if task.completion is not None:
            self._call(COMPLETION_RAISED, task.task_id, task.completion, completion)

    def _call(self, reason: str, task_id: int, callback: Callable[..., object], *args: Any) -> None:
        try:
            callback(*args)
        except BaseException as error:  # no callback may end an executor
            if isinstance(error, KeyboardInterrupt) and on_main_thread():
                raise  # meant for the program, not for this callback
            self._report_error(reason, task_id, error)

    def _report_error(self, reason: str, task_id: int, error: BaseException) -> None:
        with self._count_lock:
            self.callback_errors += 1
        _log.error("task %s: %s", task_id, reason, exc_info=error)
        attributes = {"task_id": str(task_id), "error": repr(error)}
        self._emit(
            HealthEvent(
                "task_callback_error", source="task_executor", reason=reason, attributes=attributes
            )
        )

    def _emit(self, event: HealthEvent) -> None:
        if self.sink is not None:
            self.sink.emit(event)


def on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
