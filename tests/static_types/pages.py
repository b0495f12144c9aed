"""The Python on our pages as files that type checkers read; `make types` writes and checks them.

Every file has the lines of its page where the page has them, and nothing else, so that what a
tool says about a line is true of the page. The blocks of a page are one script, as in
tests/examples/test_docs.py; those of docs/testing.md are tests, each a script of its own, and so is
a later block that begins with the name of a file.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
OTHERS = ("sdks.md",)
"""Pages whose Python is for another library."""
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in OTHERS),
]
FOLDER = Path(__file__).with_name("written")
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
FRAGMENT = "# a fragment"
UNTYPED = "from django"
"""Django brings no types, and in strict mode everything made with it would be unknown."""
A_FILE = re.compile(r"# (\w+)\.py\n")


def scripts(page: Path) -> Iterator[tuple[str, str]]:
    """Each script of a page, and a name for its file."""
    text = page.read_text()
    found = [
        each
        for each in BLOCK.finditer(text)
        if not each[1].startswith(FRAGMENT) and UNTYPED not in each[1]
    ]
    files = [each for each in found[1:] if A_FILE.match(each[1])]
    alone = found if page.name == "testing.md" else files
    together = [each for each in found if each not in alone]
    for number, each in enumerate(alone, 1):
        yield f"page_{page.stem}_{number}.py", _in_place(text, [each])
    if together:
        yield f"page_{page.stem}.py", _in_place(text, together)


def _in_place(text: str, blocks: list[re.Match[str]]) -> str:
    """The code of these blocks on the lines they have on the page."""
    lines = [""] * (text.count("\n") + 1)
    for block in blocks:
        first = text.count("\n", 0, block.start(1))
        code = block[1].splitlines()
        lines[first : first + len(code)] = code
    return "\n".join(lines)


def write() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    for page in PAGES:
        for name, code in scripts(page):
            (FOLDER / name).write_text(code)


if __name__ == "__main__":
    write()
