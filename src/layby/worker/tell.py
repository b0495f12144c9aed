"""What a waiting task says about itself: written with `Deferred`, shown wherever people look."""

import msgspec
from msgspec import Struct

from layby.core.model import Millis


class Waiting(Struct, frozen=True):
    """Why a body waits. `timeout` in seconds becomes a deadline when it is told."""

    kind: str
    sentence: str = ""
    deadline: Millis | None = None
    timeout: float | None = None

    def told(self, now: Millis) -> str:
        deadline = self.deadline
        if deadline is None and self.timeout is not None:
            deadline = now + round(self.timeout * 1000)
        told = {"kind": self.kind, "sentence": self.sentence or self.kind, "since": now}
        if deadline is not None:
            told["deadline"] = deadline
        return msgspec.json.encode(told).decode()
