"""What the event of a trigger means to the task that waited for it: a payload, or an exception."""

from typing import Any

from layby.core.replies import TriggerEvent
from layby.errors import DeferTimeout, TriggerError
from layby.wire.json_values import from_text, read_error


def payload_of(event: TriggerEvent, task_id: str) -> Any:
    """What the trigger fired with; one that failed, or came too late, raises."""
    if event.state == "resolved":
        return from_text(event.value)
    by = f" by {event.by}" if event.by else ""
    why = f" ({event.reason})" if event.reason else ""
    if event.state == "rejected_timedout":
        raise DeferTimeout(f"{task_id}: {event.id} had not fired when its time was up{by}{why}")
    what = "was cancelled" if event.state == "rejected_canceled" else "failed"
    raise TriggerError(f"{task_id}: {event.id} {what}{by}{why}: {read_error(event.value)}")
