"""`all_of`, `first_of` and `any_of`: several waits as one, with one slot and one winner."""

import asyncio
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layby import (
    DeferTimeout,
    NoneSucceeded,
    PromiseRejected,
    Runner,
    UsageError,
    task,
    waits,
)
from layby.testing import current_clock, virtual_test
from layby.worker.begun_waits import WaitEnd
from layby.worker.wait_bundles import Decision, decide
from layby.worker.wait_terms import BundleKind
from tests.helpers.workers import crashing, flow_of, look, promises, settled_down, until


async def result_of(body: Any, meanwhile: Any = None, **options: Any) -> dict[str, Any]:
    """What a run of this one body leaves in its context; `meanwhile` gets the Runner."""
    flow = flow_of(task(id="t")(body))
    async with Runner("memory:", **options) as runner:
        run = await runner.start(flow, run_id="r")
        if meanwhile is not None:
            await settled_down()
            await meanwhile(runner)
        found = (await run.result()).to_dict()
        found["left"] = {key: each.state for key, each in promises(runner).items() if ".w0." in key}
        return found


# --- the rule ----------------------------------------------------------------------------------

ends = st.lists(
    st.one_of(
        st.none(),
        st.builds(
            WaitEnd,
            st.integers(0, 3),
            error=st.one_of(st.none(), st.just(DeferTimeout("late"))),
        ),
    ),
    min_size=1,
    max_size=5,
)


@given(ends)
def test_the_earliest_decides_then_the_order(ended):
    """The rule of each kind, said in another way."""
    known = [(each.at, i, each.failed) for i, each in enumerate(ended) if each is not None]
    good = sorted((at, i) for at, i, failed in known if not failed)
    bad = sorted((at, i) for at, i, failed in known if failed)
    every = sorted((at, i) for at, i, _ in known)
    is_whole = len(known) == len(ended)
    last = Decision(None, every[-1][0]) if is_whole else None
    assert decide("first_of", ended) == (Decision(every[0][1], every[0][0]) if every else None)
    assert decide("any_of", ended) == (Decision(good[0][1], good[0][0]) if good else last)
    assert decide("all_of", ended) == (Decision(bad[0][1], bad[0][0]) if bad else last)


@given(ends, st.integers(0, 4))
def test_what_ends_later_changes_no_decision(ended, at):
    """Whoever is told of an end too late for a decision would have decided the same."""
    kinds: tuple[BundleKind, ...] = ("first_of", "any_of", "all_of")
    decided = {kind: decide(kind, ended) for kind in kinds}
    later = max([each.at for each in ended if each is not None], default=0) + 1 + at
    more = [WaitEnd(later) if each is None else each for each in ended]
    for kind in kinds:
        assert decided[kind] is None or decide(kind, more) == decided[kind]


# --- what they return --------------------------------------------------------------------------


@virtual_test
async def test_all_of_gives_the_results_in_order():
    """Whoever ends first; the body goes on when the last has."""

    async def body(context, handle):
        context["got"] = await handle.all_of(
            waits.wait_for("a"), waits.sleep(5), waits.wait_for("b")
        )
        context["after"] = current_clock().elapsed

    async def meanwhile(runner):
        await runner.resolve("b", 2)
        await asyncio.sleep(1)
        await runner.resolve("a", 1)

    found = await result_of(body, meanwhile)
    assert (found["got"], found["after"]) == ([1, None, 2], 5)


@virtual_test
async def test_first_of_says_which_and_withdraws_the_others():
    """The timer that lost is cancelled; the promise of others is left alone."""

    async def body(context, handle):
        which, value = await handle.first_of(
            waits.sleep(3600), waits.wait_for("a"), waits.wait_for("never")
        )
        context["got"] = [which, value]

    found = await result_of(body, lambda runner: runner.resolve("a", 7))
    assert found["got"] == [1, 7]
    assert [each for each in found["left"].values() if each == "pending"] == []
    assert sorted(found["left"].values()) == ["rejected_canceled", "resolved"]


@virtual_test
async def test_a_promise_that_lost_can_still_be_settled():
    """Others may wait for it: the bundle only stops listening."""

    async def body(context, handle):
        await handle.first_of(waits.wait_for("mine"), waits.sleep(1))
        context["later"] = await handle.wait_for("mine")

    async def meanwhile(runner):
        await asyncio.sleep(2)
        assert await runner.resolve("mine", "still open")

    assert (await result_of(body, meanwhile))["later"] == "still open"


@virtual_test
async def test_first_of_raises_what_its_first_raised_and_any_of_goes_on():
    """A rejection ends first_of; any_of waits for a success."""

    async def body(context, handle):
        try:
            await handle.first_of(waits.wait_for("bad"), waits.sleep(9))
        except PromiseRejected as error:
            context["first"] = error.message
        context["any"] = list(await handle.any_of(waits.wait_for("bad"), waits.sleep(9)))

    found = await result_of(body, lambda runner: runner.reject("bad", "no"))
    assert (found["first"], found["any"]) == ("no", [1, None])


@virtual_test
async def test_any_of_with_nothing_but_failures_has_them_all():
    """In order, however they ended."""

    async def body(context, handle):
        try:
            await handle.any_of(waits.wait_for("x", timeout=3), waits.wait_for("bad"))
        except NoneSucceeded as error:
            context["errors"] = [type(each).__name__ for each in error.errors]
            context["after"] = current_clock().elapsed

    found = await result_of(body, lambda runner: runner.reject("bad", "no"))
    assert (found["errors"], found["after"]) == (["DeferTimeout", "PromiseRejected"], 3)


@virtual_test
async def test_all_of_ends_with_the_first_failure():
    """It does not wait for an hour to say that it has failed."""

    async def body(context, handle):
        with pytest.raises(PromiseRejected):
            await handle.all_of(waits.sleep(3600), waits.wait_for("bad"))
        context["after"] = current_clock().elapsed

    found = await result_of(body, lambda runner: runner.reject("bad", "no"))
    assert found["after"] == 0
    assert "pending" not in found["left"].values()


@virtual_test
async def test_bundles_in_bundles_tokens_and_conditions():
    """Each is a wait like any other."""
    open_ = asyncio.Event()

    async def body(context, handle):
        token = await handle.promise("token")
        context["got"] = await handle.all_of(
            waits.first_of(token, waits.sleep(100)),
            waits.defer_until(open_.is_set, poll_interval=1),
        )

    async def meanwhile(runner):
        await runner.resolve("run/r:t.c.promise.token", "hello")
        await asyncio.sleep(3)
        open_.set()

    found = await result_of(body, meanwhile)
    assert found["got"] == [[0, "hello"], None]


@virtual_test
async def test_a_call_that_lost_is_cancelled():
    """Whoever serves it hears that nobody waits any more."""

    async def body(context, handle):
        context["got"] = list(
            await handle.first_of(waits.rpc("slow", 1, target="poll://any@nobody"), waits.sleep(2))
        )

    flow = flow_of(task(id="t")(body))
    async with Runner("memory:") as runner:
        found = await (await runner.start(flow, run_id="r")).result()
        calls = {k: p.state for k, p in promises(runner).items() if ".x." in k}
    assert found["got"] == [1, None]
    assert list(calls.values()) == ["rejected_canceled"]


# --- the slot ----------------------------------------------------------------------------------


@virtual_test
async def test_a_bundle_is_one_wait_of_one_slot():
    """Free while all wait, not taken back for each member that ends, held afterwards."""
    ran: list[str] = []

    async def body(context, handle):
        await handle.all_of(waits.sleep(1), waits.sleep(2), waits.sleep(3))
        context["held"] = handle.is_slot_held()

    @task(id="other")
    async def other(context, handle):
        for _ in range(4):
            ran.append(f"{current_clock().elapsed:.1f}")
            await asyncio.sleep(0.9)

    flow = flow_of(task(id="t")(body), other)
    async with Runner("memory:", slots=1) as runner:
        run = await runner.start(flow, run_id="r")
        found = await run.result()
        tries = (await look(run, "t")).tries
    assert found["held"] is True
    assert ran == ["0.0", "0.9", "1.8", "2.7"]
    parked = [span for span in tries[0].spans if span.kind == "parked"]
    assert len(parked) == 1


@virtual_test
async def test_what_is_shown_of_a_bundle():
    """One sentence for all of it, its kind, and when it ends by itself."""

    async def body(context, handle):
        await handle.first_of(waits.wait_for("paid"), waits.sleep(60), key="k")

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(task(id="t")(body)), run_id="r")
        await settled_down()
        waiting = (await look(run, "t")).waiting_on
        await runner.resolve("paid")
        await run.result()
    assert waiting is not None
    assert waiting.kind == "bundle"
    assert waiting.sentence == "waiting for the first of (promise paid; sleeping 60 s)"
    assert waiting.deadline is not None


# --- time --------------------------------------------------------------------------------------


@virtual_test
async def test_the_timeout_of_a_bundle_counts_over_restarts(tmp_path):
    """Six seconds are six seconds, and the members are withdrawn."""

    async def body(context, handle):
        try:
            await handle.first_of(waits.wait_for("a"), waits.sleep(3600), timeout=6)
        except DeferTimeout as error:
            context["error"] = str(error)
            context["after"] = current_clock().elapsed

    flow, address = flow_of(task(id="t")(body)), f"sqlite:{tmp_path / 'a.db'}"
    async with crashing(address) as runner:
        await runner.start(flow, run_id="r")
        await asyncio.sleep(4)
    async with Runner(address) as runner:
        runner.register(flow)
        found = await (await runner.get("r")).result()
        left = [p.state for k, p in promises(runner).items() if ".w0.of." in k]
    assert found["after"] == 6
    assert "did not end in 6 s" in found["error"]
    assert left == ["rejected_canceled"]


@virtual_test
async def test_after_a_crash_the_same_wins(tmp_path):
    """A loser that settles later is not looked at, and a winner is not asked again."""
    asked: list[int] = []

    async def body(context, handle):
        def ready() -> bool:
            asked.append(1)
            return True

        first = await handle.first_of(waits.wait_for("late"), waits.defer_until(ready))
        await handle.wait_for("go on")
        context["won"] = first.which

    flow, address = flow_of(task(id="t")(body)), f"sqlite:{tmp_path / 'a.db'}"
    async with crashing(address) as runner:
        await runner.start(flow, run_id="r")
        await asyncio.sleep(1)
        await runner.resolve("late")
        await settled_down()
    async with Runner(address) as runner:
        runner.register(flow)
        await runner.resolve("go on")
        found = await (await runner.get("r")).result()
    assert found["won"] == 1
    assert len(asked) == 1


@pytest.mark.parametrize("order", ["ab", "ba"])
@virtual_test
async def test_what_settled_while_nobody_ran_is_decided_by_its_time(tmp_path, order):
    """The earlier settlement wins, wherever it stands in the list."""

    async def body(context, handle):
        context["got"] = list(await handle.first_of(*(waits.wait_for(each) for each in order)))

    flow, address = flow_of(task(id="t")(body)), f"sqlite:{tmp_path / 'a.db'}"
    async with crashing(address) as runner:
        await runner.start(flow, run_id="r")
        await settled_down()
    async with Runner(address, slots=0) as runner:
        await runner.resolve("a", "a")
        await asyncio.sleep(1)
        await runner.resolve("b", "b")
    async with Runner(address) as runner:
        runner.register(flow)
        found = await (await runner.get("r")).result()
    assert found["got"] == [order.index("a"), "a"]


@virtual_test
async def test_a_nested_choice_is_kept_over_a_crash(tmp_path):
    """The inner bundle has a record of its own."""

    async def body(context, handle):
        context["got"] = await handle.all_of(
            waits.first_of(waits.wait_for("a"), waits.wait_for("b")), waits.wait_for("c")
        )

    flow, address = flow_of(task(id="t")(body)), f"sqlite:{tmp_path / 'a.db'}"
    async with crashing(address) as runner:
        await runner.start(flow, run_id="r")
        await settled_down()
        await runner.resolve("b", 2)
        await settled_down()
    async with Runner(address) as runner:
        runner.register(flow)
        await runner.resolve("a", 1)
        await runner.resolve("c", 3)
        found = await (await runner.get("r")).result()
    assert found["got"] == [[1, 2], 3]


# --- mistakes, cancelling, threads -------------------------------------------------------------


@virtual_test
async def test_coroutines_and_empty_bundles_are_refused():
    """The error says what to write; nothing is left unawaited."""

    async def body(context, handle):
        with pytest.raises(UsageError, match=r"sleep.*waits\.sleep"):
            await handle.first_of(handle.sleep(5), waits.sleep(1))
        with pytest.raises(UsageError, match="at least one wait"):
            await handle.all_of()
        with pytest.raises(UsageError, match="at most 1000"):
            await handle.all_of(*(waits.sleep(1) for _ in range(1001)))
        assert len(await handle.all_of(*(waits.sleep(1) for _ in range(1000)))) == 1000

    await result_of(body)


@virtual_test
async def test_two_bundles_at_once_need_keys():
    """As any durable calls that run at the same time."""

    async def body(context, handle):
        with pytest.raises(UsageError, match="key="):
            await asyncio.gather(handle.first_of(waits.sleep(1)), handle.first_of(waits.sleep(1)))
        both = await asyncio.gather(
            handle.first_of(waits.sleep(1), key="a"), handle.all_of(waits.sleep(2), key="b")
        )
        context["got"] = both

    assert (await result_of(body))["got"] == [[0, None], [None]]


@virtual_test
async def test_a_bundle_that_the_body_gives_up_leaves_nothing_listening():
    """asyncio.timeout around a bundle: its members are withdrawn from memory."""

    async def body(context, handle):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await handle.all_of(waits.wait_for("a"), waits.defer_until(lambda: False))
        await settled_down()
        context["parked"] = handle._wheel.parked
        context["held"] = handle.is_slot_held()

    found = await result_of(body)
    assert (found["parked"], found["held"]) == (0, True)


@virtual_test
async def test_a_cancelled_task_leaves_its_bundle_at_once():
    """However long its members would wait."""

    async def body(context, handle):
        await handle.all_of(waits.sleep(3600), waits.wait_for("a"))

    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(task(id="t")(body)), run_id="r")
        await settled_down()
        assert await runner.cancel("r")
        await settled_down()
        assert runner.worker.attempts == {}
        assert (await run.status()).state == "Cancelled"


def test_a_plain_def_has_bundles_too(tmp_path):
    """The same waits, blocking the thread; the slot is free meanwhile."""
    made = threading.Event()

    def body(context: Any, handle: Any) -> None:
        token = handle.promise("t")
        made.set()
        context["got"] = list(handle.first_of(token, waits.sleep(60)))
        context["all"] = handle.all_of(waits.sleep(0.01), waits.defer_until(lambda: True))

    async def main() -> Any:
        async with Runner("memory:", slots=1) as runner:
            run = await runner.start(flow_of(task(id="t")(body)), run_id="r")
            await until(made.is_set)
            await runner.resolve("run/r:t.c.promise.t", 5)
            return await run.result()

    found = asyncio.run(main())
    assert (found["got"], found["all"]) == ([0, 5], [None, None])


@virtual_test
async def test_a_bundle_whose_waits_have_long_names_is_told_as_far_as_it_fits():
    """The store refuses a longer text; and how the wait ends does not depend on what is told."""
    quote = '"'  # two characters in JSON
    names = [f"{number:02}{quote * 1_000}" for number in range(20)]

    async def body(context, handle):
        context["got"] = await handle.all_of(*(waits.wait_for(each, 60) for each in names))

    async def meanwhile(runner):
        seen = await look(await runner.get("r"), "t")
        assert seen.waiting_on is not None
        assert seen.waiting_on.kind == "bundle"
        assert 0 < len(seen.waiting_on.members) < len(names)
        for name in names:
            await runner.resolve(name, 1)

    assert (await result_of(body, meanwhile))["got"] == [1] * 20
