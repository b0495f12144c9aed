"""How a SQLite file becomes smaller when rows are deleted, a few pages at a time."""

import sqlite3
from typing import Final

from msgspec import Struct

INCREMENTAL: Final = 2
"""`PRAGMA auto_vacuum`: free pages are given back when asked for. Fixed when a file is made."""
PAGES_AT_ONCE: Final = 64
"""Given back in one transaction: a quarter of a megabyte."""
LEAST_SPARE_PAGES: Final = 256
SPARE_PART: Final = 20
"""One page in so many stays free: new rows need room, and moving pages for nothing is work."""


class FreeSpace(Struct, frozen=True):
    """The free pages of a file, in bytes; `is_given_back`: whether pruning makes it smaller.

    `spare`: how much of that stays free for new rows.
    """

    size: int
    free: int
    spare: int
    is_given_back: bool


def prepare_shrinking(connection: sqlite3.Connection) -> None:
    """Before the first table is made; a file that has tables stays as it is."""
    if not _number(connection, "page_count"):
        connection.execute(f"PRAGMA auto_vacuum = {INCREMENTAL}")
    # What is deleted is overwritten where that costs nothing: no page is written for it alone.
    connection.execute("PRAGMA secure_delete = FAST")


def shrink(connection: sqlite3.Connection) -> None:
    """Within a transaction, such as the one that has deleted rows."""
    for _ in range(min(excess_pages(connection), PAGES_AT_ONCE)):
        # Of a statement without columns, sqlite3 makes one step: that is one page.
        connection.execute("PRAGMA incremental_vacuum")


def excess_pages(connection: sqlite3.Connection) -> int:
    """Free pages that can be given back; none of a file that keeps its pages."""
    if _number(connection, "auto_vacuum") != INCREMENTAL:
        return 0
    spare = _spare(_number(connection, "page_count"))
    return max(0, _number(connection, "freelist_count") - spare)


def free_space(connection: sqlite3.Connection) -> FreeSpace:
    page, pages = _number(connection, "page_size"), _number(connection, "page_count")
    return FreeSpace(
        size=page * pages,
        free=page * _number(connection, "freelist_count"),
        spare=page * _spare(pages),
        is_given_back=_number(connection, "auto_vacuum") == INCREMENTAL,
    )


def compact(connection: sqlite3.Connection) -> None:
    """Write the whole file anew, without free pages; from now on it can give pages back."""
    connection.execute(f"PRAGMA auto_vacuum = {INCREMENTAL}")
    connection.execute("VACUUM")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _spare(pages: int) -> int:
    return max(LEAST_SPARE_PAGES, pages // SPARE_PART)


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    return connection.execute(f"PRAGMA {pragma}").fetchone()[0]
