"""What people decide about the wait of a parked body: stored, told to its holder, and refused."""

from typing import Any

import msgspec
import pytest

from layby.core import commands as c
from layby.core.address import inbox_of
from layby.core.held_exits import EXIT, exit_of, exit_task, is_exit
from layby.core.model import NEVER
from layby.core.questions import settled_by
from layby.core.waits import WaitingOn
from tests.helpers import requests as r
from tests.helpers.worlds import World

NODE = "run/a:a"
RECORD = f"{NODE}.w0.defer_until-1"
KEPT = f"{NODE}.defer.x"


def parked(world: World, kind: str = "condition", **told: Any) -> None:
    """A run of one node whose body waits in its worker, with a deadline of a minute."""
    world.ok(r.run(a="", with_take=r.take()))
    fields: dict[str, Any] = {"record_id": RECORD, **told}
    waiting = WaitingOn(kind, "waits", **fields)
    annotate = c.AnnotateTask(
        id=NODE, version=1, sub_status="Deferred", waiting_on=waiting.to_text()
    )
    world.ok(msgspec.structs.replace(annotate, waits={RECORD: 60_000}))


def wake(**fields: Any) -> c.WakeTask:
    given: dict[str, Any] = {"exit_id": "x", "by": "ann", "reason": "enough", **fields}
    return c.WakeTask(id=NODE, **given)


def extend(**fields: Any) -> c.ExtendWait:
    given: dict[str, Any] = {"exit_id": "x", "by": "ann", "timeout": 5_000, **fields}
    return c.ExtendWait(id=NODE, **given)


def test_a_condition_counts_as_met_and_its_holder_is_told(world: World) -> None:
    parked(world)
    world.ok(wake())
    world.check()
    assert is_exit(world.promise(RECORD))
    assert world.promise(RECORD).state == "resolved"
    assert settled_by(world.promise(KEPT)) == ("ann", "enough")
    kept = exit_of(world.promise(KEPT))
    assert kept is not None
    assert (kept.wait, kept.until, exit_task(world.promise(KEPT))) == (RECORD, None, NODE)
    (message,) = world.store.dump().messages.values()
    assert (message.id, message.kind, message.address) == (KEPT, "unblock", inbox_of("g", "p"))


def test_a_copy_changes_nothing_and_another_call_tells_the_holder_again(world: World) -> None:
    """What was decided first stands: the message may have been lost with a connection."""
    parked(world)
    world.ok(wake())
    world.ok(wake(by="bob"))
    assert settled_by(world.promise(KEPT)) == ("ann", "enough")
    world.ok(wake(exit_id="y", by="bob", state="rejected"))
    again = world.promise(f"{NODE}.defer.y")
    assert (again.state, settled_by(again)) == ("resolved", ("ann", "enough"))
    assert len(world.store.dump().messages) == 2
    world.check()
    record = c.AnnotateTask(id=NODE, version=1, record_id=RECORD, record=c.Value(data="bGF0ZQ=="))
    assert is_exit(world.ok(record).record), "the first one counts"


def test_a_sleep_ends_now_by_its_own_timer(world: World) -> None:
    timer = f"{NODE}.w0.sleep-1"
    parked(world, "sleep", record_id=timer)
    timed = c.CreateBelow(
        id=NODE, version=1, promise_id=timer, timeout=90_000, tags={"resonate:timer": "true"}
    )
    world.ok(timed)
    world.ok(wake())
    world.check()
    assert (world.promise(timer).state, settled_by(world.promise(timer))) == (
        "resolved",
        ("ann", "enough"),
    )
    assert world.send(wake(exit_id="y")).status == 409
    assert world.send(extend(exit_id="z")).status == 409


@pytest.mark.parametrize(("timeout", "until"), [(5_000, 5_000), (None, NEVER)])
def test_a_deadline_moves(world: World, timeout: int | None, until: int) -> None:
    """The store fixed it when the wait began; a later annotation of the same does not undo it."""
    parked(world)
    world.ok(extend(timeout=timeout))
    world.check()
    assert world.task(NODE).deadlines_by_id == {RECORD: until}
    told = msgspec.json.decode(world.task(NODE).waiting_on or "", type=WaitingOn)
    assert told.deadline == timeout
    assert told.sentence == "waits (its deadline was moved by ann)"
    kept = exit_of(world.promise(KEPT))
    assert kept is not None
    assert (kept.wait, kept.until) == (RECORD, until)
    world.ok(c.AnnotateTask(id=NODE, version=1, waits={RECORD: 60_000}))
    assert world.task(NODE).deadlines_by_id == {RECORD: until}


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("promise", "'paid'"),
        ("rpc", "'paid'"),
        ("approval", "approve or deny"),
        ("bundle", "settle one of 'paid', 'other'"),
        ("map", "cancel the map"),
        ("slot", "goes on already"),
    ],
)
def test_what_has_to_be_settled_says_so(world: World, kind: str, names: str) -> None:
    also = ("other",) if kind == "bundle" else ()
    parked(world, kind, awaited="paid", also_awaited=also)
    refused = world.send(wake())
    assert refused.status == 409
    assert names in str(refused.data)


def test_without_a_wait_or_a_deadline_there_is_nothing_to_do(world: World) -> None:
    world.ok(r.run(a="", with_take=r.take()))
    assert world.send(wake()).status == 409
    assert world.send(extend()).status == 409
    waiting = WaitingOn("promise", "waits", awaited="paid").to_text()
    world.ok(c.AnnotateTask(id=NODE, version=1, sub_status="Deferred", waiting_on=waiting))
    assert "without a deadline" in str(world.send(extend()).data)


def test_a_record_elsewhere_is_not_touched(world: World) -> None:
    """What a worker says of its waits is not trusted with the rows of others."""
    world.ok(c.CreatePromise(id="mine", timeout_at=NEVER))
    parked(world, "sleep", record_id="mine")
    assert world.send(wake()).status == 409
    assert world.promise("mine").is_pending


def test_the_mark_is_not_indexed(world: World) -> None:
    parked(world)
    world.ok(wake())
    assert world.promise(KEPT).tags == f'{{"{EXIT}":"{NODE}"}}'
