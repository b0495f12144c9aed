"""Addresses that messages go to: which are valid, and which belong to layby's own workers."""

from functools import lru_cache
from typing import Final, Literal, NamedTuple
from urllib.parse import urlsplit

OWN_GROUP: Final = "layby."
OWN_INBOXES: Final = f"poll://uni@{OWN_GROUP}"
"""How the address of every inbox of a layby worker begins."""
_BASH_HOSTS: Final = ("docker", "tensorlake")


class PollAddress(NamedTuple):
    """`any`: one connection of the group, `id` preferred; `uni`: only that id."""

    cast: Literal["uni", "any"]
    group: str
    id: str | None


def is_valid(address: str) -> bool:
    scheme, separator, rest = address.partition("://")
    if not separator:
        return False
    if scheme == "poll":
        return parse_poll(address) is not None
    if scheme in ("http", "https"):
        return _is_url(address)
    if scheme == "gcps":
        return _is_topic(rest)
    return scheme == "bash" and _is_bash(rest)


@lru_cache(maxsize=1024)
def parse_poll(address: str) -> PollAddress | None:
    """None if this is not a valid address of that scheme. Case counts, a query string does not."""
    scheme, _, rest = address.partition("://")
    how, _, place = rest.partition("?")[0].partition("@")
    group, _, receiver = place.partition("/")
    if scheme != "poll" or how not in ("uni", "any") or not group:
        return None
    return PollAddress(how, group, receiver or None)


def group_of(target: str) -> str | None:
    """The layby group that pulls this target's tasks, or None when they are dispatched."""
    parsed = parse_poll(target)
    return own_group(parsed.group) if parsed is not None else None


def own_group(group: str) -> str | None:
    """The layby group behind a group of the wire; None for a group of other workers."""
    return group.removeprefix(OWN_GROUP) or None if group.startswith(OWN_GROUP) else None


def target_of(group: str) -> str:
    return f"poll://any@{OWN_GROUP}{group}"


def inbox_of(group: str, pid: str) -> str:
    """Where one of layby's own worker processes receives what is meant for it alone."""
    return f"{OWN_INBOXES}{group}/{pid}"


def _is_url(address: str) -> bool:
    try:
        parts = urlsplit(address)
        _ = parts.port  # the port is only validated when it is read
    except ValueError:
        return False
    return bool(parts.hostname) and " " not in parts.netloc


def _is_topic(rest: str) -> bool:
    project, _, topic = rest.partition("/")
    return project != "" and topic != ""


def _is_bash(rest: str) -> bool:
    host, _, image = rest.partition("/")
    return rest == "" or (host in _BASH_HOSTS and image != "")
