"""Whose promise it is: what is done for an id later counts for the prefix that covers it.

The store does not keep who created a promise; but where tokens have prefixes, nobody else
than the holders of such a token, and admins, can use ids with its prefix.
"""

from collections import OrderedDict
from typing import Final

NOBODY: Final = ""
"""For every id that no known prefix covers."""
_REMEMBERED: Final = 4_096


class KnownPrefixes:
    """Prefixes are learned from the tokens that are used; the oldest is forgotten first."""

    def __init__(self) -> None:
        self._prefixes: OrderedDict[str, None] = OrderedDict()
        self._lengths: tuple[int, ...] = ()

    def note(self, prefix: str | None) -> None:
        if not prefix:
            return
        is_new = prefix not in self._prefixes
        self._prefixes[prefix] = None
        self._prefixes.move_to_end(prefix)
        if len(self._prefixes) > _REMEMBERED:
            self._prefixes.popitem(last=False)
        if is_new:
            self._lengths = tuple(sorted({len(each) for each in self._prefixes}, reverse=True))

    def of(self, promise_id: str) -> str:
        """The longest prefix that covers it."""
        covering = (promise_id[:length] for length in self._lengths)
        return next((each for each in covering if each in self._prefixes), NOBODY)
