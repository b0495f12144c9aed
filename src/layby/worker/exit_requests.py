"""`SystemExit` and `KeyboardInterrupt` that code raises: its own failure, and nobody else's end."""

from layby.executors.notifier import on_main_thread


class ExitRequested(Exception):
    """Raised in a Task in place of its cause, which asyncio would let end the loop."""


def is_exit_request(error: BaseException) -> bool:
    """On the main thread a `KeyboardInterrupt` may be Ctrl-C, which is not for the code."""
    if isinstance(error, KeyboardInterrupt):
        return not on_main_thread()
    return isinstance(error, SystemExit)
