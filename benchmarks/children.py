"""Loads in a process of their own: a script of this folder starts itself again, naming the load."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

Load = Callable[[Path, int], Coroutine[Any, Any, None]]
"""Given a file and a count."""


def numbers_from(script: str, load: str, *arguments: object) -> list[float]:
    """What the load prints, when it has ended."""
    out = subprocess.run(_command(script, load, arguments), check=True, capture_output=True)
    return [float(text) for text in out.stdout.split()]


def kill_when_ready(script: str, load: str, *arguments: object) -> None:
    """Let it get as far as its first line, then kill -9."""
    with subprocess.Popen(_command(script, load, arguments), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()


def run_asked(loads: Mapping[str, Load]) -> None:
    """In the child: the load that the command line names."""
    _, load, path, count = sys.argv
    asyncio.run(loads[load](Path(path), int(count)))


def _command(script: str, load: str, arguments: tuple[object, ...]) -> list[str]:
    return [sys.executable, script, load, *map(str, arguments)]
