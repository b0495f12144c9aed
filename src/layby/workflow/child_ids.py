"""The ids of child runs that were given none: the same in every try of the caller."""

import hashlib
import re
from typing import Final

from layby.workflow.names import MAX_NAME_BYTES
from layby.workflow.plan import NodeId

DIGEST_CHARS: Final = 12
_UNFIT: Final = re.compile(r"[:./]+|[^\w~ =+@-]+")


def child_run_id(caller: NodeId, key: str, life: int = 1) -> str:
    """`order-7~ship~1`: the run, the task and the key of the call.

    What cannot stand in a run id, or would make it too long, is replaced, and a digest added.
    `life`: of the parent, if the child is of that life only.
    """
    parts = [caller.run_id, caller.task_id, key.removeprefix("start-")]
    exact = "~".join([*parts, str(life)] if life > 1 else parts)
    plain = _UNFIT.sub("-", exact)
    if plain == exact and len(exact.encode()) <= MAX_NAME_BYTES:
        return exact
    digest = hashlib.sha256(exact.encode(errors="replace")).hexdigest()[:DIGEST_CHARS]
    return f"{_shortened(plain, MAX_NAME_BYTES - DIGEST_CHARS - 1)}~{digest}"


def _shortened(text: str, most: int) -> str:
    return text.encode(errors="replace")[:most].decode(errors="ignore")
