"""What the tests of commands share."""

import pytest

from tests.helpers.command_line import Desk


@pytest.fixture
def desk(tmp_path, monkeypatch) -> Desk:
    """A fresh folder that commands are typed in."""
    monkeypatch.chdir(tmp_path)
    return Desk(tmp_path)
