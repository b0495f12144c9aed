"""What processes started meanwhile do at a signal, whoever started the tests."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def inherited(number: signal.Signals, how: signal.Handlers) -> Iterator[None]:
    """Under `nohup`, or in the background of a shell, some signals are ignored by all children."""
    before = signal.signal(number, how)
    try:
        yield
    finally:
        signal.signal(number, before)
