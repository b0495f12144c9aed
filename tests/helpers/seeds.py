"""How many random scripts a test goes through, each named by a seed."""

from typing import Any

import pytest


def seeds(here: int, *, slow: int) -> list[Any]:
    """So many in every run; up to `slow`, the others, in `make test-slow`."""
    later = (pytest.param(seed, marks=pytest.mark.slow) for seed in range(here, slow))
    return [*range(here), *later]
