"""Large promises that wait to be read beside the writer. Pure: it is told the time.

To load one takes the interpreter for milliseconds, in which nobody else is served. Answers leave a
server at a limited rate (`server/answers_under_way`), so to load them faster gains nothing; and
who hangs up before its turn costs nothing at all. What a process asks of its own engine is not
counted here: its answer does not leave.
"""

from typing import Final

from layby.engine.items import Item
from layby.engine.read_turns import ReadLine

CHARS_PER_S: Final = 64 * 2**20


class LargeReads:
    """One at a time; the next begins when the one before may have left. Callers take turns."""

    def __init__(self) -> None:
        self._line = ReadLine()
        self._chars: dict[Item, int] = {}
        self._under_way: Item | None = None
        self._free_at = 0.0

    def add(self, item: Item, chars: int) -> None:
        self._chars[item] = chars
        self._line.add(item)

    def begin(self, now: float) -> Item | None:
        """The one that begins now; one that nobody waits for any more is no load."""
        if self._under_way is not None or now < self._free_at:
            return None
        item = self._line.next()
        if item is None:
            return None
        chars = self._chars.pop(item)
        if not item.is_gone():
            self._under_way, self._free_at = item, now + chars / CHARS_PER_S
        return item

    def end(self, item: Item) -> None:
        if item is self._under_way:
            self._under_way = None

    def pause_s(self, now: float) -> float | None:
        """How long until one may begin; None if only its end, or a new one, can change that."""
        if not self._chars or self._under_way is not None:
            return None
        return max(0.0, self._free_at - now)

    def drain(self) -> list[Item]:
        self._chars.clear()
        return [*self._line.drain()]
