"""Two servers, three workers and PostgreSQL, and everything that can happen to them.

What happens, to whom and for how long is drawn from a seed; what was done is written down.
"""

import random
import signal
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import get_args

from deploy.topology.cluster import QUICK, Cluster
from deploy.topology.process import Process
from deploy.topology.topology import DATABASE, Plan, Topology

from layby.core.settings import Settings
from layby.core.state import State
from layby.engine.calendar import next_after
from layby.store.postgres_reader import PostgresReader
from tests.helpers.poll_streams import Stream
from tests.helpers.server_process import Peer
from tests.helpers.troubled_link import Cut, TroubledLink
from tests.runner import chaos_flows
from tests.runner.test_chaos import CLIENT, Effect

LEASE_S = 2
SLOTS = 8
TIMERS = 4
READY_S = 60
ARM_MS = 2_000
"""How soon they are due: by then all are armed, and the server is dead."""
TIMER = {"resonate:timer": "true"}
PROBE_MS = 500
MOST_ARMINGS = 4
LATE_S = 2.0
"""How much later a timer may be that was armed by a server that has died than one whose server
lives: that one is as late as the load of the machine makes it.
"""


class TroubledTopology(Topology):
    """A link between each server and the database, and three ways for workers to connect."""

    def __init__(self, folder: Path) -> None:
        self.effects_file = folder / "effects"
        self.effects_file.touch()
        self.links: dict[str, TroubledLink] = {}
        plan = Plan(
            module=chaos_flows.__file__,
            workers=3,
            slots=SLOTS,
            settings=QUICK,
            server_flags=("--tasks-max-crashes", "1000", "--log-format", "text"),
            worker_flags=("--lease", f"{LEASE_S}s"),
            environment={"EFFECTS": str(self.effects_file), "PYTHONFAULTHANDLER": "1"},
        )
        super().__init__(plan)
        self.balancer = TroubledLink(*self.balancer.targets)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._show_all()
        super().__exit__(kind)

    def _show_all(self) -> None:
        """After a failure: what each process said last, and where it stood."""
        for name, process in self.processes.items():
            process.send(signal.SIGABRT)
            process.end()
            print(f"--- {name}", *process.said[-150:], sep="\n")  # noqa: T201 - pytest shows it

    @property
    def database(self) -> Cluster:
        assert self.cluster is not None
        return self.cluster

    def database_for(self, server: str) -> str:
        if server not in self.links:
            link = self.links[server] = TroubledLink(("127.0.0.1", self.database.port))
            self._open.enter_context(link)
        return self.database.tcp_url(DATABASE, port=self.links[server].port)

    def server_for(self, worker: str) -> str:
        """Through the balancer, or to one of the servers."""
        by_name = {"worker-2": "server-1", "worker-3": "server-2"}
        return self.url_of(by_name[worker]) if worker in by_name else self.url

    def client(self, runs: int, seed: int, pace_s: float) -> Process:
        command = [str(CLIENT), self.url, str(runs), str(seed), str(pace_s)]
        return Process(command, EFFECTS=str(self.effects_file))

    def effects(self) -> list[Effect]:
        split = (line.split() for line in self.effects_file.read_text().splitlines())
        return [Effect(what, run, int(number), int(at)) for what, run, number, at in split]

    def state(self) -> State:
        """What is stored."""
        reader = PostgresReader(self.database.url(DATABASE), Settings(), next_after)
        with reader.transaction():
            state = reader.dump()
        reader.close()
        return state


class Chaos:
    """What can happen. Everything is well again when a method returns, or soon after."""

    def __init__(self, found: TroubledTopology, seed: int, note: Callable[[str], None]) -> None:
        self._found = found
        self._chance = random.Random(seed)
        self._note = note
        self._began = time.monotonic()
        self._pause = threading.Event()
        self.lateness_s: list[float] = []
        """Of timers that were armed by a server before it died, beyond what others had."""

    def disturb(self, rounds: int, between: Callable[[], None]) -> None:
        """Each kind once a round, in any order."""
        for _ in range(rounds):
            for kind in self._chance.sample(self._kinds, len(self._kinds)):
                between()
                self._start_again()
                kind()
        self._start_again()

    def _start_again(self) -> None:
        """Who has ended by itself, as a server does that finds no database when it starts."""
        for name, process in self._found.processes.items():
            if not process.is_alive:
                self.say(f"{name} has ended with code {process.end()}, and is started again")
                process.start()

    @property
    def _kinds(self) -> tuple[Callable[[], None], ...]:
        return (
            self.kill_server,
            self.kill_worker,
            self.kill_worker,
            self.restart_database,
            self.crash_database,
            self.delay,
            *(partial(self.cut_database, how) for how in get_args(Cut)),
            self.cut_clients,
        )

    def say(self, what: str) -> None:
        self._note(f"{time.monotonic() - self._began:6.1f} s  {what}")

    def _wait(self, least: float, most: float) -> None:
        self._pause.wait(self._chance.uniform(least, most))

    # --- processes -----------------------------------------------------------------------

    def kill_worker(self) -> None:
        name = self._chance.choice(self._found.workers)
        self.say(f"kill -9 {name}")
        self._found.processes[name].kill()
        self._wait(0, 1)
        self._found.processes[name].start()

    def kill_server(self) -> None:
        """Just after it has armed timers, which another one has to see to."""
        dying, other = self._chance.sample(self._found.servers, 2)
        self._until_ready()
        stream = Stream(self._found.ports[other], "timers", other)
        try:
            (usual,) = self._late(stream, self._arm_in_time(other, other, PROBE_MS, 1))
            due = self._arm_in_time(dying, other, ARM_MS, TIMERS)
            self.say(f"kill -9 {dying}, which has armed {len(due)} timers")
            self._found.processes[dying].kill()
            late = self._late(stream, due)
        finally:
            stream.close()
        self._found.processes[dying].start()
        self.lateness_s += [each - max(usual, 0) for each in late]
        self.say(f"timers were at most {max(late):.2f} s late, one before that {usual:.2f} s")

    def _late(self, stream: Stream, due: Mapping[str, int]) -> list[float]:
        """How late we hear of each, in seconds."""
        late: list[float] = []
        for promise_id, at in due.items():
            stream.until_settled(promise_id)
            late.append(time.time() - at / 1000)
        return late

    def _until_ready(self) -> None:
        """Whatever was done to them before: they are back by themselves, in good time."""
        until = time.monotonic() + READY_S
        while not all(self._found.is_ready(each) for each in self._found.servers):
            assert time.monotonic() < until, "a server has not come back"
            self._start_again()
            self._pause.wait(0.1)

    def _arm_in_time(self, server: str, hears: str, within_ms: int, count: int) -> dict[str, int]:
        """Timers that are not due yet when all are armed: on a slow machine, a later try's."""
        for number in range(MOST_ARMINGS):
            due = self._arm(server, hears, within_ms * 2**number, count)
            if time.time_ns() < (min(due.values()) - within_ms // 2) * 1_000_000:
                return due
        raise AssertionError("the machine is too slow for this")

    def _arm(self, server: str, hears: str, within_ms: int, count: int) -> dict[str, int]:
        """Their ids, and when they are due."""
        address = f"poll://uni@timers/{hears}"
        peer = Peer(self._found.ports[server], 20)
        now = time.time_ns() // 1_000_000
        moments = [now + within_ms + number * 100 for number in range(count)]
        due = {f"timer-{now}-{at}": at for at in moments}
        for promise_id, at in due.items():
            promise = {"id": promise_id, "timeoutAt": at, "param": {}, "tags": TIMER}
            assert peer.ask("promise.create", promise).status == 200
            listener = {"awaited": promise["id"], "address": address}
            assert peer.ask("promise.register_listener", listener).status == 200
        peer.close()
        return due

    # --- the database --------------------------------------------------------------------

    def restart_database(self) -> None:
        self._restart(signal.SIGINT, "restart PostgreSQL")

    def crash_database(self) -> None:
        self._restart(signal.SIGQUIT, "restart PostgreSQL, in immediate mode")

    def _restart(self, how: signal.Signals, told: str) -> None:
        self.say(told)
        self._found.database.stop(how)
        self._wait(0, 1)
        self._found.database.start()

    # --- connections ---------------------------------------------------------------------

    def delay(self) -> None:
        name, delay_s = self._chance.choice(self._found.servers), self._chance.uniform(0.02, 0.1)
        self.say(f"{delay_s * 1000:.0f} ms each way between {name} and PostgreSQL")
        link = self._found.links[name]
        link.delay_s = delay_s
        self._wait(0.5, 1.5)
        link.delay_s = 0.0

    def cut_database(self, how: Cut) -> None:
        name = self._chance.choice(self._found.servers)
        cut = self._found.links[name].cut(how)
        self.say(f"{cut} connections between {name} and PostgreSQL: {how}")

    def cut_clients(self) -> None:
        cut = self._found.balancer.cut("reset")
        self.say(f"{cut} connections through the balancer: reset")
