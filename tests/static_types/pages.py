"""The Python on our pages as files that type checkers read; `make types` writes and checks them.

Every file has the lines of its page where the page has them, and nothing else, so that what a
tool says about a line is true of the page. The blocks of a page are one script, as in
tests/examples/test_docs.py; those of docs/testing.md are tests, each a script of its own.
"""

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
FRAGMENT = "# a fragment"
STRICT = "\n# pyright: strict, reportUnusedFunction=false\n"


def scripts(page: Path) -> Iterator[tuple[str, str]]:
    """Each script of a page, and a name for its file."""
    text = page.read_text()
    found = [each for each in BLOCK.finditer(text) if not each[1].startswith(FRAGMENT)]
    if page.name == "testing.md":
        for number, each in enumerate(found, 1):
            yield f"page_{page.stem}_{number}.py", _in_place(text, [each])
    elif found:
        yield f"page_{page.stem}.py", _in_place(text, found)


def _in_place(text: str, blocks: list[re.Match[str]]) -> str:
    """The code of these blocks on the lines they have on the page."""
    lines = [""] * (text.count("\n") + 1)
    for block in blocks:
        first = text.count("\n", 0, block.start(1))
        code = block[1].splitlines()
        lines[first : first + len(code)] = code
    return "\n".join(lines) + STRICT


def write(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for page in PAGES:
        for name, code in scripts(page):
            (folder / name).write_text(code)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
