"""The options of a Runner, for everything that passes them on, and what they may be.

A test compares them with the Runner itself.
"""

from typing import TypedDict, get_args

from layby.core.resumption import TRIGGER_GROUP
from layby.core.settings import RetentionPolicy
from layby.engine.opening import is_url
from layby.errors import UsageError
from layby.runner.retention import Retention, policy_of
from layby.store.sqlite import Durability
from layby.trigger_manager.trigger_access import TriggerAccess
from layby.workflow.duration_checks import Duration
from layby.workflow.names import check_name


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


def check_retention(retention: object, address: str) -> RetentionPolicy | None:
    if retention is None:
        return None
    if not isinstance(retention, Retention):
        raise UsageError(
            "retention must be a Retention, such as Retention(completed=7 * 86400), "
            f"got {retention!r}"
        )
    if is_url(address):
        raise UsageError(
            f"Runner({address!r}): a server has its own retention: set retention.completed, "
            "retention.failed and retention.ids there"
        )
    return policy_of(retention)


def check_group(group: str) -> str:
    if group == TRIGGER_GROUP:
        raise UsageError(f"'{group}' is the group of trigger managers: give your workers another")
    return check_name(group, "group")


def check_durability(durability: Durability) -> Durability:
    if durability not in get_args(Durability):
        names = ", ".join(map(repr, get_args(Durability)))
        raise UsageError(f"durability must be one of {names}, got {durability!r}")
    return durability
