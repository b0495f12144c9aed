"""Where the demo happens: in a SQLite file of its own, or in a PostgreSQL database of yours."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from layby.cli.doctor import FileReport, examine, examine_database
from layby.engine.opening import needing_psycopg, shown

VARIABLE: Final = "LAYBY_DEMO_DB"
"""How the demo's process is told of the database: its arguments would be seen by everyone."""
_PARKED: Final = """
    FROM task_executions
    WHERE sub_status = 'Deferred' AND try_number = {life:d} AND name = 'parcel/deliver'
        AND root LIKE 'run/{prefix}%'
    GROUP BY {kind}
"""


class DemoPlace(Struct, frozen=True):
    folder: Path
    database: str | None = None
    """The URL of a PostgreSQL database; perhaps with a password."""

    @classmethod
    def of_process(cls, folder: Path) -> "DemoPlace":
        """As the demo's process was told."""
        return cls(folder, os.environ.get(VARIABLE))

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, VARIABLE: self.database} if self.database else dict(os.environ)

    @property
    def noun(self) -> str:
        return "database" if self.database else "file"

    @property
    def address(self) -> str:
        return self.database or f"sqlite:{self._file}"

    @property
    def shown(self) -> str:
        return shown(self.database) if self.database else str(self._file)

    @property
    def prefix(self) -> str:
        """What ids begin with: a database may have seen other demos."""
        return f"{self.folder.name}-" if self.database else ""

    @property
    def group(self) -> str:
        """Nobody else who works on the database is given anything of ours."""
        return self.folder.name if self.database else "default"

    @property
    def lease_s(self) -> float:
        """On a database, for so long nobody takes up the tasks of the process that was killed."""
        return 2.0 if self.database else 15.0

    @property
    def _file(self) -> Path:
        return self.folder / "demo.db"

    def waiting(self, life: int) -> dict[str, int]:
        """How many parcels are parked, by what they wait for: each process is another try."""
        return dict(self._asked("{kind}, count(*)", life))

    def examples(self, life: int) -> list[tuple[str, str]]:
        """One parked run of each kind, and what is stored about it."""
        found = self._asked("min(root), {sentence}", life)
        return [(root.removeprefix("run/"), sentence) for root, sentence in found]

    def examine(self) -> FileReport:
        if self.database is None:
            return examine(self._file, limit=10)
        return examine_database(self.database, 10, lambda _done, _total: None)

    def _asked(self, cells: str, life: int) -> list[Any]:
        if self.database is None:
            # SQLite takes the sentence from the row that has the least root.
            own = {"kind": _extracted("kind"), "sentence": _extracted("sentence")}
        else:
            sentence = "(array_agg(waiting_on::json ->> 'sentence' ORDER BY root))[1]"
            own = {"kind": "waiting_on::json ->> 'kind'", "sentence": sentence}
        text = f"SELECT {cells} {_PARKED}".format(life=life, prefix=self.prefix, **own)
        return self._looked_up(text)

    def _looked_up(self, text: str) -> list[Any]:
        if self.database is None:
            with closing(sqlite3.connect(f"file:{self._file}?mode=ro", uri=True)) as connection:
                return connection.execute(text).fetchall()
        with needing_psycopg():
            from layby.store.postgres_answers import AnswerWatch  # noqa: PLC0415 - needs an extra
            from layby.store.postgres_connection import Connector  # noqa: PLC0415 - the same
        database = self.database
        with AnswerWatch(database) as watch, Connector(database, watch).connect() as connection:
            return connection.execute(text.encode()).fetchall()


def _extracted(key: str) -> str:
    return f"json_extract(waiting_on, '$.{key}')"
