"""What a worker needs to know about the code it runs; the workflow layer provides it."""

import inspect
import sys
from collections.abc import Callable
from functools import lru_cache
from types import FunctionType
from typing import Any, Literal, Protocol, TypeVar

from msgspec import Raw, Struct

from layby.core.commands import Value
from layby.core.model import Codes, Millis, Promise, PromiseState
from layby.core.replies import Claim
from layby.errors import LaybyError, UsageError
from layby.wire.call_format import Call

Mode = Literal["async", "thread", "process"]
R_co = TypeVar("R_co", covariant=True)


class UnfitCode(LaybyError):
    """The code here cannot go on with this task: it waits for a worker with other code.

    `pin`: the code that its run is pinned to, if that is why.
    """

    def __init__(self, why: str, code: str, pin: str | None = None) -> None:
        super().__init__(why, code, pin)
        self.code = code
        self.pin = pin

    def __str__(self) -> str:
        return self.args[0]


class NamedLimits(LaybyError):
    """The limits of a task are known now: it needs permits of them before its body begins."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__(f"runs under {', '.join(names)}")
        self.names = names


def function_name(function: object, given: tuple[str, ...] = ()) -> str:
    """By which another process finds it; refuses what has no such name, or cannot be called so.

    `given` are the names of the arguments that it gets besides the event.
    """
    if not inspect.isfunction(function):
        raise _nameless(function)
    return _name_of(function, given)


@lru_cache(maxsize=1024)
def _name_of(function: FunctionType, given: tuple[str, ...]) -> str:
    module, qualified = function.__module__, function.__qualname__
    if function_named(f"{module}:{qualified}") is not function:
        raise _nameless(function)
    try:
        inspect.signature(function).bind(None, None, event=None, **dict.fromkeys(given))
    except TypeError as error:
        raise UsageError(
            f"{qualified} cannot be called as {qualified}(context, handle, event=..., "
            f"**kwargs) with kwargs={list(given)}: {error}"
        ) from None
    return f"{module}:{qualified}"


def _nameless(function: object) -> UsageError:
    return UsageError(
        f"resume= needs a function that another process finds by its name, got {function!r}: "
        "write a def at the top of a module, and pass what it needs as kwargs="
    )


def function_named(name: str, near: Callable[..., Any] | None = None) -> Callable[..., Any] | None:
    """A function at the top of a module that has been imported; None if there is none.

    Nothing is imported for a name that comes from a store. `near` is a function of the code that
    deferred: what was the script itself there may be a module here, or one of a package.
    """
    module, _, qualified = name.partition(":")
    places = [vars(sys.modules[module])] if module in sys.modules else []
    own = getattr(near, "__module__", None)
    if own is not None and may_be_one_file(module, own):
        places.append(getattr(near, "__globals__", {}))
    for place in places:
        found = place.get(qualified)
        if inspect.isfunction(found) and found.__qualname__ == qualified:
            return found
    return None


def may_be_one_file(module: str, other: str) -> bool:
    """A file is the module `__main__`, `flows` or `shop.flows`, as it was started."""
    return "__main__" in (module, other) or module.rpartition(".")[2] == other.rpartition(".")[2]


def may_be_one_function(name: str | None, other: str) -> bool:
    """Whether two names by which functions are stored may mean the same one."""
    (module, _, qualified), (else_, _, other_) = (name or "").partition(":"), other.partition(":")
    return qualified == other_ and (module == else_ or may_be_one_file(module, else_))


class Verdict(Struct, frozen=True):
    """How a task is settled without running a body: a skipped node, a finished run."""

    state: Literal["resolved", "rejected"]
    value: Value


class Mapped(Struct, frozen=True):
    """A task that is run for each item of a `map`, as it is stored once for all of them."""

    name: str
    """By which other processes find it."""
    task_id: str
    param: Value
    group: str | None = None
    limits: tuple[str, ...] = ()
    """Those that each item runs under."""
    priority: int = 0
    """Of each item, that of its run included."""
    slots: int = 1


class HistoryWriter(Protocol):
    """The tries of a task and their spans, as JSON to be stored."""

    def started(self, now: Millis) -> None: ...

    def parked(self, now: Millis) -> None: ...

    def resumed(self, now: Millis) -> None: ...

    def completed(self, now: Millis) -> str:
        """The text to store together with the result."""
        ...

    def failed(self, now: Millis, error: str, retry_at: Millis | None) -> None: ...

    def handed_back(self, now: Millis, outcome: str) -> str:
        """The text to store when the task is handed back."""
        ...

    def blocked(self, now: Millis, why: str) -> str:
        """The text to store when the code does not fit."""
        ...

    @property
    def text(self) -> str: ...


class LoadedTask(Protocol):
    """One claimed task, loaded and ready to run."""

    @property
    def mode(self) -> Mode: ...

    @property
    def timeout(self) -> float | None: ...

    @property
    def history(self) -> HistoryWriter: ...

    @property
    def code(self) -> str | None:
        """The name of the code it is to run with; None for a call, which any code may serve."""
        ...

    def body(self, handle: Any) -> Callable[[], Any]:
        """The call to make; in process mode it must be picklable and gets no handle."""
        ...

    def completed(self, result: Any) -> Value:
        """The value to settle with; raises when the result cannot be stored."""
        ...

    def carried(self) -> Raw:
        """What the body has changed so far, for the try that goes on after it has deferred."""
        ...

    def failed(
        self, error: BaseException, failures: int, *, may_retry: bool = True
    ) -> "Failure": ...

    @property
    def run_priority(self) -> int:
        """Of its run: what the runs that it starts have, unless they are given another."""
        ...

    def mapped(self, task: object) -> Mapped:
        """What has to be stored to run this task for items; raises if it cannot be mapped."""
        ...

    def is_same_input(self, join_param: str, other: str) -> bool:
        """Whether items of these two joins are given the same, but for their own values."""
        ...

    def callback(self, error: BaseException | None) -> Callable[[], Any] | None:
        """What to call once the end of this try is recorded; `error` is None if it succeeded."""
        ...


class Served(Protocol[R_co]):
    """A function that also serves calls; which name callers use, and what it returns."""

    @property
    def id(self) -> str: ...

    @property
    def rpc(self) -> str | None: ...

    def __call__(self, *args: Any, **kwargs: Any) -> R_co: ...


class Failure(Struct, frozen=True):
    """How a try failed: what to store, and when to try again (None: never)."""

    error: Value
    delay: float | None = None


class Program(Protocol):
    @property
    def has_records(self) -> bool:
        """Whether its bodies make durable calls, whose records are read before the next try."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """The workflows it has code for."""
        ...

    @property
    def codes(self) -> Codes:
        """And the names of their codes."""
        ...

    @property
    def functions(self) -> frozenset[str]:
        """The functions it serves."""
        ...

    def serves(self, call: Call | None) -> bool: ...

    def load_now(self, claim: Claim) -> LoadedTask | Verdict | None:
        """Like `load`, if everything needed is known here; None when something must be read."""
        ...

    async def load(self, claim: Claim) -> LoadedTask | Verdict: ...

    def conclude(self, task_id: str, state: PromiseState, value: Value) -> Verdict | None:
        """How the run ends if this task is its last and settles so; None when unknown."""
        ...

    def started(self, root: Promise) -> None:
        """A run has been started here: its root need not be read."""
        ...

    def settled(self, promise: Promise) -> None:
        """A task of this worker has settled: how it ended need not be read again."""
        ...
