"""How two definitions of a schedule differ, in the words users know; only what differs is named."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from layby.core.fields import Value
from layby.core.model import NEVER, Millis
from layby.core.runs import Node
from layby.core.schedule_row import Schedule
from layby.core.schedules import group, nodes, priority

LISTED: Final = 3
_encode: Final = msgspec.json.Encoder(order="deterministic").encode
_TOLD_BY_OTHERS: Final = ("flow", "tasks")
"""In the param of a root, these repeat the name of the workflow and the nodes."""


def differences(existing: Schedule, wanted: Schedule) -> list[str]:
    """Empty if they are the same."""
    if existing.flow is None:
        return ["kind (it creates promises)"]
    told = list(_told(existing, wanted))
    if existing.promise_param != wanted.promise_param:
        told += _params(existing.promise_param, wanted.promise_param, is_told=bool(told))
    return told


def _told(existing: Schedule, wanted: Schedule) -> Iterator[str]:
    before, after = _shown(existing), _shown(wanted)
    for name in (each for each in before if before[each] != after[each]):
        yield f"{name} ({before[name]}, not {after[name]})"
    if changed := ", ".join(_tasks(existing, wanted)):
        yield f"tasks ({changed})"
    if existing.promise_timeout != wanted.promise_timeout:
        yield f"deadline ({_span(existing.promise_timeout)}, not {_span(wanted.promise_timeout)})"


def _shown(schedule: Schedule) -> dict[str, str]:
    return {
        "cron": f"'{' '.join(schedule.cron.split())}'",
        "time zone": f"'{schedule.timezone}'",
        "catch_up": str(schedule.catch_up),
        "overlap": f"'{schedule.overlap}'",
        "workflow": f"'{schedule.flow}'",
        "group": f"'{group(schedule)}'",
        "priority": str(priority(schedule)),
    }


def _tasks(existing: Schedule, wanted: Schedule) -> Iterator[str]:
    before, after = _nodes(existing), _nodes(wanted)
    common = [each for each in before if each in after]
    yield from _named("added", [each for each in after if each not in before])
    yield from _named("removed", [each for each in before if each not in after])
    yield from _named("changed", [each for each in common if before[each] != after[each]])
    if common != [each for each in after if each in before]:
        yield "in another order"


def _nodes(schedule: Schedule) -> dict[str, Node]:
    """The name of a node begins with that of its workflow, which is told apart."""
    return {
        node.id: msgspec.structs.replace(node, name=node.name.removeprefix(schedule.flow or ""))
        for node in nodes(schedule.nodes)
    }


def _params(existing: str, wanted: str, *, is_told: bool) -> Iterator[str]:
    """By the fields of what a run begins with; as a whole if that is not an object."""
    before, after = _fields(existing), _fields(wanted)
    if before is None or after is None:
        yield "context"
        return
    for name in _changed(before, after):
        if name not in _TOLD_BY_OTHERS or not is_told:
            yield _named_field(name, before.get(name), after.get(name))


def _named_field(name: str, before: object, after: object) -> str:
    try:
        inner = [msgspec.convert(each, dict[str, Any]) for each in (before, after)]
    except msgspec.ValidationError:
        return name
    return f"{name} ({', '.join(_named('', _changed(*inner)))})"


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """By their JSON: to Python, 1 and True and 1.0 are equal."""
    old, new = ({name: _encode(each) for name, each in of.items()} for of in (before, after))
    return [each for each in dict.fromkeys((*old, *new)) if old.get(each) != new.get(each)]


def _fields(param: str) -> dict[str, Any] | None:
    value = msgspec.json.decode(param, type=Value)
    try:
        data = base64.b64decode(value.data if isinstance(value.data, str) else "", validate=True)
        return msgspec.json.decode(data, type=dict[str, Any])
    except (ValueError, msgspec.MsgspecError):
        return None


def _named(how: str, names: Sequence[str]) -> Iterator[str]:
    if names:
        listed = ", ".join(f"'{each}'" for each in names[:LISTED])
        more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
        yield f"{how} {listed}{more}".strip()


def _span(length: Millis) -> str:
    return "none" if length >= NEVER else f"{length / 1000:g} s"
