"""Long lists: read page by page, with a word on how far it is when somebody is looking."""

from typing import Any

from layby.cli.answers import Paged, pages
from layby.cli.connection import Place, ask
from layby.cli.showing import new_console
from layby.client.api import Client


def listed(place: Place, query: Paged, limit: int) -> list[Any]:
    """Everything the query finds, at most `limit` (0: all)."""
    return ask(place, lambda client: gathered(client, query, limit))


async def gathered(client: Client, query: Paged, limit: int) -> list[Any]:
    found: list[Any] = []
    status = new_console(stderr=True).status("")
    try:
        async for rows, is_last in pages(client, query, limit):
            found += rows
            if is_last:  # a short list is there before anybody has read a word on it
                break
            status.update(f"{len(found):,} found, reading on ...")
            status.start()
    finally:
        status.stop()
    return found
