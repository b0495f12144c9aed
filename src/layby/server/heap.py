"""What the C library does with memory that is free again: it keeps it, for the next large answer.

By default it gives back what is large, and the kernel clears every page of it when it is wanted
again: 1.5 ms for a text of 4 MB, in which nobody else has the interpreter.
"""

import os
from typing import Final

KEPT_BYTES: Final = 16 * 2**20
"""Of each thread, at most; more than the largest request takes, and its answer."""
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_CHOSEN_BY: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> None:
    """For a process of our own. Only glibc has this setting; whoever runs it may have chosen."""
    if any(name in os.environ for name in _CHOSEN_BY):
        return
    try:
        import ctypes  # noqa: PLC0415 - some builds of Python do without it

        set_option = ctypes.CDLL(None).mallopt
    except (ImportError, OSError, TypeError, AttributeError):
        return
    set_option(_TRIM_THRESHOLD, KEPT_BYTES)
    set_option(_MMAP_THRESHOLD, KEPT_BYTES)
