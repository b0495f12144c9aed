"""Long lists: read page by page, with progress on a terminal."""

from typing import Any, NamedTuple

from layby.cli.connection import Place, ask
from layby.cli.expected_replies import Paged, pages
from layby.cli.showing import new_console
from layby.client.interface import Client


class Listed(NamedTuple):
    rows: list[Any]
    is_cut: bool
    """There are more rows than the limit."""


def listed(place: Place, query: Paged, limit: int) -> Listed:
    """Everything the query finds, at most `limit` (0: all)."""
    return ask(place, lambda client: gathered(client, query, limit))


async def gathered(client: Client, query: Paged, limit: int) -> Listed:
    found: list[Any] = []
    status = new_console(stderr=True).status("")
    try:
        async for rows, has_more in pages(client, query, limit):
            found += rows
            if not has_more or len(found) == limit:  # a short list needs no progress
                return Listed(found, has_more)
            status.update(f"{len(found):,} found, reading on ...")
            status.start()
    finally:
        status.stop()
    return Listed(found, is_cut=False)
