"""Stores on PostgreSQL for tests: each has a database of its own as long as it is open."""

from collections.abc import Callable

from layby.core.settings import Settings
from layby.engine.calendar import next_after
from layby.store.postgres import PostgresStore
from tests.helpers.postgres import cluster, migrated_database

_free: list[str] = []
"""Databases that no test uses now: they have our tables, and nothing in them."""


class TestStore(PostgresStore):
    """Gives its database back, empty, when it is closed."""

    __test__ = False

    def __init__(self, database: str, settings: Settings) -> None:
        super().__init__(cluster().url(database), settings, next_after)
        self.database = database
        self.on_close: Callable[[], None] = lambda: None

    def close(self) -> None:
        self.clear()
        with self.transaction():
            self._session.execute("DELETE FROM server_times")
        super().close()
        self.on_close()


def postgres_store(settings: Settings | None = None) -> TestStore:
    """An empty store."""
    cluster()
    database = _free.pop() if _free else migrated_database()
    store = TestStore(database, settings or Settings())
    store.on_close = lambda: _free.append(database)
    return store
