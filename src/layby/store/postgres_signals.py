"""LISTEN and NOTIFY: what processes that share a database tell each other after their commits.

One thread with one connection. While that is broken nothing is heard, so the first thing heard
afterwards is that anything may have happened. The connection also holds a lock by which others see
that this process is there; it is free as soon as the process dies, or the connection breaks.
"""

import logging
import random
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import psycopg

from layby.core.model import HeldKey
from layby.core.pauses import Pauses
from layby.errors import StoreError
from layby.store.announcement import EVERYTHING, Announcement, of_text, to_text
from layby.store.postgres_answers import AnswerWatch, readable
from layby.store.postgres_connection import Connection, Connector
from layby.store.postgres_failures import explained

logger = logging.getLogger(__name__)

CHANNEL: Final = "layby"
STOP_S: Final = 2.0
PING_S: Final = 5.0
"""After so much silence the connection is tried: it may be open on our side only."""
_VOUCHING: Final = "1818327394"
"""The first number of these advisory locks; the second one stands for a holder."""
_HOLD: Final = f"SELECT pg_try_advisory_lock({_VOUCHING}, hashtext(%s || '/' || %s))"
_LET_GO: Final = "SELECT pg_advisory_unlock_all()"
VOUCHED: Final = f"""
    SELECT h.pid, h.incarnation FROM holders AS h
    WHERE h.standing = 'alive'
        AND CAST(hashtext(h.pid || '/' || h.incarnation) AS bigint) & 4294967295 IN (
            SELECT CAST(l.objid AS bigint) FROM pg_locks AS l
            WHERE l.locktype = 'advisory' AND l.classid = {_VOUCHING} AND l.objsubid = 2
                AND l.granted
                AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))
"""
_TELL: Final = f"SELECT pg_notify('{CHANNEL}', %s)"
_PING: Final = "SELECT 1"
_PAUSES: Final = Pauses(0.1, longest=2.0)
# A hint need not reach the disk.
_SETTINGS: Final = {"synchronous_commit": "off"}

Heard = Callable[[Announcement], None]


class Signals:
    """`heard` is called in the thread of the signals: it must not block."""

    def __init__(self, url: str, heard: Heard, watch: AnswerWatch) -> None:
        self._connector = Connector(url, watch, _SETTINGS)
        self._heard = heard
        self._told: deque[Announcement] = deque()
        self._wake, self._woken = socket.socketpair()
        self._wake.settimeout(0)
        self._woken.settimeout(0)
        self._holders: dict[str, HeldKey] = {}
        """By their pids: a process may have several workers."""
        self._held: dict[str, HeldKey] = {}
        """What the connection has locks for."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="layby-signals", daemon=True)
        self._thread.start()

    def tell(self, announcement: Announcement) -> None:
        """From any thread; what is told while another is under way goes together."""
        is_first = not self._told
        self._told.append(announcement)
        if is_first:
            self._ring()

    def hold(self, holder: HeldKey) -> None:
        """From any thread: a worker of this process is that holder, and no earlier one, now."""
        self._holders = self._holders | {holder[0]: holder}
        self._ring()

    def stop(self) -> None:
        self._stopping.set()
        self._ring()
        self._thread.join(STOP_S)
        self._wake.close()
        self._woken.close()

    def _ring(self) -> None:
        with suppress(OSError):  # it is full: then it rings already; or closed
            self._wake.send(b"\0")

    # --- in the thread -------------------------------------------------------------------

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                with self._connector.connect() as connection:
                    connection.execute(f"LISTEN {CHANNEL}")
                    failures, self._held = 0, {}
                    self._hold(connection)
                    self._heard(EVERYTHING)
                    self._serve(connection)
            except (psycopg.Error, StoreError) as failure:
                failures += 1
                if failures == 1:
                    late = "commits of other processes are noticed up to a second late"
                    logger.warning("%s until it answers again: %s", late, self._why(failure))
                self._stopping.wait(_PAUSES.after(failures) * random.uniform(0.5, 1.0))  # noqa: S311
            except Exception:
                logger.exception("signals fail")
                self._stopping.wait(_PAUSES.longest)

    def _why(self, failure: Exception) -> Exception:
        if isinstance(failure, psycopg.Error):
            return explained(failure, self._connector.name)
        return failure

    def _serve(self, connection: Connection) -> None:
        own = connection.info.backend_pid
        with readable(connection, self._woken) as either:
            while not self._stopping.is_set():
                if not either.select(PING_S):
                    connection.execute(_PING)
                with suppress(BlockingIOError):
                    self._woken.recv(4096)
                self._hold(connection)
                self._tell_all(connection)
                while notices := list(connection.notifies(timeout=0)):
                    for notice in notices:
                        if notice.pid != own:
                            self._heard(of_text(notice.payload))
        self._tell_all(connection)  # what was committed just before the end

    def _hold(self, connection: Connection) -> None:
        if (holders := self._holders) == self._held:
            return
        connection.execute(_LET_GO)
        for holder in holders.values():
            connection.execute(_HOLD, holder)
        self._held = holders

    def _tell_all(self, connection: Connection) -> None:
        if not self._told:
            return
        told = [self._told.popleft() for _ in range(len(self._told))]
        connection.execute(_TELL, (to_text(told),))
