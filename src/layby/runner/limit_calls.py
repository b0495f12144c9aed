"""What a Runner says about limits, and asks of them."""

from layby.client.interface import Client
from layby.core.commands import DeleteLimit, SetLimit
from layby.core.limits import GetLimit, ListLimits
from layby.core.replies import LimitPage, LimitStanding, Reply
from layby.errors import error_for
from layby.wire.durations import whole_number


def wanted_limit(
    name: str, concurrency: int | None, rate: str | None, burst: int, *, count_parked: bool
) -> SetLimit:
    """Numbers are checked here; what they mean, where the limit is kept."""
    if concurrency is not None:
        whole_number(concurrency, "concurrency", 0)
    whole_number(burst, "burst", 1)
    return SetLimit(
        name=name, concurrency=concurrency, rate=rate, burst=burst, count_parked=count_parked
    )


async def set_limit(client: Client, command: SetLimit) -> LimitStanding:
    data = _checked(await client.send(command), command.name)
    assert isinstance(data, LimitStanding)
    found = await client.send(GetLimit(name=command.name))
    return found.data if isinstance(found.data, LimitStanding) else data


async def list_limits(client: Client) -> list[LimitStanding]:
    found: list[LimitStanding] = []
    cursor: str | None = None
    while True:
        page = _checked(await client.send(ListLimits(cursor=cursor)), "")
        assert isinstance(page, LimitPage)
        found += page.standings
        cursor = page.cursor
        if cursor is None:
            return found


async def delete_limit(client: Client, name: str) -> None:
    _checked(await client.send(DeleteLimit(name=name)), name)


def _checked(reply: Reply, name: str) -> object:
    if not reply.is_ok:
        what = f"limit '{name}'" if name else "limits"
        raise error_for(reply.status, f"{what}: {reply.data}")
    return reply.data
