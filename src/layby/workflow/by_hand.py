"""The commands with which a person ends a wait by hand, or gives it more time."""

from collections.abc import Iterator
from typing import Final

from layby.core.exit_refusals import is_run
from layby.core.waits import Waiting, WaitingOn
from layby.workflow.short_ids import quoted, short_id

MAX_NAMED: Final = 8
"""Commands for one wait: a bundle may have very many members."""


def by_hand(task_id: str, waiting: Waiting) -> tuple[str, ...]:
    """For the wait of a task; empty if only others than people can end it, or nobody has to."""
    told = waiting.told
    if waiting.form == "backoff":
        return (f"layby wake {_typed(task_id)}",)
    if waiting.form == "suspended" and waiting.kind == "trigger":
        return (f"layby wake {_typed(task_id)} --value JSON", _extend(task_id))
    if not waiting.is_held or told is None:
        return ()
    if told.kind != "bundle":
        return tuple(_commands(task_id, told))
    own = [_extend(task_id)] if told.record_id is not None else []
    found = [line for each in told.members for line in _commands(each.record_id or "", each)]
    return tuple([*own, *found][:MAX_NAMED])


def _commands(wait_id: str, told: WaitingOn) -> Iterator[str]:
    """`wait_id`: what people may name it by; a member of a bundle without one cannot be moved."""
    awaited = _typed(told.awaited or "")
    match told.kind:
        case "sleep" | "condition":
            yield f"layby wake {_typed(wait_id)}"
        case "approval":
            yield from (f"layby approve {awaited}", f"layby deny {awaited}")
        case "map":
            yield f"layby cancel {awaited}"
        case "promise" | "rpc" if told.awaited is not None:
            if is_run(told.awaited):
                yield f"layby cancel {awaited}"
            else:
                yield f"layby resolve {awaited} --value JSON"
                yield f"layby reject {awaited}"
        case _:
            return
    if wait_id and told.record_id is not None and (told.kind == "sleep" or told.deadline):
        yield _extend(wait_id)


def _extend(wait_id: str) -> str:
    return f"layby extend {_typed(wait_id)} --timeout 1h"


def _typed(promise_id: str) -> str:
    return quoted(short_id(promise_id))
