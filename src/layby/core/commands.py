"""Every command of the protocol and of layby, and for each the rows it may touch (its footprint).

Field names are the wire's in camel case; `null` counts as absent. What time does stands in
`ticks`; reads that are not by id (searches, snapshots) stand in `queries`.
"""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from layby.core.footprint import Footprint
from layby.core.model import NEVER, HeldKey, Millis, root_of
from layby.core.queue import TakeKey

MAX_TAGS = 256
MAX_NAMES = 10_000
MAX_NODES = 10_000
MAX_CLAIMS = 100_000
"""Claims that one request names."""
MAX_WAITS = 10_000

Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Tags = Annotated[dict[str, str], Meta(max_length=MAX_TAGS)]
Waits = Annotated[dict[str, Int64], Meta(max_length=MAX_WAITS)]

if TYPE_CHECKING:
    Unread = Any
else:
    Unread = Raw  # not decoded: megabytes of nothing would hold up everyone else
"""What must be there, and may be anything, because nobody looks at it."""


class Value(Struct, frozen=True, omit_defaults=True):
    """An opaque value; layby and the SDKs put base64 of JSON into `data`."""

    headers: dict[str, str] | UnsetType = UNSET
    data: str | UnsetType = UNSET


NOTHING = Value()


class Command(Struct, frozen=True, rename="camel", kw_only=True):
    """A request to change state (or to read rows by id)."""

    kind: ClassVar[str]
    unqueues: ClassVar[bool] = True
    """Whether it may take ready tasks it names out of the queue, otherwise than by a take."""

    def footprint(self, into: Footprint) -> None:
        """Declare every row the step may read; the store adds one hop (waits and awaiters)."""
        raise NotImplementedError(type(self).__name__)

    @property
    def asks(self) -> "Take | None":
        """The take that it is, or that rides on it."""
        return None


class ById(Command, frozen=True):
    id: str

    def footprint(self, into: Footprint) -> None:
        into.ids.add(self.id)


# --- promise.* ---------------------------------------------------------------------------


class GetPromise(ById, frozen=True):
    kind = "promise.get"
    unqueues = False


class CreatePromise(ById, frozen=True):
    kind = "promise.create"
    timeout_at: Int64
    param: Value = NOTHING
    tags: Tags = {}

    def footprint(self, into: Footprint) -> None:
        into.ids.add(self.id)
        if branch := self.tags.get("resonate:branch"):
            into.born_into.add((self.id, branch))


class SettlePromise(ById, frozen=True):
    kind = "promise.settle"
    state: str
    value: Value = NOTHING


class RegisterCallback(Command, frozen=True):
    kind = "promise.register_callback"
    awaited: str
    awaiter: str

    def footprint(self, into: Footprint) -> None:
        into.ids.update((self.awaited, self.awaiter))
        into.pairs.add((self.awaited, self.awaiter))


class RegisterListener(Command, frozen=True):
    kind = "promise.register_listener"
    unqueues = False
    awaited: str
    address: str

    def footprint(self, into: Footprint) -> None:
        into.ids.add(self.awaited)


# --- task.* ------------------------------------------------------------------------------


class CreateAction(Struct, frozen=True):
    kind: str
    head: Unread
    data: CreatePromise


class SettleAction(Struct, frozen=True):
    kind: str
    head: Unread
    data: SettlePromise


class SuspendAction(Struct, frozen=True):
    kind: str
    head: Unread
    data: RegisterCallback


class GetTask(ById, frozen=True):
    kind = "task.get"
    unqueues = False


class CreateTask(Command, frozen=True):
    kind = "task.create"
    pid: str
    ttl: Int64
    action: CreateAction

    def footprint(self, into: Footprint) -> None:
        promise = self.action.data
        into.ids.add(promise.id)
        into.branches_of.add(promise.id)
        if branch := promise.tags.get("resonate:branch"):
            into.branches.add(branch)


class AcquireTask(ById, frozen=True):
    kind = "task.acquire"
    version: Int64
    pid: str
    ttl: Int64

    def footprint(self, into: Footprint) -> None:
        into.ids.add(self.id)
        into.branches_of.add(self.id)


class ReleaseTask(ById, frozen=True):
    kind = "task.release"
    version: Int64


class FulfillTask(ById, frozen=True):
    kind = "task.fulfill"
    version: Int64
    action: SettleAction


class SuspendTask(ById, frozen=True):
    kind = "task.suspend"
    version: Int64
    actions: list[SuspendAction]

    def footprint(self, into: Footprint) -> None:
        into.ids.add(self.id)
        into.ids.update(action.data.awaited for action in self.actions)
        into.pairs.update((action.data.awaited, self.id) for action in self.actions)
        into.branches_of.add(self.id)


class FenceTask(ById, frozen=True):
    """`inner` is None when the action's kind is neither create nor settle of a promise."""

    kind = "task.fence"
    version: Int64
    inner: CreatePromise | SettlePromise | None

    def footprint(self, into: Footprint) -> None:
        into.ids.add(self.id)
        if self.inner is not None:
            self.inner.footprint(into)


class TaskVersion(Struct, frozen=True):
    id: str
    version: Int64


class HeartbeatTasks(Command, frozen=True):
    kind = "task.heartbeat"
    pid: str
    tasks: list[TaskVersion]

    def footprint(self, into: Footprint) -> None:
        into.ids.update(task.id for task in self.tasks)
        into.pids.add(self.pid)
        if not self.tasks:
            into.leases_of.add(self.pid)


class HaltTask(ById, frozen=True):
    """`by` and `reason` are ours: who stopped the task and why, kept until it goes on."""

    kind = "task.halt"
    version: Int64 | None = None
    by: str = ""
    reason: str = ""


class ContinueTask(ById, frozen=True):
    kind = "task.continue"
    version: Int64 | None = None


# --- schedule.* --------------------------------------------------------------------------


class ScheduleCommand(Command, frozen=True):
    id: str

    def footprint(self, into: Footprint) -> None:
        into.schedules.add(self.id)


class GetSchedule(ScheduleCommand, frozen=True):
    kind = "schedule.get"


class CreateSchedule(ScheduleCommand, frozen=True):
    kind = "schedule.create"
    cron: str
    promise_id: str
    promise_timeout: Int64
    promise_param: Value = NOTHING
    promise_tags: Tags = {}


class DeleteSchedule(ScheduleCommand, frozen=True):
    kind = "schedule.delete"


# --- layby.* -----------------------------------------------------------------------------


class Take(Command, frozen=True):
    """Register or renew the holder and hand it up to `free` ready tasks, already acquired.

    With `wait_ms` the engine keeps the request until something is ready for it.
    """

    kind = "layby.worker.take"
    unqueues = False
    pid: str
    incarnation: str
    group: str
    names: Annotated[tuple[str, ...], Meta(max_length=MAX_NAMES)]
    free: Int64
    ttl: Int64 = 60_000
    embedded: bool = False
    wait_ms: Int64 = 0
    prefix: str = ""
    """Only ids that begin so: what the caller's token allows."""
    ahead: Int64 = 0
    """So many more, acquired but not begun, of what nobody has a slot for."""
    before: Int64 | None = None
    """Only nodes that were ready before this instant, and none ahead."""
    in_line: bool = False
    """Somebody stands in line at this worker: it wants to hear of nodes that are left."""
    begun: Annotated[tuple[TaskVersion, ...], Meta(max_length=MAX_CLAIMS)] = ()
    """Claims that were ahead, and whose bodies run now."""

    def footprint(self, into: Footprint) -> None:
        into.pids.add(self.pid)
        into.ids.update(claim.id for claim in self.begun)
        into.expect(self.key, max(0, self.free), max(0, self.ahead))
        into.root_params = into.root_params or not self.embedded

    @property
    def asks(self) -> "Take":
        return self

    @property
    def holder(self) -> HeldKey:
        return (self.pid, self.incarnation)

    @property
    def key(self) -> TakeKey:
        return (self.group, self.names, self.prefix)


class HeartbeatWorker(Command, frozen=True):
    """Renew one row, however many tasks are held. `held` is what the worker believes."""

    kind = "layby.worker.heartbeat"
    unqueues = False
    pid: str
    incarnation: str
    held: Int64 | None = None

    def footprint(self, into: Footprint) -> None:
        into.pids.add(self.pid)
        into.notices.add(self.pid)


class CheckHolder(Command, frozen=True):
    """Whether this is a living holder of the group; changes nothing."""

    kind = "layby.worker.check"
    unqueues = False
    pid: str
    incarnation: str
    group: str

    def footprint(self, into: Footprint) -> None:
        into.pids.add(self.pid)


class LeaveWorker(Command, frozen=True):
    """The holder goes away in order: its tasks are handed back and count as no crash."""

    kind = "layby.worker.leave"
    unqueues = False
    pid: str
    incarnation: str

    def footprint(self, into: Footprint) -> None:
        into.pids.add(self.pid)


class Released(Struct, frozen=True, rename="camel"):
    """A claim that is handed back.

    `ready_at`: its place in the queue, if it keeps it; `delay`: how long nobody is to take it;
    `begun`: whether its body ever ran; if not, the claim was no try.
    """

    id: str
    version: Int64
    ready_at: Int64 | None = None
    begun: bool = True
    delay: Int64 = 0
    history: str | None = None


class ReleaseTasks(Command, frozen=True):
    """Hand claims back in order: neither failures nor crashes.

    For a task that was halted meanwhile it says that its body has ended.
    """

    kind = "layby.worker.release"
    unqueues = False
    pid: str
    incarnation: str
    tasks: Annotated[tuple[Released, ...], Meta(max_length=MAX_CLAIMS)]

    def footprint(self, into: Footprint) -> None:
        into.ids.update(task.id for task in self.tasks)


class RootVerdict(Struct, frozen=True):
    """How the whole run ends, if this is its last node."""

    state: str
    value: Value = NOTHING


class FencedCommand(ById, frozen=True):
    """A command of the worker that holds the task; optionally takes the next one with it."""

    version: Int64
    take: Take | None = None
    root: RootVerdict | None = None

    def footprint(self, into: Footprint) -> None:
        into.ids.add(self.id)
        if self.root is not None:
            into.ids.add(self.root_id)
        if self.take is not None:
            self.take.footprint(into)

    @property
    def asks(self) -> Take | None:
        return self.take

    @property
    def root_id(self) -> str:
        return root_of(self.id)


class FinishTask(FencedCommand, frozen=True):
    kind = "layby.task.finish"
    unqueues = False
    value: Value = NOTHING
    state: str = "resolved"
    history: str | None = None


class FailTask(FencedCommand, frozen=True):
    """`retry_in` None settles the promise rejected; otherwise the task backs off for so long."""

    kind = "layby.task.fail"
    unqueues = False
    error: Value = NOTHING
    retry_in: Int64 | None = None
    history: str | None = None

    def footprint(self, into: Footprint) -> None:
        super().footprint(into)
        into.ids.add(self.backoff_id)
        into.pairs.add((self.backoff_id, self.id))

    @property
    def backoff_id(self) -> str:
        return f"{self.id}.backoff.{self.version}"


class AnnotateTask(ById, frozen=True):
    """What the holder tells about its task; with `record` also something it must not do again.

    A record is a settled promise below the task's id. The first one stands: whoever records
    the same id again is answered with what is there.

    `waits`: how long waits that begin may last, by their record ids; the first length of each
    counts, until it is among the `ended`.
    """

    kind = "layby.task.annotate"
    unqueues = False
    version: Int64
    sub_status: str | None = None
    waiting_on: str | None = None
    progress: str | None = None
    history: str | None = None
    record_id: str | None = None
    record: Value = NOTHING
    waits: Waits = {}
    ended: Annotated[tuple[str, ...], Meta(max_length=MAX_WAITS)] = ()

    def footprint(self, into: Footprint) -> None:
        into.ids.add(self.id)
        if self.record_id is not None:
            into.ids.add(self.record_id)


class CreateBelow(ById, frozen=True):
    """The holder of a task creates a promise that ends so long after now, or reads what stands.

    `capped`: it does not outlast the task's own promise.
    """

    kind = "layby.task.create"
    version: Int64
    promise_id: str
    timeout: Int64 = NEVER
    param: Value = NOTHING
    tags: Tags = {}
    capped: bool = False

    def footprint(self, into: Footprint) -> None:
        into.ids.update((self.id, self.promise_id))
        if branch := self.tags.get("resonate:branch"):
            into.born_into.add((self.promise_id, branch))

    def creating(self, timeout_at: Millis) -> CreatePromise:
        return CreatePromise(
            id=self.promise_id, timeout_at=timeout_at, param=self.param, tags=self.tags
        )


class ResolvePromise(ById, frozen=True):
    """Settle, or create settled: an event before its wait is never lost."""

    kind = "layby.promise.resolve"
    value: Value = NOTHING
    state: str = "resolved"


class EnsurePromise(ById, frozen=True):
    """The promise of this id; a placeholder comes into being when there is none."""

    kind = "layby.promise.ensure"
    unqueues = False


class WatchPromise(ById, frozen=True):
    """Read the promise; the engine holds the answer back until it is settled."""

    kind = "layby.promise.watch"
    unqueues = False


class CancelPromise(ById, frozen=True):
    """Settle as cancelled, keeping who and why. Cancelling a run cancels its nodes."""

    kind = "layby.promise.cancel"
    by: str = ""
    reason: str = ""


class Node(Struct, frozen=True, rename="camel"):
    """One vertex of a run: runs after all of `after` have settled, whatever their outcome."""

    id: str
    name: str
    after: tuple[str, ...] = ()
    group: str | None = None
    param: Value = NOTHING


Nodes = Annotated[tuple[Node, ...], Meta(max_length=MAX_NODES)]


class StartRun(ById, frozen=True):
    """Create the root and all nodes at once; an existing run is answered as it is.

    `timeout`: how long after now the run may take.
    """

    kind = "layby.run.start"
    unqueues = False
    name: str
    group: str
    nodes: Nodes
    timeout: Int64 = NEVER
    param: Value = NOTHING
    take: Take | None = None

    def footprint(self, into: Footprint) -> None:
        into.ids.add(self.id)
        into.ids.update(self.node_id(node.id) for node in self.nodes)
        if self.take is not None:
            self.take.footprint(into)

    @property
    def asks(self) -> Take | None:
        return self.take

    def node_id(self, node: str) -> str:
        return f"{self.id}:{node}"


class CreateRunSchedule(ScheduleCommand, frozen=True):
    """Start a run at every occurrence, with what `layby.run.start` needs.

    `timeout`: how long after its occurrence a run may take. Without `catch_up` only the latest
    of several missed occurrences has a run.
    """

    kind = "layby.schedule.create"
    cron: str
    name: str
    group: str
    nodes: Nodes
    timeout: Int64 = NEVER
    param: Value = NOTHING
    timezone: str = "UTC"
    catch_up: bool = False
