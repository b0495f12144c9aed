"""What our pages show of the SDKs works as it stands there."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.helpers.command_line import typed
from tests.sdk.peers import PATIENCE_S
from tests.sdk.sdks import NODE, NODE_MODULES, venv
from tests.sdk.servers import Server

pytestmark = pytest.mark.sdk

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "docs/sdks.md"]
URL = "http://localhost:8001"
NEWEST = "0.11.5"


def block(page: str, language: str) -> str:
    text = (ROOT / page).read_text()
    [found] = re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert URL in found
    return found


@pytest.mark.parametrize("page", PAGES)
def test_typescript(page, server: Server, tmp_path):
    """A worker of ten lines, called from the command line."""
    worker = tmp_path / "worker.ts"
    worker.write_text(block(page, "typescript").replace(URL, server.url))
    (tmp_path / "node_modules/@resonatehq").mkdir(parents=True)
    (tmp_path / "node_modules/@resonatehq/sdk").symlink_to(NODE_MODULES / f"sdk-{NEWEST}")
    node = subprocess.Popen([NODE, worker], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        called = ("invoke", "r-1", "--func", "remind", "--arg", "Ada", "--wait")
        patience = ("--timeout", f"{PATIENCE_S}s")
        assert typed(*called, *patience, "--url", server.url).lines == ['"time to go, Ada"']
    finally:
        node.kill()
        node.wait()


def test_python(server: Server, tmp_path):
    """A program that is worker and caller."""
    python = venv("0.8.1") / "bin/python"
    if not python.exists():
        pytest.skip("`make sdk-setup` found no Python 3.12 or later")
    program = tmp_path / "program.py"
    program.write_text(block("docs/sdks.md", "python").replace(URL, server.url))
    done = subprocess.run([python, program], capture_output=True, text=True, check=False)
    assert done.stdout == "time to go, Bo\n", done.stderr
