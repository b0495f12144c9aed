"""How long this process certainly holds what the store has given it.

A lease is counted from the *sending* of what renewed it: the store cannot have begun to count
earlier. The clock runs on while the machine is suspended and while this process is stopped.
Nothing here talks to the store: whoever finds the lease expired renews it first (see `renewal`).
"""

from collections.abc import Callable

from layby.core.model import Millis

Elapsed = Callable[[], Millis]
"""Milliseconds since some instant; only differences count."""


class LeaseTime:
    """One lease, as its holder counts it. With a `ttl` of None it never ends: the store is ours.

    `of` says whose lease it is: an answer to an earlier incarnation renews nothing.
    Thread-safe.
    """

    __slots__ = ("_ends_at", "_of", "_ttl", "elapsed")

    def __init__(self, ttl: Millis | None, elapsed: Elapsed, of: str = "") -> None:
        self.elapsed = elapsed
        """Read it before sending what may renew the lease."""
        self._ttl = ttl
        self._of = of
        self._ends_at: Millis | None = None

    def is_held(self) -> bool:
        if self._ttl is None:
            return True
        ends_at = self._ends_at
        return ends_at is not None and self.elapsed() < ends_at

    def renewed(self, sent_at: Millis, of: str = "") -> None:
        """What was sent then has been accepted; an older answer does not shorten the lease."""
        if self._ttl is None or of != self._of:
            return
        ends_at = sent_at + self._ttl
        if self._ends_at is None or ends_at > self._ends_at:
            self._ends_at = ends_at

    def begin_anew(self, of: str) -> None:
        """It is lost: from now on the lease of a new incarnation is counted."""
        self._of = of
        self._ends_at = None
