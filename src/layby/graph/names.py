"""Owns what components and ports may be called, and the hint behind a name that is unknown."""

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import NamedTuple, cast

from layby.graph.errors import GraphError

MOST_LISTED = 8


class Endpoint(NamedTuple):
    """A port of a component, written `component.port`."""

    component: str
    port: str

    def __str__(self) -> str:
        return f"{self.component}.{self.port}"


def check_name(name: object, what: str) -> str:
    """The name, if it can stand in an endpoint, a channel's id and a Mermaid chart."""
    if not isinstance(name, str):
        raise GraphError(f"{what} {name!r} must be a text, not {type(name).__name__}")
    if not name.isidentifier():
        raise GraphError(
            f"{what} {name!r} must be letters, digits and underscores, and not begin with a digit"
        )
    return name


def check_names(names: object, what: str) -> tuple[str, ...]:
    """Names in the order given, each once."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise GraphError(f"{what}s must be a list of names, got {names!r}")
    found = tuple(check_name(name, what) for name in cast("Iterable[object]", names))
    for name in found:
        if found.count(name) > 1:
            raise GraphError(f"{what} '{name}' is given twice: name each once")
    return found


def parse_endpoint(text: object) -> Endpoint:
    component, dot, port = text.partition(".") if isinstance(text, str) else ("", "", "")
    if not (dot and component.isidentifier() and port.isidentifier()):
        raise GraphError(f"{text!r} is not a port: write 'component.port'")
    return Endpoint(component, port)


def hint(name: str, known: Collection[str]) -> str:
    """What may have been meant, or what there is."""
    if near := get_close_matches(name, known, n=1):
        return f"; did you mean '{near[0]}'?"
    shown = [*list(known)[:MOST_LISTED], *(["..."] if len(known) > MOST_LISTED else [])]
    return f"; there are: {', '.join(shown)}" if known else "; there are none"
