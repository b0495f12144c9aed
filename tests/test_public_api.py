"""A public name is added, changed or taken away on purpose, never by accident."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.public_api import FILE, differences, public_api, read, written

ADVICE = f"""

The public API is not what tests/{FILE.name} says. If you did not mean that, undo it. If you did:
  1. read "Public names" in CONTRIBUTING.md; a released name does not just go away
  2. make api-snapshot, and commit tests/{FILE.name} with your change
  3. say in CHANGELOG.md what users will notice
"""


def test_the_public_api_is_the_one_written_down():
    """Names and parameters of the modules, commands and options, kinds of the wire."""
    found = differences(read(FILE.read_text(encoding="utf-8")), public_api())
    if found:
        pytest.fail("\n".join(found) + ADVICE, pytrace=False)


def test_what_is_written_can_be_read():
    """Otherwise a difference could hide in the file's form."""
    api = public_api()
    assert read(written(api)) == api


def test_it_is_the_same_in_a_narrow_terminal():
    """Nothing in it was laid out for a screen."""
    code = "from tests.public_api import *; print(written(public_api()), end='')"
    environment = {**os.environ, "COLUMNS": "20", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-c", code]
    home = Path(__file__).parents[1]
    out = subprocess.run(command, check=True, capture_output=True, env=environment, cwd=home)
    assert out.stdout.decode() == written(public_api())


def test_differences_say_what_happened_to_each_name():
    """Broken once by hand: a removed, a changed and an added name are told apart."""
    was = {"layby.a": "def (x)", "layby.b": "def ()", "layby.c": "value"}
    now = {"layby.b": "def (y=1)", "layby.c": "value", "layby.d": "value"}
    assert differences(was, now) == [
        "removed  layby.a: def (x)",
        "changed  layby.b\n    from def ()\n    to   def (y=1)",
        "added    layby.d: value",
    ]
