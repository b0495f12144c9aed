"""How many rows `layby prune` asks for at once, and how long it rests in between."""

from typing import Final

from layby.core.settings import PRUNE_ROWS

BATCH_S: Final = 0.001
"""How long a batch may take: everybody else waits for it."""
MOST_ROWS: Final = 32 * PRUNE_ROWS
LEAST_PAUSE_S: Final = 0.003


class PrunePace:
    """Batches grow while they are quick, and shrink at once when one takes long."""

    def __init__(self) -> None:
        self.rows = PRUNE_ROWS

    def pause_after(self, seconds: float) -> float:
        """After a batch that took so long, everybody else has as long."""
        if seconds > BATCH_S:
            self.rows = max(PRUNE_ROWS, self.rows // 2)
        elif seconds < BATCH_S / 2:
            self.rows = min(MOST_ROWS, self.rows + PRUNE_ROWS)
        return max(LEAST_PAUSE_S, seconds)
