"""One slot, several strands: released when all wait, had by whoever goes on, lent in time."""

import asyncio
import threading
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layby import Runner, UsageError, task
from layby.executors import SlotPool
from layby.testing import SlotWatch, virtual_test
from layby.worker.attempt import Attempt
from layby.worker.handle import TaskHandle
from layby.worker.strands import MAIN, Strands
from tests.helpers.workers import flow_of, look, settled_down

# --- the rules ---------------------------------------------------------------------------


def test_a_main_that_waits_needs_no_slot():
    """And one that awaits something else, with nobody in a wait, keeps it."""
    strands = Strands(is_driven=True)
    assert strands.is_slot_needed
    strands.begin_wait(MAIN)
    assert not strands.is_slot_needed
    assert strands.may_main_resume
    strands.end_wait(MAIN)
    assert strands.is_slot_needed
    strands.resume(MAIN)
    assert strands.is_slot_needed
    assert not strands.is_lendable


def test_a_strand_that_waits_releases_the_slot_under_a_suspended_main():
    """Main is driven: it cannot go on without the slot, so it need not keep it."""
    strands = Strands(is_driven=True)
    strands.begin_wait("a")
    assert not strands.is_slot_needed
    assert not strands.may_main_resume
    strands.join_line(MAIN)
    assert strands.is_slot_needed  # what is granted to it is not released before it has gone on
    strands.resume(MAIN)
    assert not strands.is_slot_needed


def test_a_strand_outside_keeps_the_slot_until_it_waits_or_ends():
    """Meanwhile the slot is to be lent, once its second is over."""
    strands = Strands(is_driven=True)
    assert strands.register("a")
    assert not strands.register("a")
    strands.begin_wait("b")
    assert strands.is_slot_needed
    assert strands.is_lendable
    strands.begin_wait("a")
    assert not strands.is_slot_needed
    strands.end_wait("a")
    assert strands.is_slot_needed
    strands.end("a")
    assert not strands.is_slot_needed
    strands.end("b")
    assert not strands.is_lendable
    assert list(strands) == []


def test_a_main_that_nobody_drives_keeps_the_slot_like_any_other():
    """The thread of a plain `def` may compute while another one waits."""
    strands = Strands(is_driven=False)
    strands.register(MAIN)
    strands.begin_wait("helper")
    assert strands.is_slot_needed
    strands.begin_wait(MAIN)
    assert not strands.is_slot_needed


def test_what_is_told_twice_counts_once():
    """Done callbacks and ends of waits may come in any order."""
    strands = Strands(is_driven=True)
    strands.begin_wait("a")
    strands.begin_wait("a")
    strands.end("a")
    strands.end_wait("a")
    strands.end("a")
    strands.begin_wait(MAIN)
    strands.begin_wait(MAIN)
    strands.end_wait(MAIN)
    strands.resume(MAIN)
    assert strands.is_slot_needed
    assert not strands.is_lendable


# --- the rules under random schedules ----------------------------------------------------


class Town:
    """Bodies that share slots, each with a `Strands`, and a model of who does what."""

    def __init__(self, slots, bodies, strands):
        self.free = slots
        self.line = deque()
        self.bodies = [Body(self, number, strands) for number in range(bodies)]

    def grant(self):
        while self.free and self.line:
            body = self.line.popleft()
            self.free -= 1
            body.held = True

    def check(self):
        for body in self.bodies:
            if not body.held:
                assert body.is_lent or not body.may_work(), vars(body)
        assert self.free == 0 or not self.line
        assert len(set(self.line)) == len(self.line)


class Body:
    def __init__(self, town, number, strands):
        self.town = town
        self.number = number
        self.rules = Strands(is_driven=True)
        self.doing = dict.fromkeys([MAIN, *range(strands)], "unknown") | {MAIN: "suspended"}
        self.held = self.is_lent = False
        self.resume(MAIN)

    def may_work(self):
        return "outside" in self.doing.values()

    def moves(self):
        """What may happen next in this body, by itself or with the clock's help."""
        for strand, doing in self.doing.items():
            if doing == "waiting":
                yield self.wake, strand
            elif doing == "standing" and self.held:
                yield self.go_on, strand
            elif doing == "outside" or (doing == "unknown" and strand != MAIN):
                yield self.wait, strand
                if strand != MAIN:
                    yield self.end, strand
                else:
                    yield self.suspend, strand
            elif doing == "suspended":
                yield self.resume, strand
        if self.held and self.rules.is_lendable:
            yield self.second, None

    def wait(self, strand):
        self.doing[strand] = "waiting"
        self.rules.begin_wait(strand)
        self.look()

    def wake(self, strand):
        self.doing[strand] = "standing"
        self.rules.end_wait(strand)
        self.ask()

    def suspend(self, strand):
        self.doing[strand] = "suspended"

    def resume(self, strand):
        self.doing[strand] = "standing"
        self.rules.join_line(strand)
        self.ask()

    def go_on(self, strand):
        self.doing[strand] = "outside"
        self.rules.resume(strand)
        self.is_lent = False

    def end(self, strand):
        self.doing[strand] = "ended"
        self.rules.end(strand)
        self.look()

    def second(self, _):
        self.is_lent = self.rules.is_slot_needed
        self.release()

    def finish(self):
        for strand in self.doing:
            self.doing[strand] = "ended"
            self.rules.end(strand)
        self.release()

    def ask(self):
        if not self.held and self not in self.town.line:
            self.town.line.append(self)
            self.town.grant()

    def look(self):
        if self.held and not self.rules.is_slot_needed:
            self.release()

    def release(self):
        self.held = False
        self.town.free += 1
        if "standing" in self.doing.values():
            self.town.line.append(self)
        self.town.grant()


@given(st.data(), st.integers(1, 2), st.integers(1, 4), st.integers(0, 3))
def test_no_body_works_without_its_slot_unless_it_is_lent(data, slots, bodies, strands):
    """And whatever has happened, everybody in line has its turn, though no wait ever ends."""
    town = Town(slots, bodies, strands)
    for _ in range(data.draw(st.integers(0, 40))):
        moves = [move for body in town.bodies for move in only_one_computes(town, body)]
        move, strand = data.draw(st.sampled_from(moves))
        move(strand)
        town.check()
    for _ in range(bodies * (strands + 3)):
        for body in town.bodies:
            let_it_pass(body)
            town.check()
    assert not [body for body in town.bodies if "standing" in body.doing.values()]


def let_it_pass(body):
    """What is certain to happen: a turn, the end of code, and of awaits beside which none waits."""
    if not body.held:
        return
    for strand, doing in body.doing.items():
        if doing == "standing":
            body.go_on(strand)
    if body.doing[MAIN] == "outside":
        body.finish()
    elif body.rules.is_lendable:
        body.second(None)
    else:
        body.go_on(MAIN)
        body.finish()


def only_one_computes(town, body):
    """While main of some body computes nothing else happens: there is one loop."""
    computing = [each for each in town.bodies if each.doing[MAIN] == "outside"]
    if not computing:
        return list(body.moves())
    return [move for move in body.moves() if body is computing[0] and move[1] == MAIN]


# --- on one slot -------------------------------------------------------------------------


class Working:
    """Who works now, as the bodies themselves tell it."""

    def __init__(self):
        self.now = []
        self.most = 0
        self.was_held = set()

    async def work(self, handle, seconds=0.05):
        self.now.append(handle.task_execution_id)
        self.most = max(self.most, len(set(self.now)))
        self.was_held.add(handle.is_slot_held())
        await asyncio.sleep(seconds)
        self.was_held.add(handle.is_slot_held())
        self.now.remove(handle.task_execution_id)


@virtual_test
async def test_three_bodies_with_overlapping_waits_never_work_at_once():
    """The wait that ends first takes the slot back before its strand goes on."""
    working = Working()

    @task
    async def works(context, handle):
        async def sleeps_then_works():
            await handle.sleep(0.05, key="a")
            await working.work(handle)

        await asyncio.gather(sleeps_then_works(), handle.sleep(0.5, key="b"))
        assert handle.is_slot_held()

    async with Runner("memory:", slots=1) as runner:
        with SlotWatch(runner) as slots:
            runs = [await runner.start(flow_of(works)) for _ in range(3)]
            await asyncio.gather(*(run.result() for run in runs))
            slots.assert_never_more_than(1)
            slots.assert_none_held()
        assert (working.most, working.was_held) == (1, {True})
        assert runner.worker.slots_lent == 0


@virtual_test
async def test_a_strand_that_ends_releases_the_slot_at_once():
    """All that is left of the body waits through the handle, or is main."""

    @task
    async def works(context, handle):
        async def short():
            await handle.sleep(1, key="a")
            await asyncio.sleep(0.5)

        await asyncio.gather(short(), handle.sleep(30, key="b"))

    async with Runner("memory:", slots=1) as runner:
        with SlotWatch(runner) as slots:
            begin = runner.now()
            await runner.execute(flow_of(works))
            history = [(at - begin, held) for at, held in slots.history]
    assert history[2:] == [(0, 0), (1000, 1), (1500, 0), (30_000, 1), (30_000, 0)]


@virtual_test
async def test_main_goes_on_with_the_slot_whatever_it_awaited():
    """A plain await under a background wait gives the slot away; its resume stands in line."""
    log = []

    @task
    async def works(context, handle):
        waiting = asyncio.create_task(handle.wait_for("p", key="p"))
        await asyncio.sleep(1)  # the slot is released meanwhile: another strand waits
        log.append(("works", handle.is_slot_held(), runner.now() - begin))
        await waiting
        log.append(("works", handle.is_slot_held(), runner.now() - begin))

    @task
    async def other(context, handle):
        await asyncio.sleep(5)
        log.append(("other", handle.is_slot_held(), runner.now() - begin))

    async with Runner("memory:", slots=1) as runner:
        begin = runner.now()
        first = await runner.start(flow_of(works, name="works"))
        await settled_down()
        second = await runner.start(flow_of(other, name="other"))
        await asyncio.sleep(2)
        seen = await look(first, "works")
        assert seen.waiting_on is not None
        assert (seen.sub_status, seen.waiting_on.kind) == ("Deferred", "slot")
        await second.result()
        await settled_down()
        seen = await look(first, "works")
        assert seen.waiting_on is not None
        assert (seen.sub_status, seen.waiting_on.kind) == ("Active", "promise")
        await asyncio.sleep(10)  # main waits for `waiting` now, and keeps the slot for a second
        seen = await look(first, "works")
        assert seen.waiting_on is not None
        assert (seen.sub_status, seen.waiting_on.kind) == ("Deferred", "promise")
        await runner.resolve("p")
        await first.result()
        assert runner.worker.slots_lent == 0
    assert log == [("other", True, 5000), ("works", True, 5000), ("works", True, 15000)]


@virtual_test
async def test_a_strand_in_a_plain_await_keeps_the_slot_for_a_second():
    """Then it is lent: that is counted, told, and taken back by whoever of the body goes on."""
    log = []

    @task
    async def works(context, handle):
        async def plain():
            await handle.sleep(1, key="known")
            await asyncio.sleep(10)
            log.append(("plain", handle.is_slot_held()))
            await handle.checkpoint("work", lambda: log.append(("does", handle.is_slot_held())))

        await asyncio.gather(handle.sleep(60, key="long"), plain())
        log.append(("main", handle.is_slot_held()))

    async with Runner("memory:", slots=1) as runner:
        with SlotWatch(runner) as slots:
            run = await runner.start(flow_of(works))
            await asyncio.sleep(1.5)
            assert slots.held == 1
            seen = await look(run, "works")
            assert seen.waiting_on is not None
            assert (seen.sub_status, seen.waiting_on.kind) == ("Active", "sleep")
            await asyncio.sleep(1)
            assert slots.held == 0
            assert runner.worker.slots_lent == 1
            seen = await look(run, "works")
            assert seen.sub_status == "Deferred"
            assert seen.waiting_on is not None
            assert "is lent" in seen.waiting_on.sentence
            (event,) = runner.worker.health.snapshot()
            assert event.kind == "slot_lent"
            assert run.id in event.reason
            await run.result()
            slots.assert_none_held()
    assert log == [("plain", False), ("does", True), ("main", True)]


@virtual_test
async def test_a_body_cannot_wait_for_what_needs_its_own_slot():
    """One strand waits through the handle, the other for a task that has no slot to run in."""
    is_done = asyncio.Event()

    @task
    async def parent(context, handle):
        async def plain():
            await handle.sleep(1, key="known")
            await is_done.wait()

        await asyncio.gather(handle.wait_for("p"), plain())

    @task
    async def child(context):
        is_done.set()
        await runner.resolve("p")

    async with Runner("memory:", slots=1) as runner:
        runs = [await runner.start(flow_of(parent, name="parent"))]
        await asyncio.sleep(1.5)
        runs.append(await runner.start(flow_of(child, name="child")))
        await asyncio.gather(*(run.result() for run in runs))
        assert runner.worker.slots_lent == 1


@virtual_test
async def test_gather_of_a_sleep_and_a_child_needs_no_second_slot():
    """Both are waits through the handle: nothing is lent."""

    @task
    async def child(context):
        await asyncio.sleep(3)
        context["child"] = True

    inner = flow_of(child, name="inner")
    async with Runner("memory:", slots=1) as runner:

        @task
        async def parent(context, handle):
            run = await runner.start(inner)
            _, result = await asyncio.gather(handle.sleep(1), run.result())
            context.update(result)

        assert await runner.execute(flow_of(parent, name="outer")) == {"child": True}
        assert runner.worker.slots_lent == 0


def test_a_wait_that_keeps_its_slot_at_max_parked_lends_it(monkeypatch):
    """Who is to settle what it waits for may need that very slot."""

    def park_nobody(attempt, shown):
        attempt.annotations.show(shown.with_slot("it keeps its slot"))
        return False

    @task
    async def waits(context, handle):
        await handle.wait_for("p")
        assert handle.is_slot_held()

    @task
    async def settles(context, handle):
        assert runner is not None
        await runner.resolve("p")

    @virtual_test
    async def scene():
        nonlocal runner
        async with Runner("memory:", slots=1) as runner:
            begin = runner.now()
            runs = [await runner.start(flow_of(each, name=each.id)) for each in (waits, settles)]
            await asyncio.gather(*(run.result() for run in runs))
            assert (runner.worker.slots_lent, runner.now() - begin) == (1, 1000)

    runner = None
    monkeypatch.setattr(Attempt, "park", park_nobody)
    scene()


@virtual_test
async def test_the_place_in_line_is_kept_whoever_is_cancelled():
    """A timeout while the body stands in line does not send it to the end of the line."""
    log = []

    @task
    async def impatient(context, handle):
        waiting = asyncio.create_task(handle.sleep(60, key="long"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await asyncio.sleep(1)
        log.append(("impatient", handle.is_slot_held(), runner.now() - begin))
        waiting.cancel()

    @task
    async def sleeper(context, handle):
        await handle.sleep(1.5)
        log.append(("sleeper", handle.is_slot_held(), runner.now() - begin))

    @task
    async def busy(context):
        await asyncio.sleep(10)

    async with Runner("memory:", slots=1) as runner:
        begin = runner.now()
        runs = []
        for each in (impatient, sleeper, busy):
            runs.append(await runner.start(flow_of(each, name=each.id)))
            await settled_down()
        await asyncio.gather(*(run.result() for run in runs))
    assert log == [("impatient", True, 10_000), ("sleeper", True, 10_000)]


@virtual_test
async def test_a_strand_that_is_cancelled_in_line_keeps_the_place_too():
    """`asyncio.timeout` inside a Task: it hears of it with the slot."""
    log = []

    @task
    async def works(context, handle):
        async def impatient():
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(2):
                    await handle.sleep(1, key="short")
            log.append(("impatient", handle.is_slot_held(), runner.now() - begin))
            this = asyncio.current_task()
            assert this is not None
            assert this.cancelling() == 0

        await asyncio.gather(impatient(), handle.sleep(30, key="long"))

    @task
    async def sleeper(context, handle):
        await handle.sleep(1.5)
        log.append(("sleeper", handle.is_slot_held(), runner.now() - begin))

    @task
    async def busy(context):
        await asyncio.sleep(10)

    async with Runner("memory:", slots=1) as runner:
        begin = runner.now()
        runs = []
        for each in (works, sleeper, busy):
            runs.append(await runner.start(flow_of(each, name=each.id)))
            await settled_down()
        await asyncio.gather(*(run.result() for run in runs))
    assert log == [("impatient", True, 10_000), ("sleeper", True, 10_000)]


@virtual_test
async def test_who_cleans_up_after_its_end_leaves_the_line():
    """It stood there with its main. Its cleaning up counts: nobody begins beside it."""
    log = []

    @task
    async def works(context, handle):
        beside = asyncio.create_task(handle.sleep(50, key="beside"))
        try:
            await asyncio.sleep(1)
            log.append("not reached")
        finally:
            beside.cancel()
            await asyncio.sleep(4)

    @task
    async def busy(context):
        log.append(("begins", runner.now() - begin))
        await asyncio.sleep(6)

    async with Runner("memory:", slots=1) as runner:
        begin = runner.now()
        run = await runner.start(flow_of(works))
        await settled_down()
        runs = [await runner.start(flow_of(busy, name="busy")) for _ in range(2)]
        await asyncio.sleep(5)
        await run.cancel()
        await asyncio.gather(*(each.result() for each in runs))
    assert log == [("begins", 0), ("begins", 9000)]


@virtual_test
async def test_who_is_ended_from_outside_does_not_stand_in_line():
    """Main and strands hear it at once, though another body has the slot."""
    log = []

    @task
    async def works(context, handle):
        async def strand():
            try:
                await handle.sleep(1, key="short")
            finally:
                log.append(("strand", runner.now() - begin))

        try:
            await asyncio.gather(strand(), handle.sleep(50, key="long"))
        finally:
            log.append(("main", runner.now() - begin))
            await asyncio.sleep(1)
            log.append(("cleaned up", runner.now() - begin))

    @task
    async def busy(context):
        await asyncio.sleep(100)

    async with Runner("memory:", slots=1) as runner:
        begin = runner.now()
        run = await runner.start(flow_of(works))
        await settled_down()
        other = await runner.start(flow_of(busy, name="busy"))
        await asyncio.sleep(5)
        await run.cancel()
        await asyncio.sleep(5)
        assert log == [("strand", 5000), ("main", 5000), ("cleaned up", 6000)]
        await other.result()


@virtual_test
async def test_a_strand_that_wakes_while_its_body_is_being_ended():
    """Nobody has cancelled it, but it has no business in the line any more."""
    heard = []

    @task
    async def works(context, handle):
        async def strand():
            try:
                await handle.sleep(6, key="short")
            except asyncio.CancelledError as error:
                heard.append((str(error), runner.now() - begin))

        waiting = asyncio.create_task(strand())
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.wait([waiting])

    @task
    async def busy(context):
        await asyncio.sleep(10)

    async with Runner("memory:", slots=1) as runner:
        begin = runner.now()
        run = await runner.start(flow_of(works), run_id="r")
        await settled_down()
        other = await runner.start(flow_of(busy, name="busy"))
        await asyncio.sleep(5)
        await run.cancel()
        await other.result()
    assert heard == [("run/r:works: lost", 6000)]


@virtual_test
async def test_what_outlives_its_body_hears_it():
    """A Task nobody awaited has no handle any more; one that is cancelled hears just that."""
    tasks = []

    @task
    async def careless(context, handle):
        tasks.extend(asyncio.create_task(handle.sleep(50, key=name)) for name in ("a", "b"))
        await asyncio.sleep(3)
        tasks[0].cancel()

    async with Runner("memory:", slots=1) as runner:
        with SlotWatch(runner) as slots:
            await runner.execute(flow_of(careless))
            await asyncio.wait(tasks)
            slots.assert_none_held()
    assert tasks[0].cancelled()
    assert isinstance(tasks[1].exception(), UsageError)


@virtual_test
async def test_yield_slot_beside_a_wait():
    """The strand that yields gets the slot again, the one that waits does not mind."""
    log = []

    @task
    async def works(context, handle):
        async def polite():
            await handle.sleep(1, key="a")
            await handle.yield_slot()
            log.append(("polite", handle.is_slot_held()))

        await asyncio.gather(polite(), handle.sleep(30, key="b"))

    @task
    async def other(context):
        await asyncio.sleep(3)
        log.append("other")

    async with Runner("memory:", slots=1) as runner:
        run = await runner.start(flow_of(works))
        await asyncio.sleep(0.5)
        second = await runner.start(flow_of(other, name="other"))
        await asyncio.gather(run.result(), second.result())
    assert log == ["other", ("polite", True)]


# --- a handle of a token alone -----------------------------------------------------------


@virtual_test
async def test_a_handle_without_a_store_shares_its_slot_by_the_same_rules():
    """Two Tasks, one token: whoever goes on has the slot; kept long, it is lent."""
    pool = SlotPool(1)
    handle = TaskHandle(await pool.acquire())
    seen = []

    async def strand(first, plain):
        await handle.sleep(first)
        seen.append((asyncio.get_running_loop().time() - begin, handle.is_slot_held()))
        await asyncio.sleep(plain)

    begin = asyncio.get_running_loop().time()
    waiting = asyncio.gather(strand(1, 0.5), strand(3, 4), strand(20, 0))
    for at, free in ((0.5, 1), (1.2, 0), (2, 1), (3.5, 0), (4.5, 1), (15, 1)):
        await asyncio.sleep(begin + at - asyncio.get_running_loop().time())
        assert pool.free == free, at
    await waiting
    assert seen == [(1, True), (3, True), (20, True)]
    assert pool.held == 1


@virtual_test
async def test_a_cancelled_wait_of_a_token_leaves_the_line():
    """Without a store there is nobody who ends bodies: a cancel is heard at once."""
    pool = SlotPool(1)
    handle = TaskHandle(await pool.acquire())
    sleeping = asyncio.create_task(handle.sleep(1))
    await asyncio.sleep(0.5)
    other = await pool.acquire()
    await asyncio.sleep(1)
    assert pool.waiting == 1
    sleeping.cancel()
    await asyncio.wait([sleeping])
    assert (pool.waiting, handle.is_slot_held()) == (0, False)
    other.release()
    assert pool.free == 1


# --- threads -----------------------------------------------------------------------------


@virtual_test
async def test_a_plain_def_keeps_its_slot_while_its_own_thread_runs():
    """A helper thread waits: the slot stays for a second, is lent, and comes back."""
    log = []

    @task
    def works(context, handle):
        def helper():
            handle.sleep(30, key="helper")
            log.append(("helper", handle.is_slot_held()))

        thread = threading.Thread(target=helper)
        thread.start()
        thread.join()
        log.append(("main", handle.is_slot_held()))

    async with Runner("memory:", slots=1) as runner:
        with SlotWatch(runner) as slots:
            run = await runner.start(flow_of(works))
            await asyncio.sleep(0.9)
            assert (slots.held, runner.worker.slots_lent) == (1, 0)
            await asyncio.sleep(1)
            assert (slots.held, runner.worker.slots_lent) == (0, 1)
            await run.result()
            slots.assert_none_held()
    assert log == [("helper", True), ("main", True)]


@virtual_test
async def test_a_thread_that_has_ended_keeps_no_slot():
    """Nobody tells that it has: it is looked at whenever something changes."""
    log = []

    @task
    def works(context, handle):
        thread = threading.Thread(target=handle.sleep, args=(0.5,))
        thread.start()
        thread.join()
        handle.sleep(10)
        log.append(handle.is_slot_held())
        log.append(handle.checkpoint("k", handle.is_slot_held))

    async with Runner("memory:", slots=1) as runner:
        with SlotWatch(runner) as slots:
            run = await runner.start(flow_of(works))
            await asyncio.sleep(0.6)
            assert slots.held == 0
            await run.result()
        assert runner.worker.slots_lent == 0
    assert log == [True, True]
