"""What the executor says, counted: `kit.BatchWatch` over the process's metrics, and gauges of its gates."""

from __future__ import annotations

from proxy.batch_server.gate import Gates
from proxy.batch_server.limit import Met
from proxy.batch_server.model import ServedBatch
from proxy.batch_server.store import Census
from proxy.observe import catalogue
from proxy.observe.metrics import Metrics


class MetricsWatch:
    """Counts what the executor says."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def batch_ended(self, batch: ServedBatch) -> None:
        """See `BatchWatch`."""
        self._metrics.add(catalogue.SERVED_ENDED, (batch.upstream, batch.progress.status.value))

    def lines_recorded(self, upstream: str, outcome: str, count: int) -> None:
        """See `BatchWatch`."""
        self._metrics.add(catalogue.SERVED_LINES, (upstream, outcome), count)

    def line_gave_way(self, upstream: str) -> None:
        """See `BatchWatch`."""
        self._metrics.add(catalogue.SERVED_GAVE_WAY, (upstream,))

    def interactive_met(self, upstream: str, met: Met) -> None:
        """See `gate.Watcher`."""
        self._metrics.add(catalogue.SERVED_INTERACTIVE, (upstream, met.value))

    def line_retried(self, upstream: str, reason: str) -> None:
        """See `BatchWatch`."""
        self._metrics.add(catalogue.SERVED_RETRIES, (upstream, reason))


def measure_batches(metrics: Metrics, gates: Gates, census: Census | None) -> None:
    """Bring the gauges up to date; `census` is what the store said last."""
    for gauge in (catalogue.SERVED_BATCHES, catalogue.SERVED_IN_FLIGHT, catalogue.SERVED_LIMIT):
        metrics.clear(gauge)
    for gate in gates:
        metrics.set(catalogue.SERVED_IN_FLIGHT, (gate.upstream,), gate.in_flight)
        metrics.set(catalogue.SERVED_LIMIT, (gate.upstream,), gate.limit)
    if census is not None:
        metrics.set(catalogue.SERVED_WAITING, (), census.waiting_lines)
        for status, count in census.batches.items():
            metrics.set(catalogue.SERVED_BATCHES, (status,), count)
