"""Settings every test shares, and the fixture `world`; others live beside their tests."""

import gc
import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from layby.triggers.built_in import BUILT_IN
from layby.triggers.registry import REGISTRY
from tests.helpers.child_processes import left_behind
from tests.helpers.new_files import copied_when_new
from tests.helpers.places import ALL_ON_POSTGRES, is_virtual, on_postgres
from tests.helpers.postgres import remove_cluster
from tests.helpers.scratch import keep_in_memory
from tests.helpers.worlds import BACKENDS, World

pytest_plugins = ["tests.helpers.hung_tests"]

# No deadline anywhere: how long an example took says more about the machine than the code.
settings.register_profile("quick", deadline=None, max_examples=40)

# Landing must not depend on luck, so CI draws the same examples every time; chance does its
# work at our desks (quick) and in the long run (deep). A failure prints how to repeat it.
settings.register_profile("ci", settings.get_profile("quick"), derandomize=True, print_blob=True)

settings.register_profile(
    "deep",
    settings.get_profile("quick"),
    max_examples=2_000,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)

# For looking at a failure with a debugger: the first failing example, as drawn.
settings.register_profile(
    "debug", settings.get_profile("quick"), phases=[Phase.explicit, Phase.reuse, Phase.generate]
)

settings.load_profile("ci" if os.environ.get("CI") else "quick")

# aiohttp reads the certificates of the world when it is imported, which is a fifth of what a
# process costs that tests start. No test speaks TLS to anybody.
os.environ |= {"SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": os.devnull}

keep_in_memory()


@pytest.fixture
def world_options() -> dict[str, Any]:
    """What the fixture `world` is made with; a module that needs something else defines it."""
    return {}


@pytest.fixture(params=BACKENDS)
def world(request: pytest.FixtureRequest, world_options: dict[str, Any]) -> Iterator[World]:
    """An engine on each store, with time that moves when told to."""
    with World(request.param, **world_options) as world:
        yield world


@pytest.fixture(autouse=True)
def stored_on(request: pytest.FixtureRequest) -> Iterator[None]:
    """What addresses of files and of memory mean: see `tests.helpers.places`."""
    if not getattr(request, "param", ALL_ON_POSTGRES):
        yield
        return
    if reason := request.node.get_closest_marker("files_only"):
        pytest.skip(*reason.args)
    with on_postgres():
        yield


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A database has a time of its own, which no test can move."""
    if ALL_ON_POSTGRES:
        virtual = [each for each in items if is_virtual(each)]
        config.hook.pytest_deselected(items=virtual)
        items[:] = [each for each in items if each not in set(virtual)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests marked `postgres` run there too, even where all others run on files and in memory."""
    if metafunc.definition.get_closest_marker("postgres") and not ALL_ON_POSTGRES:
        metafunc.parametrize("stored_on", [False, True], ids=["", "postgres"], indirect=True)


@pytest.fixture(scope="session", autouse=True)
def new_files_are_copied() -> Iterator[None]:
    """Hundreds of tests open a new file: see `tests.helpers.new_files`."""
    with copied_when_new():
        yield


@pytest.fixture(scope="session", autouse=True)
def children_are_reaped() -> Iterator[None]:
    """Fails beside the last test of a process: whoever starts a process ends it and waits."""
    yield
    remove_cluster()
    assert left_behind() == [], "a test has left processes behind"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Nothing of what is made meanwhile becomes garbage: a fifth of the time went into looking."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Half a million objects of ten thousand tests stay to the end: no collection need visit them.

    Scenes end with one, so that nothing left open goes unnoticed (`troubled_server.play`).
    """
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What a test that has passed wants to be said nevertheless: `record_property("said", …)`."""
    for report in terminalreporter.stats.get("passed", []):
        for name, told in report.user_properties:
            if name == "said":
                terminalreporter.write_line(f"{report.nodeid.rpartition('::')[2]}: {told}")


@pytest.fixture(autouse=True)
def _triggers_of_layby_alone() -> Iterator[None]:
    """The registry is the process's: no test sees a class that another one, or a module that was
    only imported, has registered. With one a Runner has a trigger manager, which has a heartbeat.
    """
    before = dict(REGISTRY._classes)
    REGISTRY._classes.clear()
    REGISTRY._classes.update({each.kind(): each for each in BUILT_IN})
    yield
    REGISTRY._classes.clear()
    REGISTRY._classes.update(before)


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A server that runs in this process sets it up: what later tests see logged is their own."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
