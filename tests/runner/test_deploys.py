"""A bad deploy while runs wait, over HTTP, with real workers: the rollback heals it by itself."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from layby.client.http import HttpClient
from layby.core import queries as q
from layby.core.commands import ResolvePromise, StartRun
from layby.core.model import NEVER, PromiseState
from layby.core.waits import WAIT_KINDS
from layby.workflow import plan
from layby.workflow.task import task
from layby.workflow.workflow import Workflow
from tests.helpers.cli_processes import Process, layby, until
from tests.helpers.server_process import ServerProcess

RUNS = 100
CODE = """
from layby import Workflow, task

@task
async def pays(context, handle):
    context["bank"] = await handle.checkpoint("ask", lambda: "bank")
    context["paid"] = await handle.wait_for(f"{name}-{{context['number']}}")

flow = Workflow("shop", tasks=[pays])
"""

pytestmark = pytest.mark.timeout(120)


class Shop:
    """A server, and workers with one code or another."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.url = f"http://127.0.0.1:{port}"

    def worker(self, name: str, *flags: str) -> Process:
        """Its code waits for promises of this name; which folder it lies in does not matter."""
        folder = self.folder / f"{name}-{len(list(self.folder.iterdir()))}"
        folder.mkdir()
        file = folder / "shop.py"
        file.write_text(CODE.format(name=name), newline="\r\n" if flags else "\n")
        return layby("worker", file, "--url", self.url, *flags)

    def ask(self, work: Callable[[HttpClient], Awaitable[Any]]) -> Any:
        async def asked() -> Any:
            client = HttpClient(self.url)
            try:
                return await work(client)
            finally:
                await client.close()

        return asyncio.run(asked())

    def send(self, *requests: Any) -> list[Any]:
        async def work(client: HttpClient) -> list[Any]:
            return await asyncio.gather(*map(client.send, requests))

        replies = self.ask(work)
        assert all(each.is_ok for each in replies), replies
        return [each.data for each in replies]

    def waiting(self) -> dict[str, int]:
        """How many tasks wait for what."""
        pages = self.send(*(q.ListWaiting(wait_kind=kind, limit=1_000) for kind in WAIT_KINDS))
        tasks = ([each for each in page.entries if each.task is not None] for page in pages)
        counted = ((kind, len(found)) for kind, found in zip(WAIT_KINDS, tasks, strict=True))
        return {kind: count for kind, count in counted if count}

    def runs(self, state: PromiseState) -> int:
        (page,) = self.send(q.ListRuns(state=state, limit=1_000))
        return len(page.rows)


def start(number: int) -> StartRun:
    """As a client without the code would."""

    @task
    async def pays(context):
        raise AssertionError

    flow = Workflow("shop", tasks=[pays])
    return plan.plan(flow, f"order-{number}", {"number": number}, "default", NEVER)


@pytest.mark.shared
def test_a_hundred_waiting_runs_survive_a_bad_deploy(tmp_path: Path) -> None:
    """None fails while only the bad code is there; the rollback finishes all, and nobody helps."""
    (tmp_path / "code").mkdir()
    with ServerProcess(tmp_path) as server:
        shop = Shop(tmp_path / "code", server.port)
        with shop.worker("paid") as old:
            shop.send(*map(start, range(RUNS)))
            until(lambda: shop.waiting() == {"promise": RUNS}, old)
            with shop.worker("payment") as bad:
                bad.hear("layby works for")
                old.stop()
                until(lambda: shop.waiting() == {"code": RUNS}, bad)
                assert shop.runs("rejected") == 0
                shop.send(*(ResolvePromise(id=f"paid-{number}") for number in range(RUNS)))
                with shop.worker("paid") as good, shop.worker("paid", "--slots", "8") as another:
                    until(lambda: shop.runs("resolved") == RUNS, bad, good, another)
                refused = [line for line in bad.said if "is blocked" in line]
        assert len(refused) == RUNS
        assert shop.runs("rejected") == 0
        (page,) = shop.send(q.GetRun(id="run/order-7"))
        codes = [page.rows[1][1].history.count(f'"code":"{code}') for code in ("", "none")]
        assert codes == [3, 0]
