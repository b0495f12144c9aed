"""Blocked tasks: back to pending with their place, and only for workers with other code."""

import random
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from layby.core import commands as c
from layby.core import queries as q
from layby.core.codes import MAX_REFUSALS, Refusals, fits, refusing_codes
from layby.core.takes import RETRY_REFUSED_MS
from layby.core.validate import MAX_CODE_CHARS
from layby.core.waits import waiting_of
from layby.engine.items import Item
from tests.helpers import requests as r
from tests.helpers.worlds import BACKENDS, World, resolve

NODE = "run/a:a"


def take(code: str = "", free: int = 1, pid: str | None = None, **fields: Any) -> c.Take:
    """Of a worker that names its code; each code has a worker of its own."""
    codes = (("f", code), ("root", code)) if code else ()
    return replace(r.take(free, pid=pid or f"p{code}"), codes=codes, **fields)


def block(code: str, version: int = 1, task_id: str = NODE, **fields: Any) -> c.BlockTask:
    return c.BlockTask(id=task_id, version=version, code=code, why="sleep(1) is new", **fields)


def ids(taken: Any) -> list[str]:
    return [claim.task.id for claim in taken.claims]


def blocked(world: World, code: str = "bad", run_id: str = "run/a") -> None:
    """A run of one node that this code has refused."""
    world.ok(r.run(run_id, a=""))
    version = world.ok(take(code)).claims[0].task.version
    world.ok(block(code, version, f"{run_id}:a", ready_at=world.now))
    world.clock.advance(RETRY_REFUSED_MS)


def test_a_blocked_task_is_pending_with_its_place_and_says_so(world: World) -> None:
    """Neither a failure nor a crash; its try is over, and it waits for other code."""
    world.clock.advance(5)
    world.ok(r.run(a=""))
    world.clock.advance(5)
    world.ok(take("bad"))
    world.clock.advance(5)
    world.ok(block("bad", ready_at=5, history='{"tries":[]}'))
    task = world.task(NODE)
    assert (task.state, task.ready_at, task.pid, task.holder) == ("pending", 5, None, None)
    assert (task.failures, task.crashes, task.tries, task.version) == (0, 0, 1, 1)
    assert task.history == '{"tries":[]}'
    assert refusing_codes(task) == ("bad",)
    waiting = waiting_of(world.dump().promises[NODE], task, world.now)
    assert waiting is not None
    assert (waiting.form, waiting.kind, waiting.since) == ("blocked", "code", 15)
    assert waiting.told is not None
    assert "other code than 'bad'" in waiting.told.sentence
    assert "sleep(1) is new" in waiting.told.sentence
    world.check()


def test_every_code_that_refused_it_is_named(world: World) -> None:
    """Whoever starts a worker must know all that do not fit."""
    blocked(world)
    world.ok(take("worse"))
    world.ok(block("worse", 2))
    waiting = waiting_of(world.dump().promises[NODE], world.task(NODE), world.now)
    assert waiting is not None
    assert waiting.told is not None
    assert "other code than 'bad' and 'worse' takes it: sl" in waiting.told.sentence


def test_a_claim_whose_body_never_ran_is_not_a_try(world: World) -> None:
    """A worker may find out before it begins."""
    world.ok(r.run(a=""))
    world.ok(take("bad"))
    world.ok(block("bad", begun=False))
    assert world.task(NODE).tries == 0
    world.check()


def test_only_workers_with_other_code_are_offered_it(world: World) -> None:
    """Not the code that refused it, in whatever process; any other, at once."""
    blocked(world)
    assert ids(world.ok(take("bad"))) == []
    assert ids(world.ok(take("bad", pid="another"))) == []
    assert ids(world.ok(take("good"))) == [NODE]
    task = world.task(NODE)
    assert (task.state, task.waiting_on, refusing_codes(task)) == ("acquired", None, ("bad",))
    world.check()


def test_it_remembers_who_refused_it_after_it_ran_elsewhere(world: World) -> None:
    """The good worker crashes: the bad one is still not asked."""
    blocked(world)
    world.ok(take("good"))
    world.ok(c.LeaveWorker(pid="pgood", incarnation="1"))
    world.tick(1)
    assert ids(world.ok(take("bad"))) == []
    assert ids(world.ok(take("better"))) == [NODE]


def test_it_is_not_the_oldest_left_for_a_worker_that_may_not_take_it(world: World) -> None:
    """Such a worker would ask for it again and again; one that may take it hears of it."""
    blocked(world)
    assert world.ok(take("bad", free=0)).oldest_left is None
    assert world.ok(take("good", free=0)).oldest_left == 0


def test_it_keeps_its_place_among_others(world: World) -> None:
    """Older than what came later, for those who may take it; out of the way of the others."""
    blocked(world)
    world.ok(r.run("run/b", a=""))
    assert ids(world.ok(take("bad", free=2))) == ["run/b:a"]
    world.ok(r.run("run/c", a=""))
    assert ids(world.ok(take("good", free=2))) == [NODE, "run/c:a"]


def test_a_worker_is_offered_at_most_ten_a_second(world: World) -> None:
    """However many there are, and however many slots it has; other tasks are not held up."""
    for number in range(5):
        blocked(world, run_id=f"run/{number}")
    world.ok(r.run("run/x", a=""))
    taken = world.ok(take("good", free=9))
    assert ids(taken) == ["run/0:a", "run/x:a"]
    assert (taken.oldest_left, taken.look_at) == (None, world.now + RETRY_REFUSED_MS)
    world.clock.advance(RETRY_REFUSED_MS - 1)
    assert ids(world.ok(take("good", free=9))) == []
    assert ids(world.ok(take("good", free=9, pid="another"))) == ["run/1:a"]
    world.clock.advance(1)
    assert ids(world.ok(take("good", free=9))) == ["run/2:a"]
    world.check()


def test_the_rate_counts_within_a_batch(world: World) -> None:
    """Two workers with the same code get one each, a second take of the same gets none."""
    for number in range(3):
        blocked(world, run_id=f"run/{number}")
    takes = [take("good"), take("good"), take("good", pid="another")]
    replies = world.batch([(each, world.now) for each in takes])
    assert [ids(reply.data) for reply in replies] == [["run/0:a"], [], ["run/1:a"]]
    world.check()


def test_the_last_eight_codes_are_remembered(world: World) -> None:
    """The ninth makes the first eligible again, at the limited rate: nothing grows, or spins."""
    world.ok(r.run(a=""))
    for number in range(MAX_REFUSALS + 1):
        world.clock.advance(RETRY_REFUSED_MS)
        version = world.ok(take(f"v{number}")).claims[0].task.version
        world.ok(block(f"v{number}", version))
    codes = tuple(f"v{number}" for number in range(1, MAX_REFUSALS + 1))
    assert refusing_codes(world.task(NODE)) == codes
    world.clock.advance(RETRY_REFUSED_MS)
    assert ids(world.ok(take("v1"))) == []
    assert ids(world.ok(take("v0"))) == [NODE]
    world.check()


def test_only_the_claim_may_block(world: World) -> None:
    """Fenced like everything else a worker does."""
    world.ok(r.run(a=""))
    assert world.send(block("bad", 0)).status == 409
    world.ok(take("bad"))
    assert world.send(block("bad", 2)).status == 409
    assert world.send(block("bad", task_id="run/none:a")).status == 404
    world.ok(block("bad"))
    assert world.send(block("bad")).status == 409


def test_what_has_no_code_to_be_refused_by_is_not_blocked(world: World) -> None:
    """A root needs no code of its own, and a call of the protocol goes to whoever is told."""
    world.ok(r.run(a=""))
    world.ok(r.settle(NODE))
    world.ok(take("bad"))
    assert world.send(block("bad", task_id="run/a")).status == 422
    world.ok(r.promise("call", target="poll://any@default"))
    world.ok(c.AcquireTask(id="call", version=0, pid="sdk", ttl=1_000))
    assert world.send(block("bad", task_id="call")).status == 422


@pytest.mark.parametrize(
    "wrong",
    [{"code": ""}, {"code": "x" * (MAX_CODE_CHARS + 1)}, {"why": "x" * 5_000}, {"ready_at": -1}],
)
def test_what_cannot_be_stored_is_refused(world: World, wrong: dict[str, Any]) -> None:
    """Names and reasons have an end."""
    assert world.send(replace(block("bad"), **wrong)).status == 400


def test_a_take_with_too_long_a_code_is_refused(world: World) -> None:
    """As the command that blocks."""
    assert world.send(take("x" * (MAX_CODE_CHARS + 1))).status == 400


# --- going on ------------------------------------------------------------------------------


def test_continue_does_not_touch_it_and_continue_code_does(world: World) -> None:
    """A block is not a person's halt; but a person may let everybody try again."""
    blocked(world)
    assert world.send(c.ContinueTask(id=NODE)).status == 409
    assert ids(world.ok(take("bad"))) == []
    world.ok(c.ContinueBlocked(id=NODE))
    assert (world.task(NODE).refused, world.task(NODE).waiting_on) == (None, None)
    assert world.task(NODE).ready_at == 0
    assert ids(world.ok(take("bad"))) == [NODE]
    assert world.send(c.ContinueBlocked(id=NODE)).status == 409
    assert world.send(c.ContinueBlocked(id="run/none:a")).status == 404
    world.check()


def test_a_halt_on_top_of_a_block_is_a_halt(world: World) -> None:
    """And after it is continued, the task still waits for other code."""
    blocked(world)
    world.ok(c.HaltTask(id=NODE))
    assert world.task(NODE).state == "halted"
    assert ids(world.ok(take("good"))) == []
    world.ok(c.ContinueTask(id=NODE))
    assert ids(world.ok(take("bad"))) == []
    assert ids(world.ok(take("good"))) == [NODE]
    world.check()


def test_a_deadline_ends_a_blocked_task(world: World) -> None:
    """Time goes on for it as for any other."""
    world.ok(r.run(timeout=500, a=""))
    world.ok(take("bad"))
    world.ok(block("bad"))
    world.tick(500)
    assert world.task(NODE).state == "fulfilled"
    assert world.dump().promises["run/a"].state == "rejected_timedout"
    world.check()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_waiting_take_is_woken_when_its_turn_comes(backend) -> None:
    """By the block itself, and by time: nobody has to ask again and again."""
    with World(backend, paused=False, now=1_000) as world:
        for number in range(3):
            world.ok(r.run(f"run/{number}", a=""))
        claims = world.ok(take("bad", free=3)).claims
        got: list[str] = []
        for expected, at in enumerate((1_000, 1_100, 1_200)):
            waiting: Future[Any] = Future()
            world.engine.submit([Item(take("good", wait_ms=9_000), resolve, waiting)])
            world.engine.pump()
            if expected == 0:
                assert not waiting.done()
                for claim in claims:
                    world.ok(block("bad", claim.task.version, claim.task.id, ready_at=1_000))
            while not waiting.done():
                world.clock.advance(1)
                world.engine.pump()
            assert world.now == at
            got += ids(waiting.result().data)
        assert got == ["run/0:a", "run/1:a", "run/2:a"]


# --- pins ----------------------------------------------------------------------------------


def test_the_first_code_pins_a_run(world: World) -> None:
    """Whoever comes second is told the first."""
    world.ok(r.run(a="", b=""))
    world.ok(take("v1"))
    world.ok(take("v2"))
    assert world.ok(c.PinRun(id=NODE, version=1, code="v1")).code == "v1"
    assert world.ok(c.PinRun(id="run/a:b", version=1, code="v2")).code == "v1"
    assert world.dump().tasks["run/a"].pin == "v1"
    assert world.send(c.PinRun(id=NODE, version=9, code="v1")).status == 409
    world.check()


def test_what_is_pinned_is_only_for_that_code(world: World) -> None:
    """A third code need not find out for itself; continue --code unpins the run."""
    world.ok(r.run(a=""))
    world.ok(take("v2"))
    world.ok(c.PinRun(id=NODE, version=1, code="v1"))
    world.ok(block("v2", pin="v1", begun=False))
    world.clock.advance(RETRY_REFUSED_MS)
    assert ids(world.ok(take("v3"))) == []
    explained = world.ok(q.ExplainPromise(id=NODE))
    assert (explained.workers, explained.able_workers) == (2, 0)
    world.ok(c.ContinueBlocked(id=NODE))
    assert world.dump().tasks["run/a"].pin is None
    assert ids(world.ok(take("v3"))) == [NODE]


# --- the rule itself -----------------------------------------------------------------------

CODES = st.text("abc", min_size=1, max_size=2)


@given(
    refused=st.lists(CODES, min_size=1, max_size=8), pin=CODES | st.none(), code=CODES | st.none()
)
def test_a_code_fits_unless_it_refused_or_another_is_pinned(refused, pin, code) -> None:
    """Whatever other workflows the worker has code for."""
    text = Refusals("flow/task", tuple(refused), pin).to_text()
    codes = (("other", "zz"),) + (() if code is None else (("flow", code),))
    assert fits(text, codes) == (code not in refused and pin in (None, code))
    assert fits(None, codes)


@pytest.mark.parametrize("backend", BACKENDS)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=15)
def test_a_task_is_never_offered_to_a_code_that_it_remembers(backend, seed: int) -> None:
    """Random workers, blocks, ends and continues; every invariant holds throughout."""
    chance = random.Random(seed)
    with World(backend, now=1) as world:
        for number in range(3):
            world.ok(r.run(f"run/{number}", a="", b="a"))
        for _ in range(40):
            world.clock.advance(chance.choice((0, 50, 100)))
            code = chance.choice("abc")
            before = world.dump().tasks
            for claim in world.ok(take(code, free=chance.randrange(3))).claims:
                assert code not in refusing_codes(before[claim.task.id])
                if claim.task.is_root:
                    continue
                act = chance.choice(("block", "finish", "hold"))
                if act == "block":
                    world.ok(block(code, claim.task.version, claim.task.id))
                elif act == "finish":
                    world.ok(r.finish(claim.task.id, claim.task.version))
            if chance.random() < 0.1:
                world.send(c.ContinueBlocked(id=f"run/{chance.randrange(3)}:a"))
            world.check()
