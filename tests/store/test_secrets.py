"""What servers on one store share and no request shows."""

from pathlib import Path

import pytest

from layby.core.queries import SnapDebug
from layby.core.settings import Settings
from layby.engine.opening import open_store
from layby.store.api import Store
from tests.helpers.worlds import EVERY_BACKEND, World, new_store


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_the_first_secret_stays(backend) -> None:
    """Whoever asks later gets it, whatever they bring; names are apart."""
    store: Store = new_store(backend)
    try:
        assert store.kept_secret("test links", "first") == store.kept_secret("test links", "second")
        assert store.kept_secret("test others", "third") == "third"
    finally:
        store.close()


def test_it_is_still_there_after_a_restart(tmp_path: Path) -> None:
    """Links that were sent go on working."""
    address = f"sqlite:{tmp_path / 'a.db'}"
    for fresh in ("first", "second"):
        store = open_store(address, "normal", Settings())
        assert store.kept_secret("links", fresh) == "first"
        store.close()


def test_no_request_shows_it(world: World) -> None:
    """Not even a snapshot of everything."""
    world.store.kept_secret("links", "do not show this")
    assert "do not show this" not in repr(world.ok(SnapDebug()))
