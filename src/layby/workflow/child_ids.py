"""The ids of child runs that were given none: the same in every try of the caller."""

import hashlib
import re
from typing import Final

from layby.workflow.names import MAX_NAME_BYTES
from layby.workflow.plan import NodeId

DIGEST_CHARS: Final = 12
_UNFIT: Final = re.compile(r"[:./]+|[^\w~ =+@-]+")
_NUMBERED: Final = re.compile(r"start-(?:r(\d+)\.)?(\d+)")
"""The key of a call without one: `r3.` is of a function that the task was resumed at."""
_LIKE_A_NUMBER: Final = re.compile(r"(r\d+-)?\d+|key-.*")


def child_run_id(caller: NodeId, key: str, life: int = 1) -> str:
    """`order-7~ship~1`: the run, the task and the key of the call, or its number.

    What cannot stand in a run id, or would make it too long, is replaced, and a digest added.
    `life`: of the parent, if the child is of that life only.
    """
    parts = [caller.run_id, caller.task_id, _short(key)]
    exact = "~".join([*parts, str(life)] if life > 1 else parts)
    plain = _UNFIT.sub("-", exact)
    if plain == exact and len(exact.encode()) <= MAX_NAME_BYTES:
        return exact
    digest = hashlib.sha256(exact.encode(errors="replace")).hexdigest()[:DIGEST_CHARS]
    return f"{_shortened(plain, MAX_NAME_BYTES - DIGEST_CHARS - 1)}~{digest}"


def _short(key: str) -> str:
    """As users know it; a key of theirs that looks like a number is marked."""
    if numbered := _NUMBERED.fullmatch(key):
        resumed, number = numbered.groups()
        return number if resumed is None else f"r{resumed}-{number}"
    given = key.removeprefix("key.")
    return f"key-{given}" if _LIKE_A_NUMBER.fullmatch(given) else given


def _shortened(text: str, most: int) -> str:
    return text.encode(errors="replace")[:most].decode(errors="ignore")
