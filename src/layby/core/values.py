"""The envelope of values, and the values that core itself writes, in the form the SDKs use."""

import base64

import msgspec

from layby.core.fields import Value

WORKER_LOST = "WorkerLost"
WITHDRAWN = "the task waits for it no longer"


def wrap(encoded: bytes) -> Value:
    """`{"headers":{},"data":base64(JSON)}`: the one form of a value that layby writes."""
    return Value(headers={}, data=base64.b64encode(encoded).decode())


def text_of(value: Value) -> str:
    """The value as a promise stores it."""
    return msgspec.json.encode(value).decode()


def data_of(text: str) -> bytes:
    """What `wrap` was given, of a value as it is stored."""
    return base64.b64decode(msgspec.json.decode(text, type=Value).data or "")


def error_value(name: str, message: str, **details: object) -> Value:
    return wrap(
        msgspec.json.encode({"__type": "error", "name": name, "message": message, **details})
    )


def error(name: str, message: str, **details: object) -> str:
    return text_of(error_value(name, message, **details))


def cancelled(by: str, reason: str) -> str:
    who = f" by {by}" if by else ""
    why = f": {reason}" if reason else ""
    return error("Cancelled", f"cancelled{who}{why}", by=by, reason=reason)


def run_has_ended(root_id: str) -> str:
    """Why a node is cancelled that had not settled when its run did."""
    return cancelled("layby", f"{root_id} has ended")


def given_up() -> str:
    """Why something is cancelled that a task has made for a wait and needs no more."""
    return cancelled("", WITHDRAWN)


def map_has_ended(join_id: str) -> str:
    """Why an item is cancelled that had not settled when its join did."""
    return cancelled("layby", f"map {join_id} has ended")


def task_was_cancelled(task_id: str) -> str:
    """Why a run is cancelled that this task has started."""
    return cancelled("layby", f"task {task_id}, which started it, was cancelled")


def worker_lost(task_id: str, crashes: int) -> str:
    return error(WORKER_LOST, lost_message(task_id, crashes), crashes=crashes)


def lost_message(task_id: str, crashes: int) -> str:
    times = "once" if crashes == 1 else f"{crashes} times"
    return (
        f"task {task_id} lost its worker {times} while it held a slot: see how those processes "
        "ended (killed, out of memory, a crash in native code), or raise max_crashes"
    )
