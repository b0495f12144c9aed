"""One word, one meaning: names in the source use the words of docs/glossary.md.

Only words that mean nothing else here are searched for, and only in names; prose may explain.
"""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

import layby

PACKAGE = Path(layby.__file__).parent
LAYERS = [
    "core",
    "clock",
    "store",
    "engine",
    "client",
    "local",
    "delivery",
    "errors",
    "wire",
    "workflow",
    "graph",
    "executors",
    "worker",
    "program",
    "triggers",
    "trigger_manager",
    "testing",
    "runner",
    "server",
    "cli",
]
MEANS_SOMETHING_ELSE = {
    "graph": {"epoch"},
    "worker": {"attempt"},  # `try` cannot be a name, and `TaskHandle(attempt=)` is public
    "executors": {"job"},  # `AsyncTaskExecutor.park(job)` and its like are public
    # "TriggerManager" is the word of seed 003, and says what it is: it manages triggers.
    **{layer: {"manager"} for layer in ("trigger_manager", "runner", "cli")},
}
"""Words that may be used in one layer, because they have another meaning there or are public."""
SHARED = {
    "Message",  # public in layby.graph, a row in core
    "Wait",  # public in layby.testing, a row in core
    "Run",  # public, and a run's state in the rules of workflow
    "Schedule",  # public, and a row in core
    "TaskFailed",  # public in layby.graph, a message there; an error of runs elsewhere
    "waits",  # public: what a task may wait for; in core, what something waits for
    "worker",  # the worker itself, and the command that runs one
    *("migrate", "promises", "run", "runs", "schedules", "tasks", "waiting", "why"),  # commands
    "limits",  # a command
}
"""Names of modules and classes that occur twice, each with a reason."""
BANNED = {
    "job": "task",
    "attempt": "try",
    "dequeue": "take",
    "consumer": "holder",
    "subscriber": "listener",
    "subscription": "wait",
    "epoch": "version",
    "sensor": "trigger",
    "dag": "workflow",
    "reducer": "step",
    "master": "owner",
    "utils": "a better name",
    "helpers": "a better name",
    "manager": "a better name",
}


FOREIGN_PHRASES = ("left away", "belongs into", "stands bare", "once at once")


def names_in(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                found.add(name)
            case ast.AsyncFunctionDef(name=name) | ast.arg(arg=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                found.add(name)
    return found


def words_of(name: str) -> list[str]:
    """`JobQueue_id` -> job, queue, id."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return [word.lower() for word in apart.split("_") if word]


@pytest.mark.parametrize("layer", LAYERS)
def test_names_use_the_words_of_the_glossary(layer):
    """A banned synonym is named with the word to use instead."""
    wrong = [
        f"{path.relative_to(PACKAGE)}: {name}: say {BANNED[word]}, not {word}"
        for path in sorted([*PACKAGE.glob(f"{layer}.py"), *(PACKAGE / layer).rglob("*.py")])
        for name in {path.stem, *names_in(ast.parse(path.read_text()))}
        for word in words_of(name)
        if word in BANNED
        and word not in MEANS_SOMETHING_ELSE.get(layer, ())
        and name != "_attempt"  # to try a step: a verb, not a try of a task
    ]
    assert wrong == []


def test_a_module_or_class_name_occurs_once():
    """Whoever reads a name knows which one is meant."""
    places: defaultdict[str, set[str]] = defaultdict(set)
    for path in sorted(PACKAGE.rglob("*.py")):
        place = str(path.relative_to(PACKAGE))
        if path.stem != "__init__":
            places[path.stem].add(place)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].add(place)
    twice = {
        name: sorted(found)
        for name, found in places.items()
        if len(found) > 1
        if name not in SHARED
    }
    assert twice == {}


def test_no_text_uses_a_phrase_that_no_native_engineer_would_write():
    """Of everything a user reads; what the phrases should say instead depends on the sentence."""
    root = PACKAGE.parent.parent
    texts = [*PACKAGE.rglob("*.py"), *(root / "docs").rglob("*.md"), root / "README.md"]
    wrong = [
        f"{path.relative_to(root)}: {phrase}"
        for path in texts
        for phrase in FOREIGN_PHRASES
        if phrase in " ".join(path.read_text().split())
    ]
    assert wrong == []


def test_the_search_finds_a_banned_word():
    """Broken once by hand: the search is not blind."""
    tree = ast.parse("class JobQueue:\n    def dequeue_all(self, attempt): ...")
    words = {word for name in names_in(tree) for word in words_of(name)}
    assert {"job", "dequeue", "attempt"} <= words
