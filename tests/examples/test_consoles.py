"""What our pages type at a console can be typed, and says what the page says it says.

The `console` blocks of a page that begin with `layby` are one session, in a folder with the
page's files: the blocks whose first line is `# name.py` or `# name.yaml`. A command with
`# terminal` behind it goes on while the next ones are typed. What a command prints is compared
when the page shows it.
"""

import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("graph", "quickstart", "workers")),
]
CONSOLE = re.compile(r"^```console\n(\$ layby .*?)^```", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^```(?:python|yaml)\n(# (\w+\.(?:py|yaml))\n.*?)^```", re.MULTILINE | re.DOTALL)
PATIENCE_S = 90
SETTLED_IN = ("(Ctrl-C stops it)", "Running Deferred")
"""What a command that goes on says when the next one may be typed."""


class Typed(NamedTuple):
    words: list[str]
    goes_on: bool
    shown: list[str]


class Background:
    """A command in another terminal."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.said = ""
        self._news = threading.Condition()
        self.process = subprocess.Popen(
            command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        with self._news:
            self._news.wait_for(self._has_settled_in, PATIENCE_S)
        assert any(each in self.said for each in SETTLED_IN), (command, self.said)

    def _has_settled_in(self) -> bool:
        return any(each in self.said for each in SETTLED_IN) or self.process.poll() is not None

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self.said += line
                self._news.notify_all()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE_S)
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()


class Session:
    """The port is a free one, where the page has 8001."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._url = ""
        self.others: list[Background] = []

    def type(self, typed: Typed) -> None:
        command = [sys.executable, "-m", "layby.cli", *self._adapted(typed.words)]
        if typed.goes_on:
            self.others.append(Background(command, self._folder))
            if found := re.search(r"at (http://127\.0\.0\.1:\d+)", self.others[-1].said):
                self._url = found[1]
            return
        done = subprocess.run(
            command, cwd=self._folder, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, (typed.words, done.stderr)
        if typed.shown:
            assert alike(done.stdout.splitlines()) == alike(typed.shown)

    def _adapted(self, words: list[str]) -> list[str]:
        if words[0] in ("serve", "dev"):
            return [*words, "--port", "0"]
        return [*words, "--url", self._url] if words[0] == "worker" else words


def session_of(page: str) -> Iterator[Typed]:
    for block in CONSOLE.findall(page):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, *shown = part.splitlines()
            words = shlex.split(line, comments=True)
            assert words[0] == "layby", line
            yield Typed(words[1:], "# terminal" in line, shown)


def alike(lines: list[str]) -> list[str]:
    """How long something has taken is different each time, and not told in the first second."""
    return [re.sub(r", for \d+ s now", "", line) for line in lines]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_types_works(page, tmp_path, monkeypatch):
    """In the order of the page, from an empty folder."""
    for name in [each for each in os.environ if each.startswith("LAYBY_")]:
        monkeypatch.delenv(name)
    for code, name in FILE.findall(page.read_text()):
        (tmp_path / name).write_text(code)
    commands = list(session_of(page.read_text()))
    assert commands
    session = Session(tmp_path)
    try:
        for each in commands:
            session.type(each)
    finally:
        for other in reversed(session.others):
            other.stop()


def test_a_page_that_lies_is_found_out():
    """The comparison forgives how long something took, and nothing else."""
    [typed] = session_of("```console\n$ layby why x  # why?\nwaits, for 12 s now\n```\n")
    assert typed == Typed(["why", "x"], goes_on=False, shown=["waits, for 12 s now"])
    assert alike(["waits"]) == alike(["waits, for 3 s now"]) == alike(typed.shown)
    assert alike(["waited, for 3 s now"]) != alike(typed.shown)
