"""Reads the data of requests for the model: types, ranges and addresses, hence every 400.

From PROTOCOL.md alone ("P").  Knows nothing of the state; lenient as P 2.0 permits: null is absent
and an integral float is an int.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, NoReturn

from cronsim import CronSim, CronSimError

Json = dict[str, object]

INT64 = 2**63 - 1
SETTLE_STATES = ("resolved", "rejected", "rejected_canceled")  # P 2.1
TARGET, DELAY, TIMER, BRANCH = (f"resonate:{t}" for t in ("target", "delay", "timer", "branch"))
ORIGIN, PARENT, PREFIX, EXTERNAL = (
    f"resonate:{t}" for t in ("origin", "parent", "prefix", "external")
)


@dataclass(frozen=True)
class Profile:
    """The two switches of P 0; both off is the compat profile."""

    lineage: Literal["off", "dot", "colon"] = "off"
    external: bool = False

    @property
    def separator(self) -> str:
        """What ends the origin of an id; only asked where there is a rule."""
        return {"dot": ".", "colon": ":"}[self.lineage]


COMPAT = Profile()


class Refused(Exception):
    """A refusal on its way to becoming the answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def refuse(status: int, message: str) -> NoReturn:
    raise Refused(status, message)


@dataclass
class Creation:
    """The checked data of a promise.create, wherever it appears."""

    id: str
    timeout_at: int
    param: Json
    tags: dict[str, str]


@dataclass
class Settlement:
    """The checked data of a promise.settle, wherever it appears."""

    id: str
    state: str
    value: Json


@dataclass
class Schedule:
    """A stored schedule (P 2.3, 5)."""

    id: str
    cron: str
    promise_id: str
    promise_timeout: int
    promise_param: Json
    promise_tags: dict[str, str]
    created_at: int
    next_run_at: int
    last_run_at: int | None = None


class Fields:
    """A JSON object whose members are read by name and type; any misfit is a 400."""

    def __init__(self, data: object) -> None:
        if not isinstance(data, dict):
            refuse(400, "Invalid 'data' field - must be an object")
        self.data = data

    def required(self, name: str) -> object:
        if self.data.get(name) is None:
            refuse(400, f"Invalid request: missing field `{name}`")
        return self.data[name]

    def string(self, name: str) -> str:
        found = self.required(name)
        return found if isinstance(found, str) else misfit(name)

    def id(self, name: str) -> str:
        """Read a non-empty string."""
        return self.string(name) or refuse(400, f"{name} is required")

    def optional_string(self, name: str) -> str | None:
        return None if self.data.get(name) is None else self.string(name)

    def choice(self, name: str, allowed: tuple[str, ...]) -> str | None:
        found = self.optional_string(name)
        return found if found is None or found in allowed else misfit(name)

    def integer(self, name: str, at_least: int = 0) -> int:
        """Read an int64; neither a bool nor a string is one."""
        found = self.required(name)
        if isinstance(found, float) and found.is_integer():
            found = int(found)
        if isinstance(found, bool) or not isinstance(found, int):
            misfit(name)
        return found if at_least <= found <= INT64 else misfit(name)

    def optional_integer(self, name: str) -> int | None:
        return None if self.data.get(name) is None else self.integer(name)

    def nested(self, name: str) -> Fields:
        found = self.required(name)
        return Fields(found) if isinstance(found, dict) else misfit(name)

    def items(self, name: str) -> list[object]:
        found = self.required(name)
        return found if isinstance(found, list) else misfit(name)

    def strings(self, name: str) -> dict[str, str]:
        """Read a map of strings, empty if absent."""
        found = self.data.get(name)
        found = {} if found is None else found
        if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
            misfit(name)
        return dict(found)

    def value(self, name: str) -> Json:
        """Read a Value (P 2.0), keeping only what was given."""
        if self.data.get(name) is None:
            return {}
        inner = self.nested(name)
        record: Json = {}
        if inner.data.get("headers") is not None:
            record["headers"] = inner.strings("headers")
        if inner.data.get("data") is not None:
            record["data"] = inner.string("data")
        return record

    def action(self) -> Fields:
        return checked_envelope(self.nested("action"))


def misfit(name: str) -> NoReturn:
    refuse(400, f"Invalid request: bad field `{name}`")


def checked_envelope(action: Fields) -> Fields:
    """A sub-envelope must have a kind and a head, whatever they say (P 2.2)."""
    action.string("kind")
    if "head" not in action.data:
        misfit("head")
    return action


def read_creation(fields: Fields, profile: Profile) -> Creation:
    """Read promise.create's data (P 2.1)."""
    promise_id, timeout_at = fields.id("id"), fields.integer("timeoutAt")
    param, tags = fields.value("param"), fields.strings("tags")
    if "\0" in promise_id:
        refuse(400, "Promise ID must not contain NUL")
    if DELAY in tags:
        check_delay(tags, timeout_at)
    if TARGET in tags and not is_address(tags[TARGET]):
        refuse(400, "Invalid resonate:target address")
    if profile.external:
        check_kind(tags)
    if profile.lineage != "off":
        check_lineage(promise_id, tags, profile)
    return Creation(promise_id, timeout_at, param, tags)


def check_kind(tags: dict[str, str]) -> None:
    """Refuse a timer that is a task as well (P 0, column of the spec)."""
    if TARGET in tags and tags.get(TIMER) == "true":
        refuse(400, "A promise is a timer or has a target, not both")


def check_lineage(promise_id: str, tags: dict[str, str], profile: Profile) -> None:
    """Apply the lineage rule of a create (P 0): what the tags name, the id continues."""
    for tag in (ORIGIN, PREFIX):
        if profile.separator in tags.get(tag, ""):
            refuse(400, f"{tag} must not contain '{profile.separator}'")
    for tag in (ORIGIN, BRANCH, PARENT):
        if tag in tags and not continues(promise_id, tags[tag], profile):
            refuse(400, f"Promise ID must be {tag} or continue it")


def continues(promise_id: str, ancestor: str, profile: Profile) -> bool:
    """Whether an id is an ancestor's own or lies below it (P 0: child id separator)."""
    below_root = profile.lineage == "colon" and ":" in ancestor  # root:1 is continued by root:1.2
    separator = "." if below_root else profile.separator
    return promise_id == ancestor or promise_id.startswith(ancestor + separator)


def check_origins(awaiter: str, awaited: str, profile: Profile) -> None:
    """Refuse a wait between two origins (P 0); the origin is read off the id."""
    if profile.lineage == "off":
        return
    if awaiter.partition(profile.separator)[0] != awaited.partition(profile.separator)[0]:
        refuse(400, "Awaiter and awaited must have the same origin")


def is_external(tags: dict[str, str]) -> bool:
    """Whether anyone outside may wait: target, timer or external (P 9, C1 strict)."""
    return TARGET in tags or tags.get(TIMER) == "true" or tags.get(EXTERNAL) == "true"


def check_delay(tags: dict[str, str], timeout_at: int) -> None:
    """Apply the delay rules (P 2.1)."""
    delay = parse_delay(tags[DELAY])
    if delay is None:
        refuse(400, "resonate:delay must be a non-negative integer")
    if delay >= timeout_at:
        refuse(400, "resonate:delay must be less than timeoutAt")
    if TARGET not in tags:
        refuse(400, "resonate:delay requires a resonate:target tag")


def parse_delay(text: str | None) -> int | None:
    """Read an absolute instant written as a decimal string."""
    if text is None or not re.fullmatch(r"[0-9]{1,30}", text) or int(text) > INT64:
        return None
    return int(text)


def read_settlement(fields: Fields) -> Settlement:
    """Read promise.settle's data (P 2.1)."""
    promise_id, state = fields.id("id"), fields.choice("state", SETTLE_STATES)
    if state is None:
        misfit("state")
    return Settlement(promise_id, state, fields.value("value"))


def read_waits(items: list[object], task_id: str, profile: Profile) -> set[str]:
    """Read the actions of task.suspend (P 2.2) and return what they await."""
    awaited = [read_wait(item, task_id) for item in items]
    if not awaited:
        refuse(400, "Actions array cannot be empty")
    for one in awaited:
        check_origins(task_id, one, profile)
    if profile.external and len(set(awaited)) < len(awaited):
        refuse(400, "Each promise is awaited once")  # P 0, column of the spec
    return set(awaited)


def read_wait(item: object, task_id: str) -> str:
    """Read one action of task.suspend (P 2.2) and return what it awaits."""
    data = checked_envelope(Fields(item)).nested("data")
    awaiter, awaited = data.id("awaiter"), data.id("awaited")
    if awaiter != task_id or awaited == task_id:
        refuse(400, "Every awaiter must be the task, and no awaited may be")
    return awaited


def read_schedule(fields: Fields, now: int, profile: Profile) -> Schedule:
    """Read schedule.create's data (P 2.3)."""
    tags, cron = fields.strings("promiseTags"), fields.id("cron")
    first = next_run(cron, now)
    if first is None:
        refuse(400, "Invalid cron expression")
    schedule = Schedule(
        id=fields.id("id"),
        cron=cron,
        promise_id=fields.id("promiseId"),
        promise_timeout=fields.integer("promiseTimeout"),
        promise_param=fields.value("promiseParam"),
        promise_tags=tags,
        created_at=now,
        next_run_at=first,
    )
    if TARGET not in tags:
        refuse(400, "promiseTags must include a resonate:target tag")
    if not is_address(tags[TARGET]):
        refuse(400, "Invalid resonate:target address")  # P 4.3
    if profile.external:
        check_kind(tags)
    if profile.lineage != "off" and profile.separator in schedule.id:
        # Main's dot rule (P 2.3), and the same of a colon: the id becomes its promises' origin.
        refuse(400, f"Schedule ID must not contain '{profile.separator}'")
    return schedule


def next_run(cron: str, after: int) -> int | None:
    """First occurrence strictly after the second of `after`, in UTC with Unix rules (P 5)."""
    try:
        found = next(CronSim(cron, datetime.fromtimestamp(after // 1000, UTC)))
    except (CronSimError, StopIteration):
        return None
    return int(found.timestamp()) * 1000


def is_address(text: str) -> bool:
    """Whether a message could be sent there (P 4.3); queries are ignored."""
    scheme, separator, rest = text.partition("://")
    rest = rest.partition("?")[0]
    forms = {
        "poll": r"(uni|any)@[^/@]+(/.*)?",
        "http": r"[^/].*",
        "https": r"[^/].*",
        "gcps": r"[^/]+/.+",
        "bash": r"|(docker|tensorlake)/.+",
    }
    return bool(separator) and scheme in forms and bool(re.fullmatch(forms[scheme], rest))
