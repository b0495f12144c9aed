"""The interpreter's switch interval while Runners are open; it belongs to the whole process.

The first Runner to ask lowers it, the last one to close puts back what was there before. Whoever
sets it meanwhile has spoken last: what is no longer ours is left alone.
"""

import sys
import threading

_lock = threading.Lock()
_open: list[float] = []
_before = 0.0


def lower_switch_interval(seconds: float) -> None:
    """Switch threads at least this often, until the setting is restored."""
    global _before  # noqa: PLW0603 - the setting is the interpreter's, so is the memory of it
    with _lock:
        if not _open:
            _before = sys.getswitchinterval()
        _open.append(seconds)
        sys.setswitchinterval(min(seconds, sys.getswitchinterval()))


def restore_switch_interval(seconds: float) -> None:
    with _lock:
        ours = min(_open)
        _open.remove(seconds)
        if abs(sys.getswitchinterval() - ours) < 1e-6:
            sys.setswitchinterval(min(_open, default=_before))
