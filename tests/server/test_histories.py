"""Many clients at once on one real server, in real time; what they were told must fit together.

The choices of every client follow from the seed in the name of the test; how they mix is up to
the machine. `processes` starts the server, `recording` keeps what happened, `judging` says what
must hold in every record and `linear` whether there is an order that explains all answers.
"""

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable
from functools import partial
from itertools import cycle
from pathlib import Path

import pytest

from layby.core.settings import Settings
from tests.helpers import linearizability as linear
from tests.helpers import record_checks as judging
from tests.helpers.places import violations
from tests.helpers.random_clients import GROUP, Hammer, Seen, family_of, settle_all
from tests.helpers.recording import Call, Meeting, together
from tests.helpers.server_process import ServerProcess
from tests.helpers.told_workers import Meddler, Settler, Site, Starter, Taker, Worker

HOUR_MS = 3_600_000
NO_RETRY = ("--tasks-retry-timeout", "1h", "--no-push-enabled", "--log-level", "error")
NO_RETRY += ("--tasks-max-crashes", "1000")  # on a slow machine leases end before their time
"""A word that was lost is not said again: it must not be lost."""
NO_ROOM = ("--poll-buffer", "1")
"""Nearly every word has to wait in the outbox until its turn comes."""
MET = {
    *(("task.acquire", status) for status in (200, 409)),
    *(("task.suspend", status) for status in (200, 409, 422)),
    *((f"task.{verb}", 200) for verb in ("create", "fence", "release", "halt", "continue")),
}
"""What happens often, or the clients do not get into each other's way at all."""
MOST_ROUNDS = 8
"""How they mix is up to the machine, so they go on until they have met all of that."""


@pytest.fixture
def flags() -> tuple[str, ...]:
    return ()


@pytest.fixture
def server(tmp_path: Path, flags: tuple[str, ...]) -> Generator[ServerProcess]:
    """Whatever was done to it, its file is sound in the end and it had nothing to complain of."""
    with ServerProcess(tmp_path, *NO_RETRY, *flags) as server:
        yield server
    assert complaints(server) == []
    assert violations(server.file) == []


def complaints(server: ServerProcess) -> list[str]:
    return [line for line in server.said.splitlines() if not line.startswith("layby serves")]


# --- anything at any time --------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2])
def test_there_is_an_order_that_explains_every_answer(server: ServerProcess, seed: int) -> None:
    """As if the server had done one call after the other, whoever sent them and whenever."""
    hammered(server, seed=seed, families=4, times=50)


@pytest.mark.parametrize("seed", [3])
def test_so_there_is_when_the_server_was_killed(server: ServerProcess, seed: int) -> None:
    """What was answered has been done, for good; what was not answered may have been."""
    hammered(server, seed=seed, families=4, times=50, kills=2)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [0, 6])
@pytest.mark.parametrize("seed", range(100, 110))
def test_there_is_such_an_order_every_time(server: ServerProcess, seed: int, kills: int) -> None:
    hammered(server, seed=seed, families=25, times=60, kills=kills)


def hammered(
    *servers: ServerProcess,
    seed: int,
    families: int,
    times: int,
    first: int = 0,
    kills: int = 0,
    clients: int = 8,
) -> None:
    """`first` is the number of the first family: those before it have their ids already."""
    names, mortal = [f"f{first + n}" for n in range(families)], cycle(servers)
    with Meeting(*servers) as meeting:
        steady, restless = meeting.ear("ears", "steady"), meeting.ear("ears", "restless")
        worker, _ = meeting.ear(GROUP, "one"), meeting.ear(GROUP, "another")
        seen = Seen()
        hammers = [
            Hammer(meeting.caller(f"c{n}"), f"{seed}/{n}", (steady, restless), seen)
            for n in range(clients)
        ]

        def strike() -> None:
            for turn in range(MOST_ROUNDS):
                some = names if turn == 0 else [f"{names[0]}again{turn}"]
                together(*(partial(each.strike_all, some, times) for each in hammers))
                settle_all(meeting.caller("last"), some, times)
                if met(meeting) >= MET:
                    break
            await_told(meeting)
            meeting.record.end()

        calls = families * times * clients
        together(
            strike,
            paced(meeting, calls, 5 * families, lambda: restless.leave(politely=True)),
            paced(meeting, calls, 5 * families, lambda: worker.leave(politely=False)),
            paced(meeting, calls, kills, lambda: killed(next(mortal))),
        )
    assert met(meeting) >= MET
    judging.judge(meeting.record)
    assert kills or list(judging.told_twice(meeting.record)) == []
    assert_linear(meeting.record.calls)


def met(meeting: Meeting) -> set[tuple[str, int]]:
    """Which kinds were answered, and how."""
    return {(call.kind, call.answer.status) for call in meeting.record.calls if call.answer}


def assert_linear(calls: Iterable[Call]) -> None:
    """Each family by itself: what holds for all parts that share nothing holds for the whole."""
    families: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        families[family_of(call)].append(call)
    for family, its_calls in families.items():
        problem = linear.problem(its_calls, Settings(retry_ms=HOUR_MS))
        assert problem is None, f"{family}: {problem}"


# --- work ------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [(), NO_ROOM], ids=("room", "no-room"))
@pytest.mark.parametrize("seed", [1])
def test_no_word_is_lost(server: ServerProcess, seed: int) -> None:
    """Every task is dispatched as often as it must be, and every listener hears once."""
    worked(server, seed=seed, roots=100)


@pytest.mark.parametrize("seed", [2])
def test_no_word_is_lost_between_two_streams(server: ServerProcess, seed: int) -> None:
    """Workers may be cut off in the middle, and who reads a stream to its end misses nothing."""
    worked(server, seed=seed, roots=100, cuts=50)


@pytest.mark.parametrize("seed", [3])
def test_no_word_is_lost_with_the_server(server: ServerProcess, seed: int) -> None:
    """A server that was killed goes on where it was."""
    worked(server, seed=seed, roots=100, cuts=20, kills=2)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("flags", [(), NO_ROOM], ids=("room", "no-room"))
@pytest.mark.parametrize("kills", [0, 10])
@pytest.mark.parametrize("seed", range(100, 106))
def test_no_word_is_ever_lost(server: ServerProcess, seed: int, kills: int) -> None:
    worked(server, seed=seed, roots=500, cuts=300, kills=kills)


def worked(*servers: ServerProcess, seed: int, roots: int, cuts: int = 0, kills: int = 0) -> None:
    dying = cycle(servers)
    with Site(servers, seed, roots) as site:
        steady, restless = site.ear("ears", "steady"), site.ear("ears", "restless")
        *workers, mortal = [Worker(site, f"worker-{n}") for n in range(4)]
        takers = [Taker(site, f"taker-{n}") for n in range(2)]
        ears = (steady, restless)
        starters = [Starter(site, f"starter-{n}", site.roots[n::2], ears) for n in range(2)]
        settler, meddler = Settler(site, "settler"), Meddler(site, "meddler")

        def all_hear() -> None:
            try:
                together(*(each.run for each in (*starters, meddler)))
                await_told(site)
            finally:
                site.is_done.set()
                site.record.end()
                for each in (*workers, mortal, settler):
                    each.stop()

        calls = 15 * roots  # roughly
        together(
            *(each.run for each in (*workers, mortal, *takers, settler)),
            all_hear,
            paced(site, calls // 3, 1, mortal.get_stuck),
            paced(site, calls, 1, mortal.die),
            paced(site, calls, cuts, lambda: restless.leave(politely=True)),
            paced(site, calls, cuts, lambda: workers[0].ear.leave(politely=False)),
            paced(site, calls, kills, lambda: killed(next(dying))),
        )
    judging.judge(site.record)
    assert kills or list(judging.told_twice(site.record)) == []


# --- what both have in common ----------------------------------------------------------------


def await_told(meeting: Meeting) -> None:
    """Everything is settled, or will be: all who were promised to hear of it do."""
    record, promised = meeting.record, judging.never_told(meeting.record)
    if not record.wait_until(lambda: promised <= record.told):
        missing = sorted(promised - record.told)
        caller = meeting.caller("clerk")
        states = {each: caller.ask("promise.get", {"id": each}) for _, each in missing}
        story = "\n".join(map(str, record.about(missing[0][1])))
        pytest.fail(f"never heard: {missing}\nwhere {states}\nof the first:\n{story}")


def paced(meeting: Meeting, calls: int, times: int, do: Callable[[], None]) -> Callable[[], None]:
    """Something that happens so many times, spread over roughly so many calls."""

    def run() -> None:
        for n in range(times):
            due = calls * (n + 1) // (times + 1)
            if meeting.record.wait_until(lambda due=due: len(meeting.record.calls) >= due):
                do()

    return run


def killed(server: ServerProcess) -> None:
    server.kill()
    server.start()
