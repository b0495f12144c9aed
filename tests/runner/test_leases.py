"""A worker that is stopped (SIGSTOP) and goes on when its lease is over: it begins nothing."""

import asyncio
import signal
from pathlib import Path

import pytest

from layby import Workflow, task
from layby.client.http import HttpClient
from layby.core.commands import CancelPromise, GetPromise
from layby.core.model import NEVER
from layby.core.replies import PromiseData
from layby.workflow import plan
from tests.helpers.cli_processes import Process, until
from tests.helpers.server_process import ServerProcess

CHILD = Path(__file__).with_name("lease_child.py")


def is_stopped(process: Process) -> bool:
    stat = Path(f"/proc/{process.pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "T"


async def begin(url: str, flow: Workflow, run_id: str) -> None:
    """By somebody who takes none of its tasks."""
    client = HttpClient(url)
    assert (await client.send(plan.plan(flow, run_id, {}, "default", NEVER))).is_ok
    await client.close()


async def cancel(url: str, run_id: str) -> None:
    client = HttpClient(url)
    assert (await client.send(CancelPromise(id=plan.root_id(run_id)))).is_ok
    await client.close()


async def ended(url: str, run_id: str) -> str:
    client = HttpClient(url)
    data = (await client.send(GetPromise(id=plan.root_id(run_id)))).data
    await client.close()
    assert isinstance(data, PromiseData)
    return data.promise.state


@task
async def pays(context) -> None: ...


@task(rule="finally", timeout=60)
async def refunds(context) -> None: ...


@pytest.mark.parametrize("when", ["taken", "checkpoint"])
@pytest.mark.timeout(120)
def test_what_others_have_finished_meanwhile_is_not_begun(when: str, tmp_path: Path):
    """Not the body it had taken the task for, nor the function of a checkpoint."""
    effects = tmp_path / "effects"
    effects.touch()
    with ServerProcess(tmp_path) as server:
        url = f"http://127.0.0.1:{server.port}"
        with Process([str(CHILD), url, str(effects), when]) as one:
            one.hear("@works")
            asyncio.run(begin(url, Workflow("payer", tasks=[pays]), "r"))
            until(lambda: is_stopped(one), one)
            before = effects.read_text().splitlines()
            assert before == ([] if when == "taken" else [f"begins {one.pid}"])
            with Process([str(CHILD), url, str(effects), "never"]) as two:
                until(lambda: asyncio.run(ended(url, "r")) == "resolved", two)
                by_the_other = [f"begins {two.pid}", f"charges {two.pid}"]
                assert effects.read_text().splitlines() == [*before, *by_the_other]
                one.send(signal.SIGCONT)
                one.hear("lost its lease and starts over")
                one.stop()
                assert effects.read_text().splitlines() == [*before, *by_the_other]


@pytest.mark.timeout(120)
def test_a_run_is_cleaned_up_when_the_lease_of_a_stopped_worker_is_over(tmp_path: Path):
    """Nobody else can know whether its body has ended; it may end nothing when it goes on."""
    effects = tmp_path / "effects"
    effects.touch()
    with ServerProcess(tmp_path) as server:
        url = f"http://127.0.0.1:{server.port}"
        with Process([str(CHILD), url, str(effects), "checkpoint"]) as one:
            one.hear("@works")
            asyncio.run(begin(url, Workflow("careful", tasks=[pays, refunds]), "r"))
            until(lambda: is_stopped(one), one)
            asyncio.run(cancel(url, "r"))
            assert asyncio.run(ended(url, "r")) == "rejected_canceled"
            with Process([str(CHILD), url, str(effects), "never"]) as two:
                until(lambda: len(effects.read_text().splitlines()) == 2, two)
                told = [f"begins {one.pid}", f"refunds after Cancelled {two.pid}"]
                assert effects.read_text().splitlines() == told
                one.send(signal.SIGCONT)
                one.hear("lost its lease and starts over")
                one.stop()
                assert effects.read_text().splitlines() == told  # and nothing was charged
