"""What a worker tells of a wait: written with `Deferred`, shown wherever people look."""

from typing import Final

from msgspec.structs import replace

from layby.core.ids import life_root_of, root_of
from layby.core.model import NEVER, Millis
from layby.core.promises import RUN_PREFIX
from layby.core.validate import MAX_TOLD_BYTES
from layby.core.waits import WaitingOn
from layby.wire.json_values import shortened

SURELY_SHORT: Final = MAX_TOLD_BYTES // 4
"""So many characters fit, whatever they are."""
MAX_SENTENCE_CHARS: Final = 1_000
"""Where all sentences do not fit."""
FOR_A_SLOT = WaitingOn("slot", "ready to go on, waiting for a slot")
TO_LET_OTHERS_GO = WaitingOn("slot", "lets others go first, waiting for a slot")


def begun(wait: WaitingOn, now: Millis) -> WaitingOn:
    """Without a second copy of it, if its beginning is told already."""
    wait = _without_never(wait)
    return wait if wait.since else replace(wait, since=now)


def _without_never(wait: WaitingOn) -> WaitingOn:
    """A wait that a person has made endless has a deadline to us, which is not a date."""
    members = wait.members
    if any(each.deadline == NEVER for each in members):
        wait = replace(wait, members=tuple(map(_without_never, members)))
    return wait if wait.deadline != NEVER else replace(wait, deadline=None, is_endless=True)


def with_aside(wait: WaitingOn, aside: str) -> WaitingOn:
    """With what else a reader should know."""
    return replace(wait, sentence=f"{_sentence(wait)}; {aside}") if aside else wait


def told(wait: WaitingOn) -> str:
    """As it is stored: of a bundle that is too long for that, without some of its waits."""
    wait = spoken(wait)
    if not _is_too_long(text := wait.to_text()):
        return text
    wait = replace(_shortened(wait), members=tuple(map(_shortened, wait.members)))
    while _is_too_long(text := wait.to_text()) and wait.members:
        wait = replace(wait, members=wait.members[:-1], also_awaited=wait.also_awaited[:-1])
    return text


def _is_too_long(text: str) -> bool:
    return len(text) > SURELY_SHORT and len(text.encode()) > MAX_TOLD_BYTES


def _shortened(wait: WaitingOn) -> WaitingOn:
    return replace(wait, sentence=shortened(wait.sentence, MAX_SENTENCE_CHARS))


def spoken(wait: WaitingOn) -> WaitingOn:
    """With its sentence, and those of its members."""
    return replace(wait, sentence=_sentence(wait), members=tuple(map(spoken, wait.members)))


def _sentence(wait: WaitingOn) -> str:
    """Thousands may wait for a promise each: their sentences are made when they are told."""
    return wait.sentence or f"waiting for {_named(wait.awaited or '')}"


def _named(promise_id: str) -> str:
    """The promise of a run is better known by the run's id."""
    if promise_id.startswith(RUN_PREFIX) and life_root_of(promise_id) == promise_id:
        return f"run '{root_of(promise_id).removeprefix(RUN_PREFIX)}'"
    return f"promise {promise_id}"
