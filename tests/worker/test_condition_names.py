"""What people read about a condition says which one it is."""

import asyncio
import threading
from functools import partial
from pathlib import Path

from layby import Runner, task
from layby.testing import virtual_test
from layby.worker.condition_poll import name_of
from tests.helpers.flows import flow_of


def is_there(path: Path) -> bool:
    return path.exists()


def test_a_path_is_named():
    """A method of a path says which path; where pathlib defines it helps nobody."""
    assert name_of(Path("in/report.csv").exists) == "Path('in/report.csv').exists"
    assert name_of(Path("x").is_file) == "Path('x').is_file"
    assert name_of(partial(Path("x").exists)) == "Path('x').exists"
    assert name_of(partial(is_there, Path("x"))).endswith(") of Path('x')")


def test_a_long_path_keeps_its_end():
    """A sentence stays a sentence."""
    name = name_of(Path("/".join(["deep"] * 100), "report.csv").exists)
    assert len(name) < 250
    assert name.endswith("deep/report.csv').exists")


def test_other_methods_and_functions_say_where_they_are():
    """As before."""
    assert name_of(threading.Event().is_set).startswith("Event.is_set (threading.py:")
    assert name_of(is_there).startswith("is_there (test_condition_names.py:")
    assert name_of(partial(str.startswith, "secret")) == "str.startswith"


@virtual_test
async def test_the_status_of_a_run_says_which_file_it_waits_for():
    """Two tasks that wait for two files do not wait for the same thing."""

    @task
    async def waits(context, handle):
        await handle.defer_until(Path(context["file"]).exists, timeout=3600)

    async with Runner("memory:") as runner:
        for name in ("a.csv", "b.csv"):
            run = await runner.start(flow_of(waits), {"file": f"/nowhere/{name}"})
            await asyncio.sleep(1)
            told = (await run.status()).tasks["waits"].waiting_on
            assert told is not None
            assert told.sentence == f"waiting until Path('/nowhere/{name}').exists is true"
