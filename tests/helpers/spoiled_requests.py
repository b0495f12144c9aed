"""Good requests with something else in the place of a part."""

import json
import random
from collections.abc import Iterator
from typing import Any

from layby.wire.decode import VERSION
from tests.helpers.sample_requests import SAMPLES

Path = tuple[Any, ...]

NASTY: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**53, 2**63 - 1, -(2**63), 2**64, 0.5, 1e18, 1e300),
    *("", "x", "\0", "é", "x" * 1_025, "poll://any@g", "http://127.0.0.1:1", "resolved", "* * *"),
    *([], {}, [None], {"": ""}, {"resonate:target": "poll://uni@g"}, {"resonate:timer": "true"}),
)
IMPATIENT = sorted(set(SAMPLES) - {"layby.promise.watch", "layby.run.watch"})
"""Kinds that are answered at once."""


def paths(value: Any, before: Path = ()) -> Iterator[Path]:
    """Where there is something in a request, the heads of inner requests left out."""
    if before:
        yield before
    inner = value.items() if isinstance(value, dict) else ()
    inner = enumerate(value) if isinstance(value, list) else inner
    for key, each in inner:
        if key != "head":
            yield from paths(each, (*before, key))


def changed(value: Any, path: Path, to: Any) -> Any:
    if not path:
        return to
    copied: Any = list(value) if isinstance(value, list) else dict(value)
    copied[path[0]] = changed(value[path[0]], path[1:], to)
    return copied


def at(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value


def request(kind: str, prefix: str) -> Any:
    return {
        "kind": kind,
        "head": {"corrId": "c", "version": VERSION},
        "data": SAMPLES[kind](prefix),
    }


def spoiled(whole: Any, path: Path, by: Any) -> Any:
    """Unchanged when that stood in something that was replaced before."""
    try:
        return changed(whole, path, by)
    except (KeyError, IndexError, TypeError, ValueError):
        return whole


def spoiled_request(chance: random.Random) -> bytes:
    """A good request with up to three nasty values in it, and sometimes a few bytes changed."""
    whole = request(chance.choice(IMPATIENT), f"spoiled/{chance.randrange(4)}/")
    where = list(paths(whole))
    for _ in range(chance.randrange(4)):
        whole = spoiled(whole, chance.choice(where), chance.choice(NASTY))
    body = bytearray(json.dumps(whole).encode())
    for _ in range(chance.choice((0, 0, 1, 5))):
        body[chance.randrange(len(body))] = chance.randrange(256)
    return bytes(body)
