"""Owns what components and ports may be called, and the hint behind a name that is unknown."""

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from itertools import islice
from reprlib import Repr
from typing import NamedTuple, cast

from layby.graph.graph_errors import GraphError

MOST_LISTED = 8
MOST_SHOWN = 120
MOST_COMPARED = 100
UNORDERED = (str, bytes, Mapping, set, frozenset)
"""What can be gone through, but is not a list of names in an order of its own."""
SMALL = (str, int, float, bool, type(None))

_short = Repr()
_short.maxlevel = 2
_short.maxstring = _short.maxother = MOST_SHOWN


class Endpoint(NamedTuple):
    """A port of a component, written `component.port`."""

    component: str
    port: str

    def __str__(self) -> str:
        return f"{self.component}.{self.port}"


def shown(value: object) -> str:
    """For an error: what it is, and not the whole of it."""
    try:
        text = repr(value) if isinstance(value, SMALL) else _short.repr(value)
    except ValueError:  # a whole number with thousands of digits
        return f"a very long {type(value).__name__}"
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 3]}..."


def check_name(name: object, what: str) -> str:
    """The name, if it can stand in an endpoint, a channel's id and a Mermaid chart."""
    if not isinstance(name, str):
        kind = type(name).__name__
        raise GraphError(f"{what} {shown(name)} must be a string, not {kind}{_quotes(name)}")
    if not name.isidentifier():
        raise GraphError(
            f"{what} {shown(name)} must be letters, digits and underscores, "
            "and not begin with a digit"
        )
    return name


def check_names(names: object, what: str) -> tuple[str, ...]:
    """Names in the order given, each once."""
    if isinstance(names, UNORDERED) or not isinstance(names, Iterable):
        raise GraphError(f"{what}s must be a list of names, got {shown(cast('object', names))}")
    found: dict[str, None] = {}
    for name in cast("Iterable[object]", names):
        if check_name(name, what) in found:
            raise GraphError(f"{what} '{name}' is given twice: name each once")
        found[cast("str", name)] = None
    return tuple(found)


def parse_endpoint(text: object) -> Endpoint:
    component, dot, port = text.partition(".") if isinstance(text, str) else ("", "", "")
    if not (dot and component.isidentifier() and port.isidentifier()):
        raise GraphError(f"{shown(text)} is not a port: write 'component.port'")
    return Endpoint(component, port)


def hint(name: str, known: Collection[str]) -> str:
    """What may have been meant, or what there is."""
    if near := get_close_matches(name, _like(name, known), n=1):
        return f"; did you mean '{near[0]}'?"
    shown = [*list(known)[:MOST_LISTED], *(["..."] if len(known) > MOST_LISTED else [])]
    return f"; there are: {', '.join(shown)}" if known else "; there are none"


def _like(name: str, known: Collection[str]) -> list[str]:
    """Those worth comparing: of very many, some that begin alike."""
    others = (each for each in known if each != name)
    if len(known) > MOST_COMPARED:
        others = (each for each in others if each[:1] == name[:1])
    return list(islice(others, MOST_COMPARED))


def _quotes(name: object) -> str:
    """The words that YAML takes for something else."""
    return ": in YAML put on, off, yes and no in quotes" if isinstance(name, bool) else ""
