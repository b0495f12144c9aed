"""What the README shows is what happens, and what it links to is there."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.test_consoles import alike

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
TEXT = (ROOT / "README.md").read_text()


def block(language: str) -> str:
    [found] = re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    return found


def typed(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "layby.cli", *shlex.split(line)[1:]]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def waits_for_a_person(folder: Path) -> subprocess.Popen[str]:
    """The example in terminal 1, when it has come to its wait."""
    program = subprocess.Popen(
        [sys.executable, "orders.py"], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    while "approval-7" not in typed("layby why order-7", folder).stdout:
        assert program.poll() is None
    return program


def test_in_the_example_somebody_really_waits(tmp_path):
    """As the page says: killed while it waits, asked why, answered; and once more when done."""
    (tmp_path / "orders.py").write_text(block("python"))
    with waits_for_a_person(tmp_path) as program:
        program.kill()
    with waits_for_a_person(tmp_path) as program:
        for part in re.split(r"^\$ ", console("python orders.py"), flags=re.MULTILINE)[2:]:
            line, *shown = part.splitlines()
            done = typed(line, tmp_path)
            assert (done.returncode, alike(done.stdout.splitlines())) == (0, alike(shown))
        assert program.communicate(timeout=60)[0] == block("text")
    again = [sys.executable, "orders.py"]
    assert subprocess.check_output(again, cwd=tmp_path, text=True) == block("text")


def console(first: str) -> str:
    """The block whose first command is this one."""
    [found] = re.findall(rf"^```console\n(\$ {first}.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    return found


def test_the_first_thing_to_type_is_the_installation():
    """And the page says at once in which state the thing is."""
    [first, *_] = re.findall(r"^\$ (\S+ \S+)", TEXT, re.MULTILINE)
    assert first == "pip install"
    assert TEXT.index("pip install") < TEXT.index("pre-alpha") < TEXT.index("```python")


def test_every_figure_can_be_measured_again():
    """The benches named beside the figures exist."""
    benches = "".join(each.read_text() for each in (ROOT / "benchmarks").glob("bench_*.py"))
    named = [
        name for found in re.findall(r'make bench ARGS="?([\w ]+)', TEXT) for name in found.split()
    ]
    assert len(named) >= 4
    assert [name for name in named if f"def {name}(" not in benches] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_our_pages_lead_somewhere(page):
    """A relative link names a file of this repository."""
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


CITED = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|md|toml|sql|txt|ya?ml|sh))(?:::?[\w.]+)?`")
GONE = {("docs/adr/0028-a-kind-is-declared-once.md", "wire/kinds.py")}
"""What a decision says was there before it."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_cites_exists(page):
    """By its path in the repository, or below `src/layby`."""
    name = str(page.relative_to(ROOT))
    cited = [each for each in CITED.findall(page.read_text()) if (name, each) not in GONE]
    missing = [
        each
        for each in cited
        if not any((ROOT / below / each).is_file() for below in ("", "src/layby"))
    ]
    assert missing == []


def test_every_test_that_conformance_names_exists():
    """In one of the files that the page cites."""
    page = (ROOT / "docs/conformance.md").read_text()
    files = [ROOT / each for each in CITED.findall(page) if each.startswith("tests/")]
    defined = "".join(each.read_text() for each in files)
    named = re.findall(r"`(test_\w+)`", page)
    assert len(named) >= 20
    assert [each for each in named if f"def {each}(" not in defined] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs/adr").glob("0*.md")), ids=lambda p: p.stem)
def test_a_decision_is_one_page_and_is_listed(page):
    """At most 60 lines, the four headings in order, and a line in the list."""
    text = page.read_text()
    assert len(text.splitlines()) <= 60
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings == ["Context", "Decision", "Rejected", "Consequence"]
    assert f"({page.name})" in (page.parent / "README.md").read_text()
