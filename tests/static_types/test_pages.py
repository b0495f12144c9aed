"""What our pages and examples teach is annotated; `make types` checks that it is right."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.static_types.pages import BLOCK, OTHERS, PAGES, ROOT, scripts

EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
PARAMETERS = {"Context", "TaskHandle", "BlockingHandle"}


def tasks_in(code: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(
            ast.unparse(each).partition("(")[0] in ("task", "layby.task")
            for each in node.decorator_list
        ):
            yield node


def unannotated(code: str) -> list[str]:
    """Tasks whose context, handle or result has no type, or the handle of the other form."""
    found: list[str] = []
    for each in tasks_in(code):
        types = {ast.unparse(one.annotation) for one in each.args.args if one.annotation}
        wrong = "BlockingHandle" if isinstance(each, ast.AsyncFunctionDef) else "TaskHandle"
        plain = [one.arg for one in each.args.args if one.annotation is None]
        if plain or each.returns is None or not types & PARAMETERS or wrong in types:
            found.append(each.name)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_task_on_a_page_is_annotated(page: Path) -> None:
    """A reader copies what is there, fragments included."""
    for block in BLOCK.finditer(page.read_text()):
        assert unannotated(block[1]) == []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_task_of_an_example_is_annotated(example: Path) -> None:
    """Likewise."""
    assert unannotated(example.read_text()) == []


def test_what_is_not_annotated_is_found_out() -> None:
    """Broken once by hand: the search is not blind."""
    assert unannotated("@task\nasync def a(context): ...") == ["a"]
    assert unannotated("@task(retries=3)\ndef b(context: Context, handle) -> None: ...") == ["b"]
    assert unannotated("@task\ndef c(context: Context, handle: TaskHandle) -> None: ...") == ["c"]
    assert unannotated("@task\nasync def d(context: Context) -> None: ...") == []


def test_every_page_is_checked() -> None:
    """But those about other libraries."""
    with_python = {
        page.name
        for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
        if BLOCK.search(page.read_text())
    }
    assert with_python - {page.name for page in PAGES} <= set(OTHERS)


def test_a_line_stands_where_it_stands_on_the_page(tmp_path: Path) -> None:
    """So that what a tool says about a line is true of the page."""
    page = tmp_path / "page.md"
    page.write_text(
        "# Title\n\n```python\none = 1\n```\n\ntext\n\n```python\n# a fragment\nno\n```\n"
        "```python\n# two.py\ntwo = 2\n```\n"
    )
    written = dict(scripts(page))
    assert set(written) == {"page_page.py", "page_page_1.py"}
    assert written["page_page.py"].splitlines()[3] == "one = 1"
    assert written["page_page_1.py"].splitlines()[14] == "two = 2"
    assert "no" not in "".join(written.values())
