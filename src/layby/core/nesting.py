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
_PLAIN: Final = bytes(set(range(256)) - set(_OPEN + _CLOSE + b'"'))


def is_too_deep(json: bytes) -> bool:
    """Almost always quick: brackets are counted first, wherever they are."""
    if sum(map(json.count, (b"[", b"{"))) <= MAX_DEPTH:
        return False
    levels, steps = _without_innermost(_brackets(json).translate(_STEPS))
    return levels + max(accumulate(memoryview(steps).cast("b")), default=0) > MAX_DEPTH


def _brackets(json: bytes) -> bytes:
    """Those that are not in a text."""
    if b"\\" in json:
        json = json.replace(rb"\\", b"").replace(rb"\"", b"")
    left = json.translate(None, _PLAIN).replace(b'""', b"")
    return b"".join(left.split(b'"')[::2])


def _without_innermost(steps: bytes) -> tuple[int, bytes]:
    """Whole levels are taken away at once, as long as most of what is left are innermost ones."""
    levels, before = 0, 2 * len(steps)
    while 2 * len(steps) <= before and levels < MAX_DEPTH:
        levels, before, steps = levels + 1, len(steps), steps.replace(b"\x01\xff", b"")
        if not steps:
            break
    return levels, steps
