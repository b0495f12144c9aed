"""The code of triggers as a worker runs it: each claim is a trigger to run, or one to cancel."""

import asyncio
import hashlib
import logging
import math
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw

from layby.core.codes import code_for
from layby.core.commands import Value
from layby.core.model import Codes, Millis, Promise, PromiseState
from layby.core.replies import Claim
from layby.core.resumption import is_deferred_for, principal_of
from layby.core.tag_names import CANCELS, has_tag
from layby.errors import ContextError, LaybyError, TriggerError, UsageError
from layby.program import Failure, LoadedTask, Mapped, Mode, UnfitCode, Verdict
from layby.trigger_manager.access_checks import AccessChecks
from layby.trigger_manager.shared_polls import SharedPolls
from layby.trigger_manager.trigger_origin import current_origin
from layby.triggers.base_trigger import Trigger
from layby.triggers.built_in import BUILT_IN
from layby.triggers.polled import PolledTrigger
from layby.triggers.registry import TriggerRegistry
from layby.wire import json_values
from layby.wire.call_format import Call
from layby.wire.json_values import error_text
from layby.worker.exit_requests import is_exit_request
from layby.workflow.code_names import name_of_code
from layby.workflow.trigger_reasons import NO_SETTING_HELPS

logger = logging.getLogger(__name__)

CLEANUP_S: Final = 5.0
ON_CANCEL_S: Final = 30.0
CANCEL_TRIES: Final = 5
CANCEL_DELAY_S: Final = 2.0
MAX_PAYLOAD_BYTES: Final = 1_000_000
MISSING: Final = "ended without an event: return a payload, or True where there is nothing to say"


class ProbationGate(Protocol):
    """Decides when a trigger may begin: one whose process has died begins alone."""

    async def admit(self, task_id: str, crashes: int) -> None: ...


class TriggerProgram:
    """`gate` is set by the manager that runs it. `refuses`: also what may not be polled here at all
    is taken, to say why it is not; else that is left to other processes.
    """

    has_records = False
    functions: frozenset[str] = frozenset()

    def __init__(
        self,
        registry: TriggerRegistry,
        checks: AccessChecks,
        polls: SharedPolls,
        *,
        refuses: bool = False,
    ) -> None:
        self._registry = registry
        self._refuses = refuses
        self._checks = checks
        self.polls = polls
        self.gate: ProbationGate | None = None
        self.names: tuple[str, ...] = ()
        self.codes: Codes = ()
        self.code_changed()

    def code_changed(self) -> None:
        """Classes have been registered since."""
        own = {name: name_of_code([code]) for name, code in self._registry.own_code.items()}
        reach = _digest(repr(self._checks.shown()))
        all_kinds = tuple(each.kind() for each in BUILT_IN)
        kinds = all_kinds if self._refuses else self._checks.access.kinds
        polled = [name for name in kinds if name in self._registry]
        codes = {**own, **dict.fromkeys(polled, reach)}
        self.names = tuple(codes)
        self.codes = tuple(codes.items())

    def serves(self, call: Call | None) -> bool:
        del call
        return False

    def load_now(self, claim: Claim) -> LoadedTask:
        name = claim.task.name or ""
        code = code_for(name, self.codes)
        try:
            trigger = self._restored(name, claim)
            self._checks.check(trigger)
        except LaybyError as error:
            raise UnfitCode(str(error), code) from error
        if has_tag(claim.promise.tags, CANCELS):
            return LoadedCancel(self, claim, trigger, code)
        return LoadedTrigger(self, claim, trigger, code)

    def _restored(self, name: str, claim: Claim) -> Trigger:
        try:
            return self._registry.restored(name, json_values.from_text(claim.promise.param))
        except LaybyError as error:
            if name in self._registry.own_code:  # other code may fit
                raise
            raise UsageError(f"{error}; {NO_SETTING_HELPS}") from error
        except BaseException as error:  # of a user's `__post_init__`: it refuses them as well
            is_cancel = isinstance(error, asyncio.CancelledError)  # its own: nothing is awaited
            if not (isinstance(error, Exception) or is_cancel or is_exit_request(error)):
                raise
            raise UsageError(f"the arguments of {name}: {error_text(error)}") from error

    async def load(self, claim: Claim) -> LoadedTask:
        return self.load_now(claim)

    def conclude(self, task_id: str, state: PromiseState, value: Value) -> Verdict | None:
        """A trigger is not part of a run."""

    def started(self, root: Promise) -> None:
        """The same."""

    def settled(self, promise: Promise) -> None:
        """Nobody reads it here again."""


class NoHistory:
    """A trigger keeps no tries: its polls, its error and its crashes say what there is to say."""

    @property
    def text(self) -> str:
        return "{}"

    def started(self, now: Millis) -> None:
        del now

    parked = resumed = started

    def completed(self, now: Millis) -> str:
        del now
        return self.text

    def failed(self, now: Millis, error: str, retry_at: Millis | None) -> None:
        """The error is stored with the outcome."""

    def handed_back(self, now: Millis, outcome: str) -> str:
        del now, outcome
        return self.text

    def blocked(self, now: Millis, why: str) -> str:
        del now, why
        return self.text


_NO_HISTORY: Final = NoHistory()


class LoadedTriggerCode:
    """What running a trigger and cancelling one have in common."""

    __slots__ = ("_crashes", "_program", "_trigger", "code", "id")

    mode: Mode = "async"
    timeout: float | None = None

    def __init__(self, program: TriggerProgram, claim: Claim, trigger: Trigger, code: str) -> None:
        self.id = claim.task.id
        self._program = program
        self._crashes = claim.task.crashes
        self._trigger = trigger
        self.code: str | None = code

    @property
    def kind(self) -> str:
        return self._trigger.kind()

    def body(self, handle: Any) -> Callable[[], Coroutine[Any, Any, Any]]:
        """A trigger has no handle: it waits for the world, not for promises."""
        del handle
        return self._begin

    def _begin(self) -> Coroutine[Any, Any, Any]:
        """In the context of the body."""
        current_origin.set(self.id)
        return self._run()

    async def _admit(self) -> None:
        """Nothing of a user's code runs before: any of it may kill the process."""
        if self._program.gate is not None:
            await self._program.gate.admit(self.id, self._crashes)

    async def _run(self) -> Any:
        raise NotImplementedError

    @property
    def history(self) -> NoHistory:
        return _NO_HISTORY

    def carried(self) -> Raw:
        """A trigger does not defer."""
        raise NotImplementedError

    @property
    def run_priority(self) -> int:
        """Nor does it start runs."""
        return 0

    def mapped(self, task: object) -> Mapped:
        """Nor does it map."""
        raise NotImplementedError

    def is_same_input(self, join_param: str, other: str) -> bool:
        raise NotImplementedError

    def callback(self, error: BaseException | None) -> None:
        """Nobody is called: the end of the trigger wakes its task."""


class LoadedTrigger(LoadedTriggerCode):
    __slots__ = (
        "_alone",
        "_is_new",
        "_principal",
        "found",
        "poll",
        "told_at",
        "told_error",
    )

    def __init__(self, program: TriggerProgram, claim: Claim, trigger: Trigger, code: str) -> None:
        super().__init__(program, claim, trigger, code)
        self._is_new = claim.task.try_number <= 1
        tags = claim.promise.tags
        self._principal = principal_of(tags)
        self._alone = None if is_deferred_for(tags) else claim.task.id
        """Whoever may create a task may put it here: what others ask is not theirs to know."""
        self.poll: Any = None
        """The `SharedPoll` it waits for, while it does."""
        self.found: Any = None
        """Its payload, while `cleanup` runs."""
        self.told_at = -math.inf
        self.told_error: str | None = None
        """What the store was told of its polls, and when."""

    def sentence(self) -> str:
        """Asked for beside all others, so nothing that a user's own does may end here."""
        try:
            return str(self._trigger.sentence())
        except Exception as error:  # noqa: BLE001 - whatever it is, it is shown
            return f"its event, which it cannot name: {error_text(error)}"

    async def _run(self) -> Any:
        await self._admit()
        try:
            self.found = await self._found()
            return self.found
        finally:
            await self._clean_up()

    async def _found(self) -> Any:
        if isinstance(self._trigger, PolledTrigger):
            return await self._polled(self._trigger)
        return await self._trigger.run()  # type: ignore[attr-defined] - the registry has checked it

    async def _polled(self, trigger: PolledTrigger) -> Any:
        polls = self._program.polls
        key = (trigger.kind(), msgspec.json.encode(trigger), self._principal, self._alone)
        self.poll = polls.join(key, trigger, is_new=self._is_new, phase=self.id)
        try:
            return await self.poll.payload()
        finally:
            polls.leave(self.poll)
            self.poll = None

    async def _clean_up(self) -> None:
        clean_up = getattr(self._trigger, "cleanup", None)
        if clean_up is None:
            return
        try:
            async with asyncio.timeout(CLEANUP_S):
                await clean_up()
        except BaseException as error:
            if not (isinstance(error, Exception) or is_exit_request(error)):
                raise
            # What it found counts, not this.
            logger.warning("cleanup of %s (%s) raised %s", self.id, self.kind, error_text(error))

    def completed(self, result: Any) -> Value:
        if result is None:
            raise TriggerError(f"{self.kind} {MISSING}")
        try:
            encoded = json_values.encode(result, f"the payload of {self.kind}")
        except ContextError as error:
            raise TriggerError(str(error)) from None
        if len(encoded) > MAX_PAYLOAD_BYTES:
            raise TriggerError(
                f"the payload of {self.kind} is {len(encoded):,} bytes, and at most "
                f"{MAX_PAYLOAD_BYTES:,} are stored: return where to find it"
            )
        return json_values.wrap(encoded)

    def failed(self, error: BaseException, failures: int, *, may_retry: bool = True) -> Failure:
        """Once: whether the task tries again is for its own retry policy to say."""
        del failures, may_retry
        if not isinstance(error, TriggerError):
            told = TriggerError(f"{self.kind} raised {error_text(error)}")
            told.__cause__ = error
            error = told
        return Failure(json_values.error_value(error))


class LoadedCancel(LoadedTriggerCode):
    """`on_cancel` of a trigger that is over for good. Called again when it raises."""

    __slots__ = ()

    async def _run(self) -> bool:
        await self._admit()
        on_cancel = getattr(self._trigger, "on_cancel", None)
        if on_cancel is not None:
            async with asyncio.timeout(ON_CANCEL_S):
                await on_cancel()
        return True

    def completed(self, result: Any) -> Value:
        return json_values.to_value(result)

    def failed(self, error: BaseException, failures: int, *, may_retry: bool = True) -> Failure:
        is_last = failures >= CANCEL_TRIES or not may_retry
        delay = None if is_last else CANCEL_DELAY_S * 2 ** (failures - 1)
        return Failure(json_values.error_value(error), delay)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
