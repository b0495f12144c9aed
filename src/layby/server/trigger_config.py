"""What polling triggers may reach from a server: nothing, until its owner says so."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath
from typing import Annotated, Any, Final

from msgspec import Struct

from layby.server.config_keys import Setting
from layby.server.config_values import Number, Tables, Texts
from layby.server.networks import is_host_or_network
from layby.store.postgres_address import is_postgres

_HOST: Final = re.compile(r"\*|(\*\.)?[A-Za-z0-9_.-]+")
_KEPT: Final = ("env:", "file:")


class SqlConnection(Struct, frozen=True, forbid_unknown_fields=True):
    """A database that SqlPoll may ask, by name; the address may contain a password."""

    name: str
    url: str

    def __repr__(self) -> str:
        return f"SqlConnection(name={self.name!r}, ...)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("name", self.name)]


class TriggerSecret(Struct, frozen=True, forbid_unknown_fields=True):
    """A secret that headers of HttpPoll may refer to, and the hosts that it may be sent to."""

    name: str
    value: str
    hosts: tuple[str, ...]

    def __repr__(self) -> str:
        return f"TriggerSecret(name={self.name!r}, ...)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("name", self.name)]


class TriggersConfig(Struct, frozen=True, kw_only=True):
    hosts: Annotated[
        tuple[str, ...],
        Setting(
            Texts("a host such as api.example.org or *.example.org, or *", _HOST.fullmatch),
            "Hosts that HttpPoll may ask; `*` for all public ones. None: HttpPoll is off",
        ),
    ] = ()
    allow: Annotated[
        tuple[str, ...],
        Setting(
            Texts("a host, an address or a network such as 10.0.0.0/8", is_host_or_network),
            "Private hosts and networks that HttpPoll may ask as well",
        ),
    ] = ()
    folders: Annotated[
        tuple[str, ...],
        Setting(
            Texts("an absolute path", lambda text: PurePath(text).is_absolute()),
            "Folders that FileExists may look into. None: FileExists is off",
        ),
    ] = ()
    connections: Annotated[
        tuple[SqlConnection, ...],
        Setting(
            Tables(SqlConnection, "tables with name and url"),
            "Databases that SqlPoll may ask: `[[triggers.connections]]`. None: SqlPoll is off",
        ),
    ] = ()
    secrets: Annotated[
        tuple[TriggerSecret, ...],
        Setting(
            Tables(TriggerSecret, "tables with name, value (env:NAME or file:PATH) and hosts"),
            "Secrets for headers of HttpPoll, each for its hosts: `[[triggers.secrets]]`",
        ),
    ] = ()
    capacity: Annotated[
        int, Setting(Number(1, 100_000), "Triggers that run in this server at a time")
    ] = 20_000

    @property
    def is_on(self) -> bool:
        return bool(self.hosts or self.allow or self.folders or self.connections)


def trigger_conflicts(config: TriggersConfig) -> Iterator[str]:
    """Tables whose contents cannot be right. Secrets are not repeated."""
    for connection in config.connections:
        if not is_postgres(connection.url) and not connection.url.startswith(("sqlite:", *_KEPT)):
            yield (
                f"triggers.connections {connection.name!r}: give sqlite:PATH, postgresql://…, or "
                "where that is kept: env:NAME or file:PATH"
            )
    for secret in config.secrets:
        if not secret.value.startswith(_KEPT):
            yield f"triggers.secrets {secret.name!r}: give env:NAME or file:PATH, not the secret"
        if not secret.hosts:
            yield f"triggers.secrets {secret.name!r} has no hosts: list those that may get it"
    for what, named in (("connections", config.connections), ("secrets", config.secrets)):
        for name, times in Counter(each.name for each in named).items():
            if times > 1 or not name:
                yield f"triggers.{what}: give each its own name, {name!r} is not"
