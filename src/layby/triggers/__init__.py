"""What a task can be deferred for: `from layby import triggers`. See docs/deferring.md.

All public names are imported here; none is defined here.
"""

from layby.triggers.base_trigger import Trigger
from layby.triggers.promised import At, Delay, Event, PromiseSettled

__all__ = ["At", "Delay", "Event", "PromiseSettled", "Trigger"]
