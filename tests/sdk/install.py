"""Install the SDKs that tests/sdk tests against: `make sdk-setup`.

What is there already, for the lock as it stands, is left alone.
"""

# ruff: noqa: T201 - it speaks by printing

import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

from tests.sdk.sdks import JS, NODE, NODE_MODULES, requirements, venv

OLDEST_PYTHON = (3, 12)


def main() -> None:
    install_js()
    python = find_python()
    if python is None:
        print("No Python 3.12 or later here, so the Python SDK is not tested.")
        return
    for version, lock in requirements().items():
        install_python(python, venv(version), lock)


def install_js() -> None:
    lock = JS / "package-lock.json"
    if is_stamped(NODE_MODULES, lock):
        return
    if shutil.which("npm") is None:
        sys.exit("npm is missing: install Node.js (https://nodejs.org, or apt install npm).")
    # No script of a package is run: the Node we need is a plain package too, chosen by platform.
    quiet = ("--no-audit", "--no-fund", "--loglevel=error")
    run("npm", "ci", "--prefix", str(JS), "--ignore-scripts", *quiet)
    if not NODE.exists():
        sys.exit(f"No Node for this platform: add its package to {JS / 'package.json'}.")
    stamp(NODE_MODULES, lock)


def install_python(python: str, folder: Path, lock: Path) -> None:
    if is_stamped(folder, lock):
        return
    run(python, "-m", "venv", "--clear", str(folder))
    pip = (str(folder / "bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check")
    run(*pip, "install", "--require-hashes", "--requirement", str(lock))
    stamp(folder, lock)


def find_python() -> str | None:
    """One that runs: a shim of pyenv is on the path for versions that are not switched on, too."""
    pyenv = sorted(Path.home().glob(".pyenv/versions/3.*/bin/python"), reverse=True)
    candidates = [sys.executable, "python3.14", "python3.13", "python3.12", *map(str, pyenv)]
    return next((each for each in candidates if is_new_enough(each)), None)


def is_new_enough(python: str) -> bool:
    check = f"import sys, venv, ensurepip; sys.exit(sys.version_info < {OLDEST_PYTHON})"
    try:
        return (
            subprocess.run([python, "-c", check], capture_output=True, check=False).returncode == 0
        )
    except OSError:
        return False


def is_stamped(folder: Path, lock: Path) -> bool:
    mark = folder / ".ready"
    return mark.exists() and mark.read_text() == digest(lock)


def stamp(folder: Path, lock: Path) -> None:
    (folder / ".ready").write_text(digest(lock))


def digest(lock: Path) -> str:
    return sha256(lock.read_bytes()).hexdigest()


def run(*command: str) -> None:
    done = subprocess.run(command, check=False)
    if done.returncode:
        sys.exit(f"This has failed (exit {done.returncode}): {' '.join(command)}")


if __name__ == "__main__":
    main()
