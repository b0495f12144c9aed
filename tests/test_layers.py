"""What import-linter cannot say about the layers.

Its contracts (pyproject.toml) give the direction of imports and name modules that core must
not reach. Here it is the other way round: core gets a list of what it may import, and its
source is searched for clocks, chance, output and waiting.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import layby

PACKAGE = Path(layby.__file__).parent
LAYERS = {child.stem for child in PACKAGE.iterdir()}
TOP_LAYERS = {"cli", "ui", "testing"}

VALUE_MODULES = {
    "__future__",
    "abc",
    "base64",
    "binascii",
    "bisect",
    "collections",
    "collections.abc",
    "copy",
    "dataclasses",
    "datetime",
    "decimal",
    "difflib",
    "enum",
    "fractions",
    "functools",
    "graphlib",
    "hashlib",
    "heapq",
    "itertools",
    "json",
    "math",
    "numbers",
    "operator",
    "re",
    "string",
    "struct",
    "textwrap",
    "types",
    "typing",
    "unicodedata",
    "urllib.parse",
}
PURE_PACKAGES = ("msgspec", "layby.core", "layby.errors")
IMPURE_CALLS = {"open", "print", "input", "breakpoint", "exec", "eval", "__import__"}


def files_of(*layers: str) -> list[Path]:
    """Every file of these layers, be they packages or single modules; none if not written yet."""
    patterns = [pattern for layer in layers for pattern in (f"{layer}.py", f"{layer}/**/*.py")]
    return sorted(path for pattern in patterns for path in PACKAGE.glob(pattern))


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def imports(tree: ast.AST, path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of every module imported, however the statement spells it."""
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from ((node.lineno, alias.name) for alias in node.names)
            case ast.ImportFrom():
                module = origin(node, path)
                # `from urllib import parse` names a module, `from re import Match` does not.
                if module in {"layby", "urllib"}:
                    yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
                else:
                    yield node.lineno, module
            case _:
                pass


def origin(node: ast.ImportFrom, path: Path) -> str:
    """What stands between `from` and `import`, with the leading dots spelled out."""
    if node.level == 0:
        return node.module or ""
    home = ["layby", *path.relative_to(PACKAGE).parts[:-1]]
    above = home[: len(home) - node.level + 1]
    return ".".join([*above, node.module] if node.module else above)


def is_pure(module: str) -> bool:
    inside = any(module == home or module.startswith(f"{home}.") for home in PURE_PACKAGES)
    return inside or module in VALUE_MODULES


def impurities(source: str, path: Path) -> list[str]:
    """Everything in this file that a pure module must not do, as `line: what`."""
    tree = ast.parse(source)
    asked = [f"{line}: import {name}" for line, name in imports(tree, path) if not is_pure(name)]
    return asked + [found for node in ast.walk(tree) for found in impure_acts(node)]


def impure_acts(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Await() | ast.AsyncFunctionDef() | ast.AsyncFor() | ast.AsyncWith():
            yield f"{node.lineno}: await"
        case ast.comprehension(is_async=1, target=target):
            yield f"{target.lineno}: await"
        case ast.Attribute(value=ast.Name(id="time" | "random" as name), attr=attr):
            yield f"{node.lineno}: {name}.{attr}"
        case ast.Attribute(
            value=ast.Name(id="datetime" | "date") | ast.Attribute(attr="datetime" | "date"),
            attr="now" | "utcnow" | "today" as attr,
        ):
            yield f"{node.lineno}: clock {attr}"
        case ast.Call(func=ast.Name(id=name)) if name in IMPURE_CALLS:
            yield f"{node.lineno}: {name}()"
        case _:
            pass


@pytest.mark.parametrize("path", files_of("core", "errors"), ids=name_of)
def test_core_is_pure(path: Path) -> None:
    """Core and errors import values only; they do not wait, print, read a clock or draw lots."""
    assert impurities(path.read_text(encoding="utf-8"), path) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import asyncio", "1: import asyncio"),
        ("import os.path", "1: import os.path"),
        ("from time import monotonic", "1: import time"),
        ("from urllib import request", "1: import urllib.request"),
        ("import layby", "1: import layby"),
        ("from layby import engine", "1: import layby.engine"),
        ("from layby.store.sql import SqlStore", "1: import layby.store.sql"),
        ("from layby.core_of_another import x", "1: import layby.core_of_another"),
        ("from ..engine import writer", "1: import layby.engine"),
        ("from .. import engine", "1: import layby.engine"),
        ("def f():\n    import sqlite3", "2: import sqlite3"),
        ("if TYPE_CHECKING:\n    import logging", "2: import logging"),
        ("async def f(): pass", "1: await"),
        ("x = [y async for y in z]", "1: await"),
        ("time.monotonic()", "1: time.monotonic"),
        ("x = random.random", "1: random.random"),
        ("datetime.now()", "1: clock now"),
        ("datetime.datetime.now()", "1: clock now"),
        ("datetime.date.today()", "1: clock today"),
        ("open('x')", "1: open()"),
        ("print(1)", "1: print()"),
    ],
)
def test_the_search_finds(source: str, found: str) -> None:
    """Each impurity is seen; otherwise the test above could pass by being blind."""
    assert impurities(source, PACKAGE / "core" / "step.py") == [found]


@pytest.mark.parametrize(
    "source",
    [
        "from __future__ import annotations",
        "import msgspec",
        "from collections.abc import Mapping",
        "from urllib.parse import urlsplit",
        "from layby import errors",
        "from layby.core.model import Task",
        "from layby.errors import Error",
        "from .model import Task",
        "from . import model",
        "from ..errors import Error",
        "x = 'open(), print(), time.time() and await'",
        "def due(now: int) -> bool: return command.now < now",
    ],
)
def test_the_search_lets_pass(source: str) -> None:
    """Values, core's own modules and mere words are no impurity."""
    assert impurities(source, PACKAGE / "core" / "step.py") == []


def test_nobody_inside_uses_the_front_door() -> None:
    """`from layby import Thing` inside the package would hide the layer that Thing is from."""
    doors = {f"layby.{layer}" for layer in LAYERS | {"__version__"}}
    for path in files_of(*LAYERS - TOP_LAYERS - {"__init__"}):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        ours = [name.split(".") for _, name in imports(tree, path)]
        asked = {".".join(parts[:2]) for parts in ours if parts[0] == "layby"}
        assert asked - doors == set(), path


ALONE = """
import importlib, sys
for name in sys.argv[1:]:
    for loaded in [each for each in sys.modules if each.split(".")[0] == "layby"]:
        del sys.modules[loaded]
    importlib.import_module(name)
"""


def test_each_module_of_the_lower_layers_can_be_the_first_that_is_imported() -> None:
    """Modules that need each other work in one order only, and what comes first changes easily."""
    files = files_of("core", "store", "wire")
    names = [
        ".".join(("layby", *path.relative_to(PACKAGE).with_suffix("").parts)) for path in files
    ]
    command = [sys.executable, "-c", ALONE, *names]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert not done.returncode, done.stderr
