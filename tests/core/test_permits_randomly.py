"""Random limits, rates, deaths, parked bodies and changes of limits, in virtual time.

Never above a limit, never too many begins in a window, across any number of changes, permits of the
dead come back, nothing waits that may begin, and order is kept among tasks with the same name and
limits.
"""

from collections import Counter, defaultdict
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from layby.core import commands as c
from layby.core.limit import Limit, rule_for
from layby.core.model import Millis, Task
from layby.core.state import State
from tests.helpers import requests as r
from tests.helpers.begins import most_begins
from tests.helpers.worlds import Backend, World

LIMITS = ("api", "db", "t-1")
NAMES = ("f", "g")
GROUPS = ("g", "h")
PIDS: tuple[str, ...] = ("p", "q")
TTL = 60_000

numbers = st.fixed_dictionaries(
    {},
    optional={
        "concurrency": st.integers(0, 4),
        "rate": st.sampled_from(["1/s", "3/s", "2/min", "7/min"]),
    },
).filter(bool)


def rules_of(state: State) -> dict[str, Limit | None]:
    patterns = [each for each in state.limits.values() if each.pattern]
    return {name: rule_for(name, state.limits.get(name), patterns) for name in LIMITS}


def _is_due(limit: Limit, now: Millis) -> bool:
    return limit.next_at is not None and limit.next_at <= now


def held_by(state: State, name: str) -> list[Task]:
    return [task for task in state.tasks.values() if name in task.permit_names]


class Permits(RuleBasedStateMachine):
    backend: Backend = "memory"

    @initialize()
    def begin(self) -> None:
        self.world = World(self.backend)
        self.runs = 0
        self.claims: dict[str, tuple[str, int]] = {}
        """Of the tasks that run or are parked: who has them, at which version."""
        self.parked: set[str] = set()
        self.begins: defaultdict[str, list[tuple[Millis, int]]] = defaultdict(list)
        """By limit: when, and by which of its rules."""
        self.rules: dict[str, list[Limit | None]] = {name: [None] for name in LIMITS}
        """By limit: whose numbers counted for it, one after the other."""
        self.held: Counter[str] = Counter()
        """By limit: permits that were out when we looked last."""
        self.incarnations: dict[str, int] = dict.fromkeys(PIDS, 1)
        for name in ("api", "db"):
            self.world.ok(c.SetLimit(name=name, concurrency=1))
        self._note_rules()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.engine.stop()

    # --- what happens --------------------------------------------------------------------

    @rule(
        name=st.sampled_from([*LIMITS, "t-*"]),
        given=numbers,
        burst=st.integers(1, 3),
        count_parked=st.booleans(),
    )
    def define(self, name: str, given: dict[str, Any], burst: int, count_parked: bool) -> None:
        burst = burst if "rate" in given else 1
        self.world.ok(c.SetLimit(name=name, burst=burst, count_parked=count_parked, **given))
        self._note_rules()
        self.look()

    @rule(name=st.sampled_from([*LIMITS, "t-*"]))
    def delete(self, name: str) -> None:
        assert self.world.send(c.DeleteLimit(name=name)).status in (200, 404)
        self._note_rules()
        self.look()

    @rule(
        name=st.sampled_from(NAMES),
        limits=st.lists(st.sampled_from(LIMITS), min_size=1, max_size=2, unique=True),
        count=st.integers(1, 4),
        group=st.sampled_from(GROUPS),
    )
    def start(self, name: str, limits: list[str], count: int, group: str) -> None:
        for _ in range(count):
            self.runs += 1
            node = c.Node(id="a", name=name, limits=tuple(limits))
            run = c.StartRun(id=f"run/{self.runs:03}", name="root", group=group, nodes=(node,))
            self.world.ok(run)
            self.world.clock.advance(1)
        self.look()

    @rule(
        pid=st.sampled_from(PIDS),
        free=st.integers(1, 3),
        names=st.sampled_from([NAMES, ("g",)]),
        group=st.sampled_from(GROUPS),
    )
    def take(self, pid: str, free: int, names: tuple[str, ...], group: str) -> None:
        self._taken(self.world.ok(self._take(pid, free, names, group)), pid)
        self.look()

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), how=st.sampled_from(["finish", "fail", "release", "cancel", "halt"]))
    def end(self, data: st.DataObject, how: str) -> None:
        task_id = data.draw(st.sampled_from(sorted(self.claims)))
        pid, version = self.claims.pop(task_id)
        self.parked.discard(task_id)
        if how == "finish":
            taken = self.world.ok(r.finish(task_id, version, self._take(pid, 1, NAMES))).taken
            self._taken(taken, pid)
        elif how == "fail":
            self.world.ok(c.FailTask(id=task_id, version=version, retry_in=500))
        else:
            if how != "release":
                steer = c.CancelPromise if how == "cancel" else c.HaltTask
                self.world.ok(steer(id=task_id))
                assert not self.world.task(task_id).is_ready
            released = (c.Released(task_id, version),)
            incarnation = str(self.incarnations[pid])
            self.world.ok(c.ReleaseTasks(pid=pid, incarnation=incarnation, tasks=released))
            if how == "halt":
                self.world.ok(c.ContinueTask(id=task_id))
        self.look()

    @precondition(lambda self: self.claims.keys() - self.parked)
    @rule(data=st.data())
    def park(self, data: st.DataObject) -> None:
        task_id = data.draw(st.sampled_from(sorted(self.claims.keys() - self.parked)))
        _, version = self.claims[task_id]
        told = '{"kind":"sleep","sentence":"sleeps"}'
        parked = c.AnnotateTask(id=task_id, version=version, sub_status="Deferred", waiting_on=told)
        self.world.ok(parked)
        self.parked.add(task_id)
        self.look()

    @precondition(lambda self: self.parked)
    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        """If it does not get its permits at once, it stays parked until it is looked at again."""
        task_id = data.draw(st.sampled_from(sorted(self.parked)))
        _, version = self.claims[task_id]
        task = self.world.task(task_id)
        if task.gate is None and set(task.permit_names) != set(task.limit_names):
            self.world.clock.advance(1)
            self.world.ok(c.RegainPermits(id=task_id, version=version, place=self.world.now))
        task = self.world.task(task_id)
        if set(task.permit_names) == set(task.limit_names):
            self.world.ok(c.AnnotateTask(id=task_id, version=version))
            self.parked.discard(task_id)
        self.look()

    @rule(by=st.sampled_from([1, 200, 500, 1_000, 8_600, 30_000]))
    def wait(self, by: int) -> None:
        for pid, incarnation in self.incarnations.items():
            beat = c.HeartbeatWorker(pid=pid, incarnation=str(incarnation))
            self.world.send(beat)
        self.world.tick(by)
        self.look()

    @rule(pid=st.sampled_from(PIDS))
    def die(self, pid: str) -> None:
        """Within its lease, everything it held is free again."""
        for other in PIDS:
            if other != pid:
                beat = c.HeartbeatWorker(pid=other, incarnation=str(self.incarnations[other]))
                self.world.clock.advance(TTL // 2)
                self.world.send(beat)
                self.world.clock.advance(TTL // 2)
        self.world.tick()
        dead = {each for each, (holder, _) in self.claims.items() if holder == pid}
        self.claims = {each: claim for each, claim in self.claims.items() if each not in dead}
        self.parked -= dead
        self.incarnations[pid] += 1
        state = self.world.dump()
        assert not any(state.tasks[each].permits for each in dead)
        self.look()

    # --- what must hold ------------------------------------------------------------------

    def look(self) -> None:
        """Whatever has happened, no limit has more out than it allows, unless it allowed more
        before: and whoever runs has its permits.
        """
        self.world.check()
        state = self.world.dump()
        held = Counter(name for task in state.tasks.values() for name in task.permit_names)
        for name, now in rules_of(state).items():
            if now is not None and now.concurrency is not None:
                assert held[name] <= max(now.concurrency, self.held[name]), name
        self.held = held
        for task_id in self.claims.keys() - self.parked:
            task = state.tasks[task_id]
            assert set(task.permit_names) == set(task.limit_names)

    def _note_rules(self) -> None:
        for name, now in rules_of(self.world.dump()).items():
            self.rules[name].append(now)

    def _take(self, pid: str, free: int, names: tuple[str, ...], group: str = GROUPS[0]) -> c.Take:
        incarnation, names = str(self.incarnations[pid]), (*names, "root")
        return r.take(free, pid, incarnation, TTL, names=names, group=group)

    def _taken(self, taken: Any, pid: str) -> None:
        state = self.world.dump()
        nodes = [claim for claim in taken.claims if claim.task.kind == "node"]
        for claim in nodes:
            self.claims[claim.task.id] = (pid, claim.task.version)
            for name in claim.task.limit_names:
                self.begins[name].append((self.world.now, len(self.rules[name]) - 1))
                self._check_limit(state, name)
        for claim in nodes:
            self._check_order(state, claim)

    def _check_limit(self, state: State, name: str) -> None:
        """Whoever was let in just now was not one too many."""
        rule = rules_of(state)[name]
        assert rule is not None
        if rule.concurrency is not None:
            assert len(held_by(state, name)) <= rule.concurrency
        for count, (since, first) in enumerate(reversed(self.begins[name]), start=1):
            most = most_begins(self.rules[name][first:], self.world.now - since)
            assert most is None or count <= most, (name, count, since)

    def _check_order(self, state: State, claim: Any) -> None:
        """Those that became ready in the same millisecond have no order among them."""
        mine = (claim.task.limits, claim.task.lane)
        for task in state.tasks.values():
            if (task.limits, task.lane) != mine or task.state != "pending":
                continue
            place = task.ready_at if task.gate is None else task.gate_at
            assert (place or 0) >= claim.ready_at, (task.id, claim.task.id)

    @rule(groups=st.sampled_from([GROUPS, GROUPS[:1]]))
    def nothing_waits_that_may_begin(self, groups: tuple[str, ...]) -> None:
        """With slots for all of a group, what still waits there lacks a permit or its turn."""
        for group in groups:
            self._take_all(group)
        state = self.world.dump()
        rules = rules_of(state)
        for task in state.tasks.values():
            if task.state != "pending" or task.kind != "node" or task.group not in groups:
                continue
            limits = [(rules[name], state.limits.get(name)) for name in task.limit_names]
            assert any(
                rule is None or (used is not None and rule.free(used, self.world.now) <= 0)
                for rule, used in limits
            ), task.id
        self.look()

    def _take_all(self, group: str) -> None:
        while True:
            self.world.tick()
            taken = self.world.ok(self._take("p", 50, NAMES, group))
            self._taken(taken, "p")
            state = self.world.dump()
            is_due = any(_is_due(each, self.world.now) for each in state.limits.values())
            if not (taken.claims or taken.again or is_due):
                break


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_limits_hold_whatever_happens(backend: Backend) -> None:
    examples = {"memory": 40, "sqlite": 8}[backend]
    machine = type("Permits", (Permits,), {"backend": backend})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
