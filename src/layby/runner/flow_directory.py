"""The workflows that workers have published, for processes that start runs without the code."""

import logging
from collections.abc import Awaitable, Callable, Container, Iterable
from shlex import quote
from typing import Final

from layby.client.patience import send_until_answered
from layby.core.commands import Command, PublishFlow
from layby.core.flows import MAX_NAMES_TOLD, FindFlow
from layby.core.queries import Query
from layby.core.replies import FlowData, Reply
from layby.engine.opening import shown
from layby.errors import NotFound, WireError, error_for
from layby.worker.worker import Worker
from layby.workflow import plan
from layby.workflow.names import check_name, close_match
from layby.workflow.plan import Layout
from layby.workflow.workflow import Workflow

logger = logging.getLogger(__name__)

LOOK_EVERY_MS: Final = 30_000
"""How often it is looked whether somebody has the code of a workflow that is started here."""

Send = Callable[[Command | Query], Awaitable[Reply]]


class FlowDirectory:
    """`address` and `group` are those of the Runner; `elapsed` counts milliseconds.

    `here`: the workflows whose code this process has; None if it runs no bodies.
    """

    def __init__(
        self,
        send: Send,
        address: str,
        group: str,
        elapsed: Callable[[], int],
        here: Container[str] | None = None,
    ) -> None:
        self._send = send
        self.address = address
        self._here = here
        self._group = group
        self._elapsed = elapsed
        self._looked_at: dict[tuple[str, str], int] = {}
        self._warned: set[tuple[str, str]] = set()

    async def find(self, name: str) -> Layout:
        """The layout that was published last under this name; raises if there is none."""
        check_name(name, "workflow name")
        query = FindFlow(group=self._group, name=name, names=MAX_NAMES_TOLD)
        reply = await self._send(query)
        if not isinstance(reply.data, FlowData):
            raise error_for(reply.status, f"workflow '{name}': {reply.data}")
        if reply.data.layout is None:
            raise NotFound(self._unknown(name, reply.data))
        try:
            return plan.read_layout(reply.data.layout)
        except WireError as error:
            raise WireError(f"workflow '{name}' was published in another form: {error}") from None

    async def warn_if_nobody_works(self, name: str, group: str | None = None) -> None:
        """Once for each workflow: a run that nobody can run would wait without a word.

        `group`: that of the run, unless it is the Runner's.
        """
        if self._here is not None and name in self._here and group in (None, self._group):
            return
        group = group or self._group
        await self._warn(name, group, "its runs", self._remedy(group))

    async def warn_of_groups(self, name: str, groups: Iterable[str]) -> None:
        """The same of tasks that have a group of their own."""
        for group in sorted(set(groups) - {self._group}):
            remedy = self._remedy(group)
            if self.address == "memory:":
                remedy = f"memory: has no other workers, so give this Runner group='{group}'"
            await self._warn(name, group, "its tasks of that group", remedy)

    async def _warn(self, name: str, group: str, what: str, remedy: str) -> None:
        now, key = self._elapsed(), (group, name)
        if key in self._warned or now - self._looked_at.get(key, -LOOK_EVERY_MS) < LOOK_EVERY_MS:
            return
        self._looked_at[key] = now
        found = (await self._send(FindFlow(group=group, name=name))).data
        if isinstance(found, FlowData) and found.able_workers == 0:
            self._warned.add(key)
            logger.warning(
                "workflow '%s': no living worker of group '%s' has its code, so %s wait "
                "until one is started: %s",
                name,
                group,
                what,
                remedy,
            )

    @property
    def how_to_work(self) -> str:
        """What to do about a task that no worker has the code of."""
        if self._here is None and self.address == "memory:":
            return "Nobody else can reach memory:, so give this Runner slots="
        if self._here is None:
            return f"Start a worker that has its workflow ({self._remedy()})"
        return "Give its workflow to runner.register(), or start a worker that has it"

    def _unknown(self, name: str, found: FlowData) -> str:
        text = f"no worker of group '{self._group}' has published a workflow '{name}'"
        if hint := close_match(name, tuple(found.names)):
            return f"{text}{hint}"
        if found.groups:
            return f"{text}, but one of group '{found.groups[0]}' has: give the Runner that group="
        if self.address == "memory:":
            return f"{text}: {self._remedy()}, or pass the Workflow itself"
        return f"{text}: start one with its code ({self._remedy()}), or pass the Workflow itself"

    def _remedy(self, group: str | None = None) -> str:
        if self.address == "memory:":  # which nobody else can see
            is_able = self._here is not None
            return "give it to runner.register()" if is_able else "give this Runner slots="
        group = group or self._group
        in_group = "" if group == "default" else f" --group {group}"
        return f"layby worker MODULE --url {quote(shown(self.address))}{in_group}"


def publish(worker: Worker, flows: Iterable[Workflow]) -> None:
    """Say what this worker has code for; in the background, since nobody here waits for it."""
    for flow in flows:
        worker.spawn(_publish(worker, flow))


async def _publish(worker: Worker, flow: Workflow) -> None:
    command = PublishFlow(
        group=worker.config.group, name=flow.name, layout=plan.published_layout(flow)
    )
    reply = await send_until_answered(worker.client, command)
    if not reply.is_ok:
        logger.warning("workflow '%s' cannot be started by its name: %s", flow.name, reply.data)
