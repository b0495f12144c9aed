"""Checks of fields: what is refused with 400 before any row is looked at."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from layby.core import address, birth, tag_names
from layby.core.fields import (
    MAX_CLAIMS,
    MAX_NAMES,
    MAX_PRIORITY,
    MAX_SLOTS,
    MAX_TAGS,
    Int64,
    Tags,
    Value,
)
from layby.core.model import Codes
from layby.core.nesting import TOO_DEEP, is_too_deep

if TYPE_CHECKING:
    from layby.core.kinds import BaseRequest
    from layby.core.tasks import TaskVersion
    from layby.core.workers import Released

Problems = Iterable[str]

MOST_TOLD = 20
"""Of what is wrong with one request."""
MAX_CODE_CHARS = 100
MAX_ID_BYTES = 1024
"""Two of them fit into one index key of either database."""
MAX_VALUE_CHARS = 4 * 2**20
MAX_TOLD_BYTES = 2**16
"""Of each text that a task keeps of what its worker has said. Whoever reads a task loads all of
them, and nobody weighs them.
"""
MAX_RETRIED_ERROR_CHARS = 2**17
"""Of an error that a task keeps until it is tried again, for the same reason."""
MAX_WORDS_CHARS = 2**14
"""Of who stopped a task or moved its deadline, and why: the task keeps that, too."""
SETTLE_STATES = ("resolved", "rejected", "rejected_canceled")
MAX_SETTLEMENT_ID_CHARS = 36
"""A UUID as text."""
MAX_PAGE = 1000
MAX_TAGS_CHARS = 2**16


def problems(request: "BaseRequest") -> str | None:
    """What is wrong with the request, as one text; None when nothing is.

    Of ten thousand nodes each may be wrong: then the rest is not even looked for.
    """
    found = list(islice(request.problems(), MOST_TOLD + 1))
    if len(found) > MOST_TOLD:
        found[MOST_TOLD:] = ["and more"]
    return "; ".join(found) or None


def identifier(text: str, what: str) -> Problems:
    """Nearly all are short and plain: nothing is set in motion for those."""
    if text and text.isascii() and len(text) <= MAX_ID_BYTES and "\0" not in text:
        return ()
    return _identifier_problems(text, what)


def _identifier_problems(text: str, what: str) -> Problems:
    if not text:
        yield f"{what} is required"
    elif len(text) > MAX_ID_BYTES // 4 and len(text.encode(errors="replace")) > MAX_ID_BYTES:
        yield f"{what} must not be longer than {MAX_ID_BYTES} bytes"
    if "\0" in text:
        yield f"{what} must not contain NUL"
    if _has_lone_surrogate(text):
        yield f"{what} must be valid Unicode"


def _has_lone_surrogate(text: str) -> bool:
    """Half of a surrogate pair without the other: no database and no wire can carry it."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def code(name: str) -> Problems:
    """The name of a code."""
    yield from identifier(name, "Name of a code")
    if len(name) > MAX_CODE_CHARS:
        yield f"The name of a code must not be longer than {MAX_CODE_CHARS} characters"


@lru_cache(maxsize=256)
def codes(named: Codes) -> Sequence[str]:
    """Every take of a worker names the same: they are checked once."""
    too_many = [*count(len(named), MAX_NAMES, "codes")]
    return too_many or [problem for _, name in named for problem in code(name)]


@lru_cache(maxsize=256)
def names(named: tuple[str, ...]) -> Sequence[str]:
    """The names of tasks that a worker takes: every take of it names the same."""
    too_many = [*count(len(named), MAX_NAMES, "names")]
    return too_many or [problem for name in named for problem in identifier(name, "Task name")]


def claim(pid: str, ttl: int) -> Problems:
    yield from identifier(pid, "Process ID")
    if ttl < 1:
        yield "ttl must be positive"


def version(number: int) -> Problems:
    if number < 0:
        yield "version must be non-negative"


def settlement(
    state: str, value: Value, what: str = "value", most: int = MAX_VALUE_CHARS
) -> Problems:
    yield from size(value, what, most)
    if state not in SETTLE_STATES:
        yield f"state must be one of {', '.join(SETTLE_STATES)}"


def settlement_id(given: str | None, what: str = "settlementId") -> Problems:
    """Kept with the promise for good, so it has to be short."""
    if given is None:
        return
    is_plain = given.isascii() and given.isprintable()
    if not is_plain or not 0 < len(given) <= MAX_SETTLEMENT_ID_CHARS:
        yield f"{what} must be 1 to {MAX_SETTLEMENT_ID_CHARS} printable ASCII characters"


def fence(task_id: str, version_of_claim: int) -> Problems:
    yield from identifier(task_id, "Task ID")
    yield from version(version_of_claim)


def claims(named: Sequence["TaskVersion | Released"]) -> Problems:
    yield from count(len(named), MAX_CLAIMS, "claims")
    for each in named:
        yield from fence(each.id, each.version)


def page(limit: int) -> Problems:
    if not 1 <= limit <= MAX_PAGE:
        yield f"limit must be between 1 and {MAX_PAGE}"


def size(value: Value, what: str, most: int = MAX_VALUE_CHARS) -> Sequence[str]:
    """A batch is one transaction: a huge value would hold up everyone else in it."""
    characters = len(value.data) if isinstance(value.data, str) else 0
    if value.headers:
        characters += sum(len(key) + len(each) for key, each in value.headers.items())
    if characters <= most:
        return ()
    remedy = "store it elsewhere and pass its address"
    return (f"{what} has {characters:,} characters, more than {most:,}: {remedy}",)


def priority(number: int, what: str) -> Sequence[str]:
    if abs(number) <= MAX_PRIORITY:
        return ()
    return (f"{what} must be between -{MAX_PRIORITY} and {MAX_PRIORITY}, not {number}",)


def slots(number: int, what: str) -> Sequence[str]:
    if 1 <= number <= MAX_SLOTS:
        return ()
    return (f"{what} must be between 1 and {MAX_SLOTS:,}, not {number}",)


def words(**told: str) -> Problems:
    """Who did something, and why, by the names of the fields."""
    for what, text in told.items():
        if not text.isascii() and _has_lone_surrogate(text):
            yield f"{what} must be valid Unicode"


def kept_words(**told: str) -> Problems:
    """The same, where a task keeps them."""
    yield from words(**told)
    for what, text in told.items():
        yield from count(len(text), MAX_WORDS_CHARS, f"characters of {what}")


class _ToldTry(Struct):
    number: Int64


class _ToldTries(Struct):
    tries: tuple[_ToldTry, ...]


class _ToldPolls(Struct):
    polls: Int64 | None = None
    last_poll_at: Int64 | None = None
    next_poll_at: Int64 | None = None


_json: Final = msgspec.json.Decoder(msgspec.Raw)
_tries: Final = msgspec.json.Decoder(_ToldTries)
_polls: Final = msgspec.json.Decoder(_ToldPolls)
_TRIES: Final = '{"tries":'
"""What a history begins with that is read here."""


def annotation(text: str | None, what: str) -> Problems:
    """It is put into answers as it is: whatever is not JSON would spoil those of others, too."""
    if text is not None:
        yield from _told(text, what, _json)


def waiting_on(text: str | None) -> Problems:
    """Of any form; the view `triggers` reads what an object says of polls."""
    if text is not None:
        is_object = text.lstrip().startswith("{")
        yield from _told(text, "waitingOn", _polls if is_object else _json, "polls of ")


def history(text: str | None) -> Problems:
    """Of any form; if it is of ours, the view `task_tries` reads the number of each try."""
    if text is not None:
        decoder = _tries if text.startswith(_TRIES) else _json
        yield from _told(text, "history", decoder, "tries of ")


def _told(text: str, what: str, decoder: "msgspec.json.Decoder[Any]", part: str = "") -> Problems:
    try:
        encoded = text.encode()
        if len(encoded) > MAX_TOLD_BYTES:
            yield f"{what} has {len(encoded):,} bytes, more than {MAX_TOLD_BYTES:,}: tell less"
        elif is_too_deep(encoded):
            yield f"{what} {TOO_DEEP}"
        else:
            decoder.decode(encoded)
    except msgspec.ValidationError as error:
        yield f"{part}{what}: {error}"
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        yield f"{what} must be JSON: {error}"


def count(number: int, most: int, what: str) -> Sequence[str]:
    """Each is a row or a part of a query: too many would hold up everyone else.

    Requests from the wire are refused before they get here; those of this process are not.
    """
    return () if number <= most else (f"{what}: {number:,} are more than {most:,}",)


def tags(named: Tags) -> Problems:
    yield from _target(named)
    yield from _columns(named)
    for tag in sorted(tag_names.RESERVED.keys() & named.keys()):
        yield f"{tag} is reserved: it is set by {tag_names.RESERVED[tag]} alone"
    yield from count(len(named), MAX_TAGS, "tags")
    characters = sum(len(key) + len(value) for key, value in named.items())
    yield from count(characters, MAX_TAGS_CHARS, "characters of tags")


def delay(tags: Tags, timeout_at: int) -> Problems:
    if tag_names.DELAY not in tags:
        return
    instant = birth.delay_of(tags)
    if instant is None:
        yield "resonate:delay must be a non-negative integer"
    elif instant >= timeout_at:
        yield "resonate:delay must be less than timeoutAt"
    if tag_names.TARGET not in tags:
        yield "resonate:delay requires a resonate:target tag"


def _target(tags: Tags) -> Problems:
    target = tags.get(tag_names.TARGET)
    if target is not None and not is_address(target):
        yield "Invalid resonate:target address"


def _columns(tags: Tags) -> Problems:
    """Tags that have a column of their own must fit into it."""
    for name in (tag_names.BRANCH, tag_names.NAME):
        if value := tags.get(name):
            yield from identifier(value, name)


def is_address(text: str) -> bool:
    return address.is_valid(text) and "\0" not in text and len(text.encode()) <= MAX_ID_BYTES


@lru_cache(maxsize=256)
def group(text: str) -> Sequence[str]:
    """A group is part of addresses, so it must be possible to parse it out of them."""
    wrong = tuple(identifier(text, "Group"))
    if text and address.group_of(address.target_of(text)) != text:
        wrong += ("Group must not contain '/' or '?'",)
    return wrong
