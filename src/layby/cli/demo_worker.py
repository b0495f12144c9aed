"""The process the demo watches, kills and starts again: a Runner with 4 slots, parcels and letters.

A parcel is packed and then waits: for a door (a file), for a signature (a promise) or for its
hour (a sleep). A letter is ordinary work, which holds a slot for 50 ms. Every 100 ms a report
goes to stdout. Nothing here prepares for being killed.
"""

import asyncio
import os
import sys
import threading
import time
from pathlib import Path

import msgspec
from msgspec import Struct

from layby import Context, Runner, TaskHandle, Workflow, task
from layby.cli.demo_place import DemoPlace
from layby.errors import LaybyError

SLOTS = 4
PARCELS = 200
SLEEP_S = 10.0
LETTER_S = 0.05
LETTERS_AT_ONCE = 8
REPORT_S = 0.1
KINDS = ("condition", "promise", "sleep")
REFUSED = 2
"""The exit code after an expected failure, which is the last line on stderr."""


class WorkerReport(Struct):
    """What this process reports ten times a second; what waits is in the file."""

    held: int = 0
    peak: int = 0
    """Slots held: now, and at most so far."""
    letters: int = 0
    recovered: int = 0
    """Letters that an earlier process had begun."""
    delivered: int = 0
    late_ms: float = 0
    """How late the latest sleeper woke."""


class DemoState:
    """What the tasks below share: the folder they write to and the Runner they are counted in."""

    def __init__(self, place: DemoPlace) -> None:
        self.folder = place.folder
        self.prefix = place.prefix
        self.runner = Runner(place.address, slots=SLOTS, group=place.group, lease=place.lease_s)
        self.report = WorkerReport()
        self.is_closing = False

    @property
    def is_door_open(self) -> bool:
        return (self.folder / "door").exists()

    def look(self) -> None:
        """Called by each body that has a slot: counts the slots held."""
        self.report.held = self.runner.worker.credit.held
        self.report.peak = max(self.report.peak, self.report.held)

    def note(self, book: str, text: str) -> None:
        with (self.folder / book).open("a") as file:
            file.write(f"{text}\n")

    def is_empty(self) -> bool:
        """Whether every parcel has been delivered, by this process or an earlier one."""
        delivered = self.folder / "delivered"
        return delivered.exists() and len(delivered.read_text().split()) >= PARCELS


state: DemoState


@task
async def pack(context: Context) -> None:
    state.look()
    state.note("packed", context["parcel"])


@task(dependencies=[pack])
async def deliver(context: Context, handle: TaskHandle) -> None:
    state.look()
    if context["waits_for"] == "condition":
        await handle.defer_until(door_is_open, poll_interval=0.5)
    elif context["waits_for"] == "promise":
        await handle.wait_for(f"signature/{context['parcel']}")
    else:
        begun_at = await handle.checkpoint("begun", time.time)
        await handle.sleep(SLEEP_S)
        late = (time.time() - begun_at - SLEEP_S) * 1000
        state.report.late_ms = max(state.report.late_ms, late)
    state.look()
    state.note("delivered", context["parcel"])
    state.report.delivered += 1


@task
async def stamp(_context: Context, handle: TaskHandle) -> None:
    state.look()
    await asyncio.sleep(LETTER_S)  # not a wait of layby: it holds its slot, like real work
    state.report.letters += 1
    state.report.recovered += handle.try_number > 1


def door_is_open() -> bool:
    return state.is_door_open


parcel = Workflow("parcel", tasks=[pack, deliver])
letter = Workflow("letter", tasks=[stamp])


async def work(life: str) -> None:
    async with state.runner as runner, asyncio.TaskGroup() as group:
        runner.register(parcel)
        runner.register(letter)
        group.create_task(_report_regularly())
        if life == "1":
            await _send_parcels(runner)
        for line in range(LETTERS_AT_ONCE):
            group.create_task(_send_letters(runner, f"{life}-{line}"))
        await _sign_when_the_door_opens(runner)


async def _send_parcels(runner: Runner) -> None:
    for number in range(PARCELS):
        name = f"{state.prefix}parcel-{number:03}"
        about = {"parcel": name, "waits_for": KINDS[number % len(KINDS)]}
        await runner.start(parcel, about, run_id=name)


async def _send_letters(runner: Runner, line: str) -> None:
    number = 0
    while not state.is_closing:
        number += 1
        await runner.execute(letter, run_id=f"{state.prefix}letter-{line}-{number}")


async def _sign_when_the_door_opens(runner: Runner) -> None:
    while not state.is_door_open:  # noqa: ASYNC110 - nobody in this process opens it
        await asyncio.sleep(REPORT_S)
    await asyncio.gather(
        *(
            runner.resolve(f"signature/{state.prefix}parcel-{number:03}", "received")
            for number in range(PARCELS)
            if KINDS[number % len(KINDS)] == "promise"
        )
    )


async def _report_regularly() -> None:
    while True:
        state.report.held = state.runner.worker.credit.held
        print(msgspec.json.encode(state.report).decode(), flush=True)
        if state.is_closing:
            return
        state.is_closing = state.is_empty()
        await asyncio.sleep(REPORT_S)


def _exit_with_the_demo() -> None:
    """Stdin ends when the demo ends, for whatever reason."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_exit_with_the_demo, daemon=True).start()
    state = DemoState(DemoPlace.of_process(Path(sys.argv[1])))
    try:
        asyncio.run(work(sys.argv[2]))
    except LaybyError as failure:
        print(failure, file=sys.stderr)
        sys.exit(REFUSED)
