"""The released SDKs we test against: where `make sdk-setup` puts them, how they are started."""

import sys
from pathlib import Path

from msgspec import Struct

from tests.helpers.places import ALL_ON_POSTGRES

HERE = Path(__file__).parent
JS = HERE / "js"
NODE_MODULES = JS / "node_modules"
NODE = NODE_MODULES / ".bin" / "node"
PYTHON = HERE / "python"
VENVS = HERE.parents[1] / ".cache" / "sdk"


class Sdk(Struct, frozen=True):
    name: str
    command: tuple[str, ...]
    """How a peer of this SDK is started; its options follow."""

    def __str__(self) -> str:
        return self.name

    @property
    def is_installed(self) -> bool:
        return Path(self.command[0]).exists()

    @property
    def may_be_missing(self) -> bool:
        """Node comes with us; Python 3.12 or later must be on the machine."""
        return self.name.startswith("python")

    @property
    def beats_for_all(self) -> bool:
        """Its heartbeats name no task: they keep all leases of the process, while it lives."""
        return self.name == "js-0.11.4"


def requirements() -> dict[str, Path]:
    """The locked requirements of each version of the Python SDK."""
    files = sorted(PYTHON.glob("requirements-*.txt"))
    return {file.stem.removeprefix("requirements-"): file for file in files}


def venv(version: str) -> Path:
    return VENVS / f"python-{version}"


def _js(package: str) -> Sdk:
    name = f"js-{package.removeprefix('sdk-').replace('/', '-')}"
    return Sdk(name, (str(NODE), str(JS / "peer.mjs"), package))


def _python(version: str) -> Sdk:
    return Sdk(f"python-{version}", (str(venv(version) / "bin/python"), str(PYTHON / "peer.py")))


LAYBY = Sdk("layby", (sys.executable, str(HERE / "layby_peer.py")))
NEWEST = [_js("sdk-0.11.5"), _python("0.8.1")]
SDKS = [
    _js("sdk-0.11.4"),
    _js("sdk-0.11.5/async"),  # the same package has two engines
    _python("0.7.4"),
    *NEWEST,
]
if ALL_ON_POSTGRES:  # what an SDK sees does not depend on the store: one version of each will do
    SDKS = NEWEST
