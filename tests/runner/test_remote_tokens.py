"""A Runner whose token the server does not accept any more, or not for everything."""

import asyncio
import logging
import time
from typing import Any

import jwt
import pytest

from layby import RunFailed, Workflow, task, triggers
from layby.client import inbox, patience
from layby.core.pauses import Pauses
from layby.core.replies import Reply
from layby.errors import NotAllowed
from layby.server.auth import FORBIDDEN, UNAUTHORIZED, Gate
from layby.worker import worker
from tests.helpers.callers import answer_to, call
from tests.helpers.troubled_server import soon
from tests.runner.test_remote import Place, at_a_place


class Rights:
    """What the server's gate says to everybody, while it says it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refusal: Reply | None = None
        identify, permit = Gate.identify, Gate.permit

        def identify_or_refuse(gate: Gate, token: str | None) -> Any:
            return self.refusal if self.refusal is UNAUTHORIZED else identify(gate, token)

        def permit_or_refuse(gate: Gate, *asked: Any) -> Any:
            return self.refusal if self.refusal is FORBIDDEN else permit(gate, *asked)

        monkeypatch.setattr(Gate, "identify", identify_or_refuse)
        monkeypatch.setattr(Gate, "permit", permit_or_refuse)


@pytest.fixture
def rights(monkeypatch: pytest.MonkeyPatch) -> Rights:
    monkeypatch.setattr(worker, "REFUSED_S", 0.1)
    monkeypatch.setattr(patience, "PAUSES", Pauses(0.05, 0.05))
    monkeypatch.setattr(inbox, "RENEW_EVERY_S", 0.1)
    return Rights(monkeypatch)


@task
async def works(context): ...


@task
async def waits(context, handle):
    context["answer"] = await handle.wait_for("event")


@pytest.mark.parametrize("refusal", [UNAUTHORIZED, FORBIDDEN], ids=["401", "403"])
def test_a_worker_that_is_refused_asks_now_and_then(
    rights: Rights, refusal: Reply, caplog: pytest.LogCaptureFixture
):
    """Not thousands of times a second, and not as another worker: it has lost no lease."""

    async def scene(place: Place) -> None:
        async with place.runner(lease=60) as runner:
            runner.register(Workflow("works", tasks=[works]))
            incarnation = runner.worker.incarnation
            rights.refusal = refusal
            runner.register(Workflow("others", tasks=[works]))  # a new take
            before = len(place.meddler.came)

            def asked() -> int:
                return sum(kind.endswith("take") for kind, _ in place.meddler.came[before:])

            await asyncio.sleep(0.6)
            assert asked() <= 30
            await soon(lambda: asked() >= 2)
            assert runner.worker.incarnation == incarnation
            rights.refusal = None
            await runner.execute(Workflow("works", tasks=[works]), timeout=20)

    with caplog.at_level(logging.WARNING):
        at_a_place(scene)
    assert "lost its lease" not in caplog.text


@pytest.mark.files_only("looks into a store of another thread")
def test_what_waits_and_what_ends_meanwhile_is_not_lost(rights: Rights):
    """A token that is not known for a while is like a server that is away."""
    begun, gate = asyncio.Event(), asyncio.Event()
    tries: list[int] = []

    @task
    async def ends(context, handle):
        tries.append(handle.try_number)
        begun.set()
        await gate.wait()
        await handle.checkpoint("key", lambda: 1)

    async def scene(place: Place) -> None:
        async with place.runner(lease=60) as runner:
            runs = [await runner.start(Workflow(each.id, tasks=[each])) for each in (ends, waits)]
            results = [asyncio.ensure_future(run.result()) for run in runs]
            await begun.wait()
            await soon(lambda: len(place.server.engine._store.dump().listeners) >= 3)
            rights.refusal = UNAUTHORIZED
            place.meddler.end_streams()
            gate.set()
            await asyncio.sleep(0.5)
            rights.refusal = None
            await runner.resolve("event", 1)
            await asyncio.wait_for(asyncio.gather(*results), 20)
            assert tries == [1]

    at_a_place(scene)


def test_calls_that_run_meanwhile_go_on(rights: Rights):
    """Nobody can be asked whether they are still ours: that is no answer."""
    begun, gate = asyncio.Event(), asyncio.Event()

    @task(rpc="f")
    async def serves(context):
        begun.set()
        await gate.wait()
        return 7

    async def scene(place: Place) -> None:
        async with place.runner(lease=60) as runner:
            runner.register(serves)
            await call(runner, "c", "f", 1)
            await begun.wait()
            rights.refusal = UNAUTHORIZED
            await runner.worker.calls.check_leases()
            rights.refusal = None
            gate.set()
            assert await asyncio.wait_for(answer_to(runner, "c"), 10) == 7

    at_a_place(scene)


def test_what_may_not_be_done_is_said(rights: Rights):
    """By every verb, in words."""

    async def refused(what: Any, match: str) -> None:
        with pytest.raises(NotAllowed, match=f"{match}: the token does not allow this; .*token="):
            await what

    async def scene(place: Place) -> None:
        async with place.runner() as runner:
            flow = Workflow("waits", tasks=[waits])
            run = await runner.start(flow, run_id="a")
            schedule = await runner.schedule(Workflow("works", tasks=[works]), "0 0 1 1 *")
            rights.refusal = FORBIDDEN
            await refused(run.status(), "run 'a' cannot be read: Forbidden")
            await refused(run.result(), "run 'a' cannot be watched: Forbidden")
            await refused(runner.list(), "the list of runs cannot be read: Forbidden")
            await refused(runner.schedules(), "the list of schedules cannot be read: Forbidden")
            await refused(schedule.runs(), "the list of runs cannot be read: Forbidden")
            await refused(schedule.delete(), "schedule 'works': Forbidden")
            await refused(runner.cancel("a"), "run 'a': Forbidden")
            await refused(runner.halt("a"), "run 'a': Forbidden")
            await refused(runner.resolve("event"), "promise 'event': Forbidden")
            await refused(runner.start(flow, run_id="b"), "run 'b' cannot be started: Forbidden")
            await refused(runner.schedule(flow, "0 0 1 1 *"), "schedule 'waits': Forbidden")
            rights.refusal = UNAUTHORIZED
            with pytest.raises(NotAllowed, match="'event': Unauthorized: the server needs a valid"):
                await runner.resolve("event")

    at_a_place(scene)


@task
async def defers_elsewhere(context, handle):
    await handle.defer(triggers.Event("elsewhere"))


def test_whoever_may_not_wait_for_an_event_is_told():
    """Its task fails and says why, as one that awaits such a promise; it does not begin again."""

    async def scene(place: Place) -> None:
        claims = {"exp": time.time() + 600, "prefix": "run/ci-", "groups": ["ci"]}
        token = jwt.encode(claims, "nobody looks at the signature here", algorithm="HS256")
        async with place.runner(token=token, group="ci") as runner:
            flow = Workflow("defers", tasks=[defers_elsewhere])
            with pytest.raises(RunFailed) as failed:
                await runner.execute(flow, run_id="ci-1", timeout=20)
        assert "NotAllowed: run/ci-1:defers_elsewhere cannot be deferred" in str(failed.value)
        assert "give one that does" in str(failed.value)

    at_a_place(scene, {"auth.public_key": "none"})
