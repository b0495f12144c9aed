"""Addresses that messages go to: which are valid, and which belong to layby's own workers."""

from typing import Final

OWN_GROUP: Final = "layby."
_BASH_HOSTS: Final = ("docker", "tensorlake")


def is_valid(address: str) -> bool:
    scheme, separator, rest = address.partition("://")
    if not separator:
        return False
    if scheme == "poll":
        return _is_poll(rest)
    if scheme in ("http", "https"):
        return rest.strip("/") != ""
    if scheme == "gcps":
        return _is_topic(rest)
    return scheme == "bash" and _is_bash(rest)


def group_of(target: str) -> str | None:
    """The layby group that pulls this target's tasks, or None when they are dispatched."""
    if not target.startswith("poll://"):
        return None
    group = target.partition("?")[0].partition("@")[2].partition("/")[0]
    return group.removeprefix(OWN_GROUP) or None if group.startswith(OWN_GROUP) else None


def target_of(group: str) -> str:
    return f"poll://any@{OWN_GROUP}{group}"


def inbox_of(group: str, pid: str) -> str:
    """Where one worker process of ours hears what concerns it alone."""
    return f"poll://uni@{OWN_GROUP}{group}/{pid}"


def _is_poll(rest: str) -> bool:
    cast, separator, place = rest.partition("?")[0].partition("@")
    group = place.partition("/")[0]
    return bool(separator) and cast in ("uni", "any") and group != ""


def _is_topic(rest: str) -> bool:
    project, _, topic = rest.partition("/")
    return project != "" and topic != ""


def _is_bash(rest: str) -> bool:
    host, _, image = rest.partition("/")
    return rest == "" or (host in _BASH_HOSTS and image != "")
