"""What every kind of request says of itself, in one declaration beside its rule.

A kind is a class: its fields, the ids it names, the rows it may read, what can be wrong with it.
`declare` adds its name on the wire, who may send it and what it is answered with. The rule of a
command is attached with `handles`; a query is answered by its own `read`, a control by its own
`control`. Every list of kinds is derived from these declarations.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from msgspec import Struct

from layby.core.draft import Draft
from layby.core.footprint import Footprint
from layby.core.model import Millis
from layby.core.replies import Reply, refuse

if TYPE_CHECKING:
    from layby.core.queries import Reader
    from layby.core.takes import Take

Ids = Iterable[str]
Problems = Iterable[str]
Handler = Callable[[Draft, Any], Reply]


class Sender(Enum):
    """Who may send a kind."""

    CLIENT = "anyone with a token that covers every id it names"
    WORKER = "the same, if the token is granted a worker group"
    ADMIN = "an admin, or the empty prefix: it reaches rows that it does not name"
    DEBUGGER = "the same, while debugging is on"
    INTERNAL = "this process only: it is unknown on the wire"


class BaseRequest(Struct, frozen=True, rename="camel", kw_only=True):
    """What commands and queries have in common."""

    kind: ClassVar[str]
    sender: ClassVar[Sender]
    answer: ClassVar[type[Any]]
    """The type of `data` in the reply, unless the reply is a refusal."""

    def named_ids(self) -> Ids:
        """The ids that a token must cover; only for senders that a prefix can restrict."""
        raise NotImplementedError(type(self).__name__)

    def named_groups(self) -> Ids:
        """The groups of workers that a token must be granted."""
        return () if self.asks is None else (self.asks.group,)

    def problems(self) -> Problems:
        """What is wrong with the fields, regardless of any rows."""
        return iter(())

    @property
    def asks(self) -> "Take | None":
        """The take that it is, or that it carries."""
        return None


def _no_handler(_: Draft, command: "Command") -> Reply:
    raise NotImplementedError(_without_handler(type(command)))


class Command(BaseRequest, frozen=True):
    """A request to change state (or to read rows by id)."""

    unqueues: ClassVar[bool]
    """Whether it may remove ready tasks it names from the queue, other than by a take."""
    reads: ClassVar[bool]
    """Whether it only reads: who is not answered can ask again, and nothing has happened."""
    is_alone: ClassVar[bool] = False
    """Whether it gets a transaction of its own, because it finds its rows itself. That need not be
    on disk at once: what a power cut takes back of it is done again.
    """
    handler: ClassVar[Handler] = _no_handler

    def footprint(self, into: Footprint) -> None:
        """Declare every row the step may read; the store adds one hop (waits and awaiters)."""
        raise NotImplementedError(type(self).__name__)

    def lineage_problems(self, _separator: str, /) -> Problems:
        """What the strict rules of lineage object to (`strict`), if they are enabled."""
        return iter(())

    def external_problems(self) -> Problems:
        """What the strict rules of external promises object to, if they are enabled."""
        return iter(())


class Query(BaseRequest, frozen=True):
    """A read that is not by id; it changes nothing and never enters `step`."""

    is_quick: ClassVar[bool] = False
    """Whether it looks only at what belongs to an id that it names: it need not wait for others."""

    def read(self, reader: "Reader", now: Millis, /) -> Reply:
        raise NotImplementedError(type(self).__name__)


class Control(Query, frozen=True):
    """A request to whoever serves the rows, and not about rows: a mere reader does not know it."""

    def read(self, _reader: "Reader", _now: Millis, /) -> Reply:
        return refuse(400, f"Unknown operation: {self.kind}")

    def control(self, controlled: Any) -> Reply:
        raise NotImplementedError(type(self).__name__)


class EngineControl(Control, frozen=True):
    """To the engine itself."""


class DeliveryControl(Control, frozen=True):
    """To the delivery of messages; nothing of it is stored."""


class ServerControl(Control, frozen=True):
    """To a server that people reach over HTTP; who only has an engine refuses it."""


class ById(Command, frozen=True):
    id: str

    def footprint(self, into: Footprint) -> None:
        """Who only reads it need not know who waits for it or listens: there may be very many."""
        (into.beside if self.reads else into.ids).add(self.id)

    def named_ids(self) -> Ids:
        return (self.id,)


AnyRequest = TypeVar("AnyRequest", bound=BaseRequest)
AnyHandler = TypeVar("AnyHandler", bound=Handler)

_declared: Final[dict[str, type[BaseRequest]]] = {}


def declare(
    kind: str, *, sender: Sender, answer: type[Any], unqueues: bool = True, reads: bool = False
) -> Callable[[type[AnyRequest]], type[AnyRequest]]:
    """Declare a kind. There is no default for the sender: nothing is public by omission."""

    def declared(request: type[AnyRequest]) -> type[AnyRequest]:
        if kind in _declared:
            raise TypeError(f"{kind} is declared twice: {_declared[kind]} and {request}")
        if missing := ", ".join(_missing(request, sender)):
            raise TypeError(f"{kind} is declared without {missing}: {request}")
        request.kind, request.sender, request.answer = kind, sender, answer
        _declared[kind] = request
        if issubclass(request, Command):
            request.unqueues, request.reads = unqueues and not reads, reads
        return request

    return declared


def handles(command: type[Command]) -> Callable[[AnyHandler], AnyHandler]:
    """Attach the rule of a command."""

    def attached(handler: AnyHandler) -> AnyHandler:
        if "handler" in vars(command) and command.handler is not _no_handler:
            raise TypeError(f"{command.kind} has two handlers: {command.handler} and {handler}")
        command.handler = handler
        return handler

    return attached


def public_kinds() -> dict[str, type[BaseRequest]]:
    """Every declared kind that the wire knows."""
    for each in _declared.values():
        if issubclass(each, Command) and each.handler is _no_handler:
            raise TypeError(_without_handler(each))
    return {kind: each for kind, each in _declared.items() if each.sender is not Sender.INTERNAL}


def _without_handler(command: type[Command]) -> str:
    return f"{command.kind} has no handler: attach one with @handles({command.__name__})"


def _missing(request: type[BaseRequest], sender: Sender) -> Iterator[str]:
    if issubclass(request, Command) and request.footprint is Command.footprint:
        yield "footprint()"
    if issubclass(request, Query) and request.read is Query.read:
        yield "read()"
    if issubclass(request, Control) and request.control is Control.control:
        yield "control()"
    is_bounded = sender in (Sender.CLIENT, Sender.WORKER)
    if is_bounded and request.named_ids is BaseRequest.named_ids:
        yield "named_ids()"
    is_checked = sender is not Sender.INTERNAL and request.__struct_fields__
    if is_checked and request.problems is BaseRequest.problems:
        yield "problems()"
