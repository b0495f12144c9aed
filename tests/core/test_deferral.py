"""layby.task.defer: what a task waits for, what ends the wait, and what the next claim is told."""

from typing import Any

import msgspec
import pytest

from layby.core import commands as c
from layby.core.model import NEVER
from layby.core.resumption import TRIGGER_GROUP, principal_of
from layby.core.waits import shown_state
from tests.helpers import requests as r
from tests.helpers.worlds import World

NODE = "run/a:a"
OWN = f"{NODE}.defer.1"
LATE = f"{OWN}.timeout"
PAID = c.Value(data="cGFpZA==")
MORE = c.Value(data="bW9yZQ==")


def deferred(
    world: World, spec: c.TriggerSpec, timeout: int | None = None, **kwargs: Any
) -> c.DeferTask:
    """A run of one node that has deferred in its first try."""
    world.ok(r.run(a="", with_take=r.take()))
    command = r.defer(NODE, 1, spec, timeout, "go_on", **kwargs)
    world.ok(command)
    world.check()
    return command


def resumed(world: World) -> Any:
    """What the claim is told that resumes the node; None if there is no such claim."""
    claims = world.ok(r.take()).claims
    world.check()
    return claims[0].resumed if claims else None


def test_one_step_suspends_and_says_what_for(world: World) -> None:
    """Neither a slot nor a lease is left; the run waits for the task all the same."""
    deferred(world, r.trigger("Event", name="paid"), 5_000, order=7)
    task = world.task(NODE)
    assert (task.state, task.pid, task.holder, task.tries, task.failures) == (
        "suspended",
        None,
        None,
        1,
        0,
    )
    assert shown_state(task) == "deferred"
    assert shown_state(task) == "deferred"
    told = msgspec.json.decode(task.waiting_on or "")
    assert (told["kind"], told["awaited"], told["deadline"]) == ("trigger", "paid", 5_000)
    assert world.promise("paid").placeholder
    assert (world.promise(LATE).timer, world.promise(LATE).timeout_at) == (True, 5_000)


def test_an_event_begins_a_new_try_with_its_payload(world: World) -> None:
    deferred(world, r.trigger("Event", name="paid"), 5_000, order=7)
    world.clock.advance(10)
    world.ok(c.ResolvePromise(id="paid", value=PAID))
    found = resumed(world)
    assert (found.name, found.kwargs, found.kind, found.at) == ("go_on", '{"order":7}', "Event", 1)
    assert (found.event.id, found.event.state, found.event.settled_at) == ("paid", "resolved", 10)
    assert found.event.value == '{"data":"cGFpZA=="}'
    task = world.task(NODE)
    assert (task.state, task.version, task.tries, task.failures) == ("acquired", 2, 2, 0)
    assert world.promise(LATE).state == "rejected_canceled"


@pytest.mark.parametrize("bare", [False, True])
def test_the_first_claim_after_it_is_told_whether_there_is_something_to_recall(
    world: World, bare: bool
) -> None:
    """A later one is not: whoever had the task meanwhile may have kept something."""
    deferred(world, r.trigger("Event", name="paid"), bare=bare)
    world.ok(c.ResolvePromise(id="paid", value=PAID))
    assert resumed(world).bare is bare
    world.ok(c.ReleaseTasks(pid="p", incarnation="1", tasks=(c.Released(NODE, 2),)))
    assert not resumed(world).bare


def test_the_claim_brings_the_param_of_its_run_to_who_is_embedded(world: World) -> None:
    """Who started the run has long forgotten it; who has just started it has not."""
    embedded = r.take(embedded=True)
    (claim,) = world.ok(r.run(a="", with_take=embedded)).taken.claims
    assert claim.root_param is None
    world.ok(r.defer(NODE, 1, r.trigger("Event", name="paid"), None, "go_on"))
    world.ok(c.ResolvePromise(id="paid", value=PAID))
    (claim,) = world.ok(embedded).claims
    assert claim.root_param == world.promise("run/a").param
    world.check()


@pytest.mark.parametrize(
    ("spec", "fires_at"), [(r.trigger("Delay", ms=700), 700), (r.trigger("At", at=900), 900)]
)
def test_timers_fire_by_themselves(world: World, spec: c.TriggerSpec, fires_at: int) -> None:
    deferred(world, spec)
    world.tick(fires_at - 1)
    assert resumed(world) is None
    world.tick(1)
    assert resumed(world).event.state == "resolved"
    assert world.promise(OWN).settled_at == fires_at


def test_what_fired_before_the_wait_ends_it_in_the_same_step(world: World) -> None:
    """And the next try is another one all the same."""
    world.ok(c.ResolvePromise(id="paid", value=PAID))
    deferred(world, r.trigger("Event", name="paid"), 5_000)
    assert world.task(NODE).state == "pending"
    assert resumed(world).event.value == '{"data":"cGFpZA=="}'
    assert world.task(NODE).tries == 2


def test_an_instant_in_the_past_fires_at_once(world: World) -> None:
    world.clock.advance(1_000)
    deferred(world, r.trigger("At", at=5))
    assert resumed(world).event.settled_at == 5


def test_time_up_is_told_as_such(world: World) -> None:
    deferred(world, r.trigger("Event", name="paid"), 300)
    world.tick(300)
    found = resumed(world)
    assert (found.event.id, found.event.state, found.event.settled_at) == (
        "paid",
        "rejected_timedout",
        300,
    )
    assert world.promise("paid").is_pending


@pytest.mark.parametrize(("at", "state"), [(299, "resolved"), (300, "resolved"), (301, "timedout")])
def test_the_earlier_end_wins_and_the_event_if_both_come_at_once(
    world: World, at: int, state: str
) -> None:
    """Also if the tick comes late: the deadline counts, not when somebody noticed it."""
    deferred(world, r.trigger("Event", name="paid"), 300)
    world.clock.advance(at)
    world.ok(c.ResolvePromise(id="paid", value=PAID))
    world.tick()
    assert resumed(world).event.state.endswith(state)


def test_what_has_won_stays_whatever_comes_later(world: World) -> None:
    """In the same millisecond, too; a crash, a release and a halt read the same again."""
    deferred(world, r.trigger("Event", name="paid"), 300)
    world.tick(300)
    world.ok(c.ResolvePromise(id="paid", value=PAID))
    first = resumed(world)
    assert first.event.state == "rejected_timedout"
    world.ok(c.ReleaseTask(id=NODE, version=2))
    assert resumed(world) == first
    world.ok(c.HaltTask(id=NODE))
    world.ok(c.ReleaseTasks(pid="p", incarnation="1", tasks=(c.Released(NODE, 3),)))
    world.ok(c.ContinueTask(id=NODE))
    assert resumed(world) == first
    world.tick(60_000)
    assert world.task(NODE).crashes == 1
    claims = world.ok(r.take(pid="q")).claims
    assert [claim.resumed for claim in claims] == [first]


def test_a_failure_begins_at_the_function_again(world: World) -> None:
    deferred(world, r.trigger("Delay", ms=5))
    world.tick(5)
    assert resumed(world) is not None
    world.ok(r.fail(NODE, 2, retry_in=100))
    world.tick(100)
    claims = world.ok(r.take()).claims
    assert (claims[0].resumed, claims[0].task.failures) == (None, 1)


def test_deferring_again_replaces_what_was_before(world: World) -> None:
    """An old timer must not wake a later wait."""
    deferred(world, r.trigger("Event", name="paid"), 500)
    world.ok(c.ResolvePromise(id="paid", value=PAID))
    assert resumed(world) is not None
    world.ok(r.defer(NODE, 2, r.trigger("Event", name="sent"), 2_000, "more"))
    world.check()
    world.tick(600)
    assert resumed(world) is None
    world.ok(c.ResolvePromise(id="sent", value=MORE))
    found = resumed(world)
    assert (found.name, found.event.id, found.event.value) == (
        "more",
        "sent",
        '{"data":"bW9yZQ=="}',
    )


def test_a_deferred_task_that_is_continued_goes_on_waiting(world: World) -> None:
    deferred(world, r.trigger("Event", name="paid"))
    world.ok(c.HaltTask(id=NODE, by="me"))
    world.ok(c.ContinueTask(id=NODE))
    assert shown_state(world.task(NODE)) == "deferred"
    assert resumed(world) is None
    world.ok(c.HaltTask(id=NODE))
    world.ok(c.ResolvePromise(id="paid", value=PAID))
    assert world.task(NODE).state == "halted"
    world.check()
    world.ok(c.ContinueTask(id=NODE))
    assert resumed(world).event.id == "paid"


def test_a_foreign_callback_does_not_wake_it(world: World) -> None:
    deferred(world, r.trigger("Event", name="paid"))
    world.ok(r.promise("other"))
    world.ok(r.callback("other", NODE))
    world.ok(r.settle("other"))
    world.ok(r.callback("other", NODE))
    assert resumed(world) is None
    world.ok(c.ResolvePromise(id="paid"))
    assert resumed(world).event.id == "paid"


def test_an_event_that_lost_wakes_no_later_wait(world: World) -> None:
    """Of a task that suspends by the protocol after its time was up."""
    world.ok(r.claimed("job"))
    world.ok(r.defer("job", 1, r.trigger("Event", name="paid"), 300))
    world.tick(300)
    world.ok(r.acquire("job", 1))
    world.ok(r.promise("other"))
    world.ok(r.suspend("job", 2, "other"))
    world.ok(c.ResolvePromise(id="paid", value=PAID))
    assert world.task("job").state == "suspended"
    world.ok(r.settle("other"))
    assert world.task("job").state == "pending"
    world.check()


# --- triggers that run code ------------------------------------------------------------------


def poll(world: World, timeout: int | None = None, *, on_cancel: bool = False) -> Any:
    """A node deferred until a class fires, and the claim of the manager that runs it."""
    deferred(world, r.trigger("Poll", on_cancel=on_cancel, url="u"), timeout)
    return world.ok(r.take_triggers()).claims[0]


def test_a_trigger_with_code_is_a_task_of_managers_that_have_its_class(world: World) -> None:
    deferred(world, r.trigger("Poll", url="u"), 5_000)
    assert world.ok(r.take()).claims == []
    assert world.ok(r.take_triggers("Other")).claims == []
    (claim,) = world.ok(r.take_triggers("Poll", pid="n")).claims
    assert (claim.task.id, claim.task.name, claim.task.group) == (OWN, "Poll", TRIGGER_GROUP)
    assert claim.promise.timeout_at == 5_000
    assert claim.promise.param == '{"headers":{},"data":"eyJ1cmwiOiJ1In0="}'
    world.ok(c.FinishTask(id=OWN, version=1, value=PAID))
    assert resumed(world).event.value == '{"data":"cGFpZA=="}'


def test_a_trigger_that_fails_is_told_as_such(world: World) -> None:
    poll(world)
    world.ok(r.fail(OWN, 1))
    found = resumed(world)
    assert (found.event.state, found.event.value) == ("rejected", '{"data":"ZXJy"}')


def test_the_deadline_of_an_own_trigger_is_that_of_the_wait(world: World) -> None:
    poll(world, 300)
    world.tick(300)
    assert resumed(world).event.state == "rejected_timedout"
    assert world.send(c.FinishTask(id=OWN, version=1)).status == 409


def test_another_manager_takes_over_and_payloads_of_the_first_are_refused(world: World) -> None:
    poll(world)
    world.ok(c.LeaveWorker(pid="m", incarnation="1"))
    world.tick()
    (claim,) = world.ok(r.take_triggers(pid="n")).claims
    assert (claim.task.version, claim.task.crashes) == (2, 0)
    assert world.send(c.FinishTask(id=OWN, version=1, value=MORE)).status == 409
    world.ok(c.FinishTask(id=OWN, version=2, value=PAID))
    assert resumed(world).event.value == '{"data":"cGFpZA=="}'


@pytest.mark.parametrize("how", ["cancel", "cancel run", "settle", "deadline"])
def test_a_trigger_ends_with_the_task_that_waits_for_it(world: World, how: str) -> None:
    world.ok(r.run(a="", timeout=50_000, with_take=r.take()))
    world.ok(r.defer(NODE, 1, r.trigger("Poll"), None))
    world.ok(r.take_triggers())
    if how == "cancel":
        world.ok(c.CancelPromise(id=NODE))
    elif how == "cancel run":
        world.ok(c.CancelPromise(id="run/a"))
    elif how == "settle":
        world.ok(r.settle(NODE))
    world.tick(50_000 if how == "deadline" else 0)
    assert world.promise(OWN).state == "rejected_canceled"
    assert not world.promise(NODE).is_pending
    beat = world.send(c.HeartbeatWorker(pid="m", incarnation="1"))
    assert [each.id for each in beat.data.lost] == [OWN]
    world.check()


def test_a_shared_promise_outlives_who_waits_for_it(world: World) -> None:
    deferred(world, r.trigger("Event", name="paid"), 500)
    world.ok(c.CancelPromise(id=NODE))
    assert world.promise("paid").is_pending
    assert world.promise(LATE).state == "rejected_canceled"
    world.check()


@pytest.mark.parametrize("timeout", [None, 300])
def test_what_cleans_up_after_a_trigger_waits_until_that_has_ended(
    world: World, timeout: int | None
) -> None:
    """And is done by somebody else if its manager dies: at least once."""
    poll(world, timeout, on_cancel=True)
    if timeout is None:
        world.ok(c.CancelPromise(id=NODE))
    else:
        world.tick(timeout)
    world.check()
    assert world.ok(r.take_triggers(pid="n")).claims == []
    world.ok(c.ReleaseTasks(pid="m", incarnation="1", tasks=(c.Released(OWN, 1),)))
    (claim,) = world.ok(r.take_triggers(pid="n")).claims
    tags = msgspec.json.decode(claim.promise.tags)
    assert (claim.task.id, tags["layby:cancels"]) == (f"{OWN}.cancel", OWN)
    assert claim.promise.param == world.promise(OWN).param
    world.ok(c.FinishTask(id=claim.task.id, version=1))
    world.check()


def test_nothing_is_cleaned_up_after_a_payload(world: World) -> None:
    poll(world, on_cancel=True)
    world.ok(c.FinishTask(id=OWN, version=1, value=PAID))
    assert f"{OWN}.cancel" not in world.dump().promises


# --- people ----------------------------------------------------------------------------------


def wake(**fields: Any) -> c.WakeTask:
    return c.WakeTask(**{"id": NODE, "exit_id": "x", "by": "ann", "value": MORE} | fields)


@pytest.mark.parametrize(
    "spec",
    [r.trigger("Poll"), r.trigger("Delay", ms=9_000), r.trigger("Event", name="paid")],
    ids=lambda spec: spec.kind,
)
def test_people_wake_a_task_with_a_value(world: World, spec: c.TriggerSpec) -> None:
    deferred(world, spec, 5_000)
    world.ok(wake(reason="it was paid in cash"))
    found = resumed(world)
    assert found.event.state == "resolved"
    assert msgspec.json.decode(found.event.value)["data"] == "bW9yZQ=="
    assert (found.event.by, found.event.reason) == ("ann", "it was paid in cash")
    if spec.kind == "Event":
        assert world.promise("paid").is_pending
    assert world.ok(wake()).task.id == NODE  # a copy of the call
    assert world.send(wake(exit_id="y")).status == 409


def test_who_else_asks_in_the_same_batch_does_not_matter(world: World) -> None:
    """A manager looks at the trigger just when somebody ends the wait for it."""
    deferred(world, r.trigger("Poll"))
    woken, _ = world.batch([(wake(), 0), (r.take_triggers(), 0)])
    assert woken.data.task.state == "pending"
    assert resumed(world).event.state == "resolved"


@pytest.mark.parametrize("spec", [r.trigger("Poll"), r.trigger("Event", name="e")])
@pytest.mark.parametrize("exit_id", ["1", "1.timeout", "1.cancel", "a.defer.b", "%31", "more.by"])
def test_an_exit_may_have_any_id(world: World, exit_id: str, spec: c.TriggerSpec) -> None:
    """waiting.md: "printable ASCII characters that no other call has": ids of ours are no calls."""
    deferred(world, spec, 1_000)
    world.ok(c.ExtendWait(id=NODE, exit_id="more", timeout=5_000))
    world.ok(c.ExtendWait(id=NODE, exit_id=exit_id, timeout=9_000))
    world.check()
    assert msgspec.json.decode(world.task(NODE).waiting_on or "")["deadline"] == 9_000
    world.ok(wake(exit_id=f"{exit_id}.timeout"))
    assert resumed(world).event.state == "resolved"
    world.check()


def test_people_let_a_wait_fail(world: World) -> None:
    deferred(world, r.trigger("Poll"))
    world.ok(wake(state="rejected"))
    assert resumed(world).event.state == "rejected"


@pytest.mark.parametrize(
    "spec",
    [
        r.trigger("Poll", on_cancel=True),
        r.trigger("Delay", ms=90_000),
        r.trigger("Event", name="e"),
    ],
    ids=lambda spec: spec.kind,
)
def test_people_give_a_wait_more_time(world: World, spec: c.TriggerSpec) -> None:
    deferred(world, spec, 1_000)
    world.tick(900)
    for _ in range(2):
        world.ok(c.ExtendWait(id=NODE, exit_id="more", timeout=5_000, by="ann"))
    world.check()
    assert msgspec.json.decode(world.task(NODE).waiting_on or "")["deadline"] == 5_900
    world.tick(4_999)
    assert resumed(world) is None
    world.tick(1)
    found = resumed(world)
    assert (found.event.state, found.event.settled_at) == ("rejected_timedout", 5_900)
    assert f"{OWN}.cancel" not in world.dump().promises


def test_who_woke_it_stays_with_the_promise(world: World) -> None:
    """The task forgets its wait when it goes on."""
    deferred(world, r.trigger("Poll"))
    world.ok(c.WakeTask(id=NODE, exit_id="now", by="ann", reason="it is paid"))
    event = resumed(world).event
    assert (event.by, event.reason) == ("ann", "it is paid")
    headers = msgspec.json.decode(world.dump().promises[event.id].value)["headers"]
    assert headers == {"layby:by": "ann", "layby:reason": "it is paid"}


@pytest.mark.parametrize(
    "spec", [r.trigger("Delay", ms=2_000), r.trigger("Poll")], ids=lambda spec: spec.kind
)
def test_who_gave_it_more_time_has_not_ended_it(world: World, spec: c.TriggerSpec) -> None:
    """It fires by itself, or its new time is up."""
    deferred(world, spec, 1_000)
    world.ok(c.ExtendWait(id=NODE, exit_id="more", timeout=5_000, by="me", reason="patience"))
    assert "was moved by me" in (world.task(NODE).waiting_on or "")
    world.tick(6_000)
    event = resumed(world).event
    assert (event.by, event.reason) == ("", "")
    assert "patience" not in (world.task(NODE).resume or "")


def test_a_wait_may_last_for_ever_after_all(world: World) -> None:
    deferred(world, r.trigger("Event", name="paid"), 1_000)
    world.ok(c.ExtendWait(id=NODE, exit_id="more"))
    world.tick(NEVER - world.now - 10)
    assert shown_state(world.task(NODE)) == "deferred"


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (r.trigger("Delay"), "ms"),
        (r.trigger("Delay", ms=1, more=2), "more"),
        (r.trigger("Delay", ms=-1), "ms of Delay must be non-negative"),
        (r.trigger("Event", name=""), "required"),
        (c.TriggerSpec("Poll", msgspec.Raw(b"[1]")), "JSON object"),
        (r.trigger("Poll", big="x" * 70_000), "70,010 bytes"),
        (r.trigger(""), "Kind"),
    ],
)
def test_arguments_are_checked(world: World, spec: c.TriggerSpec, why: str) -> None:
    world.ok(r.run(a="", with_take=r.take()))
    reply = world.send(r.defer(NODE, 1, spec))
    assert reply.status == 400
    assert why in reply.data


def test_only_the_holder_defers(world: World) -> None:
    world.ok(r.run(a="", with_take=r.take()))
    spec = r.trigger("Delay", ms=5)
    assert world.send(r.defer(NODE, 2, spec)).status == 409
    assert world.send(r.defer("run/none:a", 1, spec)).status == 404
    assert world.send(r.defer(NODE, 1, r.trigger("PromiseSettled", id="run/none"))).status == 422
    assert world.send(r.defer(NODE, 1, r.trigger("PromiseSettled", id=NODE))).status == 400


def test_acquire_shows_it_of_tasks_that_have_deferred_only(world: World) -> None:
    """A worker of any language: the protocol's acquire, and nothing else of it changes."""
    world.ok(r.claimed("job"))
    world.ok(r.defer("job", 1, r.trigger("Event", name="paid"), None, "go_on", n=1))
    assert world.ask("task.get", {"id": "job"}, 0)[1]["task"]["state"] == "suspended"
    world.ok(c.ResolvePromise(id="paid", value=PAID))
    data = {"id": "job", "version": 1, "pid": "p", "ttl": 5_000}
    _, claim = world.ask("task.acquire", data, 0)
    assert claim["task"] == {
        "id": "job",
        "state": "acquired",
        "version": 2,
        "resumes": 0,
        "ttl": 5_000,
        "pid": "p",
        "resume": {
            "kind": "Event",
            "at": 1,
            "name": "go_on",
            "kwargs": {"n": 1},
            "event": {
                "id": "paid",
                "state": "resolved",
                "value": {"data": "cGFpZA=="},
                "settledAt": 0,
            },
        },
    }
    world.ok(c.ReleaseTask(id="job", version=2))
    assert "resume" in world.ask("task.acquire", data | {"version": 2}, 0)[1]["task"]
    world.ok(r.claimed("plain"))
    world.ok(c.ReleaseTask(id="plain", version=1))
    _, plain = world.ask("task.acquire", data | {"id": "plain"}, 0)
    assert sorted(plain["task"]) == ["id", "pid", "resumes", "state", "ttl", "version"]


# --- polls -----------------------------------------------------------------------------------


def test_polls_travel_with_heartbeats(world: World) -> None:
    """Since when it waits stays; what another manager runs by now is left alone."""
    poll(world)
    report = c.PollReport(polls=3, last_poll_at=20, next_poll_at=50, last_error="e" * 5_000)
    for at in (30, 60):
        world.clock.advance(30)
        world.ok(c.HeartbeatWorker(pid="m", incarnation="1", polling={OWN: report, NODE: report}))
        told = msgspec.json.decode(world.task(OWN).waiting_on or "")
        assert (told["polls"], told["last_poll_at"], told["next_poll_at"]) == (3, 20, 50)
        assert len(told["last_error"]) == 1_000
        assert world.task(OWN).waiting_since == 30, at
        world.check()
    assert "polls" not in (world.task(NODE).waiting_on or "")
    world.ok(c.LeaveWorker(pid="m", incarnation="1"))
    world.tick()
    world.ok(r.take_triggers(pid="n"))
    world.ok(c.Take(pid="m", incarnation="2", group=TRIGGER_GROUP, names=(), free=0))
    world.ok(c.HeartbeatWorker(pid="m", incarnation="2", polling={OWN: report}))
    assert world.task(OWN).waiting_on is None


def test_for_whom_a_trigger_asks_stays_with_it_when_its_deadline_moves(world: World) -> None:
    """Polls are shared by those for whom it is the same: the prefix of their token."""
    world.ok(r.run(a="", with_take=r.take()))
    command = r.defer(NODE, 1, r.trigger("Poll", url="u"), 5_000)
    world.ok(msgspec.structs.replace(command, principal="mine/"))
    assert principal_of(world.promise(OWN).tags) == "mine/"
    world.ok(c.ExtendWait(id=NODE, exit_id="more", timeout=9_000))
    assert principal_of(world.promise(f"{NODE}.defer.more").tags) == "mine/"
    world.check()
