"""What a Runner says about limits, and asks of them."""

import logging

from layby.client.interface import Client
from layby.client.paging import pages
from layby.core.commands import DeleteLimit, SetLimit, StartRun
from layby.core.limits import GetLimit, ListLimits
from layby.core.replies import LimitPage, LimitStanding, Reply
from layby.errors import error_for
from layby.wire.durations import true_or_false, whole_number
from layby.workflow import plan
from layby.workflow.limit_reasons import how_to_define
from layby.workflow.names import check_text

logger = logging.getLogger(__name__)


def wanted_limit(
    name: str, concurrency: int | None, rate: str | None, burst: int, *, count_parked: bool
) -> SetLimit:
    """Types are checked here; what they mean, where the limit is kept."""
    check_text(name, "name of a limit")
    if rate is not None:
        check_text(rate, f"rate of limit '{name}'")
    if concurrency is not None:
        whole_number(concurrency, "concurrency", 0)
    whole_number(burst, "burst", 1)
    counted = true_or_false(count_parked, "count_parked")
    return SetLimit(
        name=name, concurrency=concurrency, rate=rate, burst=burst, count_parked=counted
    )


async def set_limit(client: Client, command: SetLimit) -> LimitStanding:
    data = _checked(await client.send(command), command.name)
    assert isinstance(data, LimitStanding)
    found = await client.send(GetLimit(name=command.name))
    return found.data if isinstance(found.data, LimitStanding) else data


async def list_limits(client: Client) -> list[LimitStanding]:
    async def ask(query: ListLimits) -> LimitPage:
        page = _checked(await client.send(query), "")
        assert isinstance(page, LimitPage)
        return page

    return [each async for page in pages(ask, ListLimits()) for each in page.standings]


async def delete_limit(client: Client, name: str) -> None:
    check_text(name, "name of a limit")
    _checked(await client.send(DeleteLimit(name=name)), name)


class UndefinedLimits:
    """Says once, of each limit that tasks of started runs name, that nobody has defined it."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    async def warn(self, client: Client, command: StartRun) -> None:
        names = {name for node in command.nodes for name in node.limits} - self._known
        self._known |= names
        for name in sorted(names):
            found = (await client.send(GetLimit(name=name))).data
            if isinstance(found, LimitStanding) and found.rule is None:
                logger.warning(
                    "run '%s' has tasks that wait for limit '%s', which is not defined: %s",
                    plan.run_id_of(command.id),
                    name,
                    how_to_define(name),
                )


def _checked(reply: Reply, name: str) -> object:
    if not reply.is_ok:
        what = f"limit '{name}'" if name else "limits"
        raise error_for(reply.status, f"{what}: {reply.data}")
    return reply.data
