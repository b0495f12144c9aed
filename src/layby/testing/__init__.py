"""For tests of code that uses layby: virtual time, watched slots, waits. See docs/testing.md.

All public names are imported here; none is defined here.
"""

from layby.testing.deadlock import VirtualDeadlock
from layby.testing.open_waits import Wait, settle, waits
from layby.testing.slot_watch import SlotWatch
from layby.testing.virtual import (
    VirtualTime,
    current_clock,
    deterministic_runner,
    run_virtual,
    virtual_test,
    virtual_time,
)
from layby.testing.virtual_clock import VirtualClock
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
