"""`python -m deploy.topology`: everything runs, whoever dies comes back, and nothing is left."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from deploy.topology.process import Process

from layby import Runner
from tests.helpers.postgres import cluster
from tests.runner import postgres_flows

FLOWS = postgres_flows.__file__
RESULT_S = 60


class Started(Process):
    is_detached = True


def pid_of(name: str, said: list[str]) -> int:
    [row] = [line for line in said if line.startswith(f"{name} ") and "|" not in line]
    return int(row.split()[-1])


async def run_one(url: str) -> None:
    async with Runner(url, slots=0, connect_timeout=RESULT_S) as runner:
        run = await runner.start(postgres_flows.steps, {})
        assert (await run.result(timeout=RESULT_S)).to_dict().keys() == {"first", "second"}


@pytest.mark.shared
@pytest.mark.timeout(120)
def test_it_starts_serves_and_leaves_nothing(tmp_path: Path):
    """Ctrl-C ends all its processes, and the data is gone."""
    cluster()  # skips
    root = Path(__file__).parents[2]
    command = ("-m", "deploy.topology", FLOWS, "--port", "0", "--workers", "1")
    with Started(command, PYTHONPATH=f"{root}:{root / 'src'}", TMPDIR=str(tmp_path)) as topology:
        topology.hear("Ctrl-C stops everything")
        url = topology.hear("balancer ").split()[1]
        pids = [pid_of(name, topology.said) for name in ("server-1", "server-2", "worker-1")]
        folder = Path(topology.hear("postgres ").split()[1])
        os.kill(pids[0], signal.SIGKILL)
        asyncio.run(run_one(url))
        topology.hear("server-1 has ended with code -9: it is started again")
        said = [line.startswith("server-1 has ended") for line in topology.said]
        topology.hear("server-1 | layby serves", after=said.index(True))
        topology.send(signal.SIGINT)
        assert topology.end() == 0, topology.tail
    assert topology.said[-1] == "everything has stopped"
    assert not folder.exists()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
