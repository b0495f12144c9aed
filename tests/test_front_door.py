"""The module `layby` has every public name, and loads what belongs to it when it is asked for."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import layby

UNNEEDED = ("layby.runner", "layby.worker", "layby.workflow", "aiohttp")


def test_names_come_from_where_type_checkers_see_them():
    """What a tool reads in the file is what a program gets."""
    tree = ast.parse(Path(layby.__file__).read_text())
    checked = next(each for each in tree.body if isinstance(each, ast.If))
    imports = [each for each in checked.body if isinstance(each, ast.ImportFrom)]
    seen = {name.name: each.module for each in imports for name in each.names}
    packages = {name for name, home in seen.items() if home == "layby"}
    assert packages <= set(layby._PACKAGES)
    assert {name: home for name, home in seen.items() if name not in packages} == layby._HOMES


def test_every_name_is_there():
    """By attribute, by a star, and for whoever lists them."""
    there: dict[str, object] = {}
    exec("from layby import *", there)
    for name in layby.__all__:
        assert there[name] is getattr(layby, name)
    assert {*layby.__all__, "executors", "workflow"} <= set(dir(layby))


def test_a_name_that_does_not_exist_is_told():
    """As any module tells it."""
    with pytest.raises(AttributeError, match="module 'layby' has no attribute 'Runnr'"):
        layby.Runnr  # type: ignore[attr-defined]  # noqa: B018 - asked for its error


def test_a_server_starts_without_what_it_does_not_need():
    """Clients of HTTP come with the first push."""
    code = f"import sys, layby.server.server; print([n for n in {UNNEEDED} if n in sys.modules])"
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert told.stdout == "[]\n"


def test_the_command_line_starts_without_what_it_does_not_need():
    """Completion asks it at each press of a key; the packages come when somebody names them."""
    code = f"""
import sys, layby.cli.main
early = [name for name in {UNNEEDED} if name in sys.modules]
print(early, layby.workflow.__name__, layby.executors.__name__, layby.Runner.__name__)
"""
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert told.stdout.split("\n")[0] == "[] layby.workflow layby.executors Runner"
