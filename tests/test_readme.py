"""What the README shows is what happens, and what it links to is there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
TEXT = (ROOT / "README.md").read_text()


def block(language: str) -> str:
    [found] = re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    return found


def test_the_example_prints_what_the_readme_says(tmp_path):
    """Twice: the second time on the file that the first has left."""
    for _ in range(2):
        command = [sys.executable, "-c", block("python")]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.stderr, done.stdout) == ("", block("text"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_our_pages_lead_somewhere(page):
    """A relative link names a file of this repository."""
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", sorted((ROOT / "docs/adr").glob("0*.md")), ids=lambda p: p.stem)
def test_a_decision_is_one_page_and_is_listed(page):
    """At most 60 lines, the four headings in order, and a line in the list."""
    text = page.read_text()
    assert len(text.splitlines()) <= 60
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings == ["Context", "Decision", "Rejected", "Consequence"]
    assert f"({page.name})" in (page.parent / "README.md").read_text()
