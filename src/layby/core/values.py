"""Values that core itself has to write, in the form the SDKs write theirs."""

import base64

import msgspec


def wrapped(payload: object) -> str:
    """JSON of `{"headers":{},"data":base64(JSON)}`: the one encoding layby writes."""
    data = base64.b64encode(msgspec.json.encode(payload)).decode()
    return msgspec.json.encode({"headers": {}, "data": data}).decode()


def error(name: str, message: str, **details: object) -> str:
    return wrapped({"__type": "error", "name": name, "message": message, **details})


def cancelled(by: str, reason: str) -> str:
    who = f" by {by}" if by else ""
    why = f": {reason}" if reason else ""
    return error("Cancelled", f"cancelled{who}{why}", by=by, reason=reason)


def worker_lost(task_id: str, crashes: int) -> str:
    message = f"task {task_id} lost its worker {crashes} times while it held a slot"
    return error("WorkerLost", message, crashes=crashes)
