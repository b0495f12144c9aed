"""Whether a trigger may reach what it names: says what to change where it may not."""

import os
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from layby.client.outbound import Lookup, OutboundRefused, OutboundRules, look_up
from layby.client.secret import read_secret
from layby.errors import LaybyError
from layby.trigger_manager.trigger_access import NamedSecret, TriggerAccess
from layby.triggers.built_in import FileExists, HttpPoll, SecretNamed, SqlPoll

_OR_FOR_A_RUNNER: Final = " of the server, or to the trigger_access of a Runner"


class AccessRefused(LaybyError):
    """The owner of this trigger manager has not allowed it: says what to change."""


class AccessChecks:
    def __init__(self, access: TriggerAccess, lookup: Lookup = look_up) -> None:
        self.access = access
        self.lookup = lookup
        self.rules = OutboundRules(access.allow)

    def shown(self) -> dict[str, object]:
        """What is allowed, without passwords and secrets. Where it differs, what was refused for it
        is tried again.
        """
        return {
            "hosts": self.access.hosts,
            "allow": self.access.allow,
            "folders": self.access.folders,
            "connections": [
                (name, self._is_known(name)) for name in sorted(self.access.connections)
            ],
            "secrets": sorted((each.name, each.hosts) for each in self.access.secrets),
        }

    def check(self, trigger: object) -> None:
        """Refuse what is certainly not allowed, before the first poll."""
        match trigger:
            case FileExists():
                self._check_written(trigger.path)
            case HttpPoll():
                host = urlsplit(trigger.url).hostname or ""
                self.check_host(host)
                for value in trigger.headers.values():
                    if isinstance(value, SecretNamed):
                        self.secret_for(value.secret, host)
            case SqlPoll():
                self.connection(trigger.connection)
            case _:
                pass

    def check_host(self, host: str) -> None:
        """Only the name; what it resolves to is checked when it is connected to."""
        if self.rules.names(host) or any(is_host_of(each, host) for each in self.access.hosts):
            try:
                self.rules.check_literal(host)
            except OutboundRefused as refusal:
                remedy = "add it to triggers.allow if it may be asked"
                raise AccessRefused(f"{refusal}: {remedy}") from None
            return
        raise AccessRefused(
            f"{host} is not a host that HttpPoll may ask here: add it to triggers.hosts, or to "
            "triggers.allow if it is private"
        )

    def check_folder(self, path: str) -> str:
        """The path with all links followed, if that is inside one of the folders. Blocks."""
        self._check_written(path)
        real = os.path.realpath(path)
        if any(Path(real).is_relative_to(os.path.realpath(each)) for each in self.access.folders):
            return real
        raise _outside(path)

    def _check_written(self, path: str) -> None:
        """As it is written, without looking at the disk, which may not answer."""
        written = Path(os.path.normpath(path))
        if not any(written.is_relative_to(os.path.normpath(each)) for each in self.access.folders):
            raise _outside(path)

    def connection(self, name: str) -> str:
        if (address := self.access.connections.get(name)) is not None:
            return _address_of(name, address)
        known = ", ".join(sorted(self.access.connections)) or "none"
        raise AccessRefused(
            f"there is no connection named {name!r} here ({known}): add it to triggers.connections"
            f"{_OR_FOR_A_RUNNER}"
        )

    def _is_known(self, name: str) -> bool:
        """Whether where its address is kept can be read by now."""
        try:
            return bool(self.connection(name))
        except AccessRefused:
            return False

    def secret(self, name: str) -> NamedSecret:
        """Where it is kept, and for which hosts it is."""
        for each in self.access.secrets:
            if each.name == name:
                return each
        raise AccessRefused(
            f"there is no secret named {name!r} here: add it to triggers.secrets{_OR_FOR_A_RUNNER}"
        )

    def secret_for(self, name: str, host: str) -> NamedSecret:
        """The same, if it may be sent to this host."""
        found = self.secret(name)
        if may_be_sent(found, host):
            return found
        raise AccessRefused(
            f"the secret {name!r} is not for {host}: add the host to its hosts in triggers.secrets"
        )


def _address_of(name: str, address: str) -> str:
    if not address.startswith(("env:", "file:")):
        return address
    try:
        return read_secret(address, os.environ).reveal()
    except LaybyError as error:
        raise AccessRefused(f"the address of the connection {name!r}: {error}") from None


def may_be_sent(secret: NamedSecret, host: str) -> bool:
    return any(is_host_of(each, host) for each in secret.hosts)


def reveal(secret: NamedSecret) -> str:
    """Read whenever it is used: it may be renewed meanwhile."""
    return read_secret(secret.value, os.environ).reveal()


def _outside(path: str) -> AccessRefused:
    return AccessRefused(
        f"{path} is not in a folder that FileExists may look into here: add its folder to "
        "triggers.folders"
    )


def is_host_of(pattern: str, host: str) -> bool:
    """`*` alone means any; `*.example.org` any below it, and not itself."""
    return fnmatchcase(host.lower().rstrip("."), pattern.lower().rstrip("."))
