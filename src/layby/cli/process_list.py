"""What others see of this process when they list processes: a password is taken out of it.

On Linux a program may write over the arguments it was started with, and `ps` then shows that. For
the moment until we do it, and elsewhere, the password is seen: so docs/postgres.md says where to
put it instead.
"""

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from layby.store.postgres_address import passwords_in

_PROCESS: Final = Path("/proc/self")
_ARGUMENTS_BEGIN: Final = 48
"""The number of the field in `/proc/self/stat`, counted from 1 (see proc(5))."""


def hide_passwords(arguments: Sequence[str]) -> None:
    """Write over the passwords of PostgreSQL addresses among the arguments, where that works."""
    secrets = [each.encode() for text in arguments for each in passwords_in(text)]
    if not secrets:
        return
    with suppress(OSError, ValueError, IndexError):
        begin = _arguments_begin()
        shown = (_PROCESS / "cmdline").read_bytes()
        hidden = shown
        for each in sorted(secrets, key=len, reverse=True):
            hidden = hidden.replace(each, b"*" * len(each))
        if begin and ctypes.string_at(begin, len(shown)) == shown:
            ctypes.memmove(begin, hidden, len(shown))


def _arguments_begin() -> int:
    """Where in memory they are; 0 if we may not know. A program's name may contain anything."""
    _, _, rest = (_PROCESS / "stat").read_text().rpartition(")")
    return int(rest.split()[_ARGUMENTS_BEGIN - 3])
