"""Tests of the model's strict profile, with expectations worked out by hand from PROTOCOL.md."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .oracle import Oracle
from .reading import COMPAT, Profile, is_external
from .scripts import (
    ANY,
    UNI,
    Data,
    Script,
    callback,
    create,
    fence,
    listener,
    schedule,
    settle,
    suspend,
    task_create,
)
from .strict import (
    DOT,
    ONLY_COLON,
    ONLY_DOT,
    ONLY_EXTERNAL,
    PROFILES,
    STRICT,
    STRICT_PAIRS,
    seeded_strict_script,
    strict_coverage,
    strict_scripts,
)
from .test_oracle import FAR, Play, Witness

# --- P 0: lineage tags of a create ---

LINEAGE: list[tuple[str, dict[str, str], int, int]] = [
    # id, tags, status by the dot rule, status by the colon rule
    ("r", {}, 200, 200),
    ("r", {"origin": "r", "branch": "r", "parent": "r", "prefix": "r"}, 200, 200),
    ("r.1", {"origin": "r"}, 200, 400),
    ("r:1", {"origin": "r"}, 400, 200),
    ("r1", {"origin": "r"}, 400, 400),
    ("q", {"origin": "r"}, 400, 400),
    ("a.b", {"origin": "a.b"}, 400, 200),
    ("a:b", {"origin": "a:b"}, 200, 400),
    ("a.b:1", {"origin": "a.b"}, 400, 200),
    ("r", {"prefix": "a.b"}, 400, 200),
    ("r", {"prefix": "a:b"}, 200, 400),
    ("r", {"prefix": "q"}, 200, 200),
    ("r.1.2", {"branch": "r.1", "parent": "r.1"}, 200, 400),
    ("r:1.2", {"branch": "r:1", "parent": "r"}, 400, 200),
    ("r:1.2.3", {"parent": "r:1.2"}, 200, 200),
    ("r:1:2", {"parent": "r:1"}, 400, 400),
    ("r:12", {"parent": "r:1"}, 400, 400),
    ("r:1", {"branch": "r:1"}, 200, 200),
    ("r.x", {"parent": "q"}, 400, 400),
]


@pytest.mark.parametrize(("promise_id", "tags", "dot", "colon"), LINEAGE)
def test_lineage_of_a_create(promise_id: str, tags: dict[str, str], dot: int, colon: int) -> None:
    """What the tags name is the id or what it continues; without the rule all are accepted."""
    data = create(promise_id, FAR, target=ANY, **tags)
    for profile, status in ((ONLY_DOT, dot), (ONLY_COLON, colon), (ONLY_EXTERNAL, 200)):
        Play(profile).do("promise.create", data, status)
        Play(profile).do("task.create", task_create(data), status)
        play = Play(profile)
        play.do("task.create", task_create(create("t", FAR, target=ANY)))
        play.do("task.fence", fence("t", 1, "promise.create", data), status)


@pytest.mark.parametrize(
    ("awaiter", "awaited", "dot", "colon"),
    [
        ("r", "r.1", True, False),
        ("r", "r:1", False, True),
        ("r:1", "r:2.3", False, True),
        ("r.1", "r.2", True, False),
        ("a.b", "a.b:1", True, True),
        ("r", "q", False, False),
    ],
)
def test_waits_stay_in_one_origin(awaiter: str, awaited: str, *, dot: bool, colon: bool) -> None:
    """A callback or a suspend from another origin is a 400, before any state is looked at."""
    for profile, same in ((ONLY_DOT, dot), (ONLY_COLON, colon), (ONLY_EXTERNAL, True)):
        play = Play(profile)
        play.do("promise.register_callback", callback(awaited, awaiter), 404 if same else 400)
        play.do("task.suspend", suspend(awaiter, 1, awaited), 404 if same else 400)
        play.do("task.create", task_create(create(awaiter, FAR, target=ANY)))
        play.do("promise.create", create(awaited, FAR, external="true"))
        play.do("task.suspend", suspend(awaiter, 1, awaited), 200 if same else 400)
        play.do("promise.register_callback", callback(awaited, awaiter), 200 if same else 400)


def test_schedule_ids_become_origins() -> None:
    """The id of a schedule must not contain what ends an origin (P 2.3)."""
    for profile, bad, good in ((ONLY_DOT, "a.b", "a:b"), (ONLY_COLON, "a:b", "a.b")):
        Play(profile).do("schedule.create", schedule(bad), 400)
        Play(profile).do("schedule.create", schedule(good))
    Play(ONLY_EXTERNAL).do("schedule.create", schedule("a.b:c"))


# --- P 0 and 9: external promises ---

KINDS: list[tuple[dict[str, str], bool]] = [
    ({}, False),
    ({"external": "false", "timer": "yes"}, False),
    ({"scope": "global", "branch": "x"}, False),
    ({"external": "true"}, True),
    ({"timer": "true"}, True),
    ({"target": ANY}, True),
]


@pytest.mark.parametrize(("tags", "external"), KINDS)
def test_only_external_promises_are_waited_for(tags: dict[str, str], *, external: bool) -> None:
    """C2 and C3 strict: 422 for the others, pending or settled, and nothing changes."""
    play = Play(ONLY_EXTERNAL)
    play.do("promise.create", create("x", FAR, **tags))
    play.do("task.create", task_create(create("t", FAR, target=ANY)))
    before = play.snap()
    expected = 200 if external else 422
    play.do("promise.register_callback", callback("x", "t"), expected)
    play.do("promise.register_listener", listener("x", UNI), expected)
    play.do("task.suspend", suspend("t", 1, "x"), expected)
    assert external or play.snap() == before
    play.do("promise.settle", settle("x"))
    play.do("promise.register_callback", callback("x", "t"), expected)
    play.do("promise.register_listener", listener("x", UNI), expected)


def test_what_is_missing_comes_before_what_is_internal() -> None:
    """404, 409, then the 422 the compat profile has, then the strict one."""
    play = Play(ONLY_EXTERNAL)
    play.do("promise.create", create("x", FAR))
    play.do("task.create", task_create(create("t", FAR, target=ANY)))
    text = play.do("promise.register_callback", callback("x", "no"), 422)
    assert text == "Awaiter promise not found"
    assert play.do("task.suspend", suspend("t", 1, "x", "no"), 422) == "Awaited promise not found"
    play.do("task.suspend", suspend("t", 2, "x"), 409)


@pytest.mark.parametrize(("tags", "external"), KINDS)
def test_only_external_promises_have_an_enforced_deadline(
    tags: dict[str, str], *, external: bool
) -> None:
    """C1 strict: the others are never swept and yet read as settled (P 3.1)."""
    play = Play(ONLY_EXTERNAL)
    play.do("promise.create", create("x", 10, **tags))
    armed = [{"id": "x", "timeout": 10}] if external else []
    assert play.snap()["promiseTimeouts"] == armed
    play.tick(10)
    assert (play.oracle.promises["x"].state != "pending") == external
    assert play.promise("x")["settledAt"] == 10
    assert play.do("promise.settle", settle("x"))["promise"] == play.promise("x")
    assert play.snap()["promises"] == [play.promise("x")]
    assert play.snap()["promiseTimeouts"] == []


def test_a_timer_is_no_task() -> None:
    """Timer and target on one promise are a 400 wherever one is created (P 0)."""
    both = create("x", FAR, timer="true", target=ANY)
    requests: list[tuple[str, Data]] = [
        ("promise.create", both),
        ("task.create", task_create(both)),
        ("task.fence", fence("t", 1, "promise.create", both)),
        ("schedule.create", schedule("s", timer="true")),
    ]
    for kind, data in requests:
        for profile, status in ((ONLY_EXTERNAL, 400), (ONLY_COLON, 200), (COMPAT, 200)):
            play = Play(profile)
            play.do("task.create", task_create(create("t", FAR, target=ANY)))
            play.do(kind, data, status)
    Play(STRICT).do("promise.create", create("x", FAR, timer="false", target=ANY))


def test_each_promise_is_awaited_once() -> None:
    """A duplicate in one suspend is a 400, not one wait (P 0)."""
    for profile, status in ((ONLY_EXTERNAL, 400), (ONLY_COLON, 200), (COMPAT, 200)):
        play = Play(profile)
        play.do("task.create", task_create(create("t", FAR, target=ANY)))
        play.do("promise.create", create("t:1", FAR, external="true"))
        play.do("task.suspend", suspend("t", 1, "t:1", "t:1"), status)


# --- scripts ---


REASONS = {
    "A promise is a timer or has a target, not both",
    "Awaiter and awaited must have the same origin",
    "Awaited promise is not external",
    "Each promise is awaited once",
    *(f"resonate:{tag} must not contain '{{}}'" for tag in ("origin", "prefix")),
    *(
        f"Promise ID must be resonate:{tag} or continue it"
        for tag in ("origin", "branch", "parent")
    ),
    "Schedule ID must not contain '{}'",
}


@pytest.mark.parametrize("profile", [STRICT, DOT])
def test_fixed_scripts_reach_what_strict_adds(profile: Profile) -> None:
    """Every refusal of the strict profile is given by the fixed scripts."""
    told: set[str] = set()
    for script in strict_coverage(profile.lineage).values():
        oracle = Oracle(profile=profile)
        for kind, data, now in script:
            status, answer = oracle.request(kind, data, now)
            told |= {str(answer)} if status >= 400 else set()
    assert told >= {text.format(profile.separator) for text in REASONS}


class StrictWitness(Witness):
    """P 7, and what strict adds: nothing waits for what no deadline would end."""

    def watch(self, script: Script) -> None:
        for step in script:
            super().watch([step])
            waited = [p for p in self.oracle.promises.values() if p.callbacks or p.listeners]
            assert all(is_external(p.tags) for p in waited) or not self.oracle.profile.external


@settings(max_examples=12, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(PROFILES)))
def test_random_strict_scripts_keep_the_invariants(data: st.DataObject, name: str) -> None:
    """P 7 holds after every step of a script, whatever the profile."""
    StrictWitness(PROFILES[name]).watch(data.draw(strict_scripts(PROFILES[name])))


@pytest.mark.parametrize("name", PROFILES)
def test_fixed_strict_scripts_keep_the_invariants(name: str) -> None:
    """P 7 holds after every step of a fixed script, its ids being of the profile or not."""
    for lineage in ("dot", "colon"):
        for script in strict_coverage(lineage).values():
            StrictWitness(PROFILES[name]).watch(script)


def test_strict_scripts_get_somewhere() -> None:
    """Waits come about and are ended; random strict scripts are not only refusals."""
    seen: dict[tuple[str, int], int] = {}
    for seed in range(20):
        oracle = Oracle(profile=STRICT)
        for kind, data, now in seeded_strict_script(seed):
            status = oracle.request(kind, data, now)[0]
            seen[kind, status] = seen.get((kind, status), 0) + 1
    for kind, status in STRICT_PAIRS:
        if status not in (400, 404) and (kind == "task.suspend" or "register" in kind):
            assert seen[kind, status] > 0
    assert seen["task.suspend", 200] > 50
    assert seen["promise.register_callback", 200] > 20
