"""How many may begin in a window, by the rules that counted in it: as the docs say it."""

from collections.abc import Sequence

from layby.core.limit import Limit, read_rate
from layby.core.model import Millis


def most_begins(rules: Sequence[Limit | None], window: Millis) -> int | None:
    """The largest burst, and what the largest rate allows in the time. None: one had no rate.

    Where no numbers counted, nobody began.
    """
    counted = [each for each in rules if each is not None]
    paces = [read_rate(each.rate or "") for each in counted]
    shares = [pace.share_us for pace in paces if pace is not None]
    if len(shares) < len(paces):
        return None
    return max(each.burst for each in counted) + window * 1_000 // min(shares)
