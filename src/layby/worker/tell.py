"""What a waiting task says about itself: written with `Deferred`, shown wherever people look."""

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from layby.core.model import Millis


class Waiting(Struct, frozen=True, gc=False, omit_defaults=True):
    """Why a body waits. `timeout` in seconds becomes a deadline when the wait begins."""

    kind: str
    sentence: str
    since: Millis | None = None
    deadline: Millis | None = None
    timeout: float | None = None
    awaited: str | None = None
    """The promise it waits for, so that whoever asks why can look further."""

    def begun(self, now: Millis) -> "Waiting":
        """As it is to be told."""
        deadline = self.deadline
        if deadline is None and self.timeout is not None:
            deadline = now + round(self.timeout * 1000)
        return replace(self, since=now, deadline=deadline, timeout=None)

    def with_aside(self, aside: str) -> "Waiting":
        """With what else a reader should know."""
        if not aside:
            return self
        return replace(self, sentence=f"{self.sentence or self.spelled_out().sentence}; {aside}")

    def told(self) -> str:
        return msgspec.json.encode(self if self.sentence else self.spelled_out()).decode()

    def spelled_out(self) -> "Waiting":
        """Thousands may wait for a promise each: their sentences are made when somebody reads."""
        return replace(self, sentence=f"waiting for promise {self.awaited}")


FOR_A_SLOT = Waiting("slot", "ready to go on, waiting for a slot")
TO_LET_OTHERS_GO = Waiting("slot", "lets others go first, waiting for a slot")
