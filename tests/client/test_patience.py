"""What a worker does while the store does not answer."""

import asyncio
from itertools import chain, repeat
from pathlib import Path

import pytest

from layby.client.patience import until_answered
from layby.core.replies import OK, Reply
from layby.errors import StoreUnavailable
from layby.testing import virtual_test


@virtual_test
async def test_an_outage_is_told_once_however_many_requests_wait(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Each asks again and again, and nobody reads the same line for each of them each time."""

    async def patient(*failures: str) -> Reply:
        left = iter(failures)

        async def send() -> Reply:
            if (why := next(left, None)) is not None:
                raise StoreUnavailable(why)
            return OK

        return await until_answered(send)

    full = tuple(repeat(f"{tmp_path}: the disk is full", 5))
    gone = tuple(repeat(f"{tmp_path}: the file is gone", 5))
    replies = await asyncio.gather(*(patient(*chain(full, gone)) for _ in range(20)))
    assert replies == [OK] * 20
    about = "the store does not answer, trying again"
    told = [each.getMessage() for each in caplog.records]
    assert told == [f"{about}: {full[0]}", f"{about}: {gone[0]}"]
