"""Random workflows, and a naive executor that says how each of them must end.

The naive executor knows no slots, no store and no event loop: it works out, task after task in
the order of the workflow, when each one starts and settles and what it leaves. Everything takes
whole seconds and everything from outside (settled promises, cancels) comes at an odd moment of
its own, so nothing depends on which of two things at one instant came first.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

KEYS: tuple[str, ...] = ("a", "b", "c")
PROMISES = 3

Step = tuple[Any, ...]


@dataclass(frozen=True)
class Retrying:
    attempts: int
    backoff: str
    delay: int
    max_delay: int

    def pause(self, failures: int) -> int:
        factor = {"fixed": 1, "linear": failures, "exponential": 2 ** (failures - 1)}
        return min(self.delay * factor[self.backoff], self.max_delay)


@dataclass(frozen=True)
class Node:
    id: str
    after: tuple[str, ...]
    rule: str
    steps: tuple[Step, ...]
    failing: int
    """How many of the first tries raise at their end."""
    retrying: Retrying
    plain: bool
    """A `def` in a thread instead of a coroutine."""


@dataclass(frozen=True)
class Scene:
    nodes: tuple[Node, ...]
    slots: int
    initial: Mapping[str, int]
    promises: tuple[tuple[float, bool], ...]
    """When each is settled, and whether it is resolved."""
    cancels: tuple[tuple[float, str | None], ...]
    """When which task is cancelled; None is the whole run."""
    timed: bool
    """Nothing holds a slot for long, so the naive executor knows when everything happens."""


RULES = ("all_success", "all_done", "one_success", "one_failed", "none_failed")
FUNCTIONS = {
    "a_is_small": lambda outcomes, context: context.get("a", 0) < 3,
    "few_failed": lambda outcomes, context: list(outcomes.values()).count("Failed") < 2,
    "breaks": lambda outcomes, context: {}["oops"],
}


# --- drawing -------------------------------------------------------------------------------

seconds = st.integers(1, 9)
changes = st.one_of(
    st.tuples(st.just("set"), st.sampled_from(KEYS), st.integers(0, 4)),
    st.tuples(st.just("return"), st.sampled_from(KEYS), st.integers(0, 4)),
    st.tuples(st.just("remove"), st.sampled_from(KEYS)),
    st.tuples(st.just("checkpoint"), st.sampled_from(("pay", "ship"))),
)
waits = st.one_of(
    st.tuples(st.just("sleep"), seconds),
    st.tuples(st.just("defer"), st.integers(1, 4), seconds),
    st.tuples(st.just("wait"), st.integers(0, PROMISES - 1), st.none()),
)
timed_wait = st.tuples(st.just("wait"), st.integers(0, PROMISES - 1), seconds)
holds = st.tuples(st.just("hold"), seconds)
retrying = st.builds(
    Retrying,
    st.integers(1, 3),
    st.sampled_from(("fixed", "linear", "exponential")),
    st.integers(1, 4),
    st.integers(4, 6),
)


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """With cancels and timeouts no step holds a slot for long: moments must not depend on slots."""
    timed = draw(st.booleans())
    steps = st.lists(st.one_of(changes, waits, timed_wait if timed else holds), max_size=4)
    count = draw(st.integers(1, 7))
    names = [f"t{number}" for number in range(count)]
    nodes = tuple(_node(draw, names, number, steps) for number in range(count))
    moments = draw(st.permutations([tenth / 10 + 0.05 for tenth in range(9)]))
    whole = [draw(st.integers(0, 25)) for _ in moments]
    odd = [second + fraction for second, fraction in zip(whole, moments, strict=True)]
    promises = tuple((odd.pop(), draw(st.booleans())) for _ in range(PROMISES))
    cancels = _cancels(draw, names, odd) if timed else ()
    initial = draw(st.dictionaries(st.sampled_from(KEYS), st.integers(0, 4)))
    return Scene(nodes, draw(st.integers(1, 3)), initial, promises, cancels, timed)


def _node(draw: st.DrawFn, names: list[str], number: int, steps: Any) -> Node:
    before = names[:number]
    after = draw(st.lists(st.sampled_from(before), unique=True, max_size=3)) if before else []
    rules = st.one_of(
        st.just("all_success"), st.sampled_from(RULES), st.sampled_from(tuple(FUNCTIONS))
    )
    return Node(
        id=names[number],
        after=tuple(after),
        rule=draw(rules) if after else "all_success",
        steps=tuple(draw(steps)),
        failing=draw(st.sampled_from((0, 0, 0, 1, 1, 2, 3))),
        retrying=draw(retrying),
        plain=draw(st.sampled_from((False, False, True))),
    )


def _cancels(
    draw: st.DrawFn, names: list[str], odd: list[float]
) -> tuple[tuple[float, str | None], ...]:
    targets = draw(st.lists(st.sampled_from([*names, *names, None]), max_size=3))
    return tuple((odd.pop(), target) for target in targets)


# --- the naive executor -----------------------------------------------------------------------

Entry = tuple[int | None, str | None]
"""A value (None: removed) and who wrote it (None: the caller)."""
View = dict[str, Entry]


@dataclass
class Ended:
    status: str
    at: float
    blocked: bool = False
    passes_on: View = field(default_factory=dict)
    seen: list[dict[str, int]] = field(default_factory=list)
    """The context at the beginning of each try."""
    checkpoints: set[str] = field(default_factory=set)


@dataclass
class Told:
    """How the run must end."""

    tasks: dict[str, Ended]
    state: str
    final: dict[str, int] | None


class Naive:
    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.initial: View = {key: (value, None) for key, value in scene.initial.items()}
        self.ended: dict[str, Ended] = {}
        self.ancestors: dict[str, set[str]] = {}

    def execute(self) -> Told:
        for node in self.scene.nodes:
            self.ancestors[node.id] = set(node.after).union(
                *(self.ancestors[each] for each in node.after)
            )
            self.ended[node.id] = self._ended(node)
        run_cancelled = self._cancelled_at(None)
        last = max(each.at for each in self.ended.values())
        if run_cancelled is not None and run_cancelled <= last:
            return Told(self.ended, "Cancelled", None)
        if any(each.status in ("Failed", "Cancelled") for each in self.ended.values()):
            return Told(self.ended, "Failed", None)
        awaited = {each for node in self.scene.nodes for each in node.after}
        leaves = [node.id for node in self.scene.nodes if node.id not in awaited]
        return Told(self.ended, "Completed", values(self._merged(leaves)))

    def _ended(self, node: Node) -> Ended:
        start = max((self.ended[each].at for each in node.after), default=0.0)
        found = self._settled(node, start)
        cancel = min(
            (
                at
                for at in (self._cancelled_at(node.id), self._cancelled_at(None))
                if at is not None
            ),
            default=None,
        )
        if cancel is None or found.at < cancel:
            return found
        reached = [each for each in node.after if self.ended[each].at <= cancel]
        found.seen = [context for context, at in self._starts if at < cancel]
        return Ended("Cancelled", cancel, passes_on=self._merged(reached), seen=found.seen)

    def _settled(self, node: Node, start: float) -> Ended:
        self._starts: list[tuple[dict[str, int], float]] = []
        before = self._merged(node.after)
        decision = self._decide(node, values(before))
        if decision is not None:
            return Ended(*decision[:1], start, decision[1], passes_on=before)
        return self._tried(node, start, before)

    def _tried(self, node: Node, start: float, before: View) -> Ended:
        at, checkpoints = start, set[str]()
        for number in range(1, node.retrying.attempts + 1):
            self._starts.append((values(before), at))
            context, at, has_raised = self._body(node, values(before), at, checkpoints)
            seen = [each for each, _ in self._starts]
            if not has_raised and number > node.failing:
                passed = self._written(node.id, before, context)
                return Ended("Completed", at, False, passed, seen, checkpoints)
            if number < node.retrying.attempts:
                at += node.retrying.pause(number)
        return Ended("Failed", at, False, before, seen, checkpoints)

    def _body(
        self, node: Node, context: dict[str, int], at: float, checkpoints: set[str]
    ) -> tuple[dict[str, int], float, bool]:
        returned: dict[str, int] = {}
        for step in node.steps:
            match step:
                case "set", key, value:
                    context[key] = value
                case "return", key, value:
                    returned[key] = value
                case "remove", key:
                    context.pop(key, None)
                case "checkpoint", key:
                    checkpoints.add(key)
                case (("sleep" | "hold"), length):
                    at += length
                case "defer", asked, interval:
                    at += (asked - 1) * interval
                case "wait", number, limit:
                    settles, resolves = self.scene.promises[number]
                    if limit is not None and settles > at + limit:
                        return context, at + limit, True
                    at = max(at, settles)
                    if not resolves:
                        return context, at, True
        context.update(returned)
        return context, at, False

    def _decide(self, node: Node, context: dict[str, int]) -> tuple[str, bool] | None:
        """None: it runs. Otherwise how it ends, and whether a failure before it is the reason."""
        ended = {each: self.ended[each] for each in node.after}
        failures = {each for each, one in ended.items() if is_failure(one)}
        completed = {each for each, one in ended.items() if one.status == "Completed"}
        if node.rule in FUNCTIONS:
            try:
                statuses = {each: one.status for each, one in ended.items()}
                return None if FUNCTIONS[node.rule](statuses, context) else ("Skipped", False)
            except KeyError:
                return "Failed", False
        runs = {
            "all_success": len(completed) == len(ended),
            "all_done": True,
            "one_success": bool(completed) or not ended,
            "one_failed": bool(failures) or not ended,
            "none_failed": not failures,
        }[node.rule]
        return None if runs else ("Skipped", bool(failures))

    def _merged(self, tasks: Any) -> View:
        views = [self.ended[each].passes_on for each in tasks]
        if not views:
            return dict(self.initial)
        keys = {key for view in views for key in view}
        return {key: self._winner([view[key] for view in views if key in view]) for key in keys}

    def _winner(self, entries: list[Entry]) -> Entry:
        """Whoever had seen the other's; between those that had not, the later dependency."""
        writers = {writer for _, writer in entries}
        latest = [entry for entry in entries if not self._is_covered(entry[1], writers)]
        return latest[-1]

    def _is_covered(self, writer: str | None, writers: set[str | None]) -> bool:
        others = (each for each in writers if each is not None and each != writer)
        return any(writer is None or writer in self.ancestors[each] for each in others)

    def _written(self, task: str, before: View, context: dict[str, int]) -> View:
        """Only what differs counts as written."""
        old = values(before)
        after = dict(before)
        for key in old.keys() | context.keys():
            if old.get(key) != context.get(key):
                after[key] = (context.get(key), task)
        return after

    def _cancelled_at(self, target: str | None) -> float | None:
        return min((at for at, each in self.scene.cancels if each == target), default=None)


def values(view: View) -> dict[str, int]:
    return {key: value for key, (value, _) in view.items() if value is not None}


def is_failure(ended: Ended) -> bool:
    return ended.status in ("Failed", "Cancelled") or ended.blocked
