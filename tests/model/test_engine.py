"""The real engine judged by the independent model: every reply and every snapshot alike."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings

from layby.core.settings import Settings
from tests.helpers.seeds import seeds
from tests.helpers.worlds import BACKENDS, EVERY_BACKEND, Backend, History, World
from tests.model.oracle import NAMED_MESSAGES, Oracle
from tests.model.reading import COMPAT, Profile
from tests.model.scripts import (
    PAIRS,
    START,
    Script,
    coverage_scripts,
    malformed_requests,
    scripts,
    seeded_script,
)
from tests.model.strict import (
    DOT,
    PROFILES,
    STRICT,
    STRICT_PAIRS,
    seeded_strict_script,
    strict_coverage,
    strict_scripts,
)


@pytest.fixture(params=BACKENDS)
def threaded_world(request: pytest.FixtureRequest) -> Iterator[World]:
    with World(request.param, threaded=True) as world:
        yield world


def test_every_answer_the_protocol_names_is_given(world: World) -> None:
    """The fixed scripts agree with the model and reach every (kind, status) there is."""
    reached: set[tuple[str, int]] = set()
    for script in coverage_scripts().values():
        reached |= play(world, script)
    assert reached >= PAIRS, f"never answered: {sorted(PAIRS - reached)}"


@pytest.mark.parametrize("backend", BACKENDS)
@given(script=scripts())
@settings(max_examples=30)
def test_random_scripts_agree(backend: Backend, script: Script) -> None:
    """Random scripts, shrunk by Hypothesis when they fail, get the model's answers."""
    with World(backend) as world:
        play(world, script)


@pytest.mark.parametrize("seed", seeds(4, slow=40))
def test_long_scripts_agree(world: World, seed: int) -> None:
    """Long scripts named by their seed get the model's answers."""
    play(world, seeded_script(seed, 150))


@pytest.mark.parametrize("seed", range(100, 106))
def test_the_threaded_engine_agrees(threaded_world: World, seed: int) -> None:
    """The same holds when the writer is a thread."""
    play(threaded_world, seeded_script(seed, 120))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1_000, 1_100))
def test_very_long_scripts_agree(world: World, seed: int) -> None:
    """A soak: a hundred long scripts."""
    play(world, seeded_script(seed, 400))


def test_what_is_malformed_is_refused(world: World) -> None:
    """Every request with one spoiled member is a 400 with a text, and changes nothing."""
    world.ask("promise.create", {"id": "t", "timeoutAt": 9 * START}, START)
    before = world.dump()
    for kind, data in malformed_requests():
        status, why = world.ask(kind, data, START)
        assert (status, type(why)) == (400, str), (kind, data, why)
    assert world.dump() == before


# --- the strict profile --------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROFILES)
def test_fixed_strict_scripts_agree(backend: Backend, name: str) -> None:
    """Every rule of every profile is met and broken, by ids of both separators."""
    with World(backend, settings=settings_of(PROFILES[name])) as world:
        for lineage in ("dot", "colon"):
            for script in strict_coverage(lineage).values():
                play(world, script, PROFILES[name])


def test_strict_settings_are_the_strict_profile() -> None:
    """`--strict` is both switches, with the colon rule; the default is neither."""
    assert Settings.strict() == settings_of(STRICT)
    assert Settings() == settings_of(COMPAT)


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_every_answer_the_strict_profile_names_is_given(backend: Backend) -> None:
    """What compat answers is reached here too, and the 422 of a listener."""
    reached: set[tuple[str, int]] = set()
    with World(backend, settings=Settings.strict()) as world:
        for script in (*strict_coverage().values(), *coverage_scripts().values()):
            reached |= play(world, script, STRICT)
    assert reached >= STRICT_PAIRS, f"never answered: {sorted(STRICT_PAIRS - reached)}"


@pytest.mark.parametrize("backend", BACKENDS)
@given(script=strict_scripts())
@settings(max_examples=20)
def test_random_strict_scripts_agree(backend: Backend, script: Script) -> None:
    """Random scripts get the strict model's answers, and every invariant holds at every step."""
    with World(backend, settings=Settings.strict()) as world:
        play(world, script, STRICT)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", seeds(2, slow=6))
def test_long_strict_scripts_agree(backend: Backend, seed: int) -> None:
    """Long scripts, half of them by the dot rule."""
    profile = (STRICT, DOT)[seed % 2]
    with World(backend, settings=settings_of(profile)) as world:
        play(world, seeded_strict_script(seed, profile, 150), profile)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", range(1_000, 1_100))
def test_very_long_strict_scripts_agree(backend: Backend, seed: int) -> None:
    """A soak through all profiles."""
    profile = [*PROFILES.values()][seed % len(PROFILES)]
    with World(backend, settings=settings_of(profile)) as world:
        play(world, seeded_strict_script(seed, profile, 400), profile)


def settings_of(profile: Profile) -> Settings:
    return Settings(strict_lineage=profile.lineage, strict_external=profile.external)


def play(world: World, script: Script, profile: Profile = COMPAT) -> set[tuple[str, int]]:
    """Both hear the same script; returns which statuses each kind was answered with."""
    oracle, history = Oracle(profile=profile), History()
    world.reset()
    world.ask("debug.start", {}, START)
    reached: set[tuple[str, int]] = set()
    for step, (kind, data, now) in enumerate(script):
        said = oracle.request(kind, data, now, corr_id="c")
        answer = world.ask(kind, data, now)
        assert_alike(kind, said, answer, f"step {step}: {kind} {data} at {now}")
        reached.add((kind, answer[0]))
        if kind == "debug.reset":
            history.forget()
        elif kind != "debug.snap":  # a snapshot shows stored rows, not the projected view
            history.answered(answer[1])
        history.observe(world.dump(), now)
    return reached


def assert_alike(kind: str, said: tuple[int, Any], answer: tuple[int, Any], where: str) -> None:
    assert answer[0] == said[0], f"{where}: {answer}, the model says {said}"
    if said[0] < 400:
        assert in_order(answer[1]) == in_order(said[1]), where
    elif said[1] in NAMED_MESSAGES.get((kind, said[0]), ()):
        assert answer[1] == said[1], where


def in_order(data: Any) -> Any:
    """Callbacks of a snapshot are a set: the protocol does not say how they are sorted."""
    if isinstance(data, dict) and "callbacks" in data:
        callbacks = sorted((each["awaited"], each["awaiter"]) for each in data["callbacks"])
        return data | {"callbacks": callbacks}
    return data
