"""Field rules of the strict profile, if enabled: what is refused with 400 beyond `validate`.

Lineage: ids show where they belong. By the dot rule `root.1.2` belongs to origin `root`; by the
colon rule the origin ends at the first ':', and '.' separates the levels below it (`root:1.2`).
External: a promise is of one kind only, and a suspend names each promise once. That nobody may
wait for an internal promise (422) is decided where its row is available.

layby's own kinds are exempt, their ids and tags are layby's; but `layby.task.create` takes any.
Each kind says itself which of these rules it is under (`lineage_problems`, `external_problems`).
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from layby.core import birth, tag_names
from layby.core.fields import Tags
from layby.core.kinds import Command, Problems
from layby.core.settings import Settings

ORIGIN: Final = "resonate:origin"
PARENT: Final = "resonate:parent"
PREFIX: Final = "resonate:prefix"
SEPARATORS: Final = {"off": "", "dot": ".", "colon": ":"}
"""What ends the origin of an id; empty when ids do not show their origin."""


def problems(command: Command, settings: Settings) -> str | None:
    """Everything the profile objects to in the command, as one text; None if nothing."""
    separator = SEPARATORS[settings.strict_lineage]
    found: list[str] = []
    if separator:
        found += command.lineage_problems(separator)
    if settings.strict_external:
        found += command.external_problems()
    return "; ".join(found) or None


def lineage(promise_id: str, tags: Tags, separator: str) -> Problems:
    """The tags of a new promise match its id."""
    for tag in (ORIGIN, PREFIX):
        if separator in tags.get(tag, ""):
            yield f"{tag} must not contain '{separator}'"
    for tag in (ORIGIN, tag_names.BRANCH, PARENT):
        if tag in tags:
            yield from _below(promise_id, tag, tags[tag], separator)


def _below(promise_id: str, tag: str, ancestor: str, separator: str) -> Problems:
    joint = "." if separator in ancestor else separator
    if promise_id != ancestor and not promise_id.startswith(ancestor + joint):
        yield f"Promise ID must be '{ancestor}' or begin with '{ancestor}{joint}', as {tag} says"


def same_origin(awaiter: str, awaited: str, separator: str) -> Problems:
    """Waits stay within one origin."""
    awaiter, awaited = (each.partition(separator)[0] for each in (awaiter, awaited))
    if awaiter != awaited:
        yield f"Awaiter (origin '{awaiter}') and awaited (origin '{awaited}') must share an origin"


def one_kind(tags: Tags) -> Problems:
    if tag_names.TARGET in tags and birth.is_timer(tags):
        yield "resonate:timer and resonate:target exclude each other: a timer has no task"


def each_once(awaited: Iterable[str]) -> Problems:
    for each, times in sorted(Counter(awaited).items()):
        if times > 1:
            yield f"Awaited promise '{each}' is named twice"
