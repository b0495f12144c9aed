"""One word, one meaning: names in the source use the words of docs/glossary.md.

Only words that mean nothing else here are searched for, and only in names; prose may explain.
"""

import ast
import re
from pathlib import Path

import pytest

import layby

PACKAGE = Path(layby.__file__).parent
LAYERS = ["core", "clock", "store", "engine", "client", "local", "delivery", "wire", "graph", "cli"]
MEANS_SOMETHING_ELSE = {"graph": {"epoch"}}
"""Words that the glossary gives another meaning in one layer."""
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
        and name != "_attempt"  # to try a step: a verb, no try of a task
    ]
    assert wrong == []


def test_the_search_finds_a_banned_word():
    """Broken once by hand: the search is not blind."""
    tree = ast.parse("class JobQueue:\n    def dequeue_all(self, attempt): ...")
    words = {word for name in names_in(tree) for word in words_of(name)}
    assert {"job", "dequeue", "attempt"} <= words
