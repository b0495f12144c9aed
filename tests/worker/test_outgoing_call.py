"""`handle.rpc`: a function elsewhere is called once; its answer is waited for without a slot."""

import asyncio
import base64
import json
import re
from typing import Any

import pytest

from layby import (
    DeferTimeout,
    PromiseCancelled,
    PromiseRejected,
    RunFailed,
    Runner,
    UsageError,
    task,
)
from layby.core.commands import AcquireTask, CancelPromise, ResolvePromise
from layby.testing import SlotWatch, current_clock, virtual_test
from layby.wire.json_values import wrap
from tests.helpers.callers import task_of
from tests.helpers.workers import crashing, flow_of, look, promises, settled_down

FIRST = "run/r:calls.x.rpc-1"


def calls_hello(*args, **options):
    """A task that calls `hello` and keeps what came back."""

    @task
    async def calls(context, handle):
        context["got"] = await handle.rpc("hello", *args, **options)
        context["held"] = handle.is_slot_held()

    return calls


async def answer(runner, call, value, state="resolved"):
    """As a worker of any language would settle it."""
    told = wrap(json.dumps(value).encode())
    await runner.client.send(ResolvePromise(id=call, value=told, state=state))


@virtual_test
async def test_a_call_is_written_as_the_sdks_write_theirs():
    """Param, tags and target: a worker that knows only the protocol gets an `execute` for it."""
    async with Runner("memory:") as runner:
        await runner.start(flow_of(calls_hello("you", {"n": 1})), run_id="r")
        await settled_down()
        made = promises(runner)[FIRST]
        param = json.loads(made.param)
        assert param["headers"] == {}
        assert json.loads(base64.b64decode(param["data"])) == {
            "func": "hello",
            "args": ["you", {"n": 1}],
            "version": 1,
        }
        assert json.loads(made.tags) == {
            "resonate:scope": "global",
            "resonate:target": "poll://any@default",
            "resonate:branch": FIRST,
            "resonate:parent": "run/r:calls",
            "resonate:origin": "run/r",
            "resonate:prefix": "run/r",
        }
        claimed = await runner.client.send(AcquireTask(id=FIRST, version=0, pid="js", ttl=1000))
        assert claimed.status == 200


@virtual_test
async def test_a_call_waits_without_a_slot_and_says_for_what():
    """Parked at once; the answer wakes it at the very instant, with the slot."""
    async with Runner("memory:", slots=1) as runner:
        with SlotWatch(runner) as slots:
            run = await runner.start(flow_of(calls_hello(target="poll://any@ts")), run_id="r")
            await asyncio.sleep(1234.567)
            assert slots.held == 0
            seen = await look(run, "calls")
            assert seen.sub_status == "Deferred"
            assert seen.waiting_on is not None
            assert (seen.waiting_on.kind, seen.waiting_on.awaited) == ("rpc", FIRST)
            assert seen.waiting_on.sentence == "waiting for hello() at poll://any@ts"
            assert seen.waiting_on.deadline is None
            now = runner.now()
            await answer(runner, FIRST, {"greeting": "Hello!"})
            result = await run.result()
            assert runner.now() == now
    assert result.to_dict() == {"got": {"greeting": "Hello!"}, "held": True}


@virtual_test
async def test_an_error_of_the_function_is_raised():
    """Whatever its language wrote: name and message if there are such, else all of it."""
    told = {}

    @task
    async def calls(context, handle):
        for number in (1, 2, 3, 4):
            with pytest.raises(PromiseRejected) as caught:
                await handle.rpc("hello")
            told[number] = caught.value

    async with Runner("memory:", slots=1) as runner:
        run = await runner.start(flow_of(calls), run_id="r")
        await settled_down()
        error = {"__type": "error", "name": "TypeError", "message": "x is not a function"}
        await answer(runner, FIRST, error, "rejected")
        await settled_down()
        await answer(runner, "run/r:calls.x.rpc-2", {"__type": "error", "message": "m"}, "rejected")
        await settled_down()
        await answer(runner, "run/r:calls.x.rpc-3", "thrown text", "rejected")
        await settled_down()
        await runner.client.send(CancelPromise(id="run/r:calls.x.rpc-4", reason="no"))
        await run.result()
    assert (told[1].name, told[1].message) == ("TypeError", "x is not a function")
    assert told[2].message == "m"
    assert (told[3].message, told[3].data) == ("thrown text", "thrown text")
    assert isinstance(told[4], PromiseCancelled)


@virtual_test
async def test_a_timeout_is_the_deadline_of_the_call_itself():
    """One winner: when the caller gives up, nobody works on it any more."""
    clock = current_clock()

    @task
    async def calls(context, handle):
        begin = clock.now()
        with pytest.raises(DeferTimeout, match=r"hello\(\) at poll://any@default"):
            await handle.rpc("hello", timeout=60)
        assert handle.is_slot_held()
        context["after"] = clock.now() - begin

    async with Runner("memory:", slots=1) as runner:
        run = await runner.start(flow_of(calls), run_id="r")
        await asyncio.sleep(30)
        seen = await look(run, "calls")
        assert seen.waiting_on is not None
        assert seen.waiting_on.deadline == promises(runner)[FIRST].timeout_at
        assert (await run.result())["after"] == 60_000
        assert promises(runner)[FIRST].is_timed_out
        assert (await task_of(runner, FIRST)).state == "fulfilled"


@virtual_test
async def test_a_call_does_not_outlast_its_run():
    """Its deadline is that of the run at the latest, and without one there is none."""
    async with Runner("memory:") as runner:
        flow = flow_of(calls_hello(timeout=3600))
        await runner.start(flow, run_id="r", deadline=60)
        await runner.start(flow_of(calls_hello(), name="other"), run_id="s")
        await settled_down()
        assert promises(runner)[FIRST].timeout_at == runner.now() + 60_000
        assert promises(runner)["run/s:calls.x.rpc-1"].timeout_at == 2**53 - 1


@pytest.mark.parametrize(
    ("target", "remedy"),
    [
        ("poll://any@layby.default", "poll://any@default"),
        ("poll://uni@layby.g/w", "poll://any@g"),
        ("default", "poll://any@GROUP"),
        ("nats://x", "poll://any@GROUP"),
        (None, "poll://any@GROUP"),
    ],
)
@virtual_test
async def test_a_target_that_no_function_can_be_at_is_refused(target, remedy):
    """At the call, with what to write instead; nothing has been created."""

    @task
    async def calls(context, handle):
        with pytest.raises(UsageError, match=remedy):
            await handle.rpc("hello", target=target)

    async with Runner("memory:") as runner:
        await runner.execute(flow_of(calls), run_id="r")
        assert FIRST not in promises(runner)


@pytest.mark.parametrize(
    ("args", "options", "said"),
    [
        ((" ",), {}, "name of a function"),
        ((7,), {}, "name of a function"),
        (("f", {1, 2}), {}, "JSON"),
        (("f",), {"version": -1}, "version"),
        (("f",), {"version": True}, "version"),
        (("f",), {"timeout": -1}, "timeout"),
        (("f",), {"key": ""}, "key"),
    ],
)
@virtual_test
async def test_a_call_that_cannot_be_is_refused(args, options, said):
    """At the call, naming what is wrong."""

    @task
    async def calls(context, handle):
        with pytest.raises(UsageError, match=said):
            await handle.rpc(*args, **options)

    async with Runner("memory:") as runner:
        await runner.execute(flow_of(calls), run_id="r")
        assert not [key for key in promises(runner) if ".x." in key]


@virtual_test
async def test_a_crash_makes_no_second_call(tmp_path):
    """The next life finds the promise of the first, waits on, or reads the answer that came."""
    address = f"sqlite:{tmp_path / 'a.db'}"
    bodies = []

    @task
    async def calls(context, handle):
        bodies.append(handle.try_number)
        context["a"] = await handle.rpc("hello", "a")
        context["b"] = await handle.rpc("hello", "b", key="mine")

    flow = flow_of(calls)
    async with crashing(address) as runner:
        await runner.start(flow, run_id="r")
        await asyncio.sleep(5)
    async with crashing(address) as runner:
        runner.register(flow)
        await asyncio.sleep(5)
        await answer(runner, FIRST, "A")
        await asyncio.sleep(5)
    async with Runner(address) as runner:
        await answer(runner, "run/r:calls.x.key.mine", "B")
        runner.register(flow)
        run = await runner.get("r")
        assert (await run.result()).to_dict() == {"a": "A", "b": "B"}
    assert bodies == [1, 2, 3]


@virtual_test
async def test_a_failed_try_repeats_only_calls_that_went_wrong():
    """What was answered stands, as a checkpoint does; what was refused or late is asked again."""
    tries = []

    @task(retries=3)
    async def calls(context, handle):
        tries.append(runner.now())
        context["good"] = await handle.rpc("good")
        context["bad"] = await handle.rpc("bad", timeout=60)
        if len(tries) < 4:
            raise ValueError("not yet")

    async with Runner("memory:", slots=1) as runner:
        run = await runner.start(flow_of(calls), run_id="r")
        await settled_down()
        await answer(runner, FIRST, "G")
        await settled_down()
        await answer(runner, "run/r:calls.x.rpc-2", "no", "rejected")
        await asyncio.sleep(65)
        assert promises(runner)["run/r:calls.x2.rpc-2"].is_timed_out
        await answer(runner, "run/r:calls.x3.rpc-2", "B")
        assert (await run.result()).to_dict() == {"good": "G", "bad": "B"}
        made = sorted(key for key in promises(runner) if ".x" in key)
        assert made == [
            "run/r:calls.x.rpc-1",
            "run/r:calls.x.rpc-2",
            "run/r:calls.x2.rpc-2",
            "run/r:calls.x3.rpc-2",
        ]


@virtual_test
async def test_after_a_crash_a_refusal_that_the_body_has_seen_stands(tmp_path):
    """Also in a second try: only what went wrong before that try is made anew."""
    address = f"sqlite:{tmp_path / 'a.db'}"

    @task(retries=1)
    async def calls(context, handle):
        if handle.try_number == 1:
            raise ValueError("once")
        try:
            await handle.rpc("hello")
        except PromiseRejected:
            context["fallback"] = await handle.wait_for("fallback")

    flow = flow_of(calls)
    async with crashing(address) as runner:
        await runner.start(flow, run_id="r")
        await asyncio.sleep(5)
        await answer(runner, FIRST, "no", "rejected")
        await asyncio.sleep(5)
    async with Runner(address) as runner:
        runner.register(flow)
        await asyncio.sleep(5)
        await runner.resolve("fallback", 7)
        run = await runner.get("r")
        assert (await run.result()).to_dict() == {"fallback": 7}


@pytest.mark.parametrize(
    ("args", "options"),
    [(("hello", "other"), {}), (("hi", "you"), {}), (("hello", "you"), {"version": 2})],
)
@virtual_test
async def test_changed_code_is_told_what_was_called_before(tmp_path, args, options):
    """The mismatch names both calls; the same one at another target is no other call."""
    address = f"sqlite:{tmp_path / 'a.db'}"
    code = [(("hello", "you"), {}), (("hello", "you"), {"target": "poll://any@b"}), (args, options)]

    @task
    async def calls(context, handle):
        args, options = code.pop(0)
        await handle.rpc(*args, **options)

    flow = flow_of(calls)
    for _ in range(2):
        async with crashing(address) as runner:
            run = await runner.start(flow, run_id="r")
            await asyncio.sleep(5)
            assert (await look(run, "calls")).sub_status == "Deferred"
    async with Runner(address) as runner:
        run = await runner.start(flow, run_id="r")
        await asyncio.sleep(5)
        waiting = (await look(run, "calls")).waiting_on
        assert waiting is not None
        assert waiting.kind == "code"
        assert re.search(r'now calls rpc\(.*an earlier try .*rpc\("hello",1,', waiting.sentence)


@virtual_test
async def test_calls_side_by_side_need_keys():
    """As all durable calls; with keys they share the wait."""

    @task
    async def calls(context, handle):
        first = asyncio.ensure_future(handle.rpc("a"))
        await asyncio.sleep(0)
        with pytest.raises(UsageError, match="key="):
            await handle.rpc("b")
        first.cancel()
        await asyncio.wait([first])
        got = await asyncio.gather(handle.rpc("a", key="a"), handle.rpc("b", key="b"))
        context["got"] = got

    async with Runner("memory:", slots=1) as runner:
        with SlotWatch(runner) as slots:
            run = await runner.start(flow_of(calls), run_id="r")
            await asyncio.sleep(5)
            assert slots.held == 0
            await answer(runner, "run/r:calls.x.key.b", 2)
            await answer(runner, "run/r:calls.x.key.a", 1)
            assert (await run.result())["got"] == [1, 2]


@virtual_test
async def test_a_plain_def_calls_too():
    """The blocking handle has the same call."""

    @task
    def calls(context, handle):
        context["got"] = handle.rpc("hello", "you", timeout=60)

    async with Runner("memory:", slots=1) as runner:
        with SlotWatch(runner) as slots:
            run = await runner.start(flow_of(calls), run_id="r")
            await asyncio.sleep(5)
            assert slots.held == 0
            await answer(runner, FIRST, "Hello!")
            assert (await run.result())["got"] == "Hello!"


@virtual_test
async def test_recovery_does_not_read_what_the_called_function_keeps(tmp_path):
    """Thousands of steps of a workflow elsewhere lie below the call, not among our records."""
    address = f"sqlite:{tmp_path / 'a.db'}"

    @task
    async def calls(context, handle):
        context["kept"] = await handle.checkpoint("k", lambda: bodies.append(1) or len(bodies))
        context["got"] = await handle.rpc("hello")
        await handle.sleep(1)

    bodies = []
    flow = flow_of(calls)
    async with crashing(address) as runner:
        await runner.start(flow, run_id="r")
        await asyncio.sleep(5)
        for number in range(2_100):
            await answer(runner, f"{FIRST}.{number}", number)
    async with Runner(address) as runner:
        asked = []
        client: Any = runner.client
        send = client.send
        client.send = lambda request, *rest: asked.append(request.kind) or send(request)
        runner.register(flow)
        await asyncio.sleep(5)
        await answer(runner, FIRST, "Hello!")
        run = await runner.get("r")
        assert (await run.result()).to_dict() == {"kept": 1, "got": "Hello!"}
        assert asked.count("layby.task.records") == 1


# --- what the result is --------------------------------------------------------------------------


@task(rpc="hello")
async def hello(context) -> str:
    return f"hello, {context['args'][0]}"


@virtual_test
async def test_a_task_of_this_program_is_called_by_its_name():
    """The same call as by name, so either finds what the other has made."""

    @task
    async def calls(context, handle):
        context["got"] = await handle.rpc(hello, "Ada")

    async with Runner("memory:") as runner:
        runner.register(hello)
        assert (await runner.execute(flow_of(calls), run_id="r"))["got"] == "hello, Ada"
        param = json.loads(promises(runner)[FIRST].param)
        assert json.loads(base64.b64decode(param["data"]))["func"] == "hello"


@virtual_test
async def test_what_serves_no_calls_cannot_be_called():
    """Neither a task without a name for callers, nor a function."""

    @task
    async def silent(context): ...

    def plain(context): ...

    @task
    async def calls(context, handle):
        for func, name in ((silent, "silent"), (plain, "plain")):
            with pytest.raises(UsageError, match=f"rpc: '{name}' serves no calls: write @task"):
                await handle.rpc(func, 1)
        with pytest.raises(UsageError, match="name of a function"):
            await handle.rpc(None, 1)

    async with Runner("memory:") as runner:
        await runner.execute(flow_of(calls))


@pytest.mark.parametrize(
    ("returns", "value", "got"),
    [(int, 7, 7), (float, 7, 7.0), (dict[str, int], {"n": 1}, {"n": 1}), (None, "any", "any")],
)
@virtual_test
async def test_an_answer_of_the_declared_type(returns, value, got):
    """Read as that type; without one, whatever came."""
    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(calls_hello(returns=returns)), run_id="r")
        await settled_down()
        await answer(runner, FIRST, value)
        result = (await run.result())["got"]
        assert (result, type(result)) == (got, type(got))


@virtual_test
async def test_an_answer_of_another_type_says_which_call_what_was_expected_and_what_came():
    """Kept like every answer: the next try reads the same."""
    async with Runner("memory:") as runner:
        run = await runner.start(flow_of(calls_hello(returns=int)), run_id="r")
        await settled_down()
        await answer(runner, FIRST, "seven")
        with pytest.raises(RunFailed) as caught:
            await run.result()
    assert caught.value.failed["calls"].endswith(
        "run/r:calls: hello() at poll://any@default did not return int: "
        "its answer: expected int, got str 'seven'"
    )


@virtual_test
async def test_a_plain_def_calls_likewise():
    """A task by itself, and an answer of the declared type."""

    @task
    def calls(context, handle):
        context["got"] = [handle.rpc(hello, "Ada"), handle.rpc("hello", "Bo", returns=str)]

    async with Runner("memory:", slots=2) as runner:
        runner.register(hello)
        result = await runner.execute(flow_of(calls))
    assert result["got"] == ["hello, Ada", "hello, Bo"]
