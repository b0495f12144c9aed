"""From a claim to something that can run: what the store knows about the task, and its code."""

import asyncio
import logging

from layby.client.interface import Client
from layby.client.patience import PAUSES
from layby.core.blocks import MAX_WHY_CHARS
from layby.core.commands import BlockTask, LimitTask
from layby.core.replies import Claim
from layby.errors import EngineStopped, StoreError
from layby.program import LoadedTask, NamedLimits, Program, UnfitCode, Verdict
from layby.wire.json_values import error_value
from layby.worker.attempt import Attempt, AttemptHost
from layby.worker.exit_requests import is_exit_request
from layby.worker.recall import has_nothing, recall
from layby.worker.replay import NEW, Recalled

logger = logging.getLogger(__name__)

Loaded = Attempt | Verdict | BlockTask | LimitTask


class TaskLoader:
    def __init__(self, host: AttemptHost, client: Client, program: Program) -> None:
        self._host = host
        self._client = client
        self._program = program

    def load_now(self, claim: Claim) -> Loaded | None:
        """None when something has to be read first. A task that cannot be loaded fails."""
        if self._program.has_records and not (has_nothing(claim) or claim.task.is_root):
            return None
        try:
            return self._loaded(claim, self._program.load_now(claim))
        except UnfitCode as unfit:
            return _blocked(claim, unfit)
        except NamedLimits as limits:
            return _limited(claim, limits)
        except BaseException as error:
            # Nothing is awaited here, so nobody but the task's own code can have cancelled it.
            if not (_is_of_code(error) or isinstance(error, asyncio.CancelledError)):
                raise
            return _failed(claim, error)

    async def load(self, claim: Claim) -> Loaded | None:
        """None when the engine has been stopped. A task that cannot be loaded fails."""
        for pause in PAUSES:
            try:
                claim, recalled = await recall(self._client, claim)
                return self._loaded(claim, await self._program.load(claim), recalled)
            except EngineStopped:
                return None
            except UnfitCode as unfit:
                return _blocked(claim, unfit)
            except NamedLimits as limits:
                return _limited(claim, limits)
            except StoreError as failure:
                logger.warning("%s cannot be loaded yet: %s", claim.task.id, failure)
            except BaseException as error:
                if not _is_of_code(error):
                    raise
                return _failed(claim, error)
            await asyncio.sleep(pause)
        raise AssertionError  # there is always another pause

    def _loaded(
        self, claim: Claim, loaded: LoadedTask | Verdict | None, recalled: Recalled = NEW
    ) -> Loaded | None:
        if loaded is None or isinstance(loaded, Verdict):
            return loaded
        return Attempt(self._host, claim, loaded, recalled)


def _blocked(claim: Claim, unfit: UnfitCode) -> BlockTask:
    """It goes back as if it had never been taken here."""
    return BlockTask(
        id=claim.task.id,
        version=claim.task.version,
        code=unfit.code,
        why=str(unfit)[:MAX_WHY_CHARS],
        pin=unfit.pin,
        ready_at=claim.ready_at,
        begun=False,
    )


def _limited(claim: Claim, limits: NamedLimits) -> LimitTask:
    """It goes back as if it had never been taken here, and waits for permits."""
    return LimitTask(
        id=claim.task.id,
        version=claim.task.version,
        limits=limits.names,
        ready_at=claim.ready_at,
    )


def _is_of_code(error: BaseException) -> bool:
    """Whatever it is, it is this task's failure."""
    return isinstance(error, Exception) or is_exit_request(error)


def _failed(claim: Claim, error: BaseException) -> Verdict:
    if claim.task.is_root:  # how a task failed is logged with its report
        logger.error("%s cannot be loaded", claim.task.id, exc_info=error)
    return Verdict("rejected", error_value(error))
