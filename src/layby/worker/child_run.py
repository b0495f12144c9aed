"""Child runs as the body of a task holds them; who starts them is told by the layer above."""

from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from layby.core.model import Promise
from layby.worker.attempt import Attempt
from layby.worker.wait_terms import Seconds

if TYPE_CHECKING:
    from layby.worker.blocking_handle import BlockingHandle
    from layby.worker.handle import TaskHandle


class NamedFlow(Protocol):
    """A workflow, as far as a worker knows it."""

    @property
    def name(self) -> str: ...


class ChildSpec(Struct, frozen=True):
    """What a body asks for."""

    flow: NamedFlow | str
    context: Any = None
    run_id: str | None = None
    deadline: Seconds | None = None
    detach: bool = False
    key: str = ""
    """The key of the call: the same one in every run of the body."""
    priority: int | None = None
    """None: that of the caller's run."""


class StartedRun(Protocol):
    """A run that has been started, or was found."""

    @property
    def id(self) -> str: ...

    @property
    def is_new(self) -> bool: ...

    @property
    def root(self) -> Promise:
        """The root of the life that the caller waits for, as it was then."""
        ...

    @property
    def is_kept(self) -> bool:
        """Whether the store keeps it for its caller: it is a child, and not detached."""
        ...

    async def concluded(self, root: Promise) -> Any:
        """The result of that life, whose root has settled; raises how it failed."""
        ...

    async def status(self) -> Any: ...


class RunStarter(Protocol):
    """Starts runs for the tasks of a worker."""

    async def start_child(
        self, attempt: Attempt, handle: "TaskHandle", asked: ChildSpec, /
    ) -> StartedRun: ...


class ChildRun:
    """A run that this task has started; `await child.result()` waits for it without a slot."""

    __slots__ = ("_asked", "_handle", "_started")

    def __init__(self, handle: "TaskHandle", started: StartedRun) -> None:
        self._handle = handle
        self._started = started
        self._asked = 0

    @property
    def id(self) -> str:
        """Its run id: for `runner.get` and the command line."""
        return self._started.id

    @property
    def promise_id(self) -> str:
        """The promise that settles when it has ended."""
        return self._started.root.id

    @property
    def is_new(self) -> bool:
        """Whether this call has started it; false if an earlier run of the body did."""
        return self._started.is_new

    async def result(self, timeout: Seconds | None = None) -> Any:  # noqa: ASYNC109 - as wait_for
        """Its final context. A child that failed raises RunFailed."""
        root, is_kept = self._started.root, self._started.is_kept
        self._asked += 1
        if is_kept and timeout is None and not root.is_pending:
            await self._handle.may_work()
        else:  # a timeout may have passed in an earlier run of the body; what is not kept is noted
            key = f"child.{root.id}-{self._asked}"
            is_open = is_kept and root.is_pending
            root = await self._handle.settled(root.id, timeout, key=key, is_open=is_open)
        return await self._started.concluded(root)

    async def status(self) -> Any:
        """The run and each of its tasks, as `run.status()` tells them."""
        self._handle.check_open()
        return await self._started.status()

    def __repr__(self) -> str:
        return f"<child run '{self.id}'>"


class BlockingChildRun:
    """The same for a plain `def`."""

    def __init__(self, handle: "BlockingHandle", child: ChildRun) -> None:
        self._handle = handle
        self._child = child

    @property
    def id(self) -> str:
        return self._child.id

    @property
    def promise_id(self) -> str:
        return self._child.promise_id

    @property
    def is_new(self) -> bool:
        return self._child.is_new

    def result(self, timeout: Seconds | None = None) -> Any:
        return self._handle.wait(self._child.result(timeout))

    def status(self) -> Any:
        return self._handle.call(self._child.status())

    def __repr__(self) -> str:
        return repr(self._child)
