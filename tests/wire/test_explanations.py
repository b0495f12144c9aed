"""Over the wire people are told the same as in the process."""

from typing import Any

import pytest

from layby.core import queries as q
from layby.wire.answers import read
from layby.wire.encode import encode
from layby.workflow.reasons import reason_of
from tests.store.test_by_time import NOW, prepared


@pytest.mark.parametrize("seed", range(5))
def test_every_reason_survives_the_wire(seed: int) -> None:
    """Whatever the state, kind, times, sentence and next steps are alike."""
    world, _ = prepared(seed)
    for key in world.dump().promises:
        request = q.ExplainPromise(id=key)
        reply: Any = world.engine.call(request, NOW)
        across: Any = read(request, encode(request.kind, "0", reply)).data
        assert reason_of(across, NOW) == reason_of(reply.data, NOW)
        assert (across.workers, across.able_workers) == (
            reply.data.workers,
            reply.data.able_workers,
        )


@pytest.mark.parametrize("seed", range(5))
def test_every_page_of_what_waits_survives_the_wire(seed: int) -> None:
    """In its order, with its cursor."""
    world, _ = prepared(seed)
    request = q.ListWaiting(limit=7)
    reply: Any = world.engine.call(request, NOW)
    across: Any = read(request, encode(request.kind, "0", reply)).data
    assert across.cursor == reply.data.cursor
    assert [reason_of(each, NOW) for each in across.entries] == [
        reason_of(each, NOW) for each in reply.data.entries
    ]


def test_a_refusal_stays_a_refusal() -> None:
    """404 with its text."""
    world, _ = prepared(0)
    request = q.ExplainPromise(id="nowhere")
    reply = world.engine.call(request, NOW)
    assert read(request, encode(request.kind, "0", reply)) == reply
