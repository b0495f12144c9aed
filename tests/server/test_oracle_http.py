"""A real server over HTTP, judged by the independent model: every answer and snapshot alike.

Time is `resonate:debug_time`, and what it brings comes with `debug.tick`: so a server in another
process is as predictable as an engine in this one.
"""

from collections.abc import Generator
from contextlib import closing

import pytest
from hypothesis import HealthCheck, given, settings

from tests.helpers.server_process import Peer, ServerProcess
from tests.helpers.worlds import History
from tests.model.oracle import Oracle
from tests.model.reading import COMPAT, Profile
from tests.model.scripts import PAIRS, START, Script, coverage_scripts, scripts, seeded_script
from tests.model.strict import (
    STRICT,
    STRICT_PAIRS,
    seeded_strict_script,
    strict_coverage,
    strict_scripts,
)
from tests.model.test_engine import assert_alike

# Nothing is delivered while time stands still, and the one script that lets it go ends there.
FLAGS = ("--debug", "--durability", "normal", "--no-push-enabled", "--log-level", "error")
ONE_SERVER = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@pytest.fixture(scope="module")
def compat(tmp_path_factory: pytest.TempPathFactory) -> Generator[Peer]:
    yield from served(tmp_path_factory, *FLAGS)


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Generator[Peer]:
    yield from served(tmp_path_factory, *FLAGS, "--strict")


def served(folders: pytest.TempPathFactory, *flags: str) -> Generator[Peer]:
    """A peer of a server that has nothing to complain of until the end."""
    with ServerProcess(folders.mktemp("served"), *flags) as server:
        with closing(Peer(server.port)) as peer:
            yield peer
        assert server.said.count("\n") == 1, server.said


# --- the compat profile ----------------------------------------------------------------------


def test_every_answer_the_protocol_names_is_given(compat: Peer) -> None:
    """The fixed scripts agree with the model and reach every (kind, status) there is."""
    reached = {pair for script in coverage_scripts().values() for pair in play(compat, script)}
    assert reached >= PAIRS, f"never answered: {sorted(PAIRS - reached)}"


@given(script=scripts())
@settings(max_examples=25, suppress_health_check=ONE_SERVER)
def test_random_scripts_agree(compat: Peer, script: Script) -> None:
    """Random scripts, shrunk by Hypothesis when they fail, get the model's answers."""
    play(compat, script)


@pytest.mark.parametrize("seed", range(8))
def test_long_scripts_agree(compat: Peer, seed: int) -> None:
    """Long scripts named by their seed get the model's answers."""
    play(compat, seeded_script(seed, 150))


# --- the strict profile ----------------------------------------------------------------------


def test_every_answer_of_the_strict_profile_is_given(strict: Peer) -> None:
    """What is refused only here is refused, and all else is answered as ever."""
    fixed = (*coverage_scripts().values(), *strict_coverage().values())
    reached = {pair for script in fixed for pair in play(strict, script, STRICT)}
    assert reached >= STRICT_PAIRS, f"never answered: {sorted(STRICT_PAIRS - reached)}"


@given(script=strict_scripts())
@settings(max_examples=12, suppress_health_check=ONE_SERVER)
def test_random_strict_scripts_agree(strict: Peer, script: Script) -> None:
    """Random scripts get the strict model's answers."""
    play(strict, script, STRICT)


@pytest.mark.parametrize("seed", range(4))
def test_long_strict_scripts_agree(strict: Peer, seed: int) -> None:
    """Long scripts get the strict model's answers."""
    play(strict, seeded_strict_script(seed, steps=150), STRICT)


# --- both, for long --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(600)
@given(script=scripts(max_steps=120))
@settings(max_examples=600, suppress_health_check=ONE_SERVER)
def test_many_random_scripts_agree(compat: Peer, script: Script) -> None:
    play(compat, script)


@pytest.mark.slow
@pytest.mark.timeout(600)
@given(script=strict_scripts(max_steps=120))
@settings(max_examples=300, suppress_health_check=ONE_SERVER)
def test_many_random_strict_scripts_agree(strict: Peer, script: Script) -> None:
    play(strict, script, STRICT)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1_000, 1_040))
def test_very_long_scripts_agree(compat: Peer, strict: Peer, seed: int) -> None:
    play(compat, seeded_script(seed, 400))
    play(strict, seeded_strict_script(seed, steps=400), STRICT)


def play(peer: Peer, script: Script, profile: Profile = COMPAT) -> set[tuple[str, int]]:
    """Server and model hear the same script; returns which statuses each kind was answered with."""
    oracle, history = Oracle(profile=profile), History()
    peer.ask("debug.start", {}, START)
    peer.ask("debug.reset", {}, START)
    reached: set[tuple[str, int]] = set()
    for step, (kind, data, now) in enumerate(script):
        said = oracle.request(kind, data, now, corr_id=peer.next_id)
        answer = peer.ask(kind, data, now)
        assert_alike(kind, said, answer, f"step {step}: {kind} {data} at {now}")
        reached.add((kind, answer.status))
        if kind == "debug.reset":
            history.forget()
        elif kind != "debug.snap":  # a snapshot shows stored rows, not the projected view
            history.answered(answer.data)
    return reached
