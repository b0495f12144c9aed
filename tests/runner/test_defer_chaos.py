"""kill -9 of server, workers and trigger managers, at any moment of many defers and firings.

"Every task consumes each firing once, with its payload": each resumed try is for one firing, and
only a try whose process died begins again, with the same payload. A worker that dies between what
a try did and its report leaves nothing that could be known, so that is done again.
"""

import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from layby.core.state import State
from layby.store.postgres_address import is_postgres
from layby.wire import json_values
from layby.workflow.history import Try, read_history
from tests.helpers.cli_processes import Process, until
from tests.helpers.places import address_of, state_of
from tests.runner import defer_chaos_flows
from tests.runner.test_chaos import LEASE_S, Cluster, doctor, wait_for_work

HERE = Path(__file__).parent
STEPS = len(defer_chaos_flows.KINDS)
WORKERS, MANAGERS = ("one", "two"), ("polls-one", "polls-two")


class Consumed(NamedTuple):
    """What a resumed try was given."""

    number: int
    step: int
    in_try: int
    event: Any


class DeferCluster(Cluster):
    """Two workers, which also run the triggers of their user, and two that only poll files."""

    flows = defer_chaos_flows.__file__

    def __init__(self, folder: Path) -> None:
        self.incoming = folder / "incoming"
        self.incoming.mkdir()
        super().__init__(folder, f"{LEASE_S}s", {"INCOMING": str(self.incoming)})

    def manage(self, name: str) -> None:
        script = HERE / "defer_chaos_manager.py"
        self._begin(name, Process([str(script), self.url, str(self.incoming), str(LEASE_S)]))
        self.processes[name].hear("manager is ready")

    def start_runs(self, count: int, seed: int, pace_s: float) -> Process:
        script = HERE / "defer_chaos_client.py"
        command = [str(script), self.url, str(count), str(seed), str(pace_s)]
        return self._begin("client", Process(command, INCOMING=str(self.incoming)))

    def consumed(self) -> list[Consumed]:
        return read_effects(self.effects_file)


@contextmanager
def defer_cluster(folder: Path) -> Iterator[DeferCluster]:
    made = DeferCluster(folder)
    try:
        made.serve()
        for name in WORKERS:
            made.work(name)
            made.processes[name].hear("layby works for")
        for name in MANAGERS:
            made.manage(name)
        yield made
    finally:
        made.close()


@pytest.mark.parametrize(
    ("seed", "runs", "kills"),
    [
        pytest.param(1, 50, 5, marks=pytest.mark.shared),
        *[pytest.param(seed, 250, 30, marks=pytest.mark.slow) for seed in range(2, 5)],
    ],
)
@pytest.mark.postgres
@pytest.mark.timeout(300)
def test_each_firing_is_consumed_once_whoever_is_killed(
    seed: int, runs: int, kills: int, tmp_path: Path
):
    """250 runs are 1,000 defers. Now and then somebody stands still for longer than a lease."""
    chance = random.Random(seed)
    with defer_cluster(tmp_path) as found:
        client = found.start_runs(runs, seed, pace_s=1.3 * kills / runs)
        client.hear("started")
        killed = 0
        for number in range(kills):
            killed += client.is_alive
            wait_for_work(found, chance.randrange(2, 2 * STEPS * runs // kills), client)
            if number % 9 == 4:
                found.processes[chance.choice((*WORKERS, *MANAGERS))].pause(LEASE_S + 0.5)
            found.kill(chance.choice(("server", *WORKERS, *MANAGERS)))
        client.hear("done")
        assert client.end() == 0, "\n".join(client.said[:40])  # a traceback may have that word
        assert killed >= kills // 2, "too few of them while anything happened"
        consumed, state = found.consumed(), state_of(found.file)
    assert doctor(found.file) == 0
    assert_all_is_well(consumed, state, runs)


@pytest.mark.parametrize(
    ("seed", "runs", "kills"),
    [(1, 20, 2), *[pytest.param(seed, 250, 20, marks=pytest.mark.slow) for seed in range(2, 5)]],
)
@pytest.mark.postgres
@pytest.mark.timeout(300)
def test_each_firing_is_consumed_once_where_all_is_in_one_process(
    seed: int, runs: int, kills: int, tmp_path: Path
):
    """Engine, worker and managers die together; on PostgreSQL two such processes share the work."""
    chance, address = random.Random(seed), address_of(tmp_path / "layby.db")
    (incoming := tmp_path / "incoming").mkdir()
    effects = tmp_path / "effects"
    effects.touch()
    told = {"EFFECTS": str(effects), "INCOMING": str(incoming)}
    script, count = str(HERE / "defer_chaos_embedded.py"), 2 if is_postgres(address) else 1
    command = [script, address, str(incoming), str(runs), str(seed), "0.01", str(LEASE_S)]
    with ExitStack() as opened:
        processes = [opened.enter_context(Process(command, **told)) for _ in range(count)]
        for _ in range(kills):
            dying = chance.choice(processes)
            dying.hear("open")
            wait_for_lines(effects, chance.randrange(2, STEPS * runs // kills))
            dying.kill()
            dying.said.clear()
            dying.start()
        for each in processes:
            each.hear("done")
    state = state_of(tmp_path / "layby.db")
    assert doctor(tmp_path / "layby.db") == 0
    assert_all_is_well(read_effects(effects), state, runs)


def wait_for_lines(effects: Path, more: int) -> None:
    """Until so many effects have come, or for a moment."""
    wanted, until_ = len(effects.read_bytes().splitlines()) + more, time.monotonic() + 1.5
    until(lambda: time.monotonic() > until_ or len(effects.read_bytes().splitlines()) >= wanted)


def read_effects(file: Path) -> list[Consumed]:
    read = map(json.loads, file.read_text().splitlines())
    return [Consumed(each["number"], each["step"], each["try"], each["event"]) for each in read]


def assert_all_is_well(consumed: list[Consumed], state: State, runs: int) -> None:
    assert_nothing_was_lost(state, runs)
    assert_each_firing_began_one_try(state, runs)
    assert_only_lost_tries_began_again(consumed, state)
    assert_all_had_the_payload_that_is_stored(consumed, state)


def assert_nothing_was_lost(state: State, runs: int) -> None:
    roots = [each for key, each in state.promises.items() if is_root(key)]
    assert Counter(each.state for each in roots) == {"resolved": runs}
    left = [each.id for each in state.tasks.values() if each.state != "fulfilled"]
    assert left == []
    triggers = [each for key, each in state.promises.items() if ".defer." in key]
    assert {each.state for each in triggers} == {"resolved"}
    assert {task.failures for task in state.tasks.values()} == {0}


def assert_each_firing_began_one_try(state: State, runs: int) -> None:
    for number in range(runs):
        resumed = [each.event for each in tries_of(state, number) if each.why == "resumed"]
        assert len(set(resumed)) == len(resumed) == STEPS


def assert_only_lost_tries_began_again(consumed: list[Consumed], state: State) -> None:
    by_step: dict[tuple[int, int], list[int]] = defaultdict(list)
    for each in consumed:
        by_step[each.number, each.step].append(each.in_try)
    for (number, _), tries in by_step.items():
        assert len(set(tries)) == len(tries), "a try has run twice"
        outcomes = {each.number: each.outcome for each in tries_of(state, number)}
        assert {outcomes[each] for each in sorted(tries)[:-1]} <= {"Lost"}


def assert_all_had_the_payload_that_is_stored(consumed: list[Consumed], state: State) -> None:
    stored = {
        (number, each.number): each.event
        for number in {each.number for each in consumed}
        for each in tries_of(state, number)
    }
    given: dict[str, Any] = {}
    for each in consumed:
        event = stored[each.number, each.in_try]
        assert event is not None
        payload = json_values.from_text(state.promises[event].value)
        assert each.event == payload
        assert given.setdefault(event, (each.number, each.step)) == (each.number, each.step)
        assert_is_for(each)


def assert_is_for(each: Consumed) -> None:
    """What the payload says of itself."""
    kind = defer_chaos_flows.kind_of(each.number, each.step)
    if kind in {"event", "drawn"}:
        assert (each.event["number"], each.event["step"]) == (each.number, each.step)
    elif kind == "file":
        assert each.event["size"] == each.number + 1
    else:
        assert each.event is None


def tries_of(state: State, number: int) -> tuple[Try, ...]:
    return read_history(state.tasks[f"run/hopping-{number}:hops"].history).tries


def is_root(promise_id: str) -> bool:
    return promise_id.startswith("run/") and ":" not in promise_id
