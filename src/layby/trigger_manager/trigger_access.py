"""What polling triggers may reach in the name of whoever runs them: hosts, folders, databases.

A trigger's arguments come from whoever may start a task, and the process that polls may stand in
another network, with other rights. So nothing is reachable that its owner has not named.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

ANY: Final = "*"


class NamedSecret(Struct, frozen=True, forbid_unknown_fields=True):
    """A secret by the name that triggers refer to, and where it is kept: `env:NAME` or `file:PATH`.

    It is sent to these hosts only; a redirect to others goes without it.
    """

    name: str
    value: str
    hosts: tuple[str, ...]


class TriggerAccess(Struct, frozen=True, kw_only=True):
    """Empty: no polling trigger of layby's own is run.

    `hosts`: what HttpPoll may ask: names, `*.example.org`, or `*` for every public host.
    `allow`: hosts and networks that it may ask although they are private.
    `folders`: where FileExists may look; links are followed before that is checked.
    `connections`: the databases of SqlPoll, by name: `sqlite:PATH`, `postgresql://…`, or where
    such an address is kept, `env:NAME` or `file:PATH`.
    `secrets`: what headers may refer to.
    """

    hosts: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    connections: Mapping[str, str] = {}
    secrets: tuple[NamedSecret, ...] = ()
    max_answer: int = 1 << 20
    """Bytes of an answer of HttpPoll."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Which of layby's own polling triggers can be run with this."""
        given = {
            "FileExists": self.folders,
            "HttpPoll": self.hosts or self.allow,
            "SqlPoll": self.connections,
        }
        return tuple(kind for kind, reach in given.items() if reach)

    @classmethod
    def everywhere(cls) -> "TriggerAccess":
        """For a process whose triggers are all its own: any host and any folder."""
        return cls(hosts=(ANY,), allow=("0.0.0.0/0", "::/0"), folders=("/",))
