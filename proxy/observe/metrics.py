"""Count what happens. Observing is plain dictionary arithmetic; prometheus_client only writes the page.

Label values are bounded: route names, steps and upstreams come from the policy, models only as far as the
policy names them, everything else is `other`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from operator import add

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from proxy.observe.catalogue import METRICS, SHARED, Kind, Metric

Labels = tuple[str, ...]
OTHER = "other"
_MAX_SERIES = 2_000

Snapshot = dict[str, list[tuple[list[str], list[float]]]]
"""Per metric: label values with numbers (`[value]`, or bucket counts followed by the sum). JSON-able."""


class Metrics:
    """The counters of one process."""

    def __init__(self) -> None:
        self._values: dict[str, dict[Labels, list[float]]] = {metric.name: {} for metric in METRICS}

    def add(self, metric: Metric, labels: Labels, amount: float = 1.0) -> None:
        """Add to a counter."""
        self._cell(metric, labels, 1)[0] += amount

    def set(self, metric: Metric, labels: Labels, value: float) -> None:
        """Set a gauge."""
        self._cell(metric, labels, 1)[0] = value

    def clear(self, metric: Metric) -> None:
        """Forget every series of a gauge whose label values change."""
        self._values[metric.name].clear()

    def observe(self, metric: Metric, labels: Labels, value: float) -> None:
        """Add one observation to a histogram."""
        observe_into(self.histogram(metric, labels), metric.bounds, value)

    def counter(self, metric: Metric, labels: Labels) -> list[float]:
        """Return a counter's cell, for those who add to it often: `cell[0] += 1`."""
        return self._cell(metric, labels, 1)

    def histogram(self, metric: Metric, labels: Labels) -> list[float]:
        """Return a histogram's cell, for those who add to it often with `observe_into`."""
        return self._cell(metric, labels, len(metric.bounds) + 2)

    def _cell(self, metric: Metric, labels: Labels, size: int) -> list[float]:
        series = self._values[metric.name]
        cell = series.get(labels)
        if cell is None:
            if len(series) >= _MAX_SERIES:
                labels = (OTHER,) * len(labels)
            cell = series.setdefault(labels, [0.0] * size)
        return cell

    def snapshot(self) -> Snapshot:
        """Return all numbers as plain lists, for merging over processes."""
        return {
            name: [(list(labels), list(cell)) for labels, cell in series.items()]
            for name, series in self._values.items()
        }


def observe_into(cell: list[float], bounds: tuple[float, ...], value: float) -> None:
    """Add one observation to a histogram's cell."""
    cell[bisect_left(bounds, value)] += 1
    cell[-1] += value


def merge(snapshots: Iterable[Snapshot]) -> Snapshot:
    """Add up the numbers of several processes. Gauges that say "is" rather than "how many" are 1 at most."""
    merged: dict[str, dict[Labels, list[float]]] = {}
    for snapshot in snapshots:
        for name, series in snapshot.items():
            into = merged.setdefault(name, {})
            for labels, cell in series:
                known = into.get(tuple(labels))
                join = max if name in SHARED else add
                into[tuple(labels)] = (
                    cell if known is None else [join(a, b) for a, b in zip(known, cell, strict=True)]
                )
    for name in ("weir_policy_info", "weir_policy_rejected", "weir_job_store_unavailable"):
        for cell in merged.get(name, {}).values():
            cell[0] = min(1.0, cell[0])
    return {
        name: [(list(labels), cell) for labels, cell in series.items()] for name, series in merged.items()
    }


def counted(snapshot: Snapshot) -> Snapshot:
    """Return what of a snapshot only ever grows: what outlasts the process that counted it."""
    gauges = {metric.name for metric in METRICS if metric.kind is Kind.GAUGE}
    return {name: series for name, series in snapshot.items() if name not in gauges}


def render(snapshot: Snapshot) -> bytes:
    """Return the Prometheus text page of a snapshot."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(snapshot))
    return generate_latest(registry)


class _Page(Collector):
    """A snapshot in prometheus_client's terms."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]:
        """Yield every metric of the catalogue."""
        for metric in METRICS:
            series = self._snapshot.get(metric.name, [])
            match metric.kind:
                case Kind.COUNTER:
                    counter = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
                    for labels, cell in series:
                        counter.add_metric(labels, cell[0])
                    yield counter
                case Kind.GAUGE:
                    gauge = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
                    for labels, cell in series:
                        gauge.add_metric(labels, cell[0])
                    yield gauge
                case Kind.HISTOGRAM:
                    histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
                    for labels, cell in series:
                        histogram.add_metric(labels, _buckets(metric, cell), cell[-1])
                    yield histogram


def _buckets(metric: Metric, cell: list[float]) -> list[tuple[str, float]]:
    cumulative = 0.0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip((*map(str, metric.bounds), "+Inf"), cell[:-1], strict=True):
        cumulative += count
        buckets.append((bound, cumulative))
    return buckets
