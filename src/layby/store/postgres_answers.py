"""Notices answers of PostgreSQL that will never come, because a connection is only half open.

A machine or a proxy in between may go silent without ending a connection: then the kernel has
nothing to report, and a statement would be waited for for ever. A limit alone does not tell that
from a statement that takes long. So after a while the database is asked, through another
connection, whether it still works on ours. If not, ours is ended: who waits sees that it broke.
"""

import logging
import os
import selectors
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Final, NamedTuple, Self

import psycopg
from psycopg import pq
from psycopg.waiting import wait as answer_of

from layby.store.postgres_address import without_password

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.5
SILENT_S: Final = 2.0
"""An answer that takes longer is asked about, as often as this."""
PROBE_S: Final = 2
DOUBTS: Final = 2
"""How often nobody may be found to work on an answer: it may be on its way."""

END_S: Final = 1.0
"""For how long whoever is interrupted tries to end what the database does."""
_INTERVAL_S: Final = 0.1
"""How often a wait looks whether it is interrupted."""

_STARTED: Final = "CAST(extract(epoch FROM backend_start) AS text)"
_WORKS: Final = "(state = 'active' AND wait_event IS DISTINCT FROM 'ClientRead')"
"""Amid a pipeline it calls itself active, too, while it waits for what we have not sent."""
_ACTIVE: Final = f"""
    SELECT pid, {_STARTED} FROM pg_stat_activity WHERE {_WORKS} AND usename = session_user
"""
_OWN: Final = f"SELECT pid, {_STARTED} FROM pg_stat_activity WHERE pid = pg_backend_pid()"
_END: Final = f"""
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE pid = %s AND {_STARTED} = %s AND NOT {_WORKS}
"""
"""What nobody can reach any more keeps its locks no longer."""
# Whoever has connected may look at its own connections and end them. Another role that it takes on
# (`ALTER ROLE … SET role`) may not: it finds nobody who works on anything.
_AS_CONNECTED: Final = "SET ROLE NONE"
_AS_BEFORE: Final = "RESET ROLE"


class Backend(NamedTuple):
    """The process of the database at the other end; its number may be used again."""

    pid: int
    started: str


UNKNOWN: Final = Backend(0, "")


class StoreConnection(psycopg.Connection[tuple[Any, ...]]):
    """Whatever it waits for is watched."""

    watch: "AnswerWatch | None" = None
    """None while it is being connected, which has a limit of its own."""
    backend = UNKNOWN
    """Kept here: a connection that broke does not tell."""
    _interrupt: BaseException | None = None
    """What has ended a wait, and this connection with it: Ctrl-C, or the end of the process."""

    def look_at_backend(self) -> None:
        """Who it is that answers; asked once."""
        self.backend = Backend(*self._as_connected(_OWN).fetchall()[0])

    def end(self, former: Backend) -> None:
        """It has nobody on this side any more."""
        if former != UNKNOWN:
            self._as_connected(_END, former)

    def _as_connected(
        self, statement: str, arguments: Sequence[Any] = ()
    ) -> "psycopg.Cursor[tuple[Any, ...]]":
        self.execute(_AS_CONNECTED)
        found = self.execute(statement.encode(), arguments)
        self.execute(_AS_BEFORE)
        return found

    def wait(self, gen: Any, interval: float = _INTERVAL_S, timeout: float | None = None) -> Any:
        if self._interrupt is not None:  # whatever is tidied up on the way out of it
            raise self._interrupt
        limit = {} if timeout is None else {"timeout": timeout}  # psycopg 3.2 takes none
        try:
            return self._watched(gen, interval=interval, **limit)
        except Exception:
            raise
        except BaseException as interrupt:
            self._interrupt = interrupt
            self._give_up()
            raise

    def _watched(self, gen: Any, **limits: float) -> Any:
        if self.watch is None:
            return answer_of(gen, self.pgconn.socket, **limits)
        try:
            self.watch.begins(self)
            return answer_of(gen, self.pgconn.socket, **limits)
        finally:
            self.watch.ends(self)

    def _give_up(self) -> None:
        """Whoever is interrupted waits no longer, and the database need not work on it.

        psycopg waits ten seconds for one that is silent, and may take the end of that for a failure
        and forget the interrupt.
        """
        asking = threading.Thread(target=self._ask_to_end_it, daemon=True)
        asking.start()
        asking.join(END_S)
        self.close()

    def _ask_to_end_it(self) -> None:
        with suppress(psycopg.Error):
            self.cancel_safe(timeout=END_S)


class _Waiting:
    def __init__(self) -> None:
        self.since = self.asked_at = monotonic()
        self.doubts = 0


class AnswerWatch:
    """For all connections of a process to one database, in a thread of its own."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._waiting: dict[StoreConnection, _Waiting] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="layby-answers", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def begins(self, connection: StoreConnection) -> None:
        self._waiting[connection] = _Waiting()

    def ends(self, connection: StoreConnection) -> None:
        with self._lock:  # from now on its file number may be another's
            self._waiting.pop(connection, None)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(PROBE_S)

    # --- in the thread -------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_S):
            try:
                self._look()
            except Exception:
                logger.exception("answers of the database are not watched: trying again")

    def _look(self) -> None:
        now = monotonic()
        waiting = list(self._waiting.items())
        silent = [(key, each) for key, each in waiting if now - each.asked_at >= SILENT_S]
        if not silent:
            return
        active = self._active()
        for connection, each in silent:
            each.asked_at = monotonic()
            each.doubts = 0 if connection.backend in active else each.doubts + 1
            if each.doubts >= DOUBTS:
                self._end(connection, each)

    def _active(self) -> set[Backend]:
        """Those that work; nobody, if that cannot be found out."""
        try:
            probe = psycopg.connect(self._url, autocommit=True, connect_timeout=PROBE_S)
        except psycopg.Error:
            return set()
        try:
            return _backends(probe.pgconn)
        except psycopg.Error:
            return set()
        finally:
            probe.close()

    def _end(self, connection: StoreConnection, waiting: _Waiting) -> None:
        with self._lock, suppress(OSError, psycopg.Error):
            if self._waiting.get(connection) is not waiting:
                return
            with socket.socket(fileno=os.dup(connection.fileno())) as ours:
                ours.shutdown(socket.SHUT_RDWR)
        told = "%s: nothing works on a statement sent %.1f s ago, so its connection is ended"
        logger.warning(told, without_password(self._url), monotonic() - waiting.since)


def readable(*files: Any) -> selectors.BaseSelector:
    """Waits for any of them. `select` would refuse files whose numbers are 1,024 or more, as those
    of a server with so many connections are.
    """
    selector = selectors.DefaultSelector()
    for file in files:
        selector.register(file, selectors.EVENT_READ)
    return selector


def _backends(connection: pq.abc.PGconn) -> set[Backend]:
    """What is active; nobody, if there is no answer in time: this may be silent as well."""
    until = monotonic() + PROBE_S
    connection.send_query(f"{_AS_CONNECTED};{_ACTIVE}".encode())
    found = None
    with readable(connection.socket) as answer:
        for _ in range(2):  # that of the first statement tells nothing
            while connection.is_busy():
                if not answer.select(max(0.0, until - monotonic())):
                    return set()
                connection.consume_input()
            found = connection.get_result()
    if found is None:
        return set()
    cells = ((found.get_value(row, 0), found.get_value(row, 1)) for row in range(found.ntuples))
    return {Backend(int(pid or 0), (started or b"").decode()) for pid, started in cells}
