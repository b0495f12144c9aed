"""For tests of code that uses layby: time that jumps, watched slots, waits. See docs/testing.md.

Every public name is imported from here, none is defined here.
"""

from layby.testing.clock import VirtualClock
from layby.testing.slots import SlotWatch
from layby.testing.stuck import VirtualDeadlock
from layby.testing.virtual import (
    VirtualTime,
    current_clock,
    deterministic_runner,
    run_virtual,
    virtual_test,
    virtual_time,
)
from layby.testing.waits import Wait, settle, waits
from layby.worker.real_work import RealWork, real_work

__all__ = [
    "RealWork",
    "SlotWatch",
    "VirtualClock",
    "VirtualDeadlock",
    "VirtualTime",
    "Wait",
    "current_clock",
    "deterministic_runner",
    "real_work",
    "run_virtual",
    "settle",
    "virtual_test",
    "virtual_time",
    "waits",
]
