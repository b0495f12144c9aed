"""Disks that are full or read-only, for real where the system lets us, else as near as it can be.

Root may mount; everybody else is bound by permissions, and so is root after lending its rights
away for a moment. No way is skipped: on any machine one of them works.
"""

import os
import sqlite3
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65_534


@contextmanager
def mounted(folder: Path, *arguments: str) -> Generator[bool]:
    """True when the mount worked."""
    command = ["mount", *arguments, str(folder)]
    works = os.geteuid() == 0 and _succeeds(command)
    try:
        yield works
    finally:
        if works:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


class SmallDisk:
    """A folder with little room. `fill` takes the rest of it, `free` gives that back."""

    def __init__(self, folder: Path, *, is_real: bool) -> None:
        self.folder = folder
        self.is_real = is_real

    def fill(self, connection: sqlite3.Connection) -> None:
        if not self.is_real:
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {pages}")
            return
        with (self.folder / "ballast").open("wb", buffering=0) as ballast:
            _write_until_full(ballast.write)

    def free(self, connection: sqlite3.Connection) -> None:
        if self.is_real:
            (self.folder / "ballast").unlink()
        else:
            connection.execute("PRAGMA max_page_count = 1000000")


@contextmanager
def small_disk(folder: Path) -> Generator[SmallDisk]:
    with mounted(folder, "-t", "tmpfs", "-o", "size=2m", "layby-test") as is_real:
        yield SmallDisk(folder, is_real=is_real)


@contextmanager
def read_only(folder: Path) -> Generator[None]:
    """Nothing in this folder can be written, not even by root."""
    with mounted(folder, "--bind", str(folder)) as works:
        if works:
            subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
            yield
            return
        before = [(path, path.stat().st_mode) for path in (folder, *folder.iterdir())]
        for path, mode in before:
            path.chmod(mode & ~0o222)
        try:
            with _unprivileged():
                yield
        finally:
            for path, mode in before:
                path.chmod(mode)


@contextmanager
def _unprivileged() -> Generator[None]:
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def _write_until_full(write: Callable[[bytes], int | None]) -> None:
    for size in (65_536, 4_096, 512, 1):
        try:
            while write(b"x" * size):
                pass
        except OSError:
            continue
