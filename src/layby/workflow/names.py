"""What a workflow, a task and a run may be called: their names become ids of promises."""

import re
from collections.abc import Sequence

from layby.errors import UsageError, WorkflowError, nearest_name

MAX_NAME_BYTES = 200
"""Run, task and the suffixes of waits together stay below the 1024 bytes of a promise id."""
MAX_SCHEDULE_BYTES = MAX_NAME_BYTES - len("-1234567890123")
"""A run's id is the schedule's id followed by an instant."""


def check_name(name: object, what: str) -> str:
    """The name of a task or workflow, if it can be part of a promise id."""
    problem = _problem(name, ":/")
    if problem:
        raise WorkflowError(f"{what} {name!r} {problem}")
    assert isinstance(name, str)
    return name


def check_run_id(run_id: object) -> str:
    """The run id, if the ids of its promises can be made from it."""
    problem = _problem(run_id, ":./")
    if problem:
        raise UsageError(f"run id {run_id!r} {problem}")
    assert isinstance(run_id, str)
    return run_id


def check_text(given: object, what: str) -> str:
    """An id that is looked up: whatever it is, it is text."""
    if not isinstance(given, str):
        raise UsageError(f"{what} {given!r} must be a string, not {type(given).__name__}")
    return given


def check_schedule_id(schedule_id: object) -> str:
    """The schedule id, if the ids of its runs can be made from it."""
    problem = _problem(schedule_id, ":./", MAX_SCHEDULE_BYTES)
    if problem:
        raise UsageError(f"schedule id {schedule_id!r} {problem}")
    assert isinstance(schedule_id, str)
    return schedule_id


def close_match(name: str, known: Sequence[str]) -> str:
    """A hint to append to an unknown name; empty when nothing is close."""
    near = nearest_name(name, known)
    return f"; did you mean '{near}'?" if near else ""


def _problem(name: object, separators: str, most: int = MAX_NAME_BYTES) -> str | None:
    if not isinstance(name, str):
        return f"must be a string, not {type(name).__name__}"
    if not name.strip():
        return "must not be empty"
    if len(name.encode(errors="replace")) > most:
        return f"is too long: at most {most} bytes"
    if not name.isprintable():
        return "must not contain control characters or broken text"
    found = [character for character in separators if character in name]
    if not found:
        return None
    listed = " or ".join(f"'{character}'" for character in found)
    remedy = re.sub(f"[{re.escape(separators)}]+", "-", name).strip("-")
    return f"must not contain {listed}" + (f": use '{remedy}', for instance" if remedy else "")
