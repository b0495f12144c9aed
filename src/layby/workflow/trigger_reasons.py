"""Why a trigger is not run, in words, and what to change."""

from typing import Final

from layby.core.model import Task
from layby.core.resumption import TRIGGER_GROUP

_ALLOWED_BY: Final = {
    "FileExists": "triggers.folders",
    "HttpPoll": "triggers.hosts",
    "SqlPoll": "triggers.connections",
}
"""The settings that turn layby's own polling triggers on."""

NO_SETTING_HELPS: Final = "no change of settings will help"
"""Said of arguments that fit no process, whatever it may reach."""


def is_trigger(task: Task) -> bool:
    return task.group == TRIGGER_GROUP


def untaken_trigger(task: Task, able: int, *, knows_managers: bool) -> str:
    """`able`: how many managers have its class, and may run it."""
    if able:
        managers = "1 manager runs" if able == 1 else f"{able} managers run"
        return f"waits for room: {managers} that class"
    if not knows_managers:
        return "has not been taken by anybody yet"
    if task.name in _ALLOWED_BY:
        return f"may not be run: {task.name} is off in every process"
    return f"cannot be run: no process has the class {task.name}"


def refused_trigger(told: str) -> str:
    """`told` is the sentence that core has made of what the last manager said."""
    why = told.partition(" takes it: ")[2] or told
    return f"cannot be run as it is: {why}"


def who_mends_trigger(task: Task) -> str:
    """Of one that was refused."""
    if NO_SETTING_HELPS in (task.waiting_on or ""):
        return "whoever wakes or cancels the task that waits for it"
    return "whoever changes that, in a server or in a worker"


def who_runs_trigger(task: Task, able: int) -> str:
    if able:
        return "room in one of them (triggers.capacity)"
    if (setting := _ALLOWED_BY.get(task.name or "")) is not None:
        return (
            f"whoever sets {setting} in layby.toml of the server, or gives a worker's Runner "
            "trigger_access"
        )
    return f"a worker whose module has @triggers.register on {task.name}"
