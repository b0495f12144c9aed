"""Secrets: referenced by where they are kept, read once, never shown."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from layby.errors import UsageError

REFERENCE: Final = "env:NAME (a variable of the environment) or file:PATH"


class Secret:
    """Only `reveal()` returns the text; printed, it shows its reference."""

    __slots__ = ("_text", "reference")

    def __init__(self, reference: str, text: str) -> None:
        self.reference = reference
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Secret({self.reference!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    __hash__ = None  # type: ignore[assignment]


def read_secret(reference: str, environ: Mapping[str, str]) -> Secret:
    """An invalid reference is not repeated: it may be a secret, given by mistake."""
    scheme, colon, place = reference.partition(":")
    if not colon or not place or scheme not in ("env", "file"):
        raise UsageError(f"do not write a secret here: give {REFERENCE}")
    text = _from_file(place) if scheme == "file" else _from_environment(place, environ)
    if not text:
        raise UsageError(f"{reference} is empty: put the secret there")
    return Secret(reference, text)


def _from_environment(name: str, environ: Mapping[str, str]) -> str:
    if name not in environ:
        raise UsageError(f"env:{name} is not set: set the variable {name}")
    return environ[name].strip()


def _from_file(path: str) -> str:
    """Without the newline that editors leave at the end."""
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise UsageError(f"file:{path} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise UsageError(f"file:{path} is not a text file") from error
