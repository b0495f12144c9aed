"""The interpreter's switch interval, which the whole process shares, while engines run in it.

A writer that has to wait for the interpreter after every statement would wait for the whole
interval each time, as long as any other thread is busy: with Python's own, 5 ms.
The first to ask lowers it, and the last one to close restores the earlier value. If other code has
set it in the meantime, that value stays.
"""

import sys
import threading
from typing import Final

SWITCH_INTERVAL_S: Final = 0.0005

_lock = threading.Lock()
_open: list[float] = []
_before = 0.0


def lower_switch_interval(seconds: float) -> None:
    """Switch threads at least this often, until the setting is restored."""
    global _before  # noqa: PLW0603 - the setting is global, so is its earlier value
    with _lock:
        if not _open:
            _before = sys.getswitchinterval()
        _open.append(seconds)
        if seconds < sys.getswitchinterval():
            _set(seconds)


def restore_switch_interval(seconds: float) -> None:
    with _lock:
        ours = min(_open)
        _open.remove(seconds)
        if abs(sys.getswitchinterval() - ours) < 1e-6:
            _set(min(_open, default=_before))


def _set(seconds: float) -> None:
    """The interpreter cuts down to whole microseconds, and would lose one each time."""
    sys.setswitchinterval(seconds + 5e-7)
