"""Runners on one PostgreSQL database: several at once, in this process and in others."""

import asyncio
import logging
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from layby import Runner
from layby.errors import LaybyError, RunnerClosed, StoreUnavailable, UsageError
from layby.testing import deterministic_runner, run_virtual
from tests.helpers.cli_processes import Process
from tests.helpers.postgres import (
    PASSWORD,
    being_migrated,
    cluster,
    own_cluster,
    until_waiting_to_migrate,
)
from tests.helpers.troubled_server import soon
from tests.runner.postgres_flows import charges, held, steps

CHILD = ("-m", "tests.runner.postgres_child")
RESULT_S = 60
LONG_S = 50.0
"""A lease that nobody waits for."""


@pytest.fixture
def url() -> str:
    return cluster().url(cluster().new_database())


def child(url: str, name: str, slots: int = 4) -> Process:
    process = Process((*CHILD, name, str(slots)), LAYBY_URL=url)
    process.hear(f"{name} is ready")
    return process


def test_runs_are_done(url: str) -> None:
    async def main() -> None:
        async with Runner(url, slots=2) as runner:
            found = [await runner.execute(steps, {}, run_id=f"r{at}") for at in range(5)]
            assert all(set(each.to_dict()) == {"first", "second"} for each in found)
            assert {run.id for run in await runner.list()} == {f"r{at}" for at in range(5)}
        async with Runner(url, slots=0) as runner:
            again = await (await runner.get("r0")).result(timeout=RESULT_S)
            assert again == found[0]

    asyncio.run(main())


@pytest.mark.timeout(60)
def test_an_application_goes_on_while_another_process_migrates(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And is told, and may give up; who is cancelled leaves nothing open."""
    monkeypatch.setattr("layby.engine.opening.SLOW_S", 0.05)
    name = cluster().new_database()
    url = cluster().url(name)

    async def main() -> None:
        runner = Runner(url, slots=1)
        opening = asyncio.ensure_future(runner.__aenter__())
        await asyncio.to_thread(until_waiting_to_migrate, name)
        await soon(lambda: "it has not been opened yet" in caplog.text)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        async with asyncio.timeout(RESULT_S):
            other = asyncio.ensure_future(Runner(url, slots=0).__aenter__())
            await asyncio.sleep(0)
            assert not other.done()
            migrating.close()
            await (await other).close()

    with ExitStack() as migrating:
        migrating.enter_context(being_migrated(name))
        asyncio.run(main())
    until_nobody_is_connected(name)


def until_nobody_is_connected(database: str) -> None:
    asked = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{database}'"
    while cluster().execute(asked) != [(0,)]:
        threading.Event().wait(0.01)


def test_virtual_time_is_refused(url: str) -> None:
    """Nobody can move the time of a database: leases would end, and nothing would renew them."""

    async def main() -> None:
        async with deterministic_runner(url):
            pass

    with pytest.raises(UsageError, match="use 'memory:' or a file"):
        run_virtual(main())


def test_others_do_the_work(url: str) -> None:
    """One without slots starts runs; processes elsewhere take the tasks, and it hears the end."""

    async def main(pids: set[int]) -> None:
        async with Runner(url, slots=0) as runner:
            runs = [await runner.start(steps, {}, run_id=f"r{at}") for at in range(20)]
            ended = await asyncio.gather(*(run.result(timeout=RESULT_S) for run in runs))
        assert {each[name] for each in ended for name in ("first", "second")} <= pids

    with child(url, "one") as one, child(url, "two") as two:
        asyncio.run(main({one.pid, two.pid}))
        one.stop()
        two.stop()


def test_a_promise_settled_elsewhere_is_heard(url: str) -> None:
    async def main() -> None:
        async with Runner(url, slots=2) as here, Runner(url, slots=0) as there:
            here.register(held)
            run = await here.start(held, {"for": "door"})
            await there.resolve("door", "open")
            assert (await run.result(timeout=RESULT_S))["answer"] == "open"

    asyncio.run(main())


def test_another_process_takes_over_from_one_that_was_killed(url: str) -> None:
    """What it had begun goes on when its lease is over; what is recorded is not repeated."""

    async def main(dying: Process, heir: Process) -> None:
        async with Runner(url, slots=0) as runner:
            run = await runner.start(charges, {"for": "go"}, run_id="r")
            dying.hear("recorded in")
            dying.kill()
            heir.start()
            heir.hear("heir is ready")
            await runner.resolve("go", 7)
            context = await run.result(timeout=RESULT_S)
            assert (context["answer"], context["paid"]) == (7, dying.pid)
        assert not [line for line in heir.said if "paid in" in line]

    with child(url, "dying") as dying, child(url, "heir") as heir:
        heir.stop()
        asyncio.run(main(dying, heir))
        heir.stop()


def test_a_process_that_was_killed_is_noticed_before_its_lease_is_over(url: str) -> None:
    """By the lock that its connection had."""

    async def main(dying: Process) -> None:
        async with Runner(url, slots=2, lease=LONG_S) as runner:
            runner.register(charges)
            run = await runner.get("r")
            await runner.execute(steps, {})  # meanwhile it is looked at who is there
            dying.kill()
            await runner.resolve("go", 7)
            assert (await run.result(timeout=LONG_S / 2))["paid"] == dying.pid

    async def begin() -> None:
        async with Runner(url, slots=0) as runner:
            await runner.start(charges, {"for": "go"}, run_id="r")

    environment = {"LAYBY_URL": url, "LAYBY_TEST_LEASE": str(LONG_S)}
    with Process((*CHILD, "dying", "1"), **environment) as dying:
        dying.hear("dying is ready")
        asyncio.run(begin())
        dying.hear("recorded in")
        asyncio.run(main(dying))


def test_tasks_wait_while_the_database_is_away() -> None:
    """A parked body goes on when it is back; who asks meanwhile is told."""
    with own_cluster() as fragile:
        url = fragile.url(fragile.new_database())

        async def main() -> None:
            async with Runner(url, slots=2, lease=3.0) as runner:
                run = await runner.start(held, {"for": "door"}, run_id="r")
                await run_is_parked(runner)
                fragile.stop()
                with pytest.raises(StoreUnavailable):
                    await runner.start(steps, {}, run_id="later")
                fragile.start()
                await until_resolved(runner, "door")
                assert (await run.result(timeout=RESULT_S))["answer"] == "open"

        asyncio.run(main())


async def run_is_parked(runner: Runner) -> None:
    while not runner.worker.attempts:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.01)


async def until_resolved(runner: Runner, name: str) -> None:
    while True:
        try:
            await runner.resolve(name, "open")
        except StoreUnavailable:
            await asyncio.sleep(0.05)
        else:
            return


# --- passwords ---------------------------------------------------------------------------


def test_a_password_stays_out_of_logs_and_errors(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    address = cluster().tcp_url(cluster().new_database())
    told: list[str] = []

    async def main() -> None:
        runner = Runner(address, slots=1)
        async with runner:
            await runner.execute(steps, {}, run_id="r")
            with pytest.raises(UsageError) as again:
                await runner.__aenter__()
            told.append(str(again.value))
        with pytest.raises(RunnerClosed) as closed:
            await runner.start(steps, {})
        told.append(str(closed.value))

    asyncio.run(main())
    assert all("***" in each for each in told)
    assert PASSWORD not in caplog.text + "".join(told)


def test_a_password_stays_out_of_the_list_of_processes() -> None:
    """Also of those that the Runner starts itself."""
    with child(cluster().tcp_url(cluster().new_database()), "one") as one:
        commands = [each.read_bytes() for each in Path("/proc").glob("[0-9]*/cmdline")]
        ours = [each for each in commands if f":{cluster().port}/".encode() in each]
        assert not [each for each in ours if PASSWORD.encode() in each]
        one.stop()
    assert not [line for line in one.said if PASSWORD in line]


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra: which one, and how to install it."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    for name in [each for each in sys.modules if each.startswith("layby.store.postgres")]:
        monkeypatch.delitem(sys.modules, name)

    async def main() -> None:
        with pytest.raises(UsageError, match=r"pip install 'layby\[postgres\]'"):
            await Runner("postgresql://h/d").__aenter__()

    asyncio.run(main())


@pytest.mark.parametrize("address", ["postgresql:d", "postgres:u:secret@h/d"])
def test_an_address_that_is_not_a_url_is_refused(address: str) -> None:
    with pytest.raises(LaybyError, match="postgresql://USER@HOST/DATABASE"):
        Runner(address)
