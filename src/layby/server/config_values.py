"""Types of values a setting can have: how each is written, what is allowed, how it is shown.

`read` takes the raw value from TOML or a variable and raises InvalidValue if it is not allowed.
`allowed` says what is: it completes a sentence that begins with "give".
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, cast
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from layby.client.secret import REFERENCE, Secret, read_secret
from layby.errors import UsageError
from layby.store.postgres_address import without_password
from layby.wire import durations

Environ = Mapping[str, str]

_SIZE: Final = re.compile(r"([0-9]{1,18}) ?(B|kB|MB|GB|KiB|MiB|GiB)?")
_SIZES: Final = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
}
_YES_NO: Final = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


class InvalidValue(Exception):
    """This is not a value of that type."""


class ValueType(Protocol):
    @property
    def allowed(self) -> str: ...

    def read(self, raw: object, environ: Environ) -> object: ...

    def shown(self, value: Any) -> str:
        """As it would be written; never a secret."""
        ...


class Text(Struct, frozen=True):
    allowed: str
    pattern: str = r"[^\0]+"
    is_hidden: bool = False
    """The value may be a secret, put there by mistake."""

    def read(self, raw: object, _: Environ) -> str:
        if not isinstance(raw, str) or not re.fullmatch(self.pattern, raw):
            raise InvalidValue
        return raw

    def shown(self, value: str) -> str:
        return "(hidden)" if self.is_hidden else without_password(value)


class Url(Struct, frozen=True):
    allowed: str = "a URL such as https://layby.example.org"

    def read(self, raw: object, _: Environ) -> str:
        parts = urlsplit(raw if isinstance(raw, str) else "")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidValue
        return cast("str", raw).rstrip("/")

    def shown(self, value: str) -> str:
        return without_password(value)


class YesNo(Struct, frozen=True):
    allowed: str = "true or false"

    def read(self, raw: object, _: Environ) -> bool:
        if isinstance(raw, str) and raw.lower() in _YES_NO:
            return _YES_NO[raw.lower()]
        if not isinstance(raw, bool):
            raise InvalidValue
        return raw

    def shown(self, value: bool) -> str:  # noqa: FBT001 - it is the value
        return str(value).lower()


class Choice(Struct, frozen=True):
    options: tuple[str, ...]

    @property
    def allowed(self) -> str:
        return " or ".join((", ".join(self.options[:-1]), self.options[-1]))

    def read(self, raw: object, _: Environ) -> str:
        if raw not in self.options:
            raise InvalidValue
        return cast("str", raw)

    def shown(self, value: str) -> str:
        return value


class Number(Struct, frozen=True):
    least: int
    most: int = 10**6

    @property
    def allowed(self) -> str:
        return f"a whole number from {self.least} to {self.most}"

    def read(self, raw: object, _: Environ) -> int:
        return _within(_whole(raw), self.least, self.most)

    def shown(self, value: int) -> str:
        return str(value)


class DurationValue(Struct, frozen=True):
    """Read as seconds. A plain number means seconds, unless that would be a trap."""

    least_ms: int = 1
    most_ms: int = 365 * durations.UNITS["d"]
    needs_unit: bool = False

    @property
    def allowed(self) -> str:
        bounds = f"from {durations.shown(self.least_ms)} to {durations.shown(self.most_ms)}"
        if self.needs_unit:
            return f"a duration with its unit, such as 12h or 7d, {bounds}"
        return f"a duration such as 1m30s, or a number of seconds, {bounds}"

    def read(self, raw: object, _: Environ) -> float:
        if self.needs_unit and not (isinstance(raw, str) and raw[-1:].isalpha()):
            raise InvalidValue
        return _within(_milliseconds(raw), self.least_ms, self.most_ms) / 1000

    def shown(self, value: float) -> str:
        return durations.shown(round(value * 1000))


class Size(Struct, frozen=True):
    """Read as bytes."""

    least: int
    most: int = 2**40

    @property
    def allowed(self) -> str:
        return f"a size such as 512KiB or 8MiB, from {self.shown(self.least)} to 1024GiB"

    def read(self, raw: object, _: Environ) -> int:
        if not isinstance(raw, str):
            return _within(_whole(raw), self.least, self.most)
        found = _SIZE.fullmatch(raw)
        if found is None:
            raise InvalidValue
        return _within(int(found[1]) * _SIZES[found[2] or "B"], self.least, self.most)

    def shown(self, value: int) -> str:
        unit = next(each for each in ("MiB", "KiB", "B") if value % _SIZES[each] == 0)
        return f"{value // _SIZES[unit]}{unit}"


class Texts(Struct, frozen=True):
    """A list in TOML, separated by commas in a variable."""

    each: str
    """What one item is."""
    fits: Callable[[str], object]

    @property
    def allowed(self) -> str:
        return f"a list, each item {self.each}"

    def read(self, raw: object, _: Environ) -> tuple[str, ...]:
        parts = raw.split(",") if isinstance(raw, str) else raw
        if not isinstance(parts, list | tuple):
            raise InvalidValue
        texts = [
            each.strip() if isinstance(each, str) else "" for each in cast("list[object]", parts)
        ]
        if isinstance(raw, str):
            texts = [text for text in texts if text]
        if not all(text and self.fits(text) for text in texts):
            raise InvalidValue
        return tuple(texts)

    def shown(self, value: tuple[str, ...]) -> str:
        return ", ".join(value)


class Tables(Struct, frozen=True):
    """Tables in TOML, JSON in a variable. They may contain secrets."""

    each: type[Struct]
    allowed: str
    is_hidden: bool = True

    def read(self, raw: object, _: Environ) -> tuple[Struct, ...]:
        kind = tuple[self.each, ...]
        try:
            given = msgspec.json.decode(raw) if isinstance(raw, str) else raw
            return msgspec.convert(given, kind)
        except msgspec.MsgspecError as error:
            raise UsageError(f"{error}: give {self.allowed}") from error

    def shown(self, value: tuple[Struct, ...]) -> str:
        return f"{len(value)} (hidden)"


class SecretText(Struct, frozen=True):
    allowed: str = REFERENCE
    is_hidden: bool = True

    def read(self, raw: object, environ: Environ) -> Secret:
        if not isinstance(raw, str):
            raise InvalidValue
        return read_secret(raw, environ)

    def shown(self, value: Secret) -> str:
        return value.reference


def _whole(raw: object) -> int:
    """`int` would also read 8_001, spaces and digits of other scripts."""
    if isinstance(raw, str) and re.fullmatch(r"-?[0-9]{1,18}", raw):
        return int(raw)
    if isinstance(raw, bool) or not isinstance(raw, int):
        raise InvalidValue
    return raw


def _milliseconds(raw: object) -> int:
    if isinstance(raw, str) and not re.fullmatch(r"[0-9]{1,15}(\.[0-9]{1,9})?", raw):
        try:
            return durations.parse(raw, least=0)
        except UsageError as error:
            raise InvalidValue from error
    if isinstance(raw, bool) or not isinstance(raw, str | int | float):
        raise InvalidValue
    seconds = float(raw)
    if not math.isfinite(seconds):
        raise InvalidValue
    return round(seconds * 1000)


def _within(value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise InvalidValue
    return value
