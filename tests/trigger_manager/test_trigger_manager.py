"""A trigger manager on a real engine: outcomes, hand-over, capacity, and bad triggers."""

import asyncio
import json
import logging
import sqlite3
from typing import Any, ClassVar

import pytest

from layby import triggers
from layby.testing import virtual_test
from layby.trigger_manager.trigger_access import NamedSecret, TriggerAccess
from layby.trigger_manager.trigger_program import MAX_PAYLOAD_BYTES
from tests.helpers.triggers import trigger_world
from tests.helpers.workers import until


class Scripted(triggers.Trigger, frozen=True):
    """Does what its argument says, and notes what is called."""

    what: str = "fire"
    log: ClassVar[list[str]] = []

    async def run(self) -> Any:
        self.log.append(f"run {self.what}")
        match self.what:
            case "fire":
                return {"fired": True}
            case "raise":
                raise LookupError("no such job")
            case "nothing":
                return None
            case "cancel":
                raise asyncio.CancelledError
            case "bytes":
                return b"raw"
            case "large":
                return "x" * MAX_PAYLOAD_BYTES
            case "exit":
                raise SystemExit(3)
            case "stubborn":
                while True:
                    try:
                        await asyncio.sleep(3600)
                    except asyncio.CancelledError:
                        self.log.append("ignored")
                        await asyncio.sleep(4)
                        raise
            case _:
                return await asyncio.sleep(1e6)

    async def cleanup(self) -> None:
        self.log.append(f"cleanup {self.what}")
        if self.what == "bad cleanup":
            raise OSError("away")


class Cancelling(Scripted, frozen=True):
    failures: ClassVar[list[Exception]] = []

    async def on_cancel(self) -> None:
        self.log.append(f"on_cancel {self.what}")
        if self.failures:
            raise self.failures.pop()


BOTH = (Scripted, Cancelling)


@pytest.fixture(autouse=True)
def _reset(caplog):
    caplog.set_level(logging.CRITICAL)
    Scripted.log.clear()
    Cancelling.failures.clear()


# --- outcomes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "state", "told"),
    [
        ("fire", "resolved", {"fired": True}),
        ("raise", "rejected", "Scripted raised LookupError: no such job"),
        ("nothing", "rejected", "ended without an event"),
        ("cancel", "rejected", "Scripted raised CancelledError"),
        ("bytes", "rejected", "the payload of Scripted is of type bytes"),
        ("large", "rejected", "the payload of Scripted is 1,000,002 bytes"),
        ("exit", "rejected", "Scripted raised SystemExit: 3"),
    ],
)
@virtual_test
async def test_how_a_trigger_ends(what, state, told):
    """A payload fires it; whatever else its code does makes it fail, and says why. Once."""
    async with trigger_world() as world, world.manager(BOTH) as manager:
        await world.put("t", Scripted(what))
        found_state, found = await world.outcome("t")
        await asyncio.sleep(60)
        assert manager.running == 0
    assert found_state == state
    assert found == told if state == "resolved" else told in found
    assert Scripted.log == [f"run {what}", f"cleanup {what}"]


@virtual_test
async def test_a_cleanup_that_raises_changes_nothing():
    """What it found counts."""

    class Fires(Scripted, frozen=True):
        async def run(self) -> Any:
            return 7

    async with trigger_world() as world, world.manager([Fires]):
        await world.put("t", Fires("bad cleanup"))
        assert await world.outcome("t") == ("resolved", 7)


# --- hand-over, cancel, timeout --------------------------------------------------------------


@virtual_test
async def test_a_hand_over_is_not_a_cancel():
    """A manager that stops gives its triggers to others at once: `cleanup`, but no `on_cancel`."""
    async with trigger_world() as world:
        async with world.manager(BOTH) as first:
            await world.put("t", Cancelling("wait"))
            await until(lambda: first.running == 1)
        assert Scripted.log == ["run wait", "cleanup wait"]
        assert (await world.look("t")).is_pending
        async with world.manager(BOTH) as second:
            await until(lambda: second.running == 1)
    assert Scripted.log == ["run wait", "cleanup wait"] * 2


@virtual_test
async def test_a_cancel_calls_on_cancel_after_cleanup():
    """Once here; at least once whatever happens."""
    async with trigger_world() as world, world.manager(BOTH) as manager:
        await world.put("t", Cancelling("wait"))
        await until(lambda: manager.running == 1)
        await world.cancel("t")
        await world.outcome("t.cancel")
        await until(lambda: manager.running == 0)
    assert Scripted.log == ["run wait", "cleanup wait", "on_cancel wait"]


@virtual_test
async def test_a_timeout_calls_on_cancel_too():
    """The deadline of the promise is that of the wait."""
    async with trigger_world() as world, world.manager(BOTH) as manager:
        await world.put("t", Cancelling("wait"), timeout_at=world.runner.now() + 5_000)
        await until(lambda: manager.running == 1)
        await world.outcome("t.cancel")
    assert Scripted.log[-1] == "on_cancel wait"


@virtual_test
async def test_a_cancel_while_nobody_runs_it():
    """`on_cancel` is called by whoever comes next, though its `run` never was."""
    async with trigger_world() as world:
        await world.put("t", Cancelling("wait"))
        await world.cancel("t")
        async with world.manager(BOTH):
            await world.outcome("t.cancel")
    assert Scripted.log == ["on_cancel wait"]


@virtual_test
async def test_on_cancel_is_called_again_when_it_raises():
    """With growing pauses."""
    Cancelling.failures[:] = [OSError("away"), OSError("away")]
    async with trigger_world() as world, world.manager(BOTH):
        await world.put("t", Cancelling("wait"))
        await world.cancel("t")
        assert await world.outcome("t.cancel") == ("resolved", True)
    assert Scripted.log.count("on_cancel wait") == 3


@virtual_test
async def test_one_that_fired_is_not_cancelled():
    """There is nothing to cancel."""
    async with trigger_world() as world, world.manager(BOTH):
        await world.put("t", Cancelling("fire"))
        await world.outcome("t")
        await asyncio.sleep(10)
    assert "on_cancel fire" not in Scripted.log


# --- capacity --------------------------------------------------------------------------------


@virtual_test
async def test_capacity_is_bounded_and_what_waits_is_counted():
    """More wait in the store, and are taken as there is room."""
    async with trigger_world() as world, world.manager(BOTH, capacity=3) as manager:
        for number in range(5):
            await world.put(f"t{number}", Scripted("wait"))
        await asyncio.sleep(5)
        assert (manager.running, manager.capacity) == (3, 3)
        assert await _untaken(world) == 2
        await world.cancel("t0")
        await asyncio.sleep(1)
        assert (manager.running, await _untaken(world)) == (3, 1)


async def _untaken(world: Any) -> int:
    from layby.core.stats import GetStats

    return (await world.runner.client.send(GetStats())).data.triggers_untaken


# --- triggers that misbehave: isolated, visible, others unaffected -------------------------------


@virtual_test
async def test_a_class_that_nobody_has():
    """It is not taken, and `why` says what to do; others are not affected."""
    async with trigger_world() as world, world.manager(BOTH):
        await world.put("gone", ("OldClass", {"a": 1}))
        await world.put("t", Scripted("fire"))
        assert (await world.outcome("t"))[0] == "resolved"
        assert (await world.look("gone")).is_pending
        told = await _why(world, "gone")
    assert "no process has the class OldClass" in told
    assert "@triggers.register on OldClass" in told


@virtual_test
async def test_arguments_that_no_longer_fit():
    """Blocked, with the reason; a manager with other code is offered it by itself."""
    async with trigger_world() as world:
        async with world.manager(BOTH):
            await world.put("old", ("Scripted", {"what": 7}))
            await world.put("t", Scripted("fire"))
            assert (await world.outcome("t"))[0] == "resolved"
            await asyncio.sleep(1)
            told = await _why(world, "old")
        assert 'cannot be run as it is: the arguments of Scripted["what"]: expected str' in told

        class Scripted2(triggers.Trigger, frozen=True):
            what: int

            @classmethod
            def kind(cls) -> str:
                return "Scripted"

            async def run(self) -> Any:
                return self.what + 0

        # The same file has the same digest: as if it came from another one.
        async with world.manager([Scripted2]) as fixed:
            fixed._program.codes = (("Scripted", "other"),)
            fixed.worker.code_changed()
            assert await world.outcome("old") == ("resolved", 7)


@pytest.mark.parametrize("error", [KeyError, SystemExit, asyncio.CancelledError])
@virtual_test
async def test_a_class_that_refuses_its_arguments_by_any_error(error):
    """It is blocked like one whose types do not fit, and others are taken."""

    class Refusing(triggers.Trigger, frozen=True):
        is_asked: ClassVar[bool] = False

        def __post_init__(self) -> None:
            if self.is_asked:
                raise error("not any more")

        async def run(self) -> Any:
            return 1

    refused = Refusing()
    Refusing.is_asked = True
    async with trigger_world() as world, world.manager([*BOTH, Refusing]):
        await world.put("bad", refused)
        await asyncio.sleep(1)
        await world.put("t", Scripted("fire"))
        assert (await world.outcome("t"))[0] == "resolved"
        assert (await world.look("bad")).is_pending
        assert f"{error.__name__}: not any more" in (await _why(world, "bad")).replace("'", "")


@virtual_test
async def test_arguments_of_a_built_in_that_never_fit():
    """As another language may store them: `why` does not send anybody to change settings."""
    access = TriggerAccess(hosts=("127.0.0.1",))
    async with trigger_world() as world, world.manager(BOTH, access=access):
        await world.put("wrong", ("HttpPoll", {"url": "http://127.0.0.1/", "method": "DELETE X"}))
        await asyncio.sleep(1)
        told = await _why(world, "wrong")
    assert "method" in told
    assert "no change of settings will help" in told
    assert "whoever wakes or cancels the task" in told


@virtual_test
async def test_polling_that_is_off():
    """Nobody takes it, and `why` names the setting."""
    async with trigger_world() as world, world.manager(BOTH):
        await world.put("t", triggers.HttpPoll("http://127.0.0.1/x"))
        await asyncio.sleep(1)
        told = await _why(world, "t")
    assert "HttpPoll of '127.0.0.1' is off in every process" in told
    assert "triggers.hosts" in told


@virtual_test
async def test_polling_of_something_that_is_not_allowed():
    """It is refused before the first poll, and `why` says what to add where."""
    secret = NamedSecret("api", "env:TEST_API", ("other.example.org",))
    access = TriggerAccess(folders=("/nowhere",), hosts=("api.example.org",), secrets=(secret,))
    named: Any = {"Authorization": triggers.SecretNamed("api")}
    async with trigger_world() as world, world.manager(BOTH, access):
        await world.put("f", triggers.FileExists("/etc/passwd"))
        await world.put("h", triggers.HttpPoll("http://169.254.169.254/x"))
        await world.put("s", triggers.HttpPoll("http://api.example.org/x", headers=named))
        await asyncio.sleep(1)
        file, host, header = [await _why(world, each) for each in ("f", "h", "s")]
        assert (await world.look("f")).is_pending
        assert await _untaken(world) == 3
    assert "triggers.folders" in file
    assert "triggers.hosts" in host
    assert "triggers.secrets" in header


@virtual_test
async def test_a_connection_whose_address_is_not_there_yet(tmp_path, monkeypatch):
    """`why` names it; once it is there, a manager that starts with it takes the trigger."""
    sqlite3.connect(tmp_path / "shop.db").close()
    access = TriggerAccess(connections={"shop": "env:TEST_SHOP"})
    async with trigger_world() as world:
        async with world.manager(BOTH, access):
            await world.put("t", triggers.SqlPoll("shop", "SELECT 1 AS one"))
            await asyncio.sleep(1)
            told = await _why(world, "t")
        monkeypatch.setenv("TEST_SHOP", f"sqlite:{tmp_path / 'shop.db'}")
        async with world.manager(BOTH, access):
            assert await world.outcome("t") == ("resolved", {"one": 1})
    assert "the connection 'shop': env:TEST_SHOP is not set" in told


@virtual_test
async def test_one_that_raises_for_ever():
    """It is asked at its pace, its error is shown, and others go on."""

    class Bad(triggers.PolledTrigger, frozen=True):
        async def poll(self) -> Any:
            raise OSError("away")

    async with trigger_world() as world, world.manager([*BOTH, Bad]) as manager:
        await world.put("bad", Bad(every=10, max_errors=10**9))
        await asyncio.sleep(1_000)
        await world.put("t", Scripted("fire"))
        assert (await world.outcome("t"))[0] == "resolved"
        polling = manager.polling("bad")
    assert polling is not None
    assert polling.last_error == "OSError: away"
    assert 90 < polling.polls < 110


@virtual_test
async def test_identical_polls_are_shared_by_key_and_principal():
    """Two of one token are asked once; the same for another token is asked beside them."""

    class Often(triggers.PolledTrigger, frozen=True):
        async def poll(self) -> Any:
            return None

    async with trigger_world() as world, world.manager([Often]) as manager:
        for number, principal in enumerate(("", "", "mine/", "mine/", "other/")):
            await world.put(f"t{number}", Often(every=10), principal=principal)
        await asyncio.sleep(5)
        assert len(manager._polls) == 3


@virtual_test
async def test_a_task_that_somebody_has_put_among_the_triggers_polls_alone():
    """It neither joins a poll that others ask for, nor do they, or others like it, join its own."""

    class Often(triggers.PolledTrigger, frozen=True):
        async def poll(self) -> Any:
            return None

    async with trigger_world() as world, world.manager([Often]) as manager:
        await world.put("t", Often(every=10))
        for number in range(2):
            await world.put_bare(f"bare{number}", Often(every=10))
        await world.put("u", Often(every=10))
        await asyncio.sleep(5)
        assert len(manager._polls) == 3


@virtual_test
async def test_how_polls_go_is_told_with_heartbeats():
    """An error soon, counts once a minute; however often it is asked."""

    class Often(triggers.PolledTrigger, frozen=True):
        async def poll(self) -> Any:
            if self.errors:
                raise self.errors[0]
            return None

        errors: ClassVar[list[Exception]] = []

    async with trigger_world() as world, world.manager([Often]):
        commits = _commits(world)
        await world.put("t", Often(every=0.1, jitter=0, max_errors=10**9))
        await asyncio.sleep(10)
        told = await _waiting_on(world, "t")
        assert (told["kind"], told["polls"] >= 40, told.get("last_error")) == (
            "trigger",
            True,
            None,
        )
        Often.errors.append(OSError("away"))
        await asyncio.sleep(6)
        told = await _waiting_on(world, "t")
        assert told["last_error"] == "OSError: away"
        assert 0 <= world.runner.now() - told["last_poll_at"] < 6_000
        before = len(commits)
        await asyncio.sleep(600)
        assert len(commits) - before < 20


async def _waiting_on(world: Any, trigger_id: str) -> Any:
    task = world.runner.engine._store.dump().tasks[trigger_id]
    return json.loads(task.waiting_on)


def _commits(world: Any) -> list[Any]:
    """What is saved from now on."""
    store, seen = world.runner.engine._store, []
    save = store.save

    def noted(*given: Any) -> Any:
        seen.append(given)
        return save(*given)

    store.save = noted
    return seen


@virtual_test
async def test_one_that_does_not_want_to_end():
    """It delays its own hand-over, not that of others."""
    async with trigger_world() as world:
        async with world.manager(BOTH) as manager:
            await world.put("stubborn", Scripted("stubborn"))
            await world.put("t", Scripted("wait"))
            await until(lambda: manager.running == 2)
        assert "ignored" in Scripted.log
        async with world.manager(BOTH) as second:
            await until(lambda: second.running == 2)
            await world.cancel("stubborn")


async def _why(world: Any, promise_id: str) -> str:
    from layby.core.queries import ExplainPromise
    from layby.workflow.why import find_why, told

    async def ask(about: str) -> Any:
        return (await world.runner.client.send(ExplainPromise(id=about))).data

    why = await find_why(ask, promise_id, world.runner.now())
    assert why is not None
    return told(why, world.runner.now())
