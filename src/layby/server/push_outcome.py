"""What became of one POST of a message."""

from typing import Final, Literal

from msgspec import Struct

_RETRY_SOON: Final = frozenset({408, 425, 429})


class PushOutcome(Struct, frozen=True):
    """`refused`: the receiver rejects this message. `forbidden`: we may not send it there."""

    kind: Literal["arrived", "out of reach", "failed", "refused", "forbidden"]
    why: str = ""


def judge(status: int) -> PushOutcome:
    if 200 <= status < 300:
        return PushOutcome("arrived")
    if status >= 500 or status in _RETRY_SOON:
        return PushOutcome("failed", f"it answered {status}")
    return PushOutcome("refused", f"it answered {status}")
