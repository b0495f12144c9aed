"""Starts it all, says what runs where, and ends it all: `python -m deploy.topology flows.py`.

Who dies is started again after a second, as a container would be: kill any of them and see.
"""

import argparse
import shlex
import signal
import sys
import threading
from pathlib import Path

from deploy.topology.topology import Plan, Topology

AGAIN_S = 1.0
LOOK_S = 0.2


def asked() -> argparse.Namespace:
    told = "Two layby servers on one PostgreSQL, a load balancer and workers, on this machine."
    parser = argparse.ArgumentParser("python -m deploy.topology", description=told)
    add = parser.add_argument
    add("module", help="a file or a module with workflows, which the workers run")
    add("--servers", type=int, default=2, help="how many servers (default: %(default)s)")
    add("--workers", type=int, default=2, help="how many workers (default: %(default)s)")
    add(
        "--slots", type=int, default=4, help="bodies a worker runs at a time (default: %(default)s)"
    )
    add("--port", type=int, default=8001, help="of the load balancer (default: %(default)s)")
    add("--data", type=Path, help="keep PostgreSQL's data in this folder, and use what is there")
    add("--quiet", action="store_true", help="do not show what the processes say")
    return parser.parse_args()


def main() -> int:
    given = asked()
    plan = Plan(
        module=given.module,
        servers=given.servers,
        workers=given.workers,
        slots=given.slots,
        port=given.port,
        folder=given.data and given.data.absolute(),
        server_flags=("--log-format", "text"),
    )
    stopping = Stopping()
    topology = Topology(plan, quiet if given.quiet else say)
    try:
        topology.start()
        print(table(topology), flush=True)
        while not stopping.wait(LOOK_S):
            start_again(topology, stopping)
    except (OSError, LookupError, AssertionError) as failure:
        print(f"deploy.topology: {failure}", file=sys.stderr)
        return 1
    finally:
        topology.stop(at_once=not stopping.is_set())
    print("everything has stopped", flush=True)
    return 0


class Stopping(threading.Event):
    """Set by Ctrl-C and SIGTERM. Both are only noted: what has begun to stop is not interrupted."""

    def __init__(self) -> None:
        super().__init__()
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, lambda *_: self.set())


def quiet(_name: str, _line: str) -> None:
    """Nothing is shown."""


def say(name: str, line: str) -> None:
    print(f"{name} | {line}", flush=True)


def table(topology: Topology) -> str:
    processes = topology.processes
    rows = [("what", "where", "process")]
    if (cluster := topology.cluster) is not None:
        rows.append(("postgres", str(cluster.folder), str(cluster.pid)))
    rows += [(each, topology.url_of(each), str(processes[each].pid)) for each in topology.servers]
    rows.append(("balancer", topology.url, "in here"))
    rows += [
        (each, f"to {topology.server_for(each)}", str(processes[each].pid))
        for each in topology.workers
    ]
    widths = [max(len(row[at]) for row in rows) for at in range(2)]
    lines = [f"{what:{widths[0]}}  {where:{widths[1]}}  {pid}" for what, where, pid in rows]
    module = shlex.quote(topology.plan.module)
    return "\n".join(
        [
            "",
            *lines,
            "",
            f"Try: layby run {module} --url {topology.url}",
            "Kill any server or worker: it is started again. Ctrl-C stops everything.",
            "",
        ]
    )


def start_again(topology: Topology, stopping: Stopping) -> None:
    for name, process in topology.processes.items():
        if process.is_alive:
            continue
        print(f"{name} has ended with code {process.end()}: it is started again", flush=True)
        if stopping.wait(AGAIN_S):
            return
        process.start()


if __name__ == "__main__":
    sys.exit(main())
