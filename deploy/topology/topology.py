"""Two servers on one PostgreSQL, a load balancer in front of them, and workers: as processes.

The same as deploy/compose.yaml, on one machine and without containers.
"""

import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Self
from urllib.request import urlopen

import msgspec

from deploy.topology.cluster import Cluster, free_port
from deploy.topology.process import Process
from deploy.topology.relay import Relay

DATABASE = "shop"
SAFE: Mapping[str, str] = {}
"""Settings of PostgreSQL: as it comes, everything acknowledged is on disk."""

Told = Callable[[str, str], None]
"""The name of a process, and a line that it said."""


class Member(Process):
    """Ctrl-C does not reach it: everything is ended in order."""

    is_detached = True

    def __init__(
        self, name: str, told: Told, command: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self._name = name
        self._told = told
        super().__init__(command, **environment)

    def tell(self, line: str) -> None:
        self._told(self._name, line)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    module: str
    """A file or a module with workflows: what the workers run."""
    servers: int = 2
    workers: int = 2
    slots: int = 4
    port: int = 0
    """Of the balancer; 0 for any that is free. The servers have free ones."""
    db: str | None = None
    """An existing database instead of one of our own."""
    folder: Path | None = None
    """Keep the data of our own PostgreSQL here."""
    settings: Mapping[str, str] = SAFE
    server_flags: tuple[str, ...] = ()
    worker_flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    """Of servers and workers, besides ours."""


class Topology:
    """Everything runs from `start` until `stop`. Processes are called server-1, worker-1 …"""

    def __init__(self, plan: Plan, told: Told = lambda *_: None) -> None:
        self.plan = plan
        self._told = told
        self._open = ExitStack()
        self.cluster: Cluster | None = None
        self.ports = {f"server-{number + 1}": free_port() for number in range(plan.servers)}
        self.balancer = Relay([("127.0.0.1", port) for port in self.ports.values()], plan.port)
        self.processes: dict[str, Process] = {}

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop(at_once=True)
            raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.stop(at_once=kind is not None)

    # --- life ----------------------------------------------------------------------------

    def start(self) -> None:
        """Servers answer when this returns; workers have been started."""
        if self.plan.db is None:
            self.cluster = Cluster(self.plan.settings, folder=self.plan.folder)
            self.cluster.make_database(DATABASE)
        self.balancer.start()
        self._open.callback(self.balancer.close)
        for name in self.servers:
            self._serve(name)
        for name in self.servers:
            self.processes[name].hear("layby serves")
        for name in self.workers:
            self._work(name)

    def stop(self, *, at_once: bool = False) -> None:
        """Workers first: they hand back what they hold. Then the servers, then the database."""
        how = signal.SIGKILL if at_once else signal.SIGTERM
        stuck = [*self._end(self.workers, how), *self._end(self.servers, how)]
        self._open.close()
        if self.cluster is not None:
            self.cluster.stop()
            if self.plan.folder is None:
                self.cluster.remove()
        if stuck:
            said = [f"{name} did not end when it was asked:\n{tail}" for name, tail in stuck]
            raise AssertionError("\n".join(said))

    def _end(self, names: list[str], how: signal.Signals) -> list[tuple[str, str]]:
        """Who had to be killed, and what they said last: where they stood, if they can tell."""
        processes = {name: self.processes[name] for name in names if name in self.processes}
        for each in processes.values():
            each.send(how)
        stuck: list[tuple[str, str]] = []
        for name, each in processes.items():
            try:
                each.end()
            except TimeoutExpired:
                each.send(signal.SIGABRT)
                each.end()
                stuck.append((name, each.tail))
        return stuck

    # --- who is there --------------------------------------------------------------------

    @property
    def servers(self) -> list[str]:
        return list(self.ports)

    @property
    def workers(self) -> list[str]:
        return [f"worker-{number + 1}" for number in range(self.plan.workers)]

    @property
    def url(self) -> str:
        """Of the balancer: where clients, workers and SDKs connect."""
        return f"http://127.0.0.1:{self.balancer.port}"

    def url_of(self, server: str) -> str:
        return f"http://127.0.0.1:{self.ports[server]}"

    def is_ready(self, server: str) -> bool:
        try:
            with urlopen(f"{self.url_of(server)}/ready", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def database_for(self, server: str) -> str:
        """Its address; what stands between servers and database overrides this."""
        del server
        if self.plan.db is not None:
            return self.plan.db
        assert self.cluster is not None
        return self.cluster.url(DATABASE)

    def server_for(self, worker: str) -> str:
        """The URL that a worker connects to."""
        del worker
        return self.url

    # --- processes -----------------------------------------------------------------------

    def _serve(self, name: str) -> None:
        flags = ("--port", str(self.ports[name]), "--url", self.url, *self.plan.server_flags)
        # By a variable: the address may have a password, and everybody can list processes.
        self._begin(name, ("serve", *flags), LAYBY_DB=self.database_for(name))

    def _work(self, name: str) -> None:
        flags = ("--url", self.server_for(name), "--slots", str(self.plan.slots))
        arguments = ("worker", self.plan.module, *flags, *self.plan.worker_flags)
        self._begin(name, arguments)

    def _begin(self, name: str, arguments: tuple[str, ...], **added: str) -> None:
        environment = {**self.plan.environment, **added}
        command = ("-m", "layby.cli", *arguments)
        self.processes[name] = Member(name, self._told, command, environment)
