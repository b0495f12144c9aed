"""The polling triggers of layby itself, as users write them. They are data: how each is asked
stands in `file_polls.py`, `http_polls.py` and `sql_polls.py`, which a trigger manager loads.
"""

import math
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final, Literal, cast
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct, field

from layby.errors import UsageError
from layby.triggers.conditions import Compare
from layby.triggers.polled import PolledTrigger, check_pace, check_types, require

Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
Scalar = str | int | float | bool | None

MAX_HEADERS: Final = 50
MAX_TIMEOUT: Final = 300
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OURS: Final = frozenset({"host", "content-length", "transfer-encoding", "connection", "upgrade"})


class SecretNamed(Struct, frozen=True, forbid_unknown_fields=True):
    """A secret by the name that the owner of the trigger manager gave it: its text is not stored.

    `prefix` is put before it: `SecretNamed("api", prefix="Bearer ")`.
    """

    secret: str
    prefix: str = ""


class FileExists(PolledTrigger, frozen=True):
    """Fires when there is a file (or a folder) of this path.

    The payload says `path`, `size` and `modified_at`. With `settled_for`, only when it has not
    changed for so many seconds: whoever writes it is done.
    """

    path: str
    min_size: int = 0
    settled_for: float = 0.0

    def __post_init__(self) -> None:
        check_types(self, FileExists)
        check_pace(self)
        require("\0" not in self.path, self, "path", "a path without NUL")
        if not PurePath(self.path).is_absolute():
            raise UsageError(
                f"FileExists needs an absolute path, got {self.path!r}: another process looks "
                "for it, in another folder"
            )
        require(self.min_size >= 0, self, "min_size", "at least 0")
        require(0 <= self.settled_for < math.inf, self, "settled_for", "a number of seconds")


class HttpPoll(PolledTrigger, frozen=True):
    """Fires when a request is answered as wanted.

    That is with one of `status` (by default any 2xx), and with JSON for which `until` holds, if
    given. The payload has `status` and `body`: JSON, or text where the answer is none. Any other
    2xx, 404, 409 and 425 mean not yet; so do 429 and 503, whose Retry-After is obeyed; other
    statuses count as errors.
    """

    url: str
    method: Method = "GET"
    headers: dict[str, str | SecretNamed] = field(default_factory=dict)
    json: Any = None
    status: tuple[int, ...] = ()
    until: Compare | None = None
    timeout: float = 30.0
    """Seconds for one request."""

    def __post_init__(self) -> None:
        _check_headers(self.headers)
        _check_until(self, self.until)
        check_types(self, HttpPoll)
        check_pace(self)
        parts = _parts_of(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"HttpPoll needs an http:// or https:// URL, got {self.url!r}")
        if parts.username is not None or parts.password is not None:
            raise UsageError(
                "the URL of HttpPoll contains a user name or password, which would be stored: "
                'use headers={"Authorization": SecretNamed("NAME", prefix="Basic ")}'
            )
        count = len(self.headers)
        if count > MAX_HEADERS:
            raise UsageError(f"HttpPoll takes at most {MAX_HEADERS} headers, got {count}")
        _check_timeout(self, self.timeout)
        known = all(100 <= each <= 599 for each in self.status)
        require(known, self, "status", "codes of HTTP, from 100 to 599")
        if self.json is not None and self.method in ("GET", "HEAD"):
            raise UsageError(f"{self.method} carries no JSON: give method='POST'")


def fits_header(text: str) -> bool:
    """Whether it can be sent as a header's value: servers read other bytes in different ways."""
    return text.isascii() and text.isprintable()


def _check_headers(headers: object) -> None:
    """By name, and without their values, which are nobody's business."""
    if not isinstance(headers, Mapping):
        return  # its type is refused with the others
    for name, value in cast("Mapping[object, object]", headers).items():
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise UsageError(
                f"HttpPoll cannot send the header {name!r:.100}: its name must be a text of "
                "letters, digits and hyphens"
            )
        if name.lower() in _OURS:
            raise UsageError(f"HttpPoll writes the header {name!r} itself: leave it out")
        text = value.prefix if isinstance(value, SecretNamed) else value
        if not isinstance(text, str):
            raise UsageError(
                f"the header {name!r} of HttpPoll must be a text or SecretNamed, "
                f"got {type(value).__name__}"
            )
        if not fits_header(text):
            raise UsageError(
                f"HttpPoll cannot send the value of the header {name!r}: it must be ASCII, "
                "without line breaks and other control characters"
            )


def _check_timeout(given: PolledTrigger, timeout: float) -> None:
    require(0 < timeout <= MAX_TIMEOUT, given, "timeout", f"above 0 and at most {MAX_TIMEOUT} s")


def _parts_of(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port  # is read only now
    except ValueError as error:
        raise UsageError(f"url of HttpPoll cannot be parsed: {error}, in {url!r:.100}") from None
    return parts


class SqlPoll(PolledTrigger, frozen=True):
    """Fires when a query returns a row; the payload is the first one, by column.

    `connection` is a name that the owner of the trigger manager gave to a database. The query
    runs read-only, with `params` bound to its placeholders: `?` in SQLite, `%s` in PostgreSQL.
    """

    connection: str
    query: str
    params: tuple[Scalar, ...] = ()
    until: Compare | None = None
    timeout: float = 30.0
    """Seconds for one query."""

    def __post_init__(self) -> None:
        _check_until(self, self.until)
        check_types(self, SqlPoll)
        check_pace(self)
        require(bool(self.connection.strip()), self, "connection", "the name of a database")
        require(bool(self.query.strip()), self, "query", "the SQL to run")
        _check_timeout(self, self.timeout)


def _check_until(given: PolledTrigger, until: object) -> None:
    """Before its type: somebody who has written a lambda needs to know what else to write."""
    is_good = until is None or isinstance(until, Compare)
    example = 'a comparison such as triggers.Compare("/state", "==", "done"), not code'
    require(is_good, given, "until", example)


BUILT_IN: Final[tuple[type[PolledTrigger], ...]] = (FileExists, HttpPoll, SqlPoll)
