"""A day of schedules with every policy: paused, replaced and interrupted, and each run counted.

What must happen is worked out by a model that knows nothing of promises, only of minutes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from layby import Runner, Workflow, task
from layby.core.schedule_row import Overlap
from layby.runner.schedule import Schedule
from layby.testing import current_clock, run_virtual
from tests.helpers.flows import sound
from tests.helpers.workers import crashing

NEW_YEAR = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1000
DAY = 24 * 60
POLICIES: list[tuple[Overlap, bool]] = [
    (overlap, catch_up) for overlap in ("allow", "skip", "queue_one") for catch_up in (False, True)
]
# In minutes; nothing coincides with an occurrence, nor with the end of a run.
PAUSED = ((95.1, 161.1), (1105.1, 1141.1))
REPLACED_AT = 421.1  # with shorter runs: the next occurrence stays
DOWN = ((305.1, 352.1), (640.1, 640.1), (1201.1, 1264.1))  # each ends in a crash
OTHER_RULE_AT = 860.1  # every 15 minutes from here on
LONG, SHORT = 24.6, 7.6
COUNTS = {  # of 115 occurrences outside the pauses, 9 of them missed: runs, and skipped ones
    "allow-all": (115, 0),
    "allow-last": (108, 0),
    "skip-all": (85, 30),
    "skip-last": (85, 23),
    "queue_one-all": (90, 25),
    "queue_one-last": (90, 18),
}


@task
async def work(context, handle):
    await handle.sleep(context["minutes"] * 60)


flow = Workflow("work", tasks=[work])


# --- the model -----------------------------------------------------------------------------


@dataclass
class Run:
    at: int
    begin: float
    end: float


@dataclass
class Model:
    """Minutes in, runs out."""

    overlap: Overlap
    catch_up: bool
    runs: list[Run] = field(default_factory=list)
    skipped: int = 0

    def day(self) -> "Model":
        missed: list[int] = []
        for at in _occurrences():
            if any(start < at < end for start, end in PAUSED):
                continue
            down = next((each for each in DOWN if each[0] < at < each[1]), None)
            if down is None:
                self._back(missed, at)
                missed = []
                self._occur(at, at)
            else:
                missed.append(at)
        return self

    def _back(self, missed: list[int], before: float) -> None:
        """What was missed comes at once; what ended meanwhile ends right after."""
        for _, up in (each for each in DOWN if each[1] < before):
            for run in self.runs:
                if any(start <= run.end <= end for start, end in DOWN if end == up):
                    self._delay(run, up)
        if missed:
            up = next(end for start, end in DOWN if start < missed[0] < end)
            for at in missed if self.catch_up else missed[-1:]:
                self._occur(at, up)

    def _delay(self, run: Run, until: float) -> None:
        by = until + 0.001 - run.end
        queued = [each for each in self.runs if each.begin == run.end]
        run.end += by
        for each in queued:
            each.end += run.end - each.begin
            each.begin = run.end

    def _occur(self, at: int, now: float) -> None:
        opened = [run for run in self.runs if run.end > now]
        begin = now
        if opened and self.overlap != "allow":
            if self.overlap == "skip" or any(run.begin > now for run in opened):
                self.skipped += 1
                return
            begin = max(run.end for run in opened)
        minutes = LONG if now < REPLACED_AT else SHORT
        self.runs.append(Run(at, begin, begin + minutes))


def _occurrences() -> Iterator[int]:
    yield from (at for at in range(10, DAY + 1, 10) if at < OTHER_RULE_AT)
    yield from (at for at in range(15, DAY + 1, 15) if at > OTHER_RULE_AT)


# --- the day -------------------------------------------------------------------------------


def schedule_id(overlap: Overlap, catch_up: bool) -> str:
    return f"{overlap}-{'all' if catch_up else 'last'}"


class Program:
    """What it does when it starts, and by the clock."""

    def __init__(self) -> None:
        self.minutes, self.rule = LONG, "*/10 * * * *"

    async def start(self, runner: Runner) -> dict[str, Schedule]:
        """As programs do: whether or not anything has changed."""
        made = [
            await runner.schedule(
                flow,
                self.rule,
                id=schedule_id(overlap, catch_up),
                context={"minutes": self.minutes},
                overlap=overlap,
                catch_up=catch_up,
                replace=True,
            )
            for overlap, catch_up in POLICIES
        ]
        return {each.id: each for each in made}


async def until(minute: float) -> None:
    await current_clock().advance((NEW_YEAR + minute * 60_000 - current_clock().now()) / 1000)


async def live_through(runner: Runner, program: Program, start: float, end: float) -> None:
    schedules = await program.start(runner)
    moments = sorted({*chain(*PAUSED), REPLACED_AT, OTHER_RULE_AT})
    for moment in (each for each in moments if start < each < end):
        await until(moment)
        if moment in (REPLACED_AT, OTHER_RULE_AT):
            is_rule = moment == OTHER_RULE_AT
            program.rule = "*/15 * * * *" if is_rule else program.rule
            program.minutes = program.minutes if is_rule else SHORT
            schedules = await program.start(runner)
        for schedule in schedules.values():
            if moment in (begin for begin, _ in PAUSED):
                await schedule.pause()
            elif moment in (end for _, end in PAUSED):
                await schedule.unpause()
    await until(end)


def test_a_day_with_every_policy(tmp_path: Path) -> None:
    """Two pauses, a replacement, another rule, two crashes with downtime and one without."""
    address = f"sqlite:{tmp_path / 'layby.db'}"
    found: dict[str, tuple[list[int], int]] = {}

    async def main() -> None:
        program, now = Program(), 0.0
        for down, up in DOWN:
            async with crashing(address) as runner:
                await live_through(runner, program, now, down)
            await until(up)
            now = up
        async with Runner(address) as runner:
            await live_through(runner, program, now, DAY + 0.5)
            for schedule in await runner.schedules():
                ids = [run.id for run in await schedule.runs(limit=1_000)]
                instants = sorted(int(each.removeprefix(f"{schedule.id}-")) for each in ids)
                minutes = [(each - NEW_YEAR) // 60_000 for each in instants]
                found[schedule.id] = (minutes, schedule.skipped)
                await schedule.delete()
            await until(DAY + 60)
            completed = await runner.list(state="Completed", limit=9_999)
            assert len(completed) == sum(runs for runs, _ in COUNTS.values())
            await sound(runner)

    run_virtual(main(), start=NEW_YEAR)
    for overlap, catch_up in POLICIES:
        expected = Model(overlap, catch_up).day()
        wanted = ([run.at for run in expected.runs], expected.skipped)
        assert found[schedule_id(overlap, catch_up)] == wanted
    assert {each: (len(runs), skipped) for each, (runs, skipped) in found.items()} == COUNTS
