"""Tests of the model itself, with expectations worked out by hand from PROTOCOL.md ("P")."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings

from tests.helpers.seeds import seeds

from .oracle import NAMED_MESSAGES, Oracle
from .reading import COMPAT, Profile, is_address
from .scripts import (
    ADDRESSES,
    ANY,
    BAD_ADDRESSES,
    PAIRS,
    START,
    UNI,
    WELL_FORMED,
    Data,
    Script,
    Step,
    acquire,
    callback,
    coverage_scripts,
    create,
    envelope,
    fence,
    fulfill,
    held,
    listener,
    malformed_requests,
    schedule,
    scripts,
    seeded_script,
    settle,
    suspend,
    task_create,
)

R = 30_000
FAR = 1_000_000
END = 5_000  # deadline of the task under test


class Play:
    """An oracle with a clock, and short words for looking at it."""

    def __init__(self, profile: Profile = COMPAT) -> None:
        self.oracle = Oracle(R, profile)
        self.now = 0

    def ask(self, kind: str, data: object) -> tuple[int, Any]:
        return self.oracle.request(kind, data, self.now)

    def do(self, kind: str, data: object, status: int = 200) -> Any:
        got, answer = self.ask(kind, data)
        assert got == status, answer
        return answer

    def promise(self, promise_id: str) -> Data:
        return self.do("promise.get", {"id": promise_id})["promise"]

    def task(self, task_id: str = "t") -> Data:
        return self.do("task.get", {"id": task_id})["task"]

    def tick(self, now: int | None = None) -> None:
        self.now = self.now if now is None else now
        assert self.do("debug.tick", {"time": self.now}) == []

    def snap(self) -> Data:
        return self.do("debug.snap", {})

    def executes(self) -> list[tuple[str, int]]:
        found = [m["message"] for m in self.snap()["messages"]]
        tasks = [m["data"]["task"] for m in found if m["kind"] == "execute"]
        return [(t["id"], t["version"]) for t in tasks]

    def deadlines(self) -> list[tuple[str, str, int]]:
        names = ("retry", "lease")
        return [(t["id"], names[t["type"]], t["timeout"]) for t in self.snap()["taskTimeouts"]]


def play_in(state: str) -> Play:
    """Task t of pid p at version 1 in the given state, and a pending promise x without task."""
    play = Play()
    play.do("promise.create", create("x", FAR))
    if state != "absent":
        play.do("task.create", task_create(create("t", END, target=ANY)))
    moves: dict[str, tuple[str, Data]] = {
        "pending": ("task.release", held("t", 1)),
        "suspended": ("task.suspend", suspend("t", 1, "x")),
        "halted": ("task.halt", {"id": "t"}),
        "fulfilled": ("task.fulfill", fulfill("t", 1)),
    }
    if state in moves:
        play.do(*moves[state])
    return play


# --- P 3.3: the table of tasks ---

STATES = ("absent", "pending", "acquired", "suspended", "halted", "fulfilled")
OPERATIONS: dict[str, Data] = {
    "task.get": {"id": "t"},
    "task.create": task_create(create("t", END, target=ANY)),
    "task.acquire": acquire("t", 1),
    "task.release": held("t", 1),
    "task.suspend": suspend("t", 1, "x"),
    "task.fulfill": fulfill("t", 1),
    "task.fence": fence("t", 1, "promise.settle", settle("x")),
    "task.heartbeat": {"pid": "p", "tasks": [held("t", 1)]},
    "task.halt": {"id": "t"},
    "task.continue": {"id": "t"},
}
SAME = "as before"
TABLE: dict[str, tuple[Any, ...]] = {
    "task.get": (404, *((200, SAME, 1),) * 5),
    "task.create": (
        (200, "acquired", 1),
        (200, "acquired", 2),
        409,
        409,
        409,
        (200, "fulfilled", 1),
    ),
    "task.acquire": (404, (200, "acquired", 2), 409, 409, 409, 409),
    "task.release": (404, 409, (200, "pending", 1), 409, 409, 409),
    "task.suspend": (404, 409, (200, "suspended", 1), 409, 409, 409),
    "task.fulfill": (404, 409, (200, "fulfilled", 1), 409, 409, 409),
    "task.fence": (404, 409, (200, "acquired", 1), 409, 409, 409),
    "task.heartbeat": ((200, None, 0), *((200, SAME, 1),) * 5),
    "task.halt": (404, *((200, "halted", 1),) * 4, 409),
    "task.continue": (404, 409, 409, 409, (200, "pending", 1), 409),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", TABLE)
def test_task_table(kind: str, state: str) -> None:
    """Each operation in each state answers and moves as the table says, or changes nothing."""
    play = play_in(state)
    before = play.snap()
    expected = TABLE[kind][STATES.index(state)]
    if isinstance(expected, int):
        play.do(kind, OPERATIONS[kind], expected)
        assert play.snap() == before
        return
    status, after, version = expected
    play.do(kind, OPERATIONS[kind], status)
    if after is not None:
        task = play.task()
        assert (task["state"], task["version"]) == (state if after is SAME else after, version)


@pytest.mark.parametrize("state", STATES[1:])
@pytest.mark.parametrize("kind", TABLE)
def test_past_its_deadline_a_task_is_fulfilled_to_every_operation(kind: str, state: str) -> None:
    """C4 and C7: at the deadline itself every state answers as the fulfilled column does."""
    play = play_in(state)
    leases = [d for d in play.deadlines() if d[1] == "lease"]
    play.now = END
    expected = TABLE[kind][STATES.index("fulfilled")]
    play.do(kind, OPERATIONS[kind], expected if isinstance(expected, int) else expected[0])
    assert play.task() == {"id": "t", "state": "fulfilled", "version": 1, "resumes": 0}
    assert [d for d in play.deadlines() if d[1] == "lease"] == leases


@pytest.mark.parametrize(
    ("kind", "data", "state"),
    [
        ("task.acquire", acquire("t", 0), "pending"),
        ("task.acquire", acquire("t", 2), "pending"),
        ("task.release", held("t", 0), "acquired"),
        ("task.suspend", suspend("t", 2, "x"), "acquired"),
        ("task.fulfill", fulfill("t", 0), "acquired"),
        ("task.fence", fence("t", 2, "promise.settle", settle("x")), "acquired"),
        ("task.halt", {"id": "t", "version": 0}, "acquired"),
        ("task.halt", {"id": "t", "version": 0}, "halted"),
        ("task.continue", {"id": "t", "version": 2}, "halted"),
    ],
)
def test_only_the_current_version_succeeds(kind: str, data: Data, state: str) -> None:
    """A stale or unissued version is a conflict that changes nothing (seed 004, P 8)."""
    play = play_in(state)
    before = play.snap()
    play.do(kind, data, 409)
    assert play.snap() == before


@pytest.mark.parametrize(
    ("state", "deadlines", "executes"),
    [
        ("pending", [("t", "retry", R)], [("t", 1)]),
        ("acquired", [("t", "lease", 5_000)], []),
        ("suspended", [], []),
        ("halted", [], []),
        ("fulfilled", [], []),
    ],
)
def test_each_state_has_its_deadline_and_message(
    state: str, deadlines: list[tuple[str, str, int]], executes: list[tuple[str, int]]
) -> None:
    """Pending has a retry and an execute, acquired has a lease, the others have neither."""
    play = play_in(state)
    assert play.deadlines() == deadlines
    assert play.executes() == executes


def test_an_acquired_record_shows_its_claim() -> None:
    """Pid and ttl are shown while acquired and omitted otherwise (P 2.0)."""
    play = play_in("acquired")
    expected = {"id": "t", "state": "acquired", "version": 1, "resumes": 0, "ttl": 5000, "pid": "p"}
    assert play.task() == expected
    play.do("task.release", held("t", 1))
    assert play.task() == {"id": "t", "state": "pending", "version": 1, "resumes": 0}


def test_acquire_twice_is_a_conflict() -> None:
    """Retrying a successful acquire fails at once, for the same process too (P 3.3, 8; C10)."""
    play = play_in("pending")
    play.do("task.acquire", acquire("t", 1))
    assert play.do("task.acquire", acquire("t", 1), 409) == "Task is not pending"
    assert play.do("task.acquire", acquire("t", 2), 409) == "Task is not pending"


def test_task_create_past_its_deadline_is_born_fulfilled() -> None:
    """Nothing is claimed, no lease is armed, and the version stays 0 (P 3.3)."""
    play = Play()
    play.now = 10
    play.do("promise.create", create("sibling", FAR, branch="r"))
    answer = play.do("task.create", task_create(create("t", 4, target=ANY, branch="r")))
    assert answer["task"] == {"id": "t", "state": "fulfilled", "version": 0, "resumes": 0}
    promise = answer["promise"]
    assert (promise["createdAt"], promise["settledAt"], promise["timeoutAt"]) == (4, 4, 4)
    assert (answer["preload"], play.deadlines(), play.executes()) == ([], [], [])


def test_task_create_on_a_promise_without_task() -> None:
    """A promise without a target has no task, settled or not (P 3.3)."""
    play = Play()
    play.do("promise.create", create("x", FAR))
    text = play.do("task.create", task_create(create("x", FAR, target=ANY)), 422)
    assert text == "The promise does not have a resonate:target tag"
    play.do("promise.settle", settle("x"))
    play.do("task.create", task_create(create("x", FAR, target=ANY)), 422)


def test_preload_is_the_rest_of_the_branch() -> None:
    """Same branch tag, without the task's own promise, by id, projected (P 2.2, C8)."""
    play = Play()
    for one, timeout in (("z", FAR), ("b", 10), ("t", FAR)):
        target = {"target": ANY} if one == "t" else {}
        play.do("promise.create", create(one, timeout, branch="r", **target))
    play.do("promise.create", create("other", FAR, branch="q"))
    play.now = 10
    preload = play.do("task.acquire", acquire("t", 0))["preload"]
    assert [(p["id"], p["state"]) for p in preload] == [
        ("b", "rejected_timedout"),
        ("z", "pending"),
    ]
    play.do("promise.settle", settle("z"))
    assert len(play.do("task.suspend", suspend("t", 1, "z"), 300)["preload"]) == 2
    done = fence("t", 1, "promise.settle", settle("b"))
    assert play.do("task.fence", done)["preload"] == []


def test_release_keeps_version_and_resumes() -> None:
    """What settled meanwhile is still counted after a release, until an acquire (P 3.3)."""
    play = play_in("acquired")
    play.do("promise.register_callback", callback("x", "t"))
    play.do("promise.settle", settle("x"))
    assert play.task()["resumes"] == 1
    play.now = 7
    play.do("task.release", held("t", 1))
    assert play.task() == {"id": "t", "state": "pending", "version": 1, "resumes": 1}
    assert play.deadlines() == [("t", "retry", 7 + R)]
    assert play.do("task.acquire", acquire("t", 1))["task"]["resumes"] == 0


def test_a_dead_task_shows_no_resumes() -> None:
    """What it had gathered is not shown once its promise is past its deadline (P 3.1)."""
    play = play_in("pending")
    play.do("promise.register_callback", callback("x", "t"))
    play.do("promise.settle", settle("x"))
    assert play.task()["resumes"] == 1
    play.now = END
    assert play.task()["resumes"] == 0


# --- P 3.3: suspend and resume ---


def test_suspend_refuses_as_a_whole_if_one_awaited_is_missing() -> None:
    """The missing one wins over a settled one, and nothing changes (P 2.2)."""
    play = play_in("acquired")
    play.do("promise.create", create("done", 0))
    before = play.snap()
    assert play.do("task.suspend", suspend("t", 1, "x", "done", "no"), 422)
    assert play.snap() == before


def test_suspend_redirects_if_one_awaited_is_settled() -> None:
    """The task keeps its claim and lease, drops its resumes, and registers nothing (P 3.3)."""
    play = play_in("acquired")
    play.do("promise.create", create("y", 100))
    play.do("promise.register_callback", callback("y", "t"))
    play.do("promise.settle", settle("y"))
    assert play.task()["resumes"] == 1
    play.now = 50
    assert play.do("task.suspend", suspend("t", 1, "x", "y"), 300) == {"preload": []}
    assert (play.task()["state"], play.task()["resumes"]) == ("acquired", 0)
    assert play.deadlines() == [("t", "lease", 5_000)]
    assert play.snap()["callbacks"] == []


def test_suspend_redirects_if_one_awaited_is_past_its_deadline() -> None:
    """A promise that only time has settled counts as settled (P 3.1)."""
    play = play_in("acquired")
    play.do("promise.create", create("y", 100))
    play.now = 100
    play.do("task.suspend", suspend("t", 1, "x", "y"), 300)


def test_suspend_counts_each_awaited_once() -> None:
    """Duplicates are one callback (P 0)."""
    play = play_in("acquired")
    assert play.do("task.suspend", suspend("t", 1, "x", "x")) == {}
    assert play.snap()["callbacks"] == [{"awaiter": "t", "awaited": "x"}]


def test_resume_of_each_state() -> None:
    """An awaited promise settles: suspended wakes, the living count it, fulfilled does not."""
    for state, after, resumes in (
        ("pending", "pending", 1),
        ("acquired", "acquired", 1),
        ("suspended", "pending", 1),
        ("halted", "halted", 1),
        ("fulfilled", "fulfilled", 0),
    ):
        play = play_in(state)
        play.do("promise.register_callback", callback("x", "t"))
        play.now = 9
        play.do("promise.settle", settle("x"))
        task = play.task()
        assert (task["state"], task["resumes"], task["version"]) == (after, resumes, 1)
        assert play.snap()["callbacks"] == []
        if state == "suspended":
            assert play.deadlines() == [("t", "retry", 9 + R)]
            assert play.executes() == [("t", 1)]


def test_halted_keeps_waiting() -> None:
    """Halting a suspended task keeps its callbacks, and continuing shows what settled (P 3.3)."""
    play = play_in("suspended")
    play.do("task.halt", {"id": "t"})
    assert play.snap()["callbacks"] == [{"awaiter": "t", "awaited": "x"}]
    play.do("promise.settle", settle("x"))
    assert (play.task()["state"], play.executes()) == ("halted", [])
    play.do("task.continue", {"id": "t", "version": 1})
    assert play.task() == {"id": "t", "state": "pending", "version": 1, "resumes": 1}
    assert play.executes() == [("t", 1)]


def test_a_halted_task_ends_with_its_promise() -> None:
    """Own promise settles: fulfilled, from halted as from any state (P 3.3)."""
    for state in ("pending", "acquired", "suspended", "halted"):
        play = play_in(state)
        play.do("promise.settle", settle("t"))
        assert play.task() == {"id": "t", "state": "fulfilled", "version": 1, "resumes": 0}
        assert (play.deadlines(), play.executes()) == ([], [])


def test_a_fulfilled_task_waits_for_nothing() -> None:
    """Its callbacks on other promises go with it (P 3.3)."""
    play = play_in("suspended")
    play.do("promise.settle", settle("t"))
    assert play.snap()["callbacks"] == []


def test_second_wait_keeps_what_is_left_of_the_first() -> None:
    """A callback that has not fired stays through resume, acquire and the next suspend."""
    play = play_in("acquired")
    play.do("promise.create", create("y", FAR))
    play.do("promise.create", create("z", FAR))
    play.do("task.suspend", suspend("t", 1, "x", "y"))
    play.do("promise.settle", settle("x"))
    play.do("task.acquire", acquire("t", 1))
    play.do("task.suspend", suspend("t", 2, "z"))
    assert [c["awaited"] for c in play.snap()["callbacks"]] == ["y", "z"]
    play.do("promise.settle", settle("y"))
    assert play.task() == {"id": "t", "state": "pending", "version": 2, "resumes": 1}


# --- P 3.2: the table of promises ---


def test_create_inserts_once() -> None:
    """The second create is answered with the first's record, whatever it says (P 2.1)."""
    play = Play()
    play.now = 3
    given_param = {"headers": {}, "data": "eA=="}
    data = create("a", FAR) | {"param": given_param, "tags": {"k": "v"}}
    expected = {
        "id": "a",
        "state": "pending",
        "param": given_param,
        "value": {},
        "tags": {"k": "v"},
        "timeoutAt": FAR,
        "createdAt": 3,
    }
    assert play.do("promise.create", data) == {"promise": expected}
    play.now = 4
    assert play.do("promise.create", create("a", 1, target=ANY)) == {"promise": expected}
    play.do("task.get", {"id": "a"}, 404)


@pytest.mark.parametrize(
    ("timer", "state"),
    [("true", "resolved"), ("True", "rejected_timedout"), (None, "rejected_timedout")],
)
def test_create_past_its_deadline_is_born_settled(timer: str | None, state: str) -> None:
    """CreatedAt, settledAt and timeoutAt are one, at the deadline as after it (P 3.2)."""
    for now in (10, 15):
        play = Play()
        play.now = now
        tags = {"target": ANY} | ({} if timer is None else {"timer": timer})
        promise = play.do("promise.create", create("a", 10, **tags))["promise"]
        assert (promise["state"], promise["value"]) == (state, {})
        assert (promise["createdAt"], promise["settledAt"], promise["timeoutAt"]) == (10, 10, 10)
        assert play.task("a") == {"id": "a", "state": "fulfilled", "version": 0, "resumes": 0}
        snap = play.snap()
        assert (snap["promiseTimeouts"], snap["taskTimeouts"], snap["messages"]) == ([], [], [])


def test_create_with_target_dispatches() -> None:
    """A pending task at version 0, its execute and its retry (P 3.2, 3.5)."""
    play = Play()
    play.do("promise.create", create("t", FAR, target=UNI))
    assert play.task() == {"id": "t", "state": "pending", "version": 0, "resumes": 0}
    assert play.deadlines() == [("t", "retry", R)]
    message = {"kind": "execute", "head": {}, "data": {"task": {"id": "t", "version": 0}}}
    assert play.snap()["messages"] == [{"address": UNI, "message": message}]


def test_settle_and_settle_again() -> None:
    """The first settlement stands; the second is answered with it (P 3.2)."""
    play = Play()
    play.do("promise.create", create("a", FAR))
    play.now = 8
    first = play.do("promise.settle", settle("a", "rejected", "eA=="))["promise"]
    assert (first["state"], first["value"], first["settledAt"]) == ("rejected", {"data": "eA=="}, 8)
    play.now = 9
    assert play.do("promise.settle", settle("a", "resolved"))["promise"] == first


def test_timeout_always_wins() -> None:
    """A settlement at the deadline finds the promise timed out (P 3.1)."""
    play = Play()
    play.do("promise.create", create("a", 10))
    play.do("promise.create", create("b", 10, timer="true"))
    play.now = 10
    for one, state in (("a", "rejected_timedout"), ("b", "resolved")):
        promise = play.do("promise.settle", settle(one, "rejected_canceled", "eA=="))["promise"]
        assert (promise["state"], promise["settledAt"], promise["value"]) == (state, 10, {})


def test_callback_refusals_in_order() -> None:
    """404 for the awaited, then 422 for the awaiter (P 1.1, 2.1)."""
    play = play_in("absent")
    both = play.do("promise.register_callback", callback("no", "nor"), 404)
    assert both == "Awaited promise not found"
    missing = play.do("promise.register_callback", callback("x", "no"), 422)
    assert missing == "Awaiter promise not found"
    play.do("promise.create", create("y", 0))
    plain = play.do("promise.register_callback", callback("x", "y"), 422)
    assert plain == "Awaiter promise has no resonate:target tag"


def test_callback_by_a_settled_awaiter_is_not_stored() -> None:
    """Every awaiter in store is pending (P 3.2, 7), dead ones included."""
    play = play_in("suspended")
    play.do("promise.create", create("y", FAR))
    play.now = END
    assert play.do("promise.register_callback", callback("y", "t"))["promise"]["state"] == "pending"
    assert [c["awaited"] for c in play.snap()["callbacks"]] == ["x"]


def test_callback_on_a_settled_promise_wakes() -> None:
    """EnqueueResume (P 3.2 note): suspended wakes with no resume, the active count one."""
    for state, after, resumes in (
        ("pending", "pending", 1),
        ("acquired", "acquired", 1),
        ("suspended", "pending", 0),
        ("halted", "halted", 0),
        ("fulfilled", "fulfilled", 0),
    ):
        play = play_in(state)
        play.do("promise.create", create("done", 0))
        play.now = 2
        play.do("promise.register_callback", callback("done", "t"))
        assert (play.task()["state"], play.task()["resumes"]) == (after, resumes)
        if state == "suspended":
            assert play.deadlines() == [("t", "retry", 2 + R)]
            assert play.executes() == [("t", 1)]
        assert "done" not in [c["awaited"] for c in play.snap()["callbacks"]]  # C11


def test_callback_on_a_settled_promise_does_not_wake_the_dead() -> None:
    """C6 holds for the wake by a late callback as well."""
    play = play_in("suspended")
    play.do("promise.create", create("done", 0))
    play.now = END
    play.do("promise.register_callback", callback("done", "t"))
    assert (play.deadlines(), play.executes()) == ([], [])


def test_listeners_are_a_set_and_are_told_once() -> None:
    """One unblock per address with the settled record; later ones only read (P 2.1, 3.4, C11)."""
    play = play_in("absent")
    for address in (UNI, ANY, UNI):
        play.do("promise.register_listener", listener("x", address))
    assert [one["address"] for one in play.snap()["listeners"]] == [ANY, UNI]
    settled = play.do("promise.settle", settle("x"))["promise"]
    assert play.do("promise.register_listener", listener("x", ADDRESSES[2]))["promise"] == settled
    message = {"kind": "unblock", "head": {}, "data": {"promise": settled}}
    expected = [{"address": ANY, "message": message}, {"address": UNI, "message": message}]
    assert play.snap()["messages"] == expected
    assert play.snap()["listeners"] == []


# --- P 2.2: fence ---


def test_fence_wraps_the_inner_answer() -> None:
    """The inner head repeats the outer corrId, and an inner 404 is inside a 200 (P 2.2)."""
    play = play_in("acquired")
    data = fence("t", 1, "promise.settle", settle("no"))
    status, answer = play.oracle.request("task.fence", data, 0, corr_id="c7")
    head = {"corrId": "c7", "status": 404, "version": "2026-04-01"}
    action = {"kind": "promise.settle", "head": head, "data": "Promise not found"}
    assert (status, answer) == (200, {"action": action, "preload": []})


def test_fence_creates_and_leaves_the_lease() -> None:
    """A fenced create may itself dispatch; the fencing task is untouched (P 3.3)."""
    play = play_in("acquired")
    play.now = 100
    data = fence("t", 1, "promise.create", create("t.1", FAR, target=ANY))
    answer = play.do("task.fence", data)["action"]
    assert (answer["head"]["status"], answer["data"]["promise"]["createdAt"]) == (200, 100)
    assert play.deadlines() == [("t", "lease", 5_000), ("t.1", "retry", 100 + R)]


def test_fence_checks_the_inner_request_before_the_guard() -> None:
    """An ill-formed inner operation is a 400 even for a task that does not exist (P 1.1)."""
    play = play_in("absent")
    play.do("task.fence", fence("no", 1, "promise.settle", settle("x", "pending")), 400)
    play.do("task.fence", fence("no", 1, "promise.get", {"id": "x"}), 400)
    play.do("task.fence", fence("no", 1, "promise.settle", settle("no")), 400)


# --- P 2.2: heartbeat ---


def test_heartbeat_refreshes_by_the_stored_ttl() -> None:
    """Only what matches id, version and pid; an empty list means all of the pid's (P 0, 3.3)."""
    play = play_in("acquired")
    play.do("task.create", task_create(create("u", FAR, target=ANY), "q", 70))
    play.do("task.create", task_create(create("v", FAR, target=ANY), "p", 90))
    play.now = 10
    entries = [held("t", 1), held("u", 1), held("v", 0), held("no", 1), held("x", 0)]
    assert play.do("task.heartbeat", {"pid": "p", "tasks": entries}) == {}
    expected = [("t", "lease", 5_010), ("u", "lease", 70), ("v", "lease", 90)]
    assert play.deadlines() == expected
    play.now = 20
    play.do("task.heartbeat", {"pid": "p", "tasks": []})
    expected = [("t", "lease", 5_020), ("u", "lease", 70), ("v", "lease", 110)]
    assert play.deadlines() == expected


# --- P 3.5, 3.6: sweeps ---


def test_retry_sends_again() -> None:
    """At the retry deadline, not before it, with the version unchanged (P 3.3)."""
    play = Play()
    play.do("promise.create", create("t", FAR, target=ANY))
    play.tick(R - 1)
    assert play.deadlines() == [("t", "retry", R)]
    play.tick(R)
    assert (play.deadlines(), play.executes()) == ([("t", "retry", 2 * R)], [("t", 0)])


def test_lease_expiry_offers_the_task_again() -> None:
    """Pid and ttl go, the version stays, the execute carries it (P 3.3, seed 004)."""
    play = Play()
    play.do("task.create", task_create(create("t", FAR, target=ANY), ttl=50))
    play.tick(49)
    assert play.task()["state"] == "acquired"
    play.tick(50)
    assert play.task() == {"id": "t", "state": "pending", "version": 1, "resumes": 0}
    assert (play.deadlines(), play.executes()) == ([("t", "retry", 50 + R)], [("t", 1)])


def test_delay_holds_the_execute_back() -> None:
    """The delay's instant is the first retry deadline; the task is pending meanwhile (P 3.5)."""
    play = Play()
    play.do("promise.create", create("t", FAR, target=ANY, delay="100"))
    play.do("promise.create", create("u", FAR, target=ANY, delay="0"))
    assert play.deadlines() == [("t", "retry", 100), ("u", "retry", R)]
    assert play.executes() == [("u", 0)]
    play.tick(100)
    assert play.executes() == [("t", 0), ("u", 0)]
    assert play.deadlines() == [("t", "retry", 100 + R), ("u", "retry", R)]


def test_every_pending_promise_has_an_enforced_deadline() -> None:
    """C1 to C3: one without target or timer times out, and wakes and tells who waits for it."""
    play = play_in("acquired")
    play.do("promise.create", create("y", 10))
    play.do("promise.register_listener", listener("y", UNI))
    play.do("task.suspend", suspend("t", 1, "y"))
    assert {"id": "y", "timeout": 10} in play.snap()["promiseTimeouts"]
    play.tick(12)
    assert play.promise("y")["settledAt"] == 10
    assert play.task() == {"id": "t", "state": "pending", "version": 1, "resumes": 1}
    assert play.deadlines() == [("t", "retry", 12 + R)]
    kinds = [m["message"]["kind"] for m in play.snap()["messages"]]
    assert kinds == ["execute", "unblock"]


def test_nothing_is_dispatched_for_a_dead_promise() -> None:
    """C5: a lease or retry due in the sweep that ends the promise sends nothing."""
    play = Play()
    play.do("task.create", task_create(create("a", 10, target=ANY), ttl=5))
    play.do("promise.create", create("b", 10, target=ANY, delay="5"))
    play.tick(10)
    assert (play.deadlines(), play.executes()) == ([], [])
    assert [play.task(one)["state"] for one in ("a", "b")] == ["fulfilled", "fulfilled"]


def test_parent_and_child_that_expire_together() -> None:
    """All are settled before any is resumed, whichever id comes first (P 3.4)."""
    for parent, child in (("a", "b"), ("b", "a")):
        play = Play()
        play.do("task.create", task_create(create(parent, 10, target=ANY)))
        play.do("promise.create", create(child, 10))
        play.do("task.suspend", suspend(parent, 1, child))
        play.tick(10)
        assert (play.task(parent)["state"], play.executes()) == ("fulfilled", [])


def test_settlement_skips_an_awaiter_past_its_deadline() -> None:
    """C6: it is not woken, counted or dispatched, and the sweep then ends it."""
    for state in ("pending", "acquired", "suspended", "halted"):
        play = play_in(state)
        play.do("promise.register_callback", callback("x", "t"))
        before = (play.deadlines(), play.executes())
        play.now = END
        play.do("promise.settle", settle("x"))
        assert (play.deadlines(), play.executes()) == before
        assert not play.oracle.tasks["t"].resumes
        play.tick()
        assert (play.task()["state"], play.executes()) == ("fulfilled", [])


def test_searches_are_projected() -> None:
    """C8: the filter sees what the answer shows."""
    play = play_in("acquired")
    play.now = END
    pending = play.do("promise.search", {"state": "pending"})["promises"]
    assert [p["id"] for p in pending] == ["x"]
    dead = play.do("promise.search", {"state": "rejected_timedout"})["promises"]
    assert [(p["id"], p["settledAt"]) for p in dead] == [("t", END)]
    assert play.do("task.search", {"state": "acquired"}) == {"tasks": []}
    assert play.do("task.search", {"state": "fulfilled"})["tasks"] == [play.task()]


# --- P 2.1: searches ---


def test_pages() -> None:
    """Byte order, strictly after the cursor, and a cursor only if more exists (P 2.1)."""
    play = Play()
    for one in ("b", "a", "B", "é", "a.1"):
        play.do("promise.create", create(one, FAR, target=UNI if one == "b" else ANY))
    first = play.do("promise.search", {"limit": 2})
    assert ([p["id"] for p in first["promises"]], first["cursor"]) == (["B", "a"], "a")
    second = play.do("promise.search", {"limit": 3, "cursor": "a"})
    assert [p["id"] for p in second["promises"]] == ["a.1", "b", "é"]
    assert "cursor" not in second
    found = play.do("task.search", {"target": UNI})["tasks"]
    assert [t["id"] for t in found] == ["b"]
    tagged = play.do("promise.search", {"tags": {"resonate:target": UNI, "k": "v"}})
    assert tagged == {"promises": []}


# --- P 2.3, 5: schedules ---


def test_schedule_fires_every_missed_occurrence() -> None:
    """Born settled if too late, else pending and dispatched, each at its own instant (P 5)."""
    play = Play()
    made = play.do("schedule.create", schedule("s", timeout=90_000))["schedule"]
    assert (made["nextRunAt"], made["createdAt"], "lastRunAt" in made) == (60_000, 0, False)
    play.tick(59_999)
    assert play.snap()["promises"] == []
    play.tick(200_000)
    found = {p["id"]: p for p in play.snap()["promises"]}
    assert list(found) == ["s.120000", "s.180000", "s.60000"]
    assert found["s.60000"]["state"] == "rejected_timedout"
    assert (found["s.60000"]["createdAt"], found["s.60000"]["settledAt"]) == (60_000, 150_000)
    late = found["s.120000"]
    assert (late["state"], late["createdAt"], late["timeoutAt"]) == ("pending", 120_000, 210_000)
    own = dict.fromkeys(
        ("resonate:origin", "resonate:branch", "resonate:parent", "resonate:prefix"), "s.120000"
    )
    assert late["tags"] == {"resonate:target": ANY, "resonate:schedule": "s"} | own
    assert play.deadlines() == [("s.120000", "retry", 230_000), ("s.180000", "retry", 230_000)]
    assert play.executes() == [("s.120000", 0), ("s.180000", 0)]
    after = play.do("schedule.get", {"id": "s"})["schedule"]
    assert (after["lastRunAt"], after["nextRunAt"]) == (180_000, 240_000)


def test_schedule_whose_promise_exists_advances_only() -> None:
    """Nothing is created for an id in use, yet the schedule goes on (P 5)."""
    play = Play()
    play.do("promise.create", create("s", FAR))
    play.do("schedule.create", schedule("s") | {"promiseId": "{{.id}}"})
    play.tick(60_000)
    assert "resonate:schedule" not in play.promise("s")["tags"]
    assert play.do("schedule.get", {"id": "s"})["schedule"]["nextRunAt"] == 120_000


def test_schedule_is_created_once_and_deleted_alone() -> None:
    """A second create changes nothing; a delete leaves the promises (P 2.3)."""
    play = Play()
    made = play.do("schedule.create", schedule("s"))
    play.now = 1
    assert play.do("schedule.create", schedule("s", "0 0 * * *", 7)) == made
    play.tick(60_000)
    play.do("schedule.delete", {"id": "s"})
    play.do("schedule.delete", {"id": "s"}, 404)
    play.tick(120_000)
    assert [p["id"] for p in play.snap()["promises"]] == ["s.60000"]


@pytest.mark.parametrize(
    ("cron", "hours"),
    [
        ("0 * * * *", 1),
        ("0 0 * * 0", 3 * 24),  # 1970-01-01 was a Thursday
        ("0 0 * * 7", 3 * 24),
        ("0 0 * * sun", 3 * 24),
        ("0 0 13 * 5", 1 * 24),  # day of month or day of week
        ("0 0 1 feb *", 31 * 24),
    ],
)
def test_cron_is_read_the_unix_way(cron: str, hours: int) -> None:
    """Sunday is 0 and 7, names work, and two day fields are alternatives (P 5)."""
    play = Play()
    made = play.do("schedule.create", schedule("s", cron))["schedule"]
    assert made["nextRunAt"] == hours * 3_600_000


def test_schedules_need_a_target() -> None:
    """The message is the one that released SDKs expect (P 0, 2.3)."""
    play = Play()
    data = schedule("s") | {"promiseTags": {}}
    text = play.do("schedule.create", data, 400)
    assert text == "promiseTags must include a resonate:target tag"


# --- P 2.0: reading ---


def test_malformed_requests_are_refused_and_change_nothing() -> None:
    """Each spoiled member alone makes a 400, with a text (P 1.1, 2)."""
    play = play_in("acquired")
    before = play.snap()
    for kind, data in malformed_requests():
        status, text = play.ask(kind, data)
        assert (status, type(text)) == (400, str), (kind, data)
    assert play.snap() == before


def test_well_formed_requests_are_not_malformed() -> None:
    """The requests that the malformed ones are made from are sound themselves."""
    for kind, variants in WELL_FORMED.items():
        for data in variants:
            assert Play().ask(kind, data)[0] != 400, (kind, data)


def test_lenient_reading() -> None:
    """Null is absent, an integral float is an int, and unknown members are ignored (P 2.0)."""
    play = Play()
    data = {"id": "a", "timeoutAt": 5e3, "param": None, "tags": None, "ikey": "k"}
    promise = play.do("promise.create", data)["promise"]
    assert (promise["timeoutAt"], type(promise["timeoutAt"])) == (5_000, int)
    assert (promise["param"], promise["tags"]) == ({}, {})
    value = {"headers": None, "data": "eA==", "other": 1}
    settled = play.do("promise.settle", {"id": "a", "state": "resolved", "value": value})
    assert settled["promise"]["value"] == {"data": "eA=="}


def test_an_action_is_judged_by_its_data_alone() -> None:
    """The kind and head of a sub-envelope are required but not looked at (P 2.2)."""
    play = Play()
    action = envelope("nonsense", create("t", FAR, target=ANY)) | {"head": 7}
    play.do("task.create", {"pid": "p", "ttl": 1, "action": action})


@pytest.mark.parametrize(
    "address", [*ADDRESSES, "poll://uni@g", "bash://docker/i", "poll://any@g?x=1"]
)
def test_valid_addresses(address: str) -> None:
    """Every form of P 4.3 is accepted, the undeliverable ones too."""
    assert is_address(address)


@pytest.mark.parametrize("address", BAD_ADDRESSES)
def test_invalid_addresses(address: str) -> None:
    """Unknown schemes and users, missing hosts and bare words are refused (P 4.3)."""
    assert not is_address(address)


def test_reset_forgets_everything() -> None:
    """Schedules, messages and all (P 2.4)."""
    play = play_in("pending")
    play.do("schedule.create", schedule("s"))
    play.do("debug.reset", {})
    assert play.snap() == Play().snap()
    assert play.do("schedule.search", {}) == {"schedules": []}


def test_answers_are_copies() -> None:
    """What a caller does to an answer does not reach the model."""
    play = play_in("absent")
    play.promise("x")["tags"]["k"] = "v"
    assert play.promise("x")["tags"] == {}


# --- scripts ---


def test_fixed_scripts_reach_every_pair() -> None:
    """Every (kind, status) that the protocol names is reached, and no other."""
    reached = set()
    for script in coverage_scripts().values():
        oracle = Oracle()
        reached |= {(kind, oracle.request(kind, data, now)[0]) for kind, data, now in script}
    assert reached - {("promise.unknown", 400)} == PAIRS


def test_named_messages_are_reached() -> None:
    """Every error text that the protocol names is given by some fixed or seeded script."""
    named = {(*pair, text) for pair, texts in NAMED_MESSAGES.items() for text in texts}
    for script in (*coverage_scripts().values(), *map(seeded_script, range(10))):
        oracle = Oracle()
        for kind, data, now in script:
            status, answer = oracle.request(kind, data, now)
            named.discard((kind, status, str(answer)))
    assert not named


@settings(max_examples=60, deadline=None)
@given(scripts())
def test_random_scripts_keep_the_invariants(script: Script) -> None:
    """P 7 holds after every step of a script."""
    Witness().watch(script)


@pytest.mark.parametrize("seed", seeds(8, slow=25))
def test_seeded_scripts_keep_the_invariants(seed: int) -> None:
    """P 7 holds after every step of a long script."""
    Witness().watch(seeded_script(seed))


@pytest.mark.parametrize("name", coverage_scripts())
def test_fixed_scripts_keep_the_invariants(name: str) -> None:
    """P 7 holds after every step of a fixed script."""
    Witness().watch(coverage_scripts()[name])


@pytest.mark.parametrize("seed", range(5))
def test_projecting_and_writing_answer_alike(seed: int) -> None:
    """P 3.1: a sweep changes no promise that a read has shown, only what waits for it."""
    oracle = Oracle()
    for kind, data, now in seeded_script(seed, 120):
        oracle.request(kind, data, now)
        swept = copy.deepcopy(oracle)
        swept.request("debug.tick", {"time": now}, now)
        for one in oracle.promises:
            read = ("promise.get", {"id": one}, now)
            assert swept.request(*read) == oracle.request(*read)


def test_scripts_keep_their_rules() -> None:
    """Time never falls, ticks are on time, and a snapshot follows a tick."""
    for script in (*coverage_scripts().values(), *map(seeded_script, range(5))):
        last: Step = ("", None, START)
        for kind, data, now in script:
            assert now >= last[2]
            if kind == "debug.tick" and isinstance(data, dict) and type(data.get("time")) is int:
                assert data["time"] == now
            assert kind != "debug.snap" or last == ("debug.tick", {"time": now}, now)
            assert last[0] != "debug.stop"
            last = (kind, data, now)


# --- P 7: the invariants, written down one by one ---


class Witness:
    """Runs a script and checks after every step what section 7 says of states and of time."""

    def __init__(self, profile: Profile = COMPAT) -> None:
        self.oracle = Oracle(R, profile)
        self.before = copy.deepcopy(self.oracle)
        self.settled: set[str] = set()
        self.fulfilled: set[str] = set()
        self.claims: set[tuple[str, int]] = set()

    def watch(self, script: Script) -> None:
        for kind, data, now in script:
            status, answer = self.oracle.request(kind, data, now)
            if kind == "debug.reset":
                self.settled, self.fulfilled, self.claims = set(), set(), set()
                self.before = copy.deepcopy(self.oracle)
            check_promises(self.oracle)
            check_tasks(self.oracle, now)
            check_schedules(self.oracle)
            check_messages(self.oracle)
            check_passage(self.before, self.oracle)
            self._check_claims(kind, status, answer)
            self._check_no_regress(answer)
            if status >= 400:
                assert vars(self.before) == vars(self.oracle)
            self.before = copy.deepcopy(self.oracle)

    def _check_claims(self, kind: str, status: int, answer: Any) -> None:
        """C10: each version is granted once."""
        if kind not in ("task.acquire", "task.create") or status != 200:
            return
        task = answer["task"]
        if task["state"] == "acquired":
            assert (task["id"], task["version"]) not in self.claims
            self.claims.add((task["id"], task["version"]))

    def _check_no_regress(self, answer: Any) -> None:
        """C8: what was once shown settled or fulfilled is never shown otherwise."""
        for record in records_in(answer):
            shown = self.settled if "timeoutAt" in record else self.fulfilled
            done = record["state"] not in TASK_STATES_ALIVE
            assert done or record["id"] not in shown
            if done:
                shown.add(record["id"])


TASK_STATES_ALIVE = ("pending", "acquired", "suspended", "halted")


def records_in(answer: Any) -> list[Data]:
    """Every promise and task record anywhere in an answer."""
    if isinstance(answer, list):
        return [record for part in answer for record in records_in(part)]
    if not isinstance(answer, dict):
        return []
    inner = [record for part in answer.values() for record in records_in(part)]
    return [answer, *inner] if "state" in answer else inner


def check_promises(oracle: Oracle) -> None:
    for promise_id, promise in oracle.promises.items():
        assert promise.id == promise_id
        assert promise.timeout_at >= 0
        assert promise.created_at <= promise.timeout_at
        timer = promise.tags.get("resonate:timer") == "true"
        if promise.state == "pending":
            assert promise.settled_at is None
        else:
            assert promise.settled_at is not None
            assert promise.created_at <= promise.settled_at <= promise.timeout_at
            assert not promise.callbacks
            assert not promise.listeners
        if promise.state == "rejected_timedout":
            assert promise.settled_at == promise.timeout_at
            assert not timer
        if timer and promise.settled_at == promise.timeout_at:
            assert promise.state == "resolved"
        has_task = promise_id in oracle.tasks
        assert ("resonate:target" in promise.tags) == has_task
        if has_task:
            fulfilled = oracle.tasks[promise_id].state == "fulfilled"
            assert (promise.state != "pending") == fulfilled
        assert promise_id not in promise.callbacks
        for awaiter in promise.callbacks:
            assert "resonate:target" in oracle.promises[awaiter].tags
            assert oracle.promises[awaiter].state == "pending"
        if "resonate:delay" in promise.tags:
            assert has_task
            assert int(promise.tags["resonate:delay"]) < promise.timeout_at


def check_tasks(oracle: Oracle, now: int) -> None:
    for task_id, task in oracle.tasks.items():
        promise = oracle.promises[task_id]
        awaited = [p for p in oracle.promises.values() if task_id in p.callbacks]
        assert task.version >= 0
        assert (task.state == "pending") == (task.retry is not None)
        assert (task.state == "acquired") == (task.lease is not None)
        assert (task.state == "acquired") == (task.pid is not None)
        assert (task.state == "acquired") == (task.ttl is not None)
        assert task.ttl is None or task.ttl > 0
        assert all(p.state == "pending" for p in awaited)
        if task.state == "suspended":
            assert not task.resumes
            assert awaited or promise.timeout_at <= now
        if task.state == "fulfilled":
            assert not task.resumes
            assert not awaited


def check_schedules(oracle: Oracle) -> None:
    for one in oracle.schedules.values():
        assert "resonate:target" in one.promise_tags
        assert one.last_run_at is None or one.last_run_at < one.next_run_at


def check_messages(oracle: Oracle) -> None:
    for task_id, sent in oracle.executes.items():
        task: Any = sent["message"]
        version = oracle.tasks[task_id].version
        assert task["data"]["task"] == {"id": task_id, "version": version}
        assert oracle.tasks[task_id].state == "pending"  # C9: that version was issued
        assert sent["address"] == oracle.promises[task_id].tags["resonate:target"]
    for (promise_id, address), sent in oracle.unblocks.items():
        message: Any = sent["message"]
        record = oracle.request("promise.get", {"id": promise_id}, 0)[1]
        assert (sent["address"], message["data"]) == (address, record)
        assert oracle.promises[promise_id].state != "pending"


def check_passage(before: Oracle, after: Oracle) -> None:
    for promise_id, old in before.promises.items():
        new = after.promises[promise_id]
        fixed = ("id", "param", "tags", "timeout_at", "created_at")
        assert all(getattr(old, name) == getattr(new, name) for name in fixed)
        assert old.state == "pending" or old == new
    for promise_id in after.promises.keys() - before.promises.keys():
        new = after.promises[promise_id]
        source = after.schedules.get(new.tags.get("resonate:schedule", ""))
        if source is not None:
            assert new.timeout_at == new.created_at + source.promise_timeout
    for task_id, task in after.tasks.items():
        was = before.tasks.get(task_id)
        if was is None:
            assert task.version == (1 if task.state == "acquired" else 0)
            continue
        entered = task.state == "acquired" and was.state != "acquired"
        assert task.version == was.version + entered
        assert not (entered and task.resumes)
        assert was.state != "fulfilled" or task == was
