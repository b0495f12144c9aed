"""At most one process of many offers a message: who does has a lease on it.

A message is leased by the transaction that writes it, if this process has somebody to give it to,
or else by whoever reads it from the outbox for somebody. The lease is short and renewed while the
message is on its way; when the process dies, another offers the message once more.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from layby.core.changes import Changes
from layby.core.model import Message, Millis
from layby.core.queries import OfferMessages
from layby.store.api import Wants, about
from layby.store.bulk import Bulk
from layby.store.locked_rows import PAIRS, Pair
from layby.store.postgres_session import IF_WE_MAY, PostgresSession
from layby.store.session import Reading, packed
from layby.store.statements import Statements
from layby.store.tables import MESSAGES

LEASE_MS: Final[Millis] = 5_000
"""How long nobody else offers a message after its process has died."""
RENEW_MS: Final[Millis] = 3_000
"""With less than this left a lease is renewed; that is looked at each second."""

_READ: Final = msgspec.json.Decoder(list[Message])
_FOUND: Final = msgspec.json.Decoder(list[tuple[str, str, str, int, bool]])
_COLUMNS: Final = ", ".join(f"m.{name}" for name in MESSAGES.names)
_FREE: Final = "(m.offered_until IS NULL OR m.offered_until <= ?)"
_SAME: Final = "m.id = r.id AND m.kind = r.kind AND m.address = r.address AND m.version = r.version"
_RENEW: Final = f"""
    WITH renewed AS (
        UPDATE messages SET offered_until = ? WHERE (id, kind, address) IN (
            SELECT id, kind, address FROM messages
            WHERE offered_by = ? AND offered_until < ? FOR UPDATE SKIP LOCKED))
    SELECT {_COLUMNS} FROM messages AS m WHERE m.offered_by = ?
"""
_FREE_PAGE: Final = f"""
    SELECT {_COLUMNS} FROM messages AS m
    WHERE (m.address, m.id, m.kind) > (?, ?, ?) AND m.address < ? AND {_FREE}
    ORDER BY m.address, m.id, m.kind LIMIT ?
"""
_RELEASE_ALL: Final = """
    UPDATE messages SET offered_by = NULL, offered_until = NULL WHERE offered_by = ?
"""


class MessageLeases:
    """Those of one process. Everything here happens within a transaction."""

    def __init__(self, session: PostgresSession, sql: Statements, process: str) -> None:
        self._session = session
        self._process = process
        self.wants: Wants = _wants_nothing
        self._written: set[Message] = set()
        """Of the last transaction that wrote: the messages it has leased."""
        self._pairs = sql.pairs
        rows = sql.dialect.rows(MESSAGES.names)
        self._lease = Bulk(
            f"""
            WITH found AS (
                SELECT m.id, m.kind, m.address, m.offered_by
                FROM messages AS m JOIN {rows} ON {_SAME}
                WHERE {_FREE} AND {IF_WE_MAY}
                ORDER BY m.id, m.kind, m.address FOR UPDATE OF m SKIP LOCKED)
            UPDATE messages AS m SET offered_by = ?, offered_until = ? FROM found
            WHERE (m.id, m.kind, m.address) = (found.id, found.kind, found.address)
            RETURNING {_COLUMNS}, COALESCE(found.offered_by <> ?, false)
            """,
            MESSAGES.names,
        )
        self._release = Bulk(
            f"""
            UPDATE messages AS m SET offered_by = NULL, offered_until = NULL FROM {rows}
            WHERE {_SAME} AND m.offered_by = ?
            """,
            MESSAGES.names,
        )

    def write(self, messages: Sequence[Message], now: Millis) -> list[tuple[Any, ...]]:
        """The rows of new messages: leased, if there is somebody here who may get them."""
        self._written = {each for each in messages if self.wants(each)}
        lease, nobody = (self._process, now + LEASE_MS), (None, None)
        return [
            (*msgspec.structs.astuple(each), *(lease if each in self._written else nobody))
            for each in messages
        ]

    def written(self, changes: Changes) -> list[Message]:
        messages = changes.messages.values()
        return [each for each in messages if each is not None and each in self._written]

    def free(self, offer: OfferMessages, now: Millis) -> list[Message]:
        """A page of the outbox, without what others offer, or this process does already."""
        after = max(offer.after, (offer.start, "", ""))
        return self._session.read(_FREE_PAGE, _READ, *after, offer.end, now, offer.limit)

    def lease(
        self, messages: Sequence[Message], now: Millis
    ) -> tuple[dict[Message, bool], list[Pair]]:
        """Those of them that somebody here may get, and nobody else has leased meanwhile.

        Whether each was taken over; and the promises of all that somebody wants. It is committed
        with that: somebody waits for them. What is leased and not offered is released soon.
        """
        wanted = [each for each in messages if self.wants(each)]
        if not wanted:
            return {}, []
        rows = self._session.packed(self._lease, wanted)
        lease = self._process, now + LEASE_MS
        arguments = (rows, now, self._session.newest, *lease, self._process)
        readings: list[Reading] = [(self._lease.text, _FOUND, arguments)]
        if ids := about(wanted):
            readings.append((self._pairs, PAIRS, (packed(sorted(ids)),)))
        found, *pairs = self._session.read_and_commit(readings)
        return {Message(*cells): taken_over for *cells, taken_over in found}, [
            pair for some in pairs for pair in some
        ]

    def renew(self, now: Millis) -> list[Message]:
        """All that this process offers, and go on offering them."""
        arguments = (now + LEASE_MS, self._process, now + RENEW_MS, self._process)
        return self._session.read(_RENEW, _READ, *arguments)

    def release(self, messages: Sequence[Message]) -> None:
        """Others may offer them now."""
        rows = self._session.packed(self._release, messages)
        self._session.execute(self._release.text, (rows, self._process))

    def release_all(self) -> None:
        self._session.execute(_RELEASE_ALL, (self._process,))


def _wants_nothing(_: Message) -> bool:
    return False
