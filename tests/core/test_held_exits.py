"""What people decide about the wait of a parked body: stored, told to its holder, and refused."""

from typing import Any

import msgspec
import pytest

from layby.core import commands as c
from layby.core.address import inbox_of
from layby.core.exit_refusals import TOO_LATE, goes_on
from layby.core.held_exits import exit_of, exit_task, is_exit
from layby.core.model import NEVER
from layby.core.questions import settled_by
from layby.core.tag_names import EXIT, MOVABLE
from layby.core.waits import WaitingOn
from tests.helpers import requests as r
from tests.helpers.worlds import EVERY_BACKEND, World

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


def test_an_exit_is_no_copy_of_what_the_task_was_deferred_for(world: World) -> None:
    """Its id may be the number of a claim that deferred: nothing that was told is passed over."""
    world.ok(r.run(a="", with_take=r.take()))
    world.ok(r.defer(NODE, 1, r.trigger("Delay", ms=0)))
    world.ok(r.take())
    waiting = WaitingOn("condition", "waits", record_id=RECORD).to_text()
    world.ok(c.AnnotateTask(id=NODE, version=2, sub_status="Deferred", waiting_on=waiting))
    world.ok(wake(exit_id="1"))
    assert is_exit(world.promise(RECORD))


def test_a_copy_changes_nothing_and_another_call_tells_the_holder_again(world: World) -> None:
    """What was decided first stands: the message may have been lost with a connection."""
    parked(world)
    world.ok(wake())
    world.ok(wake(by="bob"))
    assert settled_by(world.promise(KEPT)) == ("ann", "enough")
    world.ok(wake(exit_id="y", by="bob"))
    again = world.promise(f"{NODE}.defer.y")
    assert (again.state, settled_by(again)) == ("resolved", ("ann", "enough"))
    assert len(world.store.dump().messages) == 2
    world.check()
    record = c.AnnotateTask(id=NODE, version=1, record_id=RECORD, record=c.Value(data="bGF0ZQ=="))
    assert is_exit(world.ok(record).record), "the first one counts"


@pytest.mark.parametrize(
    "late",
    [
        wake(exit_id="y", state="rejected"),
        wake(exit_id="y", wait=RECORD, state="rejected"),
        extend(exit_id="y"),
        extend(exit_id="y", wait=RECORD),
    ],
)
def test_a_condition_that_was_woken_can_neither_fail_nor_last_longer(
    world: World, late: c.WakeTask | c.ExtendWait
) -> None:
    """Though its holder has not heard of it yet."""
    parked(world)
    world.ok(wake())
    refused = world.send(late)
    assert (refused.status, refused.data) == (409, goes_on(world.promise(RECORD)))
    assert world.task(NODE).deadlines_by_id == {RECORD: 60_000}
    assert len(world.store.dump().messages) == 1


def test_a_condition_that_failed_fails_with_the_first_error(world: World) -> None:
    parked(world)
    first = wake(state="rejected", value=c.Value(data="b25l"))
    world.ok(first)
    world.ok(msgspec.structs.replace(first, exit_id="y"))
    for other in (c.Value(data="dHdv"), c.NOTHING):
        refused = world.send(wake(exit_id="z", state="rejected", value=other))
        assert (refused.status, refused.data) == (409, goes_on(world.promise(RECORD)))
    assert world.send(wake(exit_id="z")).status == 409


@pytest.mark.parametrize("late", [wake(), extend(), extend(wait=RECORD)])
def test_what_is_decided_after_the_deadline_is_too_late(
    world: World, late: c.WakeTask | c.ExtendWait
) -> None:
    """Its body gives up, or has given up: nobody is told that it does not."""
    parked(world)
    refused = world.send(late, 60_000)
    assert (refused.status, refused.data) == (409, TOO_LATE)
    assert world.send(late, 59_999).is_ok


def expire(deadline: int) -> c.ExpireWait:
    return c.ExpireWait(id=NODE, version=1, wait=RECORD, deadline=deadline)


def test_a_holder_whose_clock_is_ahead_gives_up_for_good(world: World) -> None:
    parked(world)
    assert world.ok(expire(60_000)).task.deadlines_by_id == {RECORD: world.now}
    assert world.send(extend()).data == TOO_LATE
    assert world.send(wake()).data == TOO_LATE
    world.check()


def test_a_holder_that_did_not_hear_of_a_decision_is_told_when_it_asks(world: World) -> None:
    parked(world)
    world.ok(extend(timeout=90_000))
    told = world.ok(expire(60_000))
    assert (told.task.deadlines_by_id, told.record) == ({RECORD: 90_000}, None)
    world.ok(wake(exit_id="y"))
    assert is_exit(world.ok(expire(60_000)).record)
    assert world.task(NODE).deadlines_by_id == {RECORD: 90_000}
    world.check()


@pytest.mark.parametrize("decided", [wake(), extend()], ids=["wake", "extend"])
@pytest.mark.parametrize("world", EVERY_BACKEND, indirect=True)
def test_a_wait_that_begins_in_the_same_batch_can_be_decided_about(
    world: World, decided: c.WakeTask | c.ExtendWait
) -> None:
    """Which rows that needs is said by the annotation before it, not by the stored task."""
    parked(world, "sleep", record_id=f"{NODE}.w0.key.k1")
    timer, tags = f"{NODE}.w0.key.k2", {"resonate:timer": "true", MOVABLE: "true"}
    world.ok(c.CreateBelow(id=NODE, version=1, promise_id=timer, timeout=90_000, tags=tags))
    told = WaitingOn("sleep", "sleeps", record_id=timer).to_text()
    began = c.AnnotateTask(id=NODE, version=1, sub_status="Deferred", waiting_on=told)
    _, reply = world.batch([(began, world.now), (decided, world.now)])
    assert reply.is_ok, reply
    exit_ = exit_of(world.promise(KEPT))
    assert exit_ is not None
    assert exit_.wait == timer
    world.check()


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


# --- promises whose deadlines move ------------------------------------------------------------

ASKED = f"{NODE}.c.approval.approval-1"


def asked(world: World, kind: str = "approval", **tags: str) -> None:
    """The body waits for a promise that it has made, for a minute."""
    parked(world, kind, record_id=ASKED, awaited=ASKED, deadline=60_000)
    made = c.CreateBelow(id=NODE, version=1, promise_id=ASKED, timeout=60_000, tags=tags)
    world.ok(made)


def test_the_deadline_of_what_it_has_made_moves_and_settles_it_then(world: World) -> None:
    asked(world, **{MOVABLE: "true"})
    world.ok(extend(timeout=90_000))
    world.tick(60_000)
    assert world.promise(ASKED).is_pending
    world.tick(30_000)
    world.check()
    late = world.promise(ASKED)
    assert (late.state, late.settled_at, late.is_timed_out) == ("rejected_canceled", 90_000, True)


def test_a_deadline_that_comes_sooner_wakes_the_store_sooner(world: World) -> None:
    asked(world, "sleep", **{MOVABLE: "true", "resonate:timer": "true"})
    world.ok(extend(timeout=1_000))
    world.tick(1_000)
    world.check()
    over = world.promise(ASKED)
    assert (over.state, over.settled_at) == ("resolved", 1_000)


def test_made_and_moved_in_one_transaction(world: World) -> None:
    parked(world, "sleep", record_id=ASKED)
    tags = {MOVABLE: "true", "resonate:timer": "true"}
    made = c.CreateBelow(id=NODE, version=1, promise_id=ASKED, timeout=60_000, tags=tags)
    replies = world.batch([(made, 0), (extend(timeout=5_000), 0)])
    assert [each.status for each in replies] == [200, 200]
    assert world.promise(ASKED).timeout_at == 5_000


@pytest.mark.parametrize("kind", ["approval", "rpc"])
def test_what_an_older_version_has_made_stays_and_the_refusal_says_so(
    world: World, kind: str
) -> None:
    """Its deadline was told as `timeoutAt`, and that never changes."""
    asked(world, kind)
    refused = world.send(extend())
    assert refused.status == 409
    assert f"'{ASKED}', which never changes" in str(refused.data)
    world.tick(60_000)
    assert world.promise(ASKED).state == "rejected_timedout"


def test_the_timer_of_an_older_version_says_what_to_do(world: World) -> None:
    asked(world, "sleep", **{"resonate:timer": "true"})
    assert "Wake the task" in str(world.send(extend()).data)


def test_what_is_over_is_not_prolonged(world: World) -> None:
    asked(world, **{MOVABLE: "true"})
    world.ok(extend(exit_id="y", timeout=1_000))
    world.tick(1_000)
    assert "goes on already" in str(world.send(extend()).data)


def test_only_what_is_below_the_task_is_named(world: World) -> None:
    world.ok(c.CreatePromise(id="mine", timeout_at=NEVER, tags={MOVABLE: "true"}))
    parked(world)
    assert world.send(extend(wait="mine")).status == 400
    assert world.send(wake(wait=f"{NODE}.w0.unheard-of")).status == 409


def test_a_back_off_is_over_now_but_does_not_last_longer(world: World) -> None:
    world.ok(r.run(a="", with_take=r.take()))
    world.ok(c.FailTask(id=NODE, version=1, error=c.Value(), retry_in=60_000))
    assert "halt it" in str(world.send(extend(exit_id="y")).data)
    assert "cancel it" in str(world.send(wake(exit_id="y", state="rejected")).data)
    world.ok(wake())
    world.check()
    assert world.task(NODE).state == "pending"
    assert settled_by(world.promise(KEPT)) == ("ann", "enough")


@pytest.mark.parametrize(
    ("state", "says"),
    [("halted", "halted: continue it"), ("fulfilled", "has ended"), ("pending", "begin it")],
)
def test_what_does_not_wait_says_what_it_is_held_up_by(world: World, state: str, says: str) -> None:
    world.ok(r.run(a="", with_take=r.take()))
    if state == "fulfilled":
        world.ok(c.CancelPromise(id=NODE))
    else:
        world.ok(c.HaltTask(id=NODE))
    if state == "pending":
        world.ok(c.ReleaseTasks(pid="p", incarnation="1", tasks=(c.Released(NODE, 1),)))
        world.ok(c.ContinueTask(id=NODE))
    assert world.task(NODE).state == state
    for command in (wake(), extend(), wake(wait=RECORD)):
        refused = world.send(command)
        assert (refused.status, says in str(refused.data)) == (409, True)


@pytest.mark.parametrize("exit_id", ["", "x" * 37])
def test_an_exit_id_that_cannot_be_kept_is_named(world: World, exit_id: str) -> None:
    parked(world)
    refused = world.send(wake(exit_id=exit_id))
    assert refused.status == 400
    assert "exitId must be 1 to 36 printable ASCII characters" in str(refused.data)


def test_what_is_not_below_the_task_is_no_decision_about_it(world: World) -> None:
    """An earlier layby let anybody who could create some promise make one with such a tag."""
    parked(world)
    world.ok(wake())
    kept = world.promise(KEPT)
    assert exit_of(kept) is not None
    for elsewhere in ("mine/x", "run/a", NODE, f"{NODE}x.defer.x"):
        assert exit_of(msgspec.structs.replace(kept, id=elsewhere)) is None
