"""What a task can be deferred for: `from layby import triggers`. See docs/triggers.md.

All public names are imported here; none is defined here.
"""

from layby.triggers.base_trigger import Trigger
from layby.triggers.built_in import FileExists, HttpPoll, SecretNamed, SqlPoll
from layby.triggers.conditions import Compare
from layby.triggers.polled import PolledTrigger, RetryAfter
from layby.triggers.promised import At, Delay, Event, PromiseSettled
from layby.triggers.registry import register

__all__ = [
    "At",
    "Compare",
    "Delay",
    "Event",
    "FileExists",
    "HttpPoll",
    "PolledTrigger",
    "PromiseSettled",
    "RetryAfter",
    "SecretNamed",
    "SqlPoll",
    "Trigger",
    "register",
]
