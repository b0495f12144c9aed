"""Metrics that are updated often and read rarely.

Each is written by one thread, so none needs a lock: the counters of prometheus-client lock for
every label and every step, and cost more than the rest of a request's bookkeeping together.
"""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from typing import Final

from msgspec import Struct
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

DEFAULT_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The defaults of Prometheus libraries, in seconds."""
FINE_BOUNDS: Final = (0.0005, 0.001, 0.0025, *DEFAULT_BOUNDS, 30.0, 60.0)
SIZE_BOUNDS: Final = tuple(float(2**power) for power in range(10))

Labels = tuple[str, ...]


class Family(Struct, frozen=True):
    """The declaration of a metric: for the code, the documentation and Prometheus."""

    name: str
    help: str
    labels: Labels = ()

    @property
    def type(self) -> str:
        return "counter" if self.name.endswith("_total") else "gauge"

    def gauges(self, values: Iterable[tuple[Labels, float]]) -> Metric:
        family = GaugeMetricFamily(self.name, self.help, labels=self.labels)
        for labels, value in values:
            family.add_metric(labels, value)
        return family

    def counters(self, values: Iterable[tuple[Labels, float]]) -> Metric:
        family = CounterMetricFamily(self.name, self.help, labels=self.labels)
        for labels, value in values:
            family.add_metric(labels, value)
        return family


class HistogramFamily(Family, frozen=True):
    """The declaration of a histogram."""

    bounds: tuple[float, ...] = DEFAULT_BOUNDS

    @property
    def type(self) -> str:
        return "histogram"

    def histograms(self, values: Iterable[tuple[Labels, "Histogram"]]) -> Metric:
        family = HistogramMetricFamily(self.name, self.help, labels=self.labels)
        for labels, histogram in values:
            family.add_metric(labels, histogram.buckets(), histogram.sum)
        return family


class Histogram:
    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        bounds = (*map(str, self.bounds), "+Inf")
        return list(zip(bounds, accumulate(self.counts), strict=True))
