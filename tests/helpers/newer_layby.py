"""The layby of tomorrow: today's code, with one migration more, or two.

    python -m tests.helpers.newer_layby ADDRESS gentle|harsh

opens a store as that would, which brings its schema up to date.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import pytest

from layby.core.settings import Settings
from layby.engine.opening import open_store
from layby.errors import LaybyError
from layby.store import migrate
from layby.store.migrate import Migration

Manner = Literal["gentle", "harsh"]

TODAY = migrate.newest_known()
TOMORROW, DAY_AFTER = TODAY + 1, TODAY + 2
TABLES = ("promises", "tags", "waits", "listeners", "messages", "holders", "schedules", "flows")
GENTLE = (
    "".join(f"ALTER TABLE {each} ADD COLUMN mood TEXT;\n" for each in TABLES)
    + "ALTER TABLE promises ADD COLUMN weight BIGINT NOT NULL DEFAULT 7;\n"
    + "CREATE TABLE moods (id TEXT PRIMARY KEY) /*keyed*/;\n"
    + "CREATE INDEX promises_mood ON promises (mood) WHERE mood IS NOT NULL;\n"
)
HARSH = "ALTER TABLE promises RENAME COLUMN tail_at TO tail_due_at;\n"


NEW = {
    "gentle": (Migration(TOMORROW, "gentle", f"-- oldest code: {TODAY}\n{GENTLE}"),),
    "harsh": (
        Migration(TOMORROW, "gentle", f"-- oldest code: {TODAY}\n{GENTLE}"),
        Migration(DAY_AFTER, "harsh", f"-- oldest code: {DAY_AFTER}\n{HARSH}"),
    ),
}
"""A gentle one only adds, so today's code can go on."""


@contextmanager
def knowing(*migrations: Migration) -> Iterator[None]:
    """Within it, this process is that of a layby that knows just these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrate, "known", lambda: migrations)
        yield


def migrate_tomorrow(address: str, manner: Manner) -> None:
    with knowing(*migrate.known(), *NEW[manner]):
        open_store(address, "full", Settings()).close()


if __name__ == "__main__":
    try:
        migrate_tomorrow(sys.argv[1], "gentle" if sys.argv[2] == "gentle" else "harsh")
    except LaybyError as refused:
        sys.exit(f"{type(refused).__name__}: {refused}")
