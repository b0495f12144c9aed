"""Bounds in bytes: what is published against a full edge leaves nothing behind."""

import tracemalloc

import pytest

from tests.helpers.graphs import Notebook, pair


@pytest.mark.parametrize("overflow", ["reject", "drop_oldest"])
@pytest.mark.parametrize("max_inflight", [0, 16])
def test_many_publications_against_a_capacity_of_64_grow_nothing(overflow, max_inflight):
    """With no reader, and within one epoch: ten thousand are held no longer than 64."""
    edge = {"capacity": 64, "overflow": overflow, "max_inflight": max_inflight}
    runtime = pair(Notebook(), kind="async", **edge).runtime(trace_capacity=32)
    publish = runtime.context("source").publish

    def publish_many(many: int) -> None:
        for number in range(many):
            publish("out", number)

    publish_many(1_000)
    tracemalloc.start()
    publish_many(2_000)
    before = tracemalloc.get_traced_memory()[0]
    publish_many(8_000)
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert after - before < 4_096
    [channel] = runtime._publisher.channels
    assert channel.inflight == (max_inflight or 64)
