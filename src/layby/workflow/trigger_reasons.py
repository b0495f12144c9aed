"""Why a trigger is not run, in words, and what to change."""

from typing import Any, Final, cast
from urllib.parse import urlsplit

from layby.core.model import EMPTY, Promise, Task
from layby.core.resumption import TRIGGER_GROUP
from layby.wire import json_values

_ALLOWED_BY: Final = {
    "FileExists": "triggers.folders",
    "HttpPoll": "triggers.hosts",
    "SqlPoll": "triggers.connections",
}
"""The settings that turn layby's own polling triggers on."""

_ASKS: Final = {"FileExists": "path", "HttpPoll": "url", "SqlPoll": "connection"}
"""The argument that says what they would reach."""

NO_SETTING_HELPS: Final = "no change of settings will help"
"""Said of arguments that fit no process, whatever it may reach."""


def is_trigger(task: Task) -> bool:
    return task.group == TRIGGER_GROUP


def untaken_trigger(trigger: Promise, task: Task, able: int, *, knows_managers: bool) -> str:
    """`able`: how many managers have its class, and may run it."""
    if able:
        managers = "1 manager runs" if able == 1 else f"{able} managers run"
        return f"waits for room: {managers} that class"
    if not knows_managers:
        return "has not been taken by anybody yet"
    if task.name in _ALLOWED_BY:
        return f"may not be run: {task.name}{what_is_polled(trigger, task)} is off in every process"
    return f"cannot be run: no process has the class {task.name}"


def what_is_polled(trigger: Promise, task: Task) -> str:
    """What one of layby's own asks, as part of a sentence; empty where that cannot be told. Lists
    leave params out.
    """
    found = None if trigger.param == EMPTY else json_values.shown(trigger.param)
    args = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    asked = args.get(_ASKS.get(task.name or "", ""))
    if not isinstance(asked, str):
        return ""
    if task.name == "SqlPoll":
        return f" on the connection {asked!r}"
    return f" of {_host_of(asked) if task.name == 'HttpPoll' else repr(asked)}"


def _host_of(url: str) -> str:
    """Without what may be a secret."""
    try:
        return repr(urlsplit(url).hostname or "")
    except ValueError:
        return "a URL that cannot be read"


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
