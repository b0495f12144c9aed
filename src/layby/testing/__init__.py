"""For tests of code that uses layby: time that jumps. See docs/testing.md.

Every public name is imported from here, none is defined here.
"""

from layby.testing.clock import VirtualClock
from layby.testing.stuck import VirtualDeadlock
from layby.testing.virtual import (
    VirtualTime,
    current_clock,
    run_virtual,
    virtual_test,
    virtual_time,
)
from layby.worker.real_work import RealWork, real_work

__all__ = [
    "RealWork",
    "VirtualClock",
    "VirtualDeadlock",
    "VirtualTime",
    "current_clock",
    "real_work",
    "run_virtual",
    "virtual_test",
    "virtual_time",
]
