"""Failures of PostgreSQL, in words that say what to do; none of them repeats a password."""

import re
from typing import Any, Final

import psycopg

from layby.errors import (
    StoreAway,
    StoreBusy,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    StoreUnreadable,
)
from layby.store.api import RowLocked, StoreConflict
from layby.store.postgres_address import HIDDEN, passwords_in

_CONFLICTS: Final = {
    "40001": "serialization failure",
    "40P01": "deadlock",
    "23505": "the same row was added by another process",
}
_UNAVAILABLE: Final = {
    "25006": "it only allows reading: is this a standby? Give the address of the primary. If it is "
    "the primary, look for who has set default_transaction_read_only",
    "42501": "this user may not do that. To use its tables it needs USAGE on the schema `layby`, "
    "and SELECT, INSERT, UPDATE and DELETE on all tables there; to make them, or to bring them up "
    "to date, let it create a schema, or run `layby migrate` as a user who may, or who owns them",
    "53100": "the disk of the database is full: free some space; nothing of this batch was written",
}
_TLS: Final = "TLS"
_SETTINGS: Final = "settings"
"""Like a SQLSTATE, for what libpq itself refuses without one."""
_REFUSED: Final = {
    "28000": "it does not accept this user: check the address, who may connect to this database, "
    "and pg_hba.conf",
    "28P01": "it does not accept the password: set PGPASSWORD or a password file",
    "3D000": "the database does not exist: create it, or give another name",
    _TLS: "it cannot be reached with the TLS that was asked for: check `sslmode`, the certificates "
    "and keys on both sides, and whether PostgreSQL has TLS switched on (`ssl = on`)",
    _SETTINGS: "it cannot be reached with these settings: change them where they are set, in the "
    "address, a variable PG… or the service file",
}
_AWAY: Final = {
    "53300": "it has no connection left: raise max_connections, or run fewer processes",
    "57P01": "it was told to end our connection",
    "57P02": "it has crashed and starts again",
    "57P03": "it is starting or stopping",
}
_TOLD_ONLY: Final = {
    "password authentication failed": "28P01",
    "no password supplied": "28P01",
    r'database ".*" does not exist': "3D000",
    r"\w authentication failed for user": "28000",
    r'role ".*" does not exist': "28000",
    r'role ".*" is not permitted to log in': "28000",
    r'permission denied for database ".*"': "28000",
    "no pg_hba.conf entry": "28000",
    "requires a valid client certificate": "28000",
    "pg_hba.conf rejects": "28000",
    "too many clients": "53300",
    "too many connections for": "53300",
    "remaining connection slots are reserved": "53300",
    "the database system is": "57P03",
    "server does not support SSL": _TLS,
    "certificate verify failed": _TLS,
    r"SSL error: .*\balert\b(?!.* internal error)": _TLS,  # said by the server
    r"SSL error: (unsupported protocol|no protocols available|no shared cipher)": _TLS,
    r"server certificate for .* does not match host name": _TLS,
    "host name must be specified for a verified SSL connection": _TLS,
    r"root certificate file .* does not exist": _TLS,
    r"could not (read|open|load|stat) .*\b(certificate|key|revocation)": _TLS,
    "certificate present, but not private key": _TLS,
    r"private key file .* (has group or world access|is not a regular file|must be owned)": _TLS,
    "certificate does not match private key": _TLS,
    "did not request an SSL certificate": _TLS,
    "without a valid SSL certificate": _TLS,
    "channel binding (is )?required": _TLS,
    "weak sslmode": _SETTINGS,
    "invalid SSL protocol version range": _SETTINGS,
    r'"\w+_protocol_version" was set to': _SETTINGS,
    "authentication method requirement": _SETTINGS,
    "GSSAPI encryption required": _SETTINGS,
    "requirepeer specifies": _SETTINGS,
    "unrecognized configuration parameter": _SETTINGS,
    "invalid value for parameter": _SETTINGS,
    "permission denied to set parameter": _SETTINGS,
    r"parameter .* cannot be (changed|set)": _SETTINGS,
    "invalid command-line argument": _SETTINGS,
    r"FATAL: +-\S+ requires a value": _SETTINGS,
}
"""When a connection is refused, only the text says why. The first that fits counts.

libpq speaks English here, as Python leaves LC_MESSAGES alone; PostgreSQL may not.
"""
_MISSPELT: Final = re.compile(
    r'invalid (port number|"?\w+"? value)|could not (parse network|match \d)|is too long \(maximum'
    r"|definition of service|service file|syntax error in service"
)
"""What libpq says of addresses that it has understood so far as to try them."""
_UNREADABLE: Final = {
    "3F000": "its schema `layby` is gone: restore it from a backup",
    "42P01": "a table of layby is gone: restore it from a backup",
    "42703": "a column of layby is missing: restore the schema from a backup",
}


def explained(
    error: psycopg.Error, name: str, url: str = "", *, connecting: bool = False
) -> StoreError | StoreConflict:
    """The same failure as ours: what, which database, what to do."""
    code, line = error.sqlstate or "", told(error)
    if connecting and not code:
        code, line = _code_told(str(error)) or (code, line)
    if code == "55P03":
        return RowLocked(f"{name}: a row or a table stayed locked")
    if code in _CONFLICTS:
        return StoreConflict(f"{name}: {_CONFLICTS[code]}")
    said = _hidden(line, url)
    if code == "57014":
        why = "a statement took longer than 30 s and was ended: look for what keeps it busy"
        return StoreBusy(f"{name}: {why} ({said})")
    if code in _REFUSED:
        return StoreRefused(f"{name}: {_REFUSED[code]} ({said})")
    if code in _AWAY:
        return StoreAway(f"{name}: {_AWAY[code]} ({said})")
    if code in _UNAVAILABLE:
        return StoreUnavailable(f"{name}: {_UNAVAILABLE[code]} ({said})")
    if code in _UNREADABLE:
        return StoreUnreadable(f"{name}: {_UNREADABLE[code]} ({said})")
    if connecting and (isinstance(error, psycopg.ProgrammingError) or _MISSPELT.search(str(error))):
        return StoreRefused(f"{name}: this is not an address that libpq understands ({said})")
    if connecting or isinstance(error, psycopg.OperationalError):
        why = "PostgreSQL is away: start it, or check the address"
        return StoreAway(f"{name}: {why} ({said})")
    return StoreError(f"{name}: the store failed ({said})")


def explained_at_once(error: psycopg.Error, name: str, url: str = "") -> StoreError:
    """Where nobody replays what has met another process: that is a refusal, too."""
    failure = explained(error, name, url)
    if isinstance(failure, StoreError):
        return failure
    return StoreUnavailable(f"{failure}: try again, or look for an open transaction")


def _code_told(text: str) -> tuple[str, str] | None:
    """And the line that says so: there is one for each address that was tried."""
    lines = text.strip().splitlines()
    found = (
        (code, line) for part, code in _TOLD_ONLY.items() for line in lines if re.search(part, line)
    )
    return next(found, None)


def is_lost(error: psycopg.Error, connection: "psycopg.Connection[Any] | None") -> bool:
    """Whether the connection is gone, so that nobody knows what has become of a commit."""
    is_closed = connection is None or connection.closed or connection.broken
    return is_closed or error.sqlstate in ("57P01", "57P02", "08006", "08003")


def told(error: Exception) -> str:
    """The first line of what it says."""
    return str(error).strip().partition("\n")[0]


def _hidden(text: str, url: str) -> str:
    """libpq may take a part of the password for a host or a port, and name that."""
    passwords = passwords_in(url)
    if any(each in url and re.search("[@/]", each) for each in passwords):
        return "in a password write @ as %40 and / as %2F"
    for password in passwords:
        text = text.replace(password, HIDDEN)
    return text
