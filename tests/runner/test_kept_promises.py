"""Each promise that was once broken from outside, tried again: the sentence stands in the test.

Red on commit 6dc57c6, in the way each says after "Was"; two were green there and guard the other
side (work that resumes is not passed either; a clock put forward). What needs no process of its
own is played in virtual time; the rest are real processes, real signals and a real server.
"""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import pytest

from layby import DeferTimeout, RetryPolicy, RunCancelled, RunFailed, Runner, task, waits
from layby.core.commands import ResolvePromise, Value
from layby.core.model import NEVER
from layby.core.replies import PromiseData
from layby.testing import current_clock, virtual_test
from layby.workflow import plan
from tests.helpers.body_log import BodyLog, audit
from tests.helpers.cli_processes import Process, layby, until
from tests.helpers.flows import flow_of
from tests.helpers.places import address_of, state_of
from tests.helpers.troubled_server import play, served
from tests.helpers.workers import settled_down
from tests.runner import promise_flows

CHILD = Path(__file__).with_name("promise_child.py")
FLOWS = Path(promise_flows.__file__)
LEASE_S = 2
LATE_S = 0.3
"""A network that is slow; no test is right or wrong because of it."""


class Counter:
    """How many are inside at once, and the most there ever were."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0

    @contextmanager
    def inside(self) -> Iterator[None]:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            yield
        finally:
            self.now -= 1


# --- first come, first served ----------------------------------------------------------------


class Turns:
    """Who became ready when, and in which order they were given a slot."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.ready: dict[str, int] = {}
        self.begun: list[str] = []

    def is_ready(self, name: str) -> bool:
        """As a condition: false when it is asked first, so that the task parks."""
        if f"{name} asked" in self.ready:
            self.ready.setdefault(name, self._runner.now())
            return True
        self.ready[f"{name} asked"] = self._runner.now()
        return False

    def passed_by(self, name: str) -> list[str]:
        """Those that became ready after it and were given a slot before it."""
        before = self.begun[: self.begun.index(name)]
        return [each for each in before if self.ready[each] > self.ready[name]]


@pytest.mark.parametrize("slots", [1, 2])
@virtual_test
async def test_first_come_first_served_together_with_new_work(slots: int):
    """A body "stands in line for a slot again when its wait is over: first come, first served,
    together with new work" (waiting.md); at most `slots` later ones begin before a task.

    Was: a task started meanwhile ran only after all those who wait again and again had ended.
    """
    async with Runner("memory:", slots=slots) as runner:
        turns = Turns(runner)

        @task
        async def loops(context, handle):
            for number in range(40):
                name = f"{context['name']}-{number}"
                await handle.defer_until(lambda name=name: turns.is_ready(name), poll_interval=0.01)
                turns.begun.append(name)
                await asyncio.sleep(0.05)

        @task
        async def new(context):
            turns.begun.append(context["name"])

        looping = [
            await runner.start(flow_of(loops, name="l"), {"name": f"loop{number}"})
            for number in range(3 * slots)
        ]
        started = []
        for number in range(8):
            await asyncio.sleep(0.333)
            turns.ready[f"new{number}"] = runner.now()
            started.append(await runner.start(flow_of(new, name="n"), {"name": f"new{number}"}))
        await asyncio.gather(*(run.result() for run in [*looping, *started]))
        passed = {f"new{number}": turns.passed_by(f"new{number}") for number in range(8)}
    assert {name: each for name, each in passed.items() if len(each) > slots} == {}


@virtual_test
async def test_a_task_that_resumes_is_not_passed_by_new_work_either():
    """The same sentence, read from the other side: forty new tasks a second, one that resumes."""
    async with Runner("memory:", slots=1) as runner:
        turns = Turns(runner)

        @task
        async def waits(context, handle):
            await handle.defer_until(lambda: turns.is_ready("woken"), poll_interval=0.5)
            turns.begun.append("woken")

        @task
        async def new(context):
            turns.begun.append(context["name"])
            await asyncio.sleep(0.05)

        runs = [await runner.start(flow_of(waits, name="w"))]
        for number in range(40):
            await asyncio.sleep(0.025)
            turns.ready[f"new{number}"] = runner.now()
            runs.append(await runner.start(flow_of(new, name="n"), {"name": f"new{number}"}))
        await asyncio.gather(*(run.result() for run in runs))
        assert len(turns.passed_by("woken")) <= 1


# --- never more bodies than slots ------------------------------------------------------------


@virtual_test
async def test_never_more_bodies_than_slots_when_waits_overlap():
    """Promised: "never more task bodies than that run at a time" (waiting.md), with waits gathered.

    Was: three worked at once on one slot, and `is_slot_held()` was False.
    """
    working, held = Counter(), []

    @task
    async def both(context, handle):
        async def sleep_and_work() -> None:
            await handle.sleep(0.05, key="a")
            with working.inside():
                held.append(handle.is_slot_held())
                await asyncio.sleep(0.2)
                held.append(handle.is_slot_held())

        await asyncio.gather(sleep_and_work(), handle.sleep(0.5, key="b"))

    async with Runner("memory:", slots=1) as runner:
        runs = [await runner.start(flow_of(both)) for _ in range(3)]
        await asyncio.gather(*(run.result() for run in runs))
    assert working.most == 1
    assert held == [True] * 6


@virtual_test
async def test_no_body_begins_while_those_that_were_cancelled_clean_up():
    """Promised: "Never more than `slots` bodies run at once in a Runner" (guarantees.md): what is
    being ended is told so at once, and counts until it has ended.

    Was: ten parked bodies cancelled together, and an eleventh began beside them on one slot.
    """
    cleaning, log = Counter(), []

    @task
    async def parks(context, handle):
        try:
            await handle.wait_for("never")
        finally:
            with cleaning.inside():
                await asyncio.sleep(3)

    @task
    async def resumes(context, handle):
        await handle.sleep(11)
        log.append(("resumes", cleaning.now))

    @task
    async def new(context):
        log.append(("new", cleaning.now))

    async with Runner("memory:", slots=1) as runner:
        resumed = await runner.start(flow_of(resumes, name="r"))
        parked = [await runner.start(flow_of(parks, name="p")) for _ in range(10)]
        await asyncio.sleep(10)
        await asyncio.gather(*(run.cancel() for run in parked))
        fresh = await runner.start(flow_of(new, name="n"))
        await asyncio.gather(resumed.result(), fresh.result())
        for run in parked:
            with pytest.raises(RunCancelled):
                await run.result()
    assert cleaning.most == 10
    assert sorted(log) == [("new", 0), ("resumes", 0)]


# --- one body of a task ----------------------------------------------------------------------


@virtual_test
async def test_a_halted_task_that_is_continued_waits_for_its_old_body():
    """Promised: "at most one claim is valid" (guarantees.md), and one body: nobody takes a task
    before its holder has reported the body's end or its lease is over.

    Was: halt, then continue, while the old body still ended: two bodies in one process.
    """
    inside, tries = Counter(), []

    @task
    async def cleans(context, handle):
        with inside.inside():
            tries.append(handle.try_number)
            try:
                if len(tries) == 1:
                    await asyncio.Event().wait()
            finally:
                await asyncio.sleep(3)

    async with Runner("memory:", slots=4) as runner:
        run = await runner.start(flow_of(cleans), run_id="r")
        await settled_down()
        await run.halt()
        await run.continue_()
        await run.result()
    assert inside.most == 1
    assert tries == [1, 2]


def test_a_halted_thread_that_is_continued_ends_first():
    """The same for a plain `def`, which cannot be told to end, and over a server."""
    inside, go_on, begun = Counter(), threading.Event(), threading.Semaphore(0)

    @task
    def stubborn(context, handle):
        with inside.inside():
            begun.release()
            assert go_on.wait(30)

    @task
    async def probe(context):
        context["done"] = True

    async def scene() -> None:
        async with served() as server, Runner(f"http://127.0.0.1:{server.port}") as runner:
            run = await runner.start(flow_of(stubborn), run_id="r")
            await asyncio.to_thread(begun.acquire)
            await run.halt()
            await run.continue_()
            for _ in range(3):  # whoever would begin it has had the time to
                await runner.execute(flow_of(probe, name="p"))
            assert inside.now == 1
            go_on.set()
            await run.result(30)

    play(scene)
    assert inside.most == 1


# --- processes -------------------------------------------------------------------------------


class Site:
    """A real server, real workers by name, gates for their bodies, and what the bodies did."""

    def __init__(self, folder: Path, processes: ExitStack) -> None:
        self.file = folder / "layby.db"
        self.log = BodyLog(folder)
        self._gates = folder / "gates"
        self._gates.mkdir()
        self._processes = processes
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.server = self._begin(layby("serve", "--db", address_of(self.file), *self._where()))
        self.server.hear("layby serves")

    def _where(self) -> tuple[str, ...]:
        return ("--port", str(self.port))

    @property
    def environment(self) -> dict[str, str]:
        return {"GATES": str(self._gates), **self.log.environment}

    def worker(self, url: str = "", slots: int = 2) -> Process:
        flags = ("--url", url or self.url, "--slots", str(slots), "--lease", f"{LEASE_S}s")
        found = self._begin(layby("worker", FLOWS, *flags, **self.environment))
        found.hear("layby works for")
        return found

    def child(self, flow: str, run: str) -> Process:
        return self._begin(Process([str(CHILD), self.url, flow, run], **self.environment))

    def open_gate(self, gate: str) -> None:
        (self._gates / gate).touch()

    def start(self, flow: str, run: str) -> None:
        """By somebody who takes none of its tasks."""
        command = plan.plan(promise_flows.FLOWS[flow], run, {"run": run}, "default", NEVER)
        self._ask(lambda runner: runner.send(command))

    def result(self, run: str) -> dict[str, Any]:
        async def ask(runner: Runner) -> Any:
            return (await (await runner.get(run)).result(60)).to_dict()

        return self._ask(ask)

    def probe(self, name: str) -> int:
        """The process that did a run of no length, and so all that came to it before."""
        self.start("prober", name)
        return self.result(name)["by"]

    def count(self, what: str, run: str) -> int:
        return sum((each.what, each.task) == (what, run) for each in self.log.lines())

    def tries(self, run: str) -> list[int]:
        return [body.number for body in self.log.bodies() if f"/{run}:" in body.task]

    def assert_one_at_a_time(self, run: str) -> None:
        lines = [line for line in self.log.lines() if line.what in ("begin", "end")]
        found = audit([line for line in lines if f"/{run}:" in line.task], LEASE_S)
        assert found.bodies > 0
        assert (found.overlaps, found.late) == ([], [])

    def _ask(self, ask: Callable[[Runner], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            async with Runner(self.url) as runner:
                return await ask(runner)

        return asyncio.run(main())

    def _begin(self, process: Process) -> Process:
        return self._processes.enter_context(process)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as processes:
        yield Site(tmp_path, processes)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# --- an orderly stop loses nothing -----------------------------------------------------------


def ask_to_stop(worker: Process) -> None:
    """Until it has heard it, it takes what is next."""
    worker.send(signal.SIGTERM)
    worker.hear("layby is stopping")


def test_a_worker_that_is_stopped_in_a_plain_def_lets_it_end(site: Site):
    """Promised: "Nothing is counted as a failure or a crash" (guarantees.md): a task is handed back
    when its body has ended, not before, and what a thread has done counts.

    Was: handed back at once; another worker began it while the thread went on: charged twice.
    """
    one = site.worker()
    site.start("charger", "card")
    until(lambda: site.log.begun("/card:"), one)
    two = site.worker()
    ask_to_stop(one)
    assert {site.probe(f"probe-{number}") for number in range(3)} == {two.pid}
    assert site.log.begun("/card:") == 1
    site.open_gate("card")
    assert one.end() == 0, one.tail
    assert site.result("card")["by"] == one.pid
    assert site.count("charge", "card") == 1
    assert site.tries("card") == [1]


def test_a_worker_that_is_stopped_hands_over_when_its_body_has_cleaned_up(site: Site):
    """The same for an `async def` that takes long to end: the other begins it after that."""
    one = site.worker()
    site.start("cleaner", "room")
    until(lambda: site.log.begun("/room:"), one)
    two = site.worker()
    ask_to_stop(one)
    assert {site.probe(f"probe-{number}") for number in range(3)} == {two.pid}
    assert site.log.begun("/room:") == 1
    site.open_gate("room")
    assert one.end() == 0, one.tail
    assert site.result("room")["by"] == two.pid
    site.assert_one_at_a_time("room")
    assert {task.crashes for task in state_of(site.file).tasks.values()} == {0}


def test_a_worker_that_is_stopped_lets_a_checkpoint_end(site: Site):
    """Promised: "`fn` until its result is stored, then never" (guarantees.md): it ends first."""
    one = site.worker()
    site.start("checkpointer", "step")
    until(lambda: site.count("charging", "step"), one)
    two = site.worker()
    ask_to_stop(one)
    assert {site.probe(f"probe-{number}") for number in range(3)} == {two.pid}
    site.open_gate("step")
    assert one.end() == 0, one.tail
    assert site.result("step")["by"] == one.pid
    assert (site.count("charging", "step"), site.count("charge", "step")) == (1, 1)
    site.assert_one_at_a_time("step")


def test_a_runner_that_only_starts_and_closes_lets_its_thread_end(site: Site):
    """The same for `async with Runner(url)`: "every task is handed back" when its body is over.

    Was: the body went on in the thread while the worker beside it began the task as well.
    """
    child = site.child("charger", "card")
    child.hear("closes")
    until(lambda: site.log.begun("/card:"), child)
    two = site.worker()
    assert {site.probe(f"probe-{number}") for number in range(3)} == {two.pid}
    assert site.log.begun("/card:") == 1
    site.open_gate("card")
    child.hear("closed")
    assert child.end() == 0, child.tail
    assert site.result("card")["by"] == child.pid
    assert site.count("charge", "card") == 1
    assert site.tries("card") == [1]


# --- finished means never again --------------------------------------------------------------


class Halfway:
    """Passes bytes on between a worker and its server; tells when an answer with a claim passes.

    The answer goes on at once: a process that was stopped by then finds it when it continues.
    What the server says of its own accord, on another connection, is held back from then on, and
    answers to heartbeats come late: nobody promises that they come first.
    """

    def __init__(self, port: int, claimed: Callable[[], None]) -> None:
        self._upstream = port
        self._claimed = claimed
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = [self._listener]
        self._streams: set[socket.socket] = set()
        self._holds_back = False
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in list(self._open):
            _hang_up(each)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._upstream))
            self._open += (near, far)
            for pair, look in (((near, far), False), ((far, near), True)):
                thread = threading.Thread(target=self._pass_on, args=(*pair, look))
                self._threads.append(thread)
                thread.start()

    def _pass_on(self, source: socket.socket, to: socket.socket, is_answer: bool) -> None:
        try:
            while content := source.recv(1 << 20):
                if not is_answer and content.startswith(b"GET "):
                    self._streams.add(to)
                if is_answer and b'"claims":[{' in content:
                    self._holds_back = True
                    self._claimed()
                if is_answer and self._holds_back and source in self._streams:
                    self._over.wait()
                if is_answer and self._holds_back and b"heartbeat" in content:
                    self._over.wait(LATE_S)
                to.sendall(content)
        except OSError:
            pass
        _hang_up(to)


def _hang_up(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()


def test_a_task_that_was_finished_elsewhere_is_not_begun_again(site: Site):
    """Promised: "a task that has finished is run never again, whatever dies later" (guarantees.md).

    Was: a worker that stood still between the answer to its take and the body began it when it
    went on, though another had finished the run; and a checkpoint's function ran again.
    """
    stopped = threading.Event()

    def stop() -> None:
        if not stopped.is_set():
            os.kill(one.pid, signal.SIGSTOP)
            stopped.set()

    with Halfway(site.port, stop) as halfway:
        one = site.worker(halfway.url)
        site.open_gate("job")
        site.start("worker", "job")
        assert stopped.wait(60)
        two = site.worker()
        assert site.result("job")["by"] == two.pid
        two.stop()
        one.send(signal.SIGCONT)
        assert site.probe("probe") == one.pid
        one.stop()
    assert site.count("charge", "job") == 1
    assert [body.pid for body in site.log.bodies() if "/job:" in body.task] == [two.pid]


# --- leases ----------------------------------------------------------------------------------


def test_a_server_that_stood_still_takes_nothing_from_healthy_workers(site: Site):
    """Promised: "a body ends while the server is away: its result waits, and counts: leases begin
    anew when the server is back" (guarantees.md), also when it was there but stood still.

    Was: stopped for longer than the leases; both bodies ran again, one of them already ended.
    """
    workers = [site.worker(slots=1), site.worker(slots=1)]
    for run in ("ends", "lasts"):
        site.start("worker", run)
        until(lambda run=run: site.log.begun(f"/{run}:"), *workers)
    site.server.send(signal.SIGSTOP)
    site.open_gate("ends")
    until(lambda: site.log.ended("/ends:"), *workers)
    threading.Event().wait(2.5 * LEASE_S)  # the length of the pause is what is tried
    site.server.send(signal.SIGCONT)
    assert site.result("ends")["by"] in {each.pid for each in workers}
    threading.Event().wait(LEASE_S)  # a lease that was forgotten would end by now
    site.open_gate("lasts")
    assert site.result("lasts")["by"] in {each.pid for each in workers}
    assert (site.tries("ends"), site.tries("lasts")) == ([1], [1])
    assert {task.crashes for task in state_of(site.file).tasks.values()} == {0}


# --- a deadline never fires early ------------------------------------------------------------


def step(seconds: float) -> None:
    """Put the wall clock forward or back; nothing else notices."""
    current_clock().start += round(seconds * 1000)


async def seconds_of(work: Awaitable[Any]) -> float:
    """On the clock that nobody steps."""
    began = asyncio.get_running_loop().time()
    await work
    return asyncio.get_running_loop().time() - began


SLOWLY = 16 / 15 + 0.01
"""While store time is ahead of the wall it runs at 15/16 of its speed."""


@pytest.mark.parametrize("back", [5, 3_600])
@virtual_test
async def test_a_sleep_is_never_early_when_the_clock_is_put_back(back: float):
    """Promised: "A deadline never fires early" (guarantees.md).

    Was, with the clock put back 5 s: `sleep(2)` took 0.01 s.
    """

    @task
    async def sleeps(context, handle):
        await handle.sleep(2)

    async with Runner("memory:") as runner:
        before = await runner.start(flow_of(sleeps), run_id="before")
        await asyncio.sleep(0.5)
        step(-back)
        after = seconds_of(runner.execute(flow_of(sleeps), run_id="after"))
        took = await asyncio.gather(seconds_of(before.result()), after)
    assert 1.5 <= took[0] <= 2 * SLOWLY - 0.5  # nobody looked between its begin and the step
    assert 2 <= took[1] <= 2 * SLOWLY


@virtual_test
async def test_deadlines_timeouts_and_retries_are_as_long_as_they_say():
    """The same sentence for the deadline of a run, the timeout of a wait, and a back-off.

    Was, with the clock put back an hour: `deadline=3` had "already passed".
    """

    @task
    async def waits(context, handle):
        await handle.wait_for("nothing")

    @task
    async def gives_up(context, handle):
        with pytest.raises(DeferTimeout):
            await handle.wait_for("nothing", timeout=2)

    @task(retry=RetryPolicy(max_attempts=2, backoff="fixed", delay=2))
    async def fails_once(context, handle):
        if handle.try_number == 1:
            raise ValueError("once")

    async def past_deadline(runner: Runner) -> None:
        with pytest.raises(RunFailed, match="deadline"):
            await runner.execute(flow_of(waits, name="w"), deadline=3)

    async with Runner("memory:") as runner:
        await runner.resolve("something")  # the store has seen this time
        step(-3_600)
        assert 3 <= await seconds_of(past_deadline(runner)) <= 3 * SLOWLY
        assert 2 <= await seconds_of(runner.execute(flow_of(gives_up, name="g"))) <= 2 * SLOWLY
        assert 2 <= await seconds_of(runner.execute(flow_of(fails_once, name="f"))) <= 2 * SLOWLY


async def settled_at(runner: Runner, promise_id: str) -> int:
    """A promise settled now: when, in the store's time."""
    reply = await runner.send(ResolvePromise(id=promise_id, value=Value()))
    assert isinstance(reply.data, PromiseData)
    assert reply.data.promise.settled_at is not None
    return reply.data.promise.settled_at


@virtual_test
async def test_time_goes_on_where_it_was_when_a_store_is_opened_with_the_clock_put_back(
    tmp_path: Path,
):
    """Promised: "Time never runs backwards inside a store, even when the clock does"."""

    @task
    async def sleeps(context, handle):
        await handle.sleep(2)

    file = f"sqlite:{tmp_path / 'layby.db'}"
    async with Runner(file) as runner:
        before = await settled_at(runner, "one")
    step(-3_600)
    async with Runner(file) as runner:
        assert await settled_at(runner, "two") >= before
        assert 2 <= await seconds_of(runner.execute(flow_of(sleeps))) <= 2 * SLOWLY


@virtual_test
async def test_a_clock_put_forward_takes_nothing_from_anybody():
    """New sleeps are as long as they say, and no body is begun again: no lease was lost."""
    tries = []

    @task
    async def works(context, handle):
        tries.append(handle.try_number)
        await asyncio.sleep(100)

    @task
    async def sleeps(context, handle):
        await handle.sleep(2)

    async with Runner("memory:", slots=2) as runner:
        run = await runner.start(flow_of(works, name="w"))
        await asyncio.sleep(1)
        step(3 * 3_600)
        await asyncio.sleep(1)
        assert 2 <= await seconds_of(runner.execute(flow_of(sleeps, name="s"))) <= 2 * SLOWLY
        await run.result()
    assert tries == [1]


# --- a wait's timeout ------------------------------------------------------------------------


def _wait_for(handle, seconds: float):
    return handle.wait_for("approval", timeout=seconds)


def _defer_until(handle, seconds: float):
    return handle.defer_until(lambda: False, poll_interval=1, timeout=seconds)


async def _own_promise(handle, seconds: float):
    decision = await handle.promise("decision")
    await decision.wait(timeout=seconds)


@pytest.mark.parametrize("wait", [_wait_for, _defer_until, _own_promise])
@virtual_test
async def test_a_timeout_of_a_wait_survives_restarts(wait: Callable[..., Any], tmp_path: Path):
    """A wait's `timeout=` counts "from the call on" (waiting.md), restarts included.

    Was: it began anew at every restart; a timeout of 6 s with a restart each 4 s came after 18 s.
    """
    timed_out = []

    @task
    async def waits(context, handle):
        try:
            await wait(handle, 6)
        except DeferTimeout:
            timed_out.append(asyncio.get_running_loop().time())

    began = asyncio.get_running_loop().time()
    for _ in range(3):
        async with Runner(f"sqlite:{tmp_path / 'layby.db'}") as runner:
            await runner.start(flow_of(waits), run_id="r")
            await asyncio.sleep(4)
    [at] = timed_out
    assert 6 <= at - began <= 6.5


def _endlessly(handle, _seconds: float):
    return handle.wait_for("approval")


def _approval(handle, _seconds: float):
    return handle.approval("Ship it?")


async def _sleep(handle, _seconds: float):
    await handle.sleep(1000)


def _first_of(handle, _seconds: float):
    return handle.first_of(waits.wait_for("approval"), waits.sleep(1000))


@pytest.mark.parametrize(
    "wait", [_wait_for, _endlessly, _defer_until, _own_promise, _approval, _sleep, _first_of]
)
@virtual_test
async def test_a_wait_looks_no_newer_after_a_restart(wait: Callable[..., Any], tmp_path: Path):
    """`layby waiting` says since when it lasts (cli.md), "restarts included".

    Was: it began anew, so nothing was ever older than the last deploy.
    """

    @task
    async def parks(context, handle):
        await wait(handle, 100)

    since = []
    for _ in range(3):
        async with Runner(f"sqlite:{tmp_path / 'layby.db'}") as runner:
            run = await runner.start(flow_of(parks), run_id="r")
            await asyncio.sleep(4)
            waiting_on = (await run.status()).tasks["parks"].waiting_on
            assert waiting_on is not None
            since.append(waiting_on.since)
    assert since == since[:1] * 3


@virtual_test
async def test_what_comes_after_the_timeout_is_too_late_in_every_life(tmp_path: Path):
    """A promise settled after the deadline is a timeout, though nobody was there to see it pass."""
    seen = []

    @task
    async def waits(context, handle):
        try:
            seen.append(await handle.wait_for("approval", timeout=6))
        except DeferTimeout:
            seen.append("too late")

    file = f"sqlite:{tmp_path / 'layby.db'}"
    async with Runner(file) as runner:
        await runner.start(flow_of(waits), run_id="r")
        await asyncio.sleep(4)
    await asyncio.sleep(4)
    async with Runner(file) as runner:  # it has not the code, and only settles
        await runner.resolve("approval", "yes")
    async with Runner(file) as runner:
        await runner.execute(flow_of(waits), run_id="r")
    assert seen == ["too late"]
