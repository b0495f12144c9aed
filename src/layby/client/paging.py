"""Lists come in pages: the one loop that follows their cursors."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from layby.core.queries import Query


class Page(Protocol):
    @property
    def cursor(self) -> str | None: ...


P = TypeVar("P", bound=Page)


async def pages(ask: Callable[[Any], Awaitable[P]], query: Query) -> AsyncIterator[P]:
    """Yields pages until none are left; `ask` raises on a refusal."""
    while True:
        page = await ask(query)
        yield page
        if page.cursor is None:
            return
        query = replace(query, cursor=page.cursor)
