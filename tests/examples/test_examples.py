"""Documentation that does not run is a rumour: every example, as a real process, twice."""

import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from layby.testing import current_clock, deterministic_runner, virtual_test
from tests.helpers.places import program_of

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

SAYS = {
    "approval.py": [
        "mail to the boss: please decide on the offer over 100 EUR",
        "offer-100: yes, says Ada (in try 2)",
        "offer-9000: no, not this year (in try 2)",
    ],
    "approval_by_link.py": [
        "the scanner opens the link: 200 An answer is needed",
        "the boss fills in nonsense: 400 An answer is needed",
        "the boss says 10 %: 200 Thank you",
        "the boss clicks again: 200 Already answered",
        "somebody else says 90 %: 409 Already answered",
        "10 % discount, granted by the boss",
    ],
    "child_runs.py": [
        "trip-7~book~car: Failed",
        "trip-7~book~flight: Completed",
        "trip-7~book~hotel: Completed",
        "FLIGHT-7, HOTEL-7, CAR-7",
        "booked: car, flight, hotel",
    ],
    "compensation.py": [
        "book: shipped for 20 EUR",
        "piano: shipped for 9000 EUR, approved by Ada",
        "toy: refunded, back in stock (Failed: RuntimeError: sold out)",
        "yacht: back in stock (Cancelled: over budget)",
        "yacht: cancelled by Ada; nobody has paid for nothing",
        "lamp: failed; nobody has paid for nothing",
    ],
    "external_job.py": [
        "nobody is there: all of it is in exports.db",
        *[f"export-{each}: the figures of the {each}" for each in ("north", "south", "west")],
    ],
    "fan_out.py": [
        "  4 of 4 stations answered",
        "  the warmest is Delhi",
        "  3 of 4 stations answered",
        "  measure_Lima failed: ConnectionError: the station of Lima does not answer",
    ],
    "file_watch.py": [
        "stock.csv is there; slot held again: True",
        "in stock: 8",
        "in stock: None",
    ],
    "from_airflow.py": [
        "orders: success in try 2",
        "/exports/orders.csv is loaded",
        "flaky: error in try 2",
        "flaky: success in try 4",
        "/exports/flaky.csv is loaded",
        "broken: error in try 4",
        "the job itself was stopped: huge",
    ],
    "nightly_etl.py": ["6 rows loaded, 12.5 EUR not paid yet", "lima answered in try 3"],
    "order_pipeline.py": [f"order-{number}: order {number} is packed" for number in range(1, 6)],
    "rate_limit.py": ["report: page 5", "send: message 4 is out", "send_blindly: message is out"],
}


def run(example: Path, folder: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", program_of(example, folder)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, complaints(done.stderr)) == (0, [])
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[list[str], list[str]]]:
    """What an example says, and what it says the second time, on what the first has left behind."""

    @cache
    def lines(name: str) -> tuple[list[str], list[str]]:
        example, folder = ROOT / "examples" / name, tmp_path_factory.mktemp("example")
        return run(example, folder), run(example, folder)

    return lines


FAILED_TRY = re.compile(
    r"^\S+ failed in try .*\n(?:Traceback .*\n(?:  .*\n)*\S.*\n)?", re.MULTILINE
)


def complaints(stderr: str) -> list[str]:
    """Tries that fail are logged, and where; some are meant to.

    On a machine that is busy with other things even a quick look may take long, and be named.
    """
    rest = FAILED_TRY.sub("", stderr)
    return [each for each in rest.splitlines() if "blocked the event loop" not in each]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_twice_and_says_what_it_promises(example, twice):
    """The second time on what the first has left behind."""
    for lines in twice(example.name):
        for promised in SAYS[example.name]:
            assert any(line.endswith(promised) for line in lines), (promised, lines)


def test_an_order_that_is_done_is_not_submitted_again(twice):
    """The same run id is the same run, in the next process too."""
    first, second = twice("order_pipeline.py")
    assert sum("submitted as" in line for line in first) == 5
    assert not any("submitted as" in line for line in second)


def test_orders_that_were_killed_while_they_waited_go_on(tmp_path):
    """After kill -9 the next process waits on: nothing is submitted twice, all is packed."""
    example = ROOT / "examples" / "order_pipeline.py"
    command = [sys.executable, "-u", program_of(example, tmp_path)]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as orders:
        assert orders.stdout is not None
        waiting = 0
        while waiting < 5:
            waiting += "slot given back" in orders.stdout.readline()
        orders.kill()
    lines = run(example, tmp_path)
    assert not any("submitted as" in line for line in lines)
    assert [line for line in lines if line.startswith("order-")] == SAYS["order_pipeline.py"]


def test_a_job_elsewhere_is_submitted_once_and_fetched_by_whoever_comes_next(twice):
    first, second = twice("external_job.py")
    assert sum("submitted as" in line for line in first) == 3
    left = first.index("nobody is there: all of it is in exports.db")
    assert all("fetched" not in line for line in first[:left])
    assert sum("fetched in try 2" in line for line in first[left:]) == 3
    assert not any("submitted" in line or "fetched" in line for line in second)


def test_a_restart_sends_no_mail_twice(twice):
    """A stored checkpoint is read, and a finished task is not run again."""
    lines, _ = twice("approval.py")
    assert sum("mail to the boss" in line for line in lines) == 2
    assert sum("prepare:" in line for line in lines) == 2


def test_a_night_that_is_loaded_is_not_fetched_again(twice):
    """The first time each shop is asked until it answers; the second time nobody is."""
    first, second = twice("nightly_etl.py")
    assert sum("fetch " in line for line in first) == 5
    assert sum("statement ordered" in line for line in first) == 1
    assert not any("fetch " in line or "ordered" in line for line in second)


@virtual_test
async def test_the_schedule_of_the_night_starts_at_two(tmp_path, monkeypatch):
    """Two nights in virtual time, with stand-ins for the shops and the bank."""
    monkeypatch.chdir(tmp_path)
    etl = runpy.run_path(str(ROOT / "examples" / "nightly_etl.py"))
    nights = iter(["2026-01-01", "2026-01-02"])
    world = etl["tonight"].__globals__
    world["tonight"] = lambda: next(nights)
    world["download"] = lambda shop, night: stage(tmp_path / f"{shop}-{night}", '[{"amount": 1}]')
    world["order_statement"] = lambda night: stage(tmp_path / night, "payer,amount\nAda,2\n")
    async with deterministic_runner(f"sqlite:{tmp_path / 'nightly.db'}", slots=2) as runner:
        schedule = await runner.schedule(etl["nightly"], "0 2 * * *", timezone="Europe/Berlin")
        await current_clock().advance(2 * 86_400)
        runs = await schedule.runs()
        results = [await each.result() for each in reversed(runs)]
    assert [each["night"] for each in results] == ["2026-01-01", "2026-01-02"]
    assert [(each["rows"], each["missing"]) for each in results] == [(3, 1), (3, 1)]


def stage(path: Path, content: str) -> str:
    path.write_text(content)
    return str(path)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_listed(example):
    """Somebody who opens the folder finds it."""
    assert f"({example.name})" in (ROOT / "examples" / "README.md").read_text()
