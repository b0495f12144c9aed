"""A wall clock that can be put forward and back under running processes: Debian's libfaketime.

Only what `time.time()` tells is faked; the clocks that nobody can set go on as they are. Where the
library is missing, tests that need it are skipped with a word about the remedy; with
LAYBY_REQUIRE_TOOLS set, as in `make ci`, they fail.
"""

import os
from pathlib import Path

import pytest

VARIABLE = "FAKETIME_TIMESTAMP_FILE"
PLACES = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/opt/homebrew/lib")
NAME = "libfaketimeMT.so.1"
MISSING = f"{NAME} is missing, and clock steps are not tried for real: apt install libfaketime"

IS_REQUIRED = bool(os.environ.get("LAYBY_REQUIRE_TOOLS"))


def library() -> Path | None:
    """Where it is; Debian keeps it below a folder named for the machine."""
    folders = [folder for place in PLACES for folder in (place, f"{place}/faketime")]
    found = [Path(folder, NAME) for folder in folders if Path(folder, NAME).exists()]
    found += Path("/usr/lib").glob(f"*/faketime/{NAME}")
    return found[0] if found else None


def needed_library() -> Path:
    """Skips the test aloud, or fails it where tools are required."""
    found = library()
    if found is not None:
        return found
    if IS_REQUIRED:
        pytest.fail(MISSING)
    pytest.skip(MISSING)


class SteppedClock:
    """The wall clock of all processes that are started with this environment."""

    def __init__(self, folder: Path, preloaded: Path) -> None:
        self._file = folder / "clock"
        self._preloaded = preloaded
        self.step_to(0)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(self._preloaded),
            VARIABLE: str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
            # Its help for some versions of glibc makes the interpreter's own timed waits spin.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        }

    def step_to(self, seconds: float) -> None:
        step(seconds, self._file)


def step(seconds: float, file: Path | None = None) -> None:
    """So far from the true time from now on; also for a process with a faked clock itself."""
    file = file or Path(os.environ[VARIABLE])
    new = file.with_suffix(f".{os.getpid()}")
    new.write_text(f"{seconds:+f}\n")
    new.replace(file)  # nobody reads half of it
