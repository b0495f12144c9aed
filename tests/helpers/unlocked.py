"""PostgreSQL without our row locks, to see that tests notice.

Run as a program, with the arguments of `layby`, it is a process of that sort.
"""

from typing import Any

import pytest

from layby.store.locked_rows import LockedRows
from layby.store.postgres_dialect import PostgresDialect

LOCKED_ROWS = "layby.store.locked_rows"
FREE = "FOR UPDATE SKIP LOCKED"


def remove_row_locks(patch: pytest.MonkeyPatch) -> None:
    """Rows are read as they are, and written whether they are locked or not."""
    oldest_ready = PostgresDialect.oldest_ready

    def oldest(self: PostgresDialect, *given: Any) -> str:
        text = oldest_ready(self, *given)
        assert FREE in text
        return text.replace(FREE, "")

    patch.setattr(f"{LOCKED_ROWS}.WAITING", "")
    patch.setattr(f"{LOCKED_ROWS}.FREE", "")
    patch.setattr(PostgresDialect, "oldest_ready", oldest)
    patch.setattr(LockedRows, "check", lambda _self, _changes: None)


if __name__ == "__main__":
    from layby.cli.main import main

    remove_row_locks(pytest.MonkeyPatch())
    main()
