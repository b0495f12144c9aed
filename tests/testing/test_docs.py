"""docs/testing.md shows what happens."""

import inspect
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/testing.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def examples_in(block):
    names: dict[str, object] = {"__name__": "snippet"}
    exec(compile(block, str(PAGE), "exec"), names)
    return [value for name, value in names.items() if name.startswith("test_")]


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_every_example_of_the_page_passes(number, tmp_path):
    """Each block holds a test, and it passes as printed."""
    tests = examples_in(BLOCKS[number])
    assert tests
    for test in tests:
        assert callable(test)
        wants_path = "tmp_path" in inspect.signature(test).parameters
        test(tmp_path) if wants_path else test()


def test_the_page_has_examples():
    """A page without blocks would pass unseen."""
    assert len(BLOCKS) >= 4
