"""How a deferred task goes on: what it waits for, what ended that wait, and where its code begins.

It is stored with the task, in a column of its own: what a task waits for is forgotten with every
move, but a crash, a release or a halt must not lose the payload it was resumed with.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from layby.core.tag_names import ON_CANCEL, PRINCIPAL, TRIGGER, has_tag, tag_of

if TYPE_CHECKING:
    from layby.core.model import Millis, Promise

TRIGGER_GROUP: Final = "triggers"
"""The group whose workers run triggers: trigger managers, and nobody else."""
CLEAN_UP: Final = ".cancel"
NOTHING_GIVEN: Final = Raw(b"{}")


class Resumption(Struct, frozen=True, omit_defaults=True, gc=False):
    """As it is stored, in JSON."""

    kind: str
    """Of its trigger: a word that core knows, or the name of a class."""
    at: int
    """The version of the claim that deferred."""
    trigger: str
    """The promise that is the trigger."""
    args: Raw = NOTHING_GIVEN
    own: bool = False
    """Whether the trigger is the task's own, and ends with it; others may wait for a shared one."""
    deadline: str | None = None
    """The timer that ends the wait, if the trigger does not end by itself in time."""
    until: int | None = None
    """When the wait ends if nobody fires the trigger; None when it does not."""
    since: int = 0
    name: str | None = None
    """The function to go on with; None when the task's own function runs again."""
    kwargs: Raw = NOTHING_GIVEN
    context: Raw | UnsetType = UNSET
    """What the body had changed by then, in the words of its worker."""
    key: str | None = None
    """What its worker calls this wait."""
    bare: bool = False
    """Whether the task had kept nothing below its id by then: there is nothing to recall."""
    on_cancel: bool = False
    won: str | None = None
    """The promise that has ended the wait; None while it lasts. Decided once."""
    by: str = ""
    """Who ended the wait, if it was a person; until then, who moved its deadline."""
    reason: str = ""
    exit_id: str | None = None
    """Which call of a person changed it last."""

    @property
    def is_over(self) -> bool:
        return self.won is not None

    @property
    def awaited(self) -> tuple[str, ...]:
        return (self.trigger,) if self.deadline is None else (self.trigger, self.deadline)

    @property
    def owned(self) -> Iterator[str]:
        """Promises that end with the wait."""
        if self.own:
            yield self.trigger
        if self.deadline is not None:
            yield self.deadline

    def winner(self, trigger: "Promise | None", deadline: "Promise | None") -> str | None:
        """Which of the two has ended the wait: the earlier one; the trigger, if both at once."""
        fired, ended = _settled_at(trigger), _settled_at(deadline)
        if fired is None:
            return None if ended is None else self.deadline
        return self.trigger if ended is None or fired <= ended else self.deadline

    def ended(self, won: str) -> "Resumption":
        return replace(self, won=won)

    def to_text(self) -> str:
        return _encode(self).decode()


def own_id(task_id: str, which: int | str) -> str:
    """A trigger, or what else belongs to one wait alone: that of the claim with this version, or
    what a person has put in its place, by a name of its own.
    """
    return f"{task_id}.defer.{which}"


def deadline_id(trigger_id: str) -> str:
    return f"{trigger_id}.timeout"


def clean_up_id(trigger_id: str) -> str:
    return trigger_id + CLEAN_UP


def cleans_up(tags: str) -> bool:
    """Whether something is to be done if the trigger with these tags is cancelled or times out."""
    return has_tag(tags, ON_CANCEL)


def is_deferred_for(tags: str) -> bool:
    """Whether a task has deferred for the trigger with these tags. Any task in the group of
    triggers is run as one, but for whom others ask, nobody knows.
    """
    return has_tag(tags, TRIGGER)


def principal_of(tags: str) -> str:
    """For whom the trigger with these tags asks; empty where nobody has said so."""
    return tag_of(tags, PRINCIPAL) or ""


def read_resumption(text: str) -> Resumption:
    return _decoder.decode(text)


def _settled_at(promise: "Promise | None") -> "Millis | None":
    return None if promise is None else promise.settled_at


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Resumption)
