"""The commands with which a person ends a wait by hand, or gives it more time."""

from collections.abc import Iterator
from typing import Final

from layby.core.exit_refusals import is_run
from layby.core.waits import Waiting, WaitingOn
from layby.workflow.short_ids import quoted, short_id

MAX_NAMED: Final = 8
"""Commands for one wait: a bundle may have very many members."""


def by_hand(task_id: str, waiting: Waiting) -> tuple[str, ...]:
    """For the wait of a task; empty if only others than people can end it, or nobody has to.

    They name the wait itself, as far as it has a name: the task may be in another one when they are
    typed.
    """
    told = waiting.told
    wait_id = (told and _name_of(told)) or task_id
    if waiting.form == "backoff":
        return (f"layby wake {_typed(wait_id)}",)
    if waiting.form == "suspended" and waiting.kind == "trigger":
        return (f"layby wake {_typed(wait_id)} --value JSON", _extend(wait_id))
    if not waiting.is_held or told is None:
        return ()
    if told.kind != "bundle":
        return tuple(_commands(wait_id, told))
    own = [_extend(wait_id)] if told.record_id is not None else []
    found = [line for each in told.members for line in _commands(_name_of(each) or "", each)]
    return tuple([*own, *found][:MAX_NAMED])


def _name_of(told: WaitingOn) -> str | None:
    """That of a call means the wait of the function that serves it, while it is in one."""
    return None if told.kind == "rpc" else told.record_id


def _commands(wait_id: str, told: WaitingOn) -> Iterator[str]:
    """`wait_id`: what people may name it by; a member of a bundle without one cannot be moved."""
    awaited = _typed(told.awaited or "")
    match told.kind:
        case "sleep" | "condition":
            yield f"layby wake {_typed(wait_id)}"
        case "approval":
            yield approving(told.awaited or "", asks_value=told.asks_value)
            yield f"layby deny {awaited}"
        case "map":
            yield f"layby cancel {awaited}"
        case "promise" | "rpc" if told.awaited is not None:
            if is_run(told.awaited):
                yield f"layby cancel {awaited}"
            else:
                yield resolving(told.awaited)
                yield f"layby reject {awaited}"
        case _:
            return
    has_end = told.kind == "sleep" or told.deadline is not None or told.is_endless
    if wait_id and told.record_id is not None and has_end:
        yield _extend(wait_id)


def approving(approval_id: str, *, asks_value: bool) -> str:
    """The command that says yes."""
    return f"layby approve {_typed(approval_id)}{' --value JSON' if asks_value else ''}"


def resolving(promise_id: str) -> str:
    return f"layby resolve {_typed(promise_id)} --value JSON"


def _extend(wait_id: str) -> str:
    return f"layby extend {_typed(wait_id)} --timeout 1h"


def _typed(promise_id: str) -> str:
    return quoted(short_id(promise_id))
