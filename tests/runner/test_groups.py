"""Workers that share work: a task can be for other workers than the rest of its run."""

import asyncio
from pathlib import Path

import pytest

from layby import Context, Runner, Workflow, task
from layby.errors import WorkflowError
from layby.store.ownership import is_served, socket_of


@task
async def prepare(context):
    context["prepared"] = True


@task(dependencies=[prepare], group="gpu")
async def train(context, handle):
    context["trained_in"] = handle.task_execution_id


FLOW = Workflow("training", tasks=[prepare, train])


@pytest.mark.files_only("the socket beside a file")
def test_a_task_with_a_group_waits_for_a_worker_of_that_group(tmp_path: Path):
    """The rest of the run goes to whoever runs the run."""
    result = asyncio.run(in_two_groups(tmp_path / "layby.db"))
    assert result.to_dict() == {"prepared": True, "trained_in": "run/r:train"}


async def in_two_groups(path: Path) -> Context:
    async with Runner(f"sqlite:{path}", group="default") as runner:
        run = await runner.start(FLOW, run_id="r")
        while not is_served(path):  # noqa: ASYNC110 - it listens in a moment, and tells nobody
            await asyncio.sleep(0.01)
        url = f"unix:{socket_of(path)}"
        async with Runner(url, group="gpu", slots=1) as other:
            other.register(FLOW)
            return await run.result(20)


def test_a_group_is_a_name():
    """It becomes part of an address."""
    with pytest.raises(WorkflowError, match=r"group of task 'work'.*'a/b'"):

        @task(group="a/b")
        async def work(context):
            del context
