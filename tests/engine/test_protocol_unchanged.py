"""layby changes no protocol behaviour: a foreign client cannot tell that it is there."""

import random

import pytest

from tests.helpers import requests as r
from tests.helpers.seeds import seeds
from tests.helpers.worlds import BACKENDS, World
from tests.model.oracle import Oracle
from tests.model.scripts import START, Script, seeded_script
from tests.model.test_engine import assert_alike


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", seeds(3, slow=40))
def test_protocol_answers_are_the_same_beside_living_runs(backend, seed: int) -> None:
    """Random protocol scripts get the model's answers while runs and holders live beside them."""
    script = seeded_script(seed, 120)
    chance = random.Random(seed)
    with World(backend, now=START) as world:
        oracle = Oracle()
        for step, (kind, data, now) in enumerate(script):
            busy(world, chance, step, now)
            said = oracle.request(kind, data, now, corr_id="c")
            answer = world.ask(kind, data, now)
            if kind not in ("promise.search", "task.search", "debug.snap"):
                assert_alike(kind, said, answer, f"step {step}: {kind} {data} at {now}")
            elif kind == "debug.snap":
                assert_alike(kind, said, (answer[0], without_ours(answer[1])), f"step {step}")
            world.check(now)


def busy(world: World, chance: random.Random, step: int, now: int) -> None:
    """Something layby does on ids of its own, with pids that the script uses too."""
    pid = chance.choice("pq")
    match chance.randrange(5):
        case 0:
            request = r.run(f"zz/{step}", now + chance.choice((500, 10**7)), a="", b="a", d="a b")
        case 1:
            request = r.take(chance.randrange(3), pid=pid, ttl=chance.choice((1_000, 10**6)))
        case 2:
            held = [t for t in world.dump().tasks.values() if t.holder is not None]
            if not held:
                return
            task = chance.choice(sorted(held, key=lambda each: each.id))
            request = r.finish(task.id, task.version, r.take(1, pid=pid))
        case 3:
            request = r.settle(f"zz/{chance.randrange(step + 1)}")
        case _:
            return
    assert world.send(request, now).status in (200, 400, 404, 409)


def without_ours(snap: dict) -> dict:
    """A snapshot as if layby's rows were not there."""
    return {
        name: [each for each in rows if not is_ours(each)]
        for name, rows in snap.items()
        if isinstance(rows, list)
    }


def is_ours(row: dict) -> bool:
    key = row.get("id") or row.get("awaited")
    if key is None:
        data = row["message"]["data"]
        key = (data.get("task") or data.get("promise"))["id"]
    return key.startswith("zz/")


def test_the_script_is_really_mixed() -> None:
    """The runs beside it are taken and finished, or the test above would prove nothing."""
    script: Script = seeded_script(1, 120)
    chance = random.Random(1)
    with World(now=START) as world:
        for step, (_, _, now) in enumerate(script):
            busy(world, chance, step, now)
        tasks = world.dump().tasks.values()
        assert {"fulfilled", "acquired", "suspended"} <= {task.state for task in tasks}
