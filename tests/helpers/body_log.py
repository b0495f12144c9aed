"""What bodies did, as seen from outside: each writes when it begins and when it has ended.

All processes of a test append to one file, a line at a time, in the time since the machine was
started: a clock that nobody steps. The test adds what it did to the processes. `audit` then says
which tasks had two bodies at once, and which of these had lost their lease.
"""

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

VARIABLE = "BODIES"
"""Names the file for processes that run bodies."""


def boot_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Line(NamedTuple):
    what: str
    """`begin` or `end` of a body; `gone`, `stopped` or `continued`: a process."""
    pid: int
    task: str
    number: int
    """Which try it is."""
    at: int


class Body(NamedTuple):
    task: str
    number: int
    pid: int
    began: int
    ended: int | None
    """None: it goes on."""

    def overlaps(self, other: "Body") -> bool:
        return _before(other.began, self.ended) and _before(self.began, other.ended)


def _before(began: int, ended: int | None) -> bool:
    return ended is None or began < ended


def write(file: Path | str, what: str, pid: int, task: str = "-", number: int = 0) -> None:
    """One line, whole, whoever else writes."""
    line = f"{what} {pid} {task} {number} {boot_ns()}\n".encode()
    handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, line)
    finally:
        os.close(handle)


@contextmanager
def logged(handle) -> Iterator[None]:
    """Around everything that a body does; where no file is named nothing is written."""
    file, told = os.environ.get(VARIABLE), (handle.task_execution_id, handle.try_number)
    if file is None:
        yield
        return
    write(file, "begin", os.getpid(), *told)
    try:
        yield
    finally:
        write(file, "end", os.getpid(), *told)


class BodyLog:
    """The file, as the test reads it and adds to it."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "bodies"
        self.file.touch()

    @property
    def environment(self) -> dict[str, str]:
        return {VARIABLE: str(self.file)}

    def note(self, what: str, pid: int) -> None:
        write(self.file, what, pid)

    def lines(self) -> list[Line]:
        """What has been written; the last line may be under way."""
        split = (line.split() for line in self.file.read_text().splitlines(keepends=True))
        return [
            Line(what, int(pid), task, int(number), int(at))
            for what, pid, task, number, at in (each for each in split if len(each) == 5)
        ]

    def begun(self, task: str = "") -> int:
        return sum(each.what == "begin" and task in each.task for each in self.lines())

    def ended(self, task: str = "") -> int:
        return sum(each.what == "end" and task in each.task for each in self.lines())

    def bodies(self) -> list[Body]:
        return bodies_of(self.lines())


def bodies_of(lines: Iterable[Line]) -> list[Body]:
    """Bodies in the order of their begin; with their process each of its bodies ends."""
    going_on: dict[tuple[int, str, int], list[Line]] = defaultdict(list)
    found: list[Body] = []

    def end(key: tuple[int, str, int], at: int | None) -> None:
        found.extend(
            Body(each.task, each.number, each.pid, each.at, at) for each in going_on.pop(key, ())
        )

    for line in sorted(lines, key=lambda each: each.at):
        key = (line.pid, line.task, line.number)
        if line.what == "begin":
            going_on[key].append(line)
        elif line.what == "end":
            end(key, line.at)
        elif line.what == "gone":
            for each in [each for each in going_on if each[0] == line.pid]:
                end(each, line.at)
    for key in list(going_on):
        end(key, None)
    return sorted(found, key=lambda each: each.began)


class Audit(NamedTuple):
    bodies: int
    excused: list[tuple[Body, Body]]
    """Two at once, one of a process that stood still for longer than its lease."""
    overlaps: list[tuple[Body, Body]]
    """Two at once, and nobody had lost a lease."""
    late: list[tuple[Body, Body]]
    """A try that began after a later one of the same task had begun."""

    @property
    def sentence(self) -> str:
        return (
            f"{self.bodies} bodies; two of a task at once: {len(self.overlaps)}, and after a lost "
            f"lease {len(self.excused)}; begun after a later try: {len(self.late)}"
        )


def audit(lines: Iterable[Line], lease_s: float) -> Audit:
    """Which tasks had two bodies at once, and whether a lost lease explains it."""
    lines = list(lines)
    bodies = bodies_of(lines)
    still = _standstills(lines, round(lease_s * 1e9))
    excused, overlaps, late = [], [], []
    of_task: dict[str, list[Body]] = defaultdict(list)
    for body in bodies:
        for earlier in of_task[body.task]:
            if body.overlaps(earlier):
                has_lost = any(
                    _stood_still(pid, earlier, body, still) for pid in (earlier.pid, body.pid)
                )
                (excused if has_lost else overlaps).append((earlier, body))
            if earlier.number > body.number:
                late.append((earlier, body))
        of_task[body.task].append(body)
    return Audit(len(bodies), excused, overlaps, late)


def _standstills(lines: Iterable[Line], at_least_ns: int) -> dict[int, list[tuple[int, int]]]:
    """When each process stood still for longer than that."""
    since: dict[int, int] = {}
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for line in sorted(lines, key=lambda each: each.at):
        if line.what == "stopped":
            since[line.pid] = line.at
        elif line.what == "continued" and line.pid in since:
            began = since.pop(line.pid)
            if line.at - began >= at_least_ns:
                found[line.pid].append((began, line.at))
    return found


def _stood_still(
    pid: int, earlier: Body, later: Body, still: dict[int, list[tuple[int, int]]]
) -> bool:
    """Whether a process did, after the earlier body had begun and before the later one began.

    Of the earlier: it lost its lease. Of the later: it was stopped between the last look at its
    lease and the body's first line, for which nobody can vouch.
    """
    return any(began < later.began and ended > earlier.began for began, ended in still.get(pid, ()))
