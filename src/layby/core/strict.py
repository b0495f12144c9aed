"""Field rules of the strict profile, if enabled: what is refused with 400 beyond `validate`.

Lineage: ids show where they belong. By the dot rule `root.1.2` belongs to origin `root`; by the
colon rule the origin ends at the first ':', and '.' separates the levels below it (`root:1.2`).
External: a promise is of one kind only, and a suspend names each promise once. That nobody may
wait for an internal promise (422) is decided where its row is available.

layby's own kinds are exempt, their ids and tags are layby's; but `layby.task.create` takes any.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

from layby.core import birth
from layby.core.fields import Tags
from layby.core.kinds import Command
from layby.core.model import NEVER
from layby.core.promises import CreatePromise, RegisterCallback
from layby.core.schedules import CreateSchedule
from layby.core.settings import Settings
from layby.core.tasks import CreateTask, FenceTask, SuspendTask
from layby.core.workers import CreateBelow

Problems = Iterator[str]

ORIGIN: Final = "resonate:origin"
PARENT: Final = "resonate:parent"
PREFIX: Final = "resonate:prefix"
SEPARATORS: Final = {"off": "", "dot": ".", "colon": ":"}
"""What ends the origin of an id; empty when ids do not show their origin."""


def problems(command: Command, settings: Settings) -> str | None:
    """Everything the profile objects to in the command, as one text; None if nothing."""
    found: list[str] = []
    separator = SEPARATORS[settings.strict_lineage]
    if separator and (lineage := LINEAGE.get(type(command))):
        found += lineage(command, separator)
    if settings.strict_external and (external := EXTERNAL.get(type(command))):
        found += external(command)
    return "; ".join(found) or None


# --- lineage: tags match their id, waits stay within one origin ----------------------------


def _born(c: CreatePromise, separator: str) -> Problems:
    for tag in (ORIGIN, PREFIX):
        if separator in c.tags.get(tag, ""):
            yield f"{tag} must not contain '{separator}'"
    for tag in (ORIGIN, birth.BRANCH, PARENT):
        if tag in c.tags:
            yield from _below(c.id, tag, c.tags[tag], separator)


def _below(promise_id: str, tag: str, ancestor: str, separator: str) -> Problems:
    joint = "." if separator in ancestor else separator
    if promise_id != ancestor and not promise_id.startswith(ancestor + joint):
        yield f"Promise ID must be '{ancestor}' or begin with '{ancestor}{joint}', as {tag} says"


def _born_fenced(c: FenceTask, separator: str) -> Problems:
    return _born(c.inner, separator) if isinstance(c.inner, CreatePromise) else iter(())


def _fired(c: CreateSchedule, separator: str) -> Problems:
    """What it fires is a root of that name; its lineage tags are written when it fires."""
    if separator in c.id:
        yield f"Schedule ID must not contain '{separator}'"


def _awaited(c: RegisterCallback, separator: str) -> Problems:
    awaiter, awaited = (each.partition(separator)[0] for each in (c.awaiter, c.awaited))
    if awaiter != awaited:
        yield f"Awaiter (origin '{awaiter}') and awaited (origin '{awaited}') must share an origin"


def _suspended(c: SuspendTask, separator: str) -> Problems:
    for action in c.actions:
        yield from _awaited(action.data, separator)


LINEAGE: Final[dict[type[Command], Callable[[Any, str], Problems]]] = {
    CreatePromise: _born,
    CreateTask: lambda c, separator: _born(c.action.data, separator),
    FenceTask: _born_fenced,
    CreateBelow: lambda c, separator: _born(c.creating(NEVER), separator),
    CreateSchedule: _fired,
    RegisterCallback: _awaited,
    SuspendTask: _suspended,
}


# --- external: one kind of promise, each awaited once --------------------------------------


def _kind(tags: Tags) -> Problems:
    if birth.TARGET in tags and tags.get(birth.TIMER) == "true":
        yield "resonate:timer and resonate:target exclude each other: a timer has no task"


def _kind_fenced(c: FenceTask) -> Problems:
    return _kind(c.inner.tags) if isinstance(c.inner, CreatePromise) else iter(())


def _each_once(c: SuspendTask) -> Problems:
    counts = Counter(action.data.awaited for action in c.actions)
    for awaited in sorted(each for each, times in counts.items() if times > 1):
        yield f"Awaited promise '{awaited}' is named twice"


EXTERNAL: Final[dict[type[Command], Callable[[Any], Problems]]] = {
    CreatePromise: lambda c: _kind(c.tags),
    CreateTask: lambda c: _kind(c.action.data.tags),
    FenceTask: _kind_fenced,
    CreateBelow: lambda c: _kind(c.tags),
    CreateSchedule: lambda c: _kind(c.promise_tags),
    SuspendTask: _each_once,
}
