"""Every invariant sees its violation, and none sees one where there is none."""

import pytest
from msgspec.structs import replace

from layby.core.invariants import INVARIANTS, check
from layby.core.limit import Limit
from layby.core.model import NEVER, Holder, Listener, Message, Promise, Task, Wait
from layby.core.schedule_row import Schedule
from layby.core.state import State

TAGS = '{"resonate:target":"poll://any@other"}'


def promise(key: str, **changed: object) -> Promise:
    return replace(Promise(key, key, "{}", TAGS, 1_000, 0), **changed)


def settled(key: str, **changed: object) -> Promise:
    return promise(key, **{"state": "resolved", "settled_at": 5} | changed)


def task(key: str, **changed: object) -> Task:
    return replace(Task(key, "poll://any@other", wake_at=9, ready_at=0, waiting_since=0), **changed)


ACQUIRED = {"state": "acquired", "pid": "p", "ttl": 5, "ready_at": None, "waiting_since": None}
IDLE = {"wake_at": None, "ready_at": None, "waiting_since": None}


OPEN = '{"kind":"k","at":1,"trigger":"t"}'
OVER = '{"kind":"k","at":1,"trigger":"t","won":"t"}'
LATE = '{"kind":"k","at":1,"trigger":"t","own":true,"deadline":"l","won":"l"}'


def root(key: str, **changed: object) -> Task:
    return task(key, kind="root", state="fulfilled", **IDLE | changed)


def state(*rows: object) -> State:
    found = State()
    for row in rows:
        match row:
            case Promise():
                found.promises[row.id] = row
            case Task():
                found.tasks[row.id] = row
            case Wait():
                found.waits[row.awaited, row.awaiter] = row
            case Listener():
                found.listeners.add(row)
            case Message():
                found.messages[row.key] = row
            case Holder():
                found.holders[row.pid, row.incarnation] = row
            case Schedule():
                found.schedules[row.id] = row
            case Limit():
                found.limits[row.name] = row
    return found


def schedule(**changed: object) -> Schedule:
    return replace(Schedule("s", "* * * * *", "x", 1, "{}", TAGS, 0, 60), **changed)


BROKEN: dict[str, tuple[object, ...]] = {
    "orphan_tasks": (task("x"),),
    "pending_task_no_ttimeout": (promise("x"), task("x", wake_at=None)),
    "acquired_task_no_lease": (promise("x"), task("x", **ACQUIRED, wake_at=None)),
    "acquired_task_no_lease ": (promise("x"), task("x", **ACQUIRED | {"pid": None})),
    "acquired_task_no_lease  ": (promise("x"), task("x", **ACQUIRED, holder="gone", wake_at=None)),
    "suspended_no_callback": (promise("x"), task("x", state="suspended", **IDLE)),
    "suspended_with_consumed_callbacks": (
        promise("x"),
        settled("y", tags="{}"),
        task("x", state="suspended", **IDLE),
        Wait("y", "x"),
    ),
    "suspended_task_has_ttimeout": (promise("x"), task("x", state="suspended", ready_at=None)),
    "fulfilled_task_has_ttimeout": (settled("x"), task("x", state="fulfilled", ready_at=None)),
    "promise_times_in_order": (promise("x", tags="{}", created_at=1_001),),
    "promise_times_in_order ": (promise("x", tags="{}", settled_at=1),),
    "promise_times_in_order  ": (settled("x", tags="{}", settled_at=1_001),),
    "timeout_settles_at_deadline": (settled("x", tags="{}", state="rejected_timedout"),),
    "timeout_settles_at_deadline ": (
        settled("x", tags="{}", state="rejected_timedout", settled_at=1_000, timer=True),
    ),
    "task_iff_target": (promise("x"),),
    "task_iff_target ": (promise("x", tags="{}"), task("x")),
    "fulfilled_iff_settled": (promise("x"), task("x", state="fulfilled", **IDLE)),
    "fulfilled_iff_settled ": (settled("x"), task("x")),
    "settled_has_no_waits": (settled("y", tags="{}"), promise("x"), task("x"), Wait("y", "x")),
    "settled_has_no_listeners": (settled("y", tags="{}"), Listener("y", "poll://any@g")),
    "expired_is_bare": (promise("x", tags="{}", expired_at=1),),
    "expired_is_bare ": (settled("x", tags="{}", expired_at=1, value='{"data":"eA=="}'),),
    "internal_is_not_awaited": (
        promise("y", tags="{}", internal=True),
        promise("x"),
        task("x"),
        Wait("y", "x"),
    ),
    "internal_is_not_awaited ": (
        promise("y", tags="{}", internal=True),
        Listener("y", "poll://any@g"),
    ),
    "internal_is_plain": (promise("x", internal=True), task("x")),
    "awaiter_is_alive": (promise("x"), task("x"), Wait("x", "x")),
    "awaiter_is_alive ": (promise("y", tags="{}"), Wait("y", "x")),
    "awaiter_is_alive  ": (
        promise("y", tags="{}"),
        settled("x"),
        task("x", state="fulfilled", **IDLE),
        Wait("y", "x"),
    ),
    "claim_only_while_acquired": (promise("x"), task("x", pid="p")),
    "claim_only_while_acquired   ": (promise("x"), task("x", holder="1")),
    "claim_only_while_acquired ": (promise("x"), task("x", sub_status="Active")),
    "halted_task_has_ttimeout": (promise("x"), task("x", state="halted", ready_at=None)),
    "version_non_negative": (promise("x"), task("x", version=-1)),
    "suspended_or_fulfilled_has_no_resumes": (
        settled("x"),
        task("x", state="fulfilled", resumes=("y",), **IDLE),
    ),
    "count_equals_waits": (promise("x"), task("x", waits_left=1)),
    "clean_up_comes_last": (
        promise("y", tags="{}"),
        promise("x"),
        task("x", **ACQUIRED, holder="1", wake_at=None, waits_left=1),
        Wait("y", "x", "end"),
        Holder("p", "1", "g", embedded=False, ttl=1, expires_at=9, held=1),
    ),
    "ready_only_while_pending": (promise("x"), task("x", ready_at=None)),
    "waiting_since_while_waiting": (promise("x"), task("x", waiting_since=None)),
    "waiting_since_while_waiting ": (promise("x"), task("x", **ACQUIRED | {"waiting_since": 1})),
    "refusals_are_of_nodes": (promise("x"), task("x", refused='["f",["v1"]]')),
    "refusals_are_of_nodes ": (
        promise("x"),
        task("x", kind="node", name="f", refused='["f",[]]'),
    ),
    "named_life_exists": (settled("run/x"), root("run/x", lives=2)),
    "named_life_exists ": (
        settled("run/x"),
        task("run/x", state="fulfilled", lives=2, **IDLE),
        settled("run/x:life/2"),
        root("run/x:life/2"),
    ),
    "named_life_exists  ": (settled("run/x"), root("run/x", lives=1)),
    "what_was_read_is_there": (promise("x"), task("x"), Wait("gone", "x", "read")),
    "what_was_read_is_there ": (promise("x"), promise("x.1"), task("x"), Wait("x.1", "x", "read")),
    "turns_are_of_nodes": (settled("run/x"), root("run/x", priority=1)),
    "turns_are_of_nodes ": (promise("x"), task("x", slots=0)),
    "child_is_there": (promise("x"), task("x"), promise("y"), Wait("y", "x", "child")),
    "child_is_there ": (
        promise("run/x"),
        task("run/x"),
        promise("run/x:life/2"),
        root("run/x:life/2"),
        Wait("run/x:life/2", "run/x", "child"),
    ),
    "tries_are_claims_that_began": (promise("x"), task("x", tries=1)),
    "tries_are_claims_that_began ": (promise("x"), task("x", version=1, ahead=True)),
    "deferred_waits_for_its_trigger": (settled("x"), task("x", state="fulfilled", resume=OPEN)),
    "deferred_waits_for_its_trigger ": (promise("x"), task("x", resume=OPEN)),
    "deferred_waits_for_its_trigger  ": (promise("x"), task("x", resume=OVER), promise("t")),
    "triggers_end_with_their_waits": (promise("x"), task("x", resume=LATE), promise("t")),
    "triggers_have_awaiters": (promise("x.defer.1"), task("x.defer.1", group="triggers")),
    "joins_end_in_time": (
        promise("x"),
        promise("x:j"),
        task("x:j", state="suspended", kind="join", items=0, **IDLE),
        Wait("x", "x:j", "below"),
    ),
    "joins_end_in_time ": (
        promise("y"),
        promise("x:j"),
        task("x:j", state="suspended", kind="join", waits_left=1, **IDLE),
        Wait("y", "x:j", "all"),
    ),
    "only_joins_have_items": (promise("x"), task("x", items=1)),
    "only_joins_have_items ": (promise("x"), task("x", kind="join", name="f")),
    "one_living_holder_per_pid": tuple(
        Holder("p", each, "g", embedded=False, ttl=1, expires_at=9) for each in "12"
    ),
    "held_count_is_true": (Holder("p", "1", "g", embedded=False, ttl=1, expires_at=9, held=1),),
    "held_count_is_true ": (promise("x"), task("x", **ACQUIRED, holder="1", wake_at=None)),
    "execute_is_current": (
        promise("x"),
        task("x"),
        Message("x", "execute", "poll://any@other", 1),
    ),
    "execute_is_current ": (
        promise("x"),
        task("x", group="g"),
        Message("x", "execute", "poll://any@other", 0),
    ),
    "unblock_is_settled": (promise("y", tags="{}"), Message("y", "unblock", "poll://any@g")),
    "schedule_runs_forward": (schedule(last_run_at=60),),
    "schedule_runs_forward ": (schedule(promise_tags="{}"),),
    "held_permits_are_out": (Limit("api", held=1),),
    "held_permits_are_out ": (promise("x"), task("x", limits='["api"]', permits='["api"]')),
    "held_permits_are_out  ": (promise("x"), task("x", permits='["api"]'), Limit("api", held=1)),
    "gates_are_of_limits": (
        promise("x"),
        task("x", limits='["api"]', gate="other", gate_at=0, ready_at=None),
        Limit("other"),
    ),
    "gates_are_of_limits ": (
        promise("x"),
        task("x", limits='["api"]', gate="api", gate_at=0, ready_at=None),
    ),
    "gates_are_of_limits  ": (
        promise("x"),
        task("x", limits='["api"]', gate="api", ready_at=None),
        Limit("api"),
    ),
    "gates_are_of_limits   ": (promise("x"), task("x", state="halted", **IDLE, gate_at=0)),
    "openings_are_counted": (Limit("api", opened='{"f":[1]}'),),
    "openings_are_counted ": (
        promise("x"),
        task("x", name="f", limits='["api"]', gate_at=0),
        Limit("api"),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_violation_is_seen(name: str) -> None:
    """Under its name, with a text that names the row."""
    found = check(state(*BROKEN[name]), now=0)
    assert name.strip() in {violation.invariant for violation in found}
    assert all(violation.what for violation in found)


def test_every_invariant_is_seen_to_fail() -> None:
    """None is left that no test can break."""
    assert {name.strip() for name in BROKEN} == {each.__name__ for each in INVARIANTS}


GOOD = (
    promise("x"),
    task("x", state="suspended", waits_left=1, **IDLE),
    promise("y"),
    task("y", **ACQUIRED, holder="1", wake_at=None),
    Wait("y", "x", "all"),
    Holder("p", "1", "g", embedded=False, ttl=1, expires_at=NEVER, held=3),
    Listener("y", "poll://any@g"),
    settled("z"),
    task("z", state="fulfilled", **IDLE),
    Message("z", "unblock", "poll://any@g"),
    Message("y", "lost", "poll://uni@layby.g/p"),
    promise("h"),
    task("h", state="halted", pid="p", holder="1", wake_at=None, ready_at=None),
    promise("k"),
    task("k", pid="p", holder="1", wake_at=NEVER, ready_at=None),
    schedule(last_run_at=0),
    settled("run/a"),
    root("run/a", lives=3),
    settled("run/a:life/2"),
    root("run/a:life/2", lives=3),
    settled("run/a:life/3"),
    root("run/a:life/3"),
)


def test_a_good_state_has_none() -> None:
    """A task that waits, one that is held, one that is done, a schedule."""
    assert check(state(*GOOD), now=0) == []


def test_what_waits_for_a_sweep_or_a_tail_is_no_violation() -> None:
    """Past its deadline, or settled with more effects armed."""
    over = (
        promise("x"),
        task("x", state="suspended", waits_left=1, **IDLE),
        settled("y", tags="{}", tail_at=5),
        promise("w"),
        task("w", state="suspended", waits_left=1, **IDLE),
        Wait("y", "w", "all"),
    )
    assert check(state(*over), now=1_000) == []
