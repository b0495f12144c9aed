"""What a task may wait for, to be put into bundles: `handle.first_of(waits.sleep(5), ...)`."""

from layby.worker.wait_bundles import First
from layby.worker.wait_terms import all_of, any_of, defer_until, first_of, rpc, sleep, wait_for

__all__ = ["First", "all_of", "any_of", "defer_until", "first_of", "rpc", "sleep", "wait_for"]
