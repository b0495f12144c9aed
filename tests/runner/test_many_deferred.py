"""Very many deferred tasks: a process that comes to them pays for none of them."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from layby import Runner
from tests.helpers.cli_processes import Process
from tests.helpers.places import address_of, rows_of

CHILD = Path(__file__).with_name("many_deferred_child.py")
MAX_KB_EACH = 0.2
NOISE_KB = 8_000
"""What two processes that do the same differ by; far below the bound for 100,000."""


def how_many(file: Path) -> int:
    """Tasks that are deferred by now."""
    (row,) = rows_of(file, "SELECT count(*) AS n FROM task_executions WHERE state = 'deferred'")
    return row["n"]


def defer_many(file: Path, count: int) -> None:
    address = address_of(file)
    sys.argv = [str(CHILD), address, str(count)]  # as the module reads it
    from tests.runner import many_deferred_child as child

    async def main() -> None:
        gate = asyncio.Semaphore(child.IN_FLIGHT)
        async with Runner(address, slots=4, durability="normal") as runner:

            async def start(n: int) -> None:
                async with gate:
                    await runner.start(child.flow, {"n": n}, run_id=f"many-{n}")

            await asyncio.gather(*(start(n) for n in range(count)))
            while how_many(file) < count:  # noqa: ASYNC110 - it takes minutes
                await asyncio.sleep(0.1)

    asyncio.run(main())


def visited(address: str, count: int) -> tuple[dict[str, int], int]:
    with Process([str(CHILD), address, str(count)]) as child:
        costs = json.loads(child.hear("costs").removeprefix("costs "))
        right = int(child.hear("right").removeprefix("right "))
        assert child.end() == 0, child.tail
    return costs, right


@pytest.mark.parametrize(
    "count",
    [
        500,
        pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(1200)]),
    ],
)
def test_a_new_process_pays_for_none_and_each_wakes_on_its_own_event(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """No slots, no coroutines, and at most 0.2 KB each more than with an empty store."""
    monkeypatch.setattr("deploy.topology.process.PATIENCE_S", 1000)
    monkeypatch.setattr(sys, "argv", sys.argv)
    empty, _ = visited(address_of(tmp_path / "empty.db"), 0)
    defer_many(tmp_path / "many.db", count)
    found, right = visited(address_of(tmp_path / "many.db"), count)
    assert found["held"] == 0
    assert found["coroutines"] <= empty["coroutines"] + 3
    assert found["kb"] <= empty["kb"] + NOISE_KB + MAX_KB_EACH * count
    assert right == count
