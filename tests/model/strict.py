"""Scripts for the strict profile: ids that are families, tags that are kinds, and misfits of both.

They keep the rules of `scripts`.  `strict_coverage()` are fixed and reach every pair in
`STRICT_PAIRS`; the random ones keep to one origin and to external promises often enough to get
somewhere, and step outside often enough to be refused.
"""

from __future__ import annotations

import random

from hypothesis import strategies as st

from .reading import Profile, is_external
from .scripts import (
    ANY,
    PAIRS,
    START,
    UNI,
    Data,
    Script,
    Writer,
    callback,
    create,
    fence,
    listener,
    look,
    schedule,
    settle,
    suspend,
    task_create,
)

STRICT = Profile("colon", external=True)
DOT = Profile("dot", external=True)
ONLY_COLON, ONLY_DOT = Profile("colon"), Profile("dot")
ONLY_EXTERNAL = Profile(external=True)
PROFILES = {
    "strict": STRICT,
    "dot": DOT,
    "only-colon": ONLY_COLON,
    "only-dot": ONLY_DOT,
    "only-external": ONLY_EXTERNAL,
}
STRICT_PAIRS = PAIRS | {("promise.register_listener", 422)}

_FAMILY = {
    "off": ("a.", "a:1.", "b"),
    "dot": ("a.", "a.", "a.1.", "a.2:", "b"),
    "colon": ("a:", "a:", "a:1.", "a:2.", "b"),
}
_EXTERNAL = {"resonate:external": "true"}


def strict_coverage(lineage: str = "colon") -> dict[str, Script]:
    """Fixed scripts by name; what a profile does not refuse they show it to accept."""
    sep = {"dot": ".", "colon": ":"}[lineage]
    return {"kinds": _kinds(sep), "lineage": _lineage(sep), "deadlines": _deadlines(sep)}


def _kinds(sep: str) -> Script:
    """What may be waited for, and what is no kind of promise at all."""
    far, plain, kid = START + 1_000_000, f"t{sep}0", f"t{sep}1"
    steps: list[tuple[str, Data]] = [
        ("task.create", task_create(create("t", far, target=ANY))),
        ("promise.create", create(plain, far)),
        ("promise.create", create(kid, far, external="true")),
        ("promise.create", create(f"t{sep}2", START, branch="t")),
        ("promise.create", create(f"t{sep}3", far, timer="true", target=ANY)),
        ("promise.create", create(f"t{sep}4", far, timer="TRUE", external="yes")),
        ("task.create", task_create(create(f"t{sep}3", far, timer="true", target=ANY))),
        (
            "task.fence",
            fence("t", 1, "promise.create", create(f"t{sep}5", far, timer="true", target=ANY)),
        ),
        ("schedule.create", schedule("timed", timer="true")),
        ("promise.register_listener", listener("no", UNI)),
        *(("promise.register_listener", listener(f"t{sep}{n}", UNI)) for n in range(5)),
        ("promise.create", create(f"t{sep}6", START, external="true")),
        ("promise.register_callback", callback(f"t{sep}no", "t")),
        ("promise.register_callback", callback(plain, f"t{sep}no")),
        *(("promise.register_callback", callback(f"t{sep}{n}", "t")) for n in (0, 2, 4)),
        ("task.create", task_create(create("t", far, target=ANY))),
        ("task.suspend", suspend("no", 0, f"no{sep}1")),
        ("task.suspend", suspend("t", 0, plain)),
        ("task.suspend", suspend("t", 1, kid, plain)),
        ("task.suspend", suspend("t", 1, kid, f"t{sep}2")),
        ("task.suspend", suspend("t", 1, kid, f"t{sep}6")),
        ("task.suspend", suspend("t", 1, plain, f"t{sep}no")),
        ("task.suspend", suspend("t", 1, kid, kid)),
        ("task.get", {"id": "t"}),
    ]
    waits: list[tuple[str, Data]] = [
        ("task.suspend", suspend("t", 1, kid)),
        ("promise.settle", settle(plain)),
        ("promise.settle", settle(kid)),
        ("promise.register_listener", listener(plain, UNI)),
        ("promise.register_callback", callback(plain, "t")),
        ("promise.register_callback", callback(kid, "t")),
        ("task.get", {"id": "t"}),
    ]
    script = [(kind, data, START) for kind, data in steps] + look(START)
    return script + [(kind, data, START + 1) for kind, data in waits] + look(START + 1)


def _lineage(sep: str) -> Script:
    """Ids that continue what their tags name, ids that do not, and waits between two trees."""
    far = START + 1_000_000
    own = {"origin": "r", "branch": f"r{sep}1", "parent": f"r{sep}1"}
    born: list[tuple[str, dict[str, str]]] = [
        ("r", {"origin": "r", "branch": "r", "parent": "r", "prefix": "r", "target": ANY}),
        (f"r{sep}1", {"origin": "r", "branch": "r", "parent": "r", "target": ANY}),
        (f"r{sep}1.1", own | {"external": "true"}),
        (f"r{sep}1.1.1", own),
        (f"r{sep}1{sep}2", own),
        (f"r{sep}12", own),
        ("r1", {"origin": "r"}),
        ("r.1", {"parent": "r"}),
        ("r:1", {"branch": "r"}),
        (f"r{sep}5", {"origin": f"r{sep}5"}),
        (f"r{sep}6", {"prefix": f"r{sep}6"}),
        ("q", {"origin": ""}),
        ("q", {"parent": "r"}),
        (f"q{sep}1", {"external": "true"}),
    ]
    creates = [("promise.create", create(one, far, **tags)) for one, tags in born]
    steps: list[tuple[str, Data]] = [
        *creates,
        ("task.create", task_create(create("w", far, target=ANY, origin="v"))),
        ("task.create", task_create(create("r", far, target=ANY, origin="r"))),
        ("task.fence", fence("r", 1, "promise.create", create("w", far, origin="v"))),
        ("task.fence", fence("r", 1, "promise.create", create("r.x", far, parent="r"))),
        ("promise.register_callback", callback(f"q{sep}1", "r")),
        ("promise.register_callback", callback(f"r{sep}1.1", "r")),
        ("task.suspend", suspend("r", 1, f"r{sep}1", f"q{sep}1")),
        ("task.suspend", suspend("r", 1, "no")),
        ("task.suspend", suspend("r", 1, f"r{sep}1", f"r{sep}1.1")),
        ("task.heartbeat", {"pid": "p", "tasks": []}),
        ("schedule.create", schedule("a.b")),
        ("schedule.create", schedule("a:b")),
        ("schedule.create", schedule("s", origin="elsewhere", parent="a.b:c")),
    ]
    return [(kind, data, START) for kind, data in steps] + look(START) + look(START + 60_000)


def _deadlines(sep: str) -> Script:
    """C1: which deadlines are armed, and what the other promises show."""
    soon, kinds = START + 1_000, ({}, {"timer": "true"}, {"external": "true"}, {"target": ANY})
    born = [("promise.create", create(f"d{n}", soon, **tags)) for n, tags in enumerate(kinds)]
    steps: list[tuple[str, Data]] = [
        *born,
        ("promise.create", create("late", START)),
        ("task.create", task_create(create("t", soon * 2, target=ANY), ttl=5_000_000)),
        ("promise.create", create(f"t{sep}1", soon, external="true")),
        ("promise.register_listener", listener(f"t{sep}1", UNI)),
        ("task.suspend", suspend("t", 1, f"t{sep}1")),
    ]
    dead: list[tuple[str, Data]] = [
        *(("promise.get", {"id": f"d{n}"}) for n in range(4)),
        ("promise.settle", settle("d0")),
        ("promise.create", create("d0", soon * 9)),
        ("promise.search", {"state": "pending"}),
        ("promise.search", {"state": "rejected_timedout"}),
    ]
    script = [(kind, data, START) for kind, data in steps] + look(START)
    script += [(kind, data, soon) for kind, data in dead] + look(soon)
    return script + [(kind, data, soon + 1) for kind, data in dead] + look(soon + 40_000)


@st.composite
def strict_scripts(draw: st.DrawFn, profile: Profile = STRICT, max_steps: int = 60) -> Script:
    """Random scripts that Hypothesis can shrink."""
    steps = draw(st.integers(1, max_steps))
    return _StrictWriter(lambda options: draw(st.sampled_from(options)), profile).write(steps)


def seeded_strict_script(seed: int, profile: Profile = STRICT, steps: int = 200) -> Script:
    """A long random script, named by its seed."""
    return _StrictWriter(random.Random(seed).choice, profile).write(steps)


class _StrictWriter(Writer):
    """Mostly keeps the rules of its profile, so that waits come about."""

    def _new_id(self) -> str:
        """Mostly a new child of one big family, its place in the script for a number."""
        family = _FAMILY[self.oracle.profile.lineage]
        return self._id() if self._chance(4) else f"{self._pick(family)}{len(self.script) // 4}"

    def _create_data(self, *, target: bool) -> Data:
        data = super()._create_data(target=target)
        if self._chance(2):
            data["timeoutAt"] = self.now + 5_000_000
        return data | {"tags": self._kind_tags(data["tags"]) | self._lineage_tags(data["id"])}

    def _kind_tags(self, tags: dict[str, str]) -> dict[str, str]:
        """One kind of promise, seldom two."""
        if "resonate:target" in tags and not self._chance(16):
            return {name: text for name, text in tags.items() if name != "resonate:timer"}
        return tags | self._pick(({}, _EXTERNAL))

    def _lineage_tags(self, promise_id: str) -> dict[str, str]:
        """Those an SDK would give, or one that fits by chance."""
        root = _root(promise_id)
        if self._chance(3):
            return {}
        if self._chance(16):
            name = self._pick(("origin", "branch", "parent", "prefix"))
            return {f"resonate:{name}": self._pick((promise_id, self._id(), ""))}
        return {f"resonate:{name}": root for name in ("origin", "branch", "parent")}

    def _relative(self, task_id: str) -> str:
        """Mostly a pending promise of the same tree that may be waited for."""
        promises, root = self.oracle.promises, _root(task_id)
        tree = [one for one in promises if one != task_id and _root(one) == root]
        pending = [one for one in self._pending() if one in tree]
        fit = [one for one in pending if is_external(promises[one].tags)]
        chosen = self._pick((fit, fit, fit, fit, pending, tree, [self._id()]))
        return str(self._pick(chosen or tree or [self._id()]))

    def _promise_register_callback(self) -> Data:
        awaiter = self._task_in("pending", "suspended", "halted")
        return callback(self._relative(awaiter), awaiter)

    def _task_suspend(self) -> Data:
        data = self._held()
        awaited = [self._relative(data["id"]) for _ in range(self._pick((1, 1, 2)))]
        return suspend(data["id"], data["version"], *awaited)


def _root(promise_id: str) -> str:
    return promise_id.partition(":")[0].partition(".")[0]
