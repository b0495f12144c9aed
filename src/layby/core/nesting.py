"""How deep JSON from others may be nested that is stored and read again.

Every reader has a limit of its own: Python's depends on how deep its own calls are at the moment,
that of SQLite is 1,000 levels. What one of them has accepted must not be too deep for another, or
what it is a part of could not be read any more: a batch, a list, a view.
"""

from itertools import accumulate
from typing import Final

MAX_DEPTH: Final = 200
TOO_DEEP: Final = f"must not be nested deeper than {MAX_DEPTH} levels"
_OPEN, _CLOSE = b"[{", b"]}"
_STEPS: Final = bytes.maketrans(_OPEN + _CLOSE, b"\x01\x01\xff\xff")
_AT_ONCE: Final = 16
"""So many levels, the innermost, are taken away as a whole: most JSON is not deeper than that."""
_OTHERS: Final = bytes(set(range(256)) - set(_OPEN + _CLOSE))


def is_too_deep(json: bytes) -> bool:
    """Almost always quick: brackets are counted first, wherever they are."""
    if sum(map(json.count, (b"[", b"{"))) <= MAX_DEPTH:
        return False
    outside = b"".join(json.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2])
    steps = outside.translate(_STEPS, _OTHERS)
    for _ in range(_AT_ONCE):
        steps = steps.replace(b"\x01\xff", b"")
    return _AT_ONCE + max(accumulate(memoryview(steps).cast("b")), default=0) > MAX_DEPTH
