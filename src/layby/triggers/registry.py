"""Which trigger classes this process has, by the names that are stored."""

import inspect
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final, TypeVar, cast

import msgspec

from layby.errors import LaybyError, UsageError
from layby.triggers.base_trigger import Trigger
from layby.triggers.built_in import BUILT_IN
from layby.triggers.polled import PolledTrigger
from layby.wire import json_values
from layby.wire.decode import MALFORMED
from layby.wire.typed_values import reader_of

T = TypeVar("T", bound=type[Trigger])

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")
_OWN: Final = ("Delay", "At", "Event", "PromiseSettled")
"""Nobody runs these: they are promises."""

_METHODS: Final = frozenset(("kind", "arguments", "sentence", "on_cancels", "cleanup", "on_cancel"))


class TriggerRegistry:
    """Names and classes; a name stands for one class."""

    def __init__(self, classes: Iterable[type[Trigger]] = ()) -> None:
        self._classes: dict[str, type[Trigger]] = {}
        self.on_change: list[Callable[[], None]] = []
        for each in classes:
            self.add(each)

    def add(self, trigger: type[Trigger]) -> None:
        _check_class(trigger)
        name = trigger.kind()
        known = self._classes.get(name)
        if known is not None and _place(known) != _place(trigger):
            raise UsageError(
                f"two triggers are named {name!r}: {_place(known)} and {_place(trigger)}; "
                "let `kind` of one of them return another name"
            )
        self._classes[name] = trigger  # a module that was loaded again brings a newer class
        for tell in self.on_change:
            tell()

    @property
    def own_code(self) -> dict[str, Any]:
        """The functions that run users' own triggers, by name; without layby's own."""
        own = {name: each for name, each in self._classes.items() if each not in BUILT_IN}
        return {
            name: getattr(each, "run", None) or cast("Any", each).poll for name, each in own.items()
        }

    def __contains__(self, name: object) -> bool:
        return name in self._classes

    def restored(self, name: str, args: object) -> Trigger:
        """A trigger from what is stored; raises `Misfit` when its class has changed too much."""
        return reader_of(self._classes[name])(json_values.encode(args), f"the arguments of {name}")


def _check_class(trigger: object) -> None:
    if not isinstance(trigger, type) or not issubclass(trigger, Trigger):
        raise UsageError(f"{trigger!r} is not a trigger: make it a subclass of triggers.Trigger")
    _check_methods(trigger)
    if not _NAME.fullmatch(trigger.kind()) or trigger.kind() in _OWN:
        raise UsageError(
            f"{trigger.kind()!r} cannot be the name of a trigger: a letter, then letters, digits, "
            f"_ . -, and none of {', '.join(_OWN)}"
        )
    if issubclass(trigger, PolledTrigger):
        if trigger not in BUILT_IN and trigger.poll is PolledTrigger.poll:
            raise UsageError(f"{trigger.__name__} is a PolledTrigger without `poll`: define it")
    elif not inspect.iscoroutinefunction(getattr(trigger, "run", None)):
        raise UsageError(
            f"{trigger.__name__} has no `async def run(self)`: that is what fires it; for a plain "
            "`def` that is asked again and again, make it a triggers.PolledTrigger with `poll`"
        )
    _check_fields(trigger)


def _check_methods(trigger: type[Trigger]) -> None:
    """A field hides the method of its name."""
    methods = {*_METHODS, "poll" if issubclass(trigger, PolledTrigger) else "run"}
    hidden = next((each for each in trigger.__struct_fields__ if each in methods), None)
    if hidden is not None:
        raise UsageError(
            f"{trigger.__name__} has a field {hidden!r}, which is what a method of triggers is "
            "called: give it another name"
        )


@lru_cache(maxsize=256)
def _check_fields(trigger: type[Trigger]) -> None:
    """Once for each class: a Runner that opens has all of layby's to look at."""
    for optional in ("cleanup", "on_cancel"):
        method = getattr(trigger, optional, None)
        if method is not None and not inspect.iscoroutinefunction(method):
            raise UsageError(f"{optional} of {trigger.__name__} must be `async def`")
    try:
        msgspec.json.schema(trigger)  # a decoder would accept any class as a custom type
    except TypeError as error:
        raise UsageError(f"the fields of {trigger.__name__} cannot be stored: {error}") from error


def _place(trigger: type[Trigger]) -> str:
    return f"{trigger.__module__}.{trigger.__qualname__}"


def problem_of(kind: str, args: bytes) -> str | None:
    """What is wrong with the arguments of a trigger of layby's own, in the words of its class.

    None for every other kind: whoever runs those may have classes that are not known here.
    """
    declared = next((each for each in BUILT_IN if each.kind() == kind), None)
    if declared is None:
        return None
    try:
        reader_of(declared)(args, f"the arguments of {kind}")
    except (LaybyError, *MALFORMED) as error:
        return str(error)
    return None


REGISTRY: Final = TriggerRegistry(BUILT_IN)
"""What `register` adds to: every trigger manager of this process offers it."""


def register(trigger: T) -> T:
    """`@triggers.register` on a subclass of `Trigger` with `async def run(self)`, or of
    `PolledTrigger` with `poll`: its waits can be run by this process from now on.
    """
    REGISTRY.add(trigger)
    return trigger


def is_unregistered(kind: str) -> bool:
    """Whether somebody has to run such triggers, and this process could not."""
    return kind not in _OWN and kind not in REGISTRY
