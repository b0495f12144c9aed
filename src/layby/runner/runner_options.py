"""The options of a Runner, for everything that passes them on; a test compares them with it."""

from typing import TypedDict

from layby.runner.retention import Retention
from layby.store.sqlite import Durability
from layby.trigger_manager.trigger_access import TriggerAccess
from layby.workflow.duration_checks import Duration


class RunnerOptions(TypedDict, total=False):
    slots: int
    group: str
    max_parked: int
    max_threads: int
    durability: Durability
    max_crashes: int
    switch_interval: float | None
    freeze_parked: bool
    token: str | None
    connect_timeout: Duration | None
    lease: Duration
    socket: bool
    grace: Duration | None
    version: str | None
    retention: Retention | None
    trigger_access: TriggerAccess | None
