"""`make bench`: Weir beside nginx, in one run, with the proxy alone on one core.

    python -m tests.perf.bench [--quick] [--json] [--rounds N] [--only unary|streams|memory]

The contenders take turns within each round, so that what else the machine does meets all of them; figures are
medians over the rounds. The ratios are the result: absolute figures belong to the machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop

from tests.perf import machine, streams, unary
from tests.perf.machine import Cores
from tests.perf.proxies import NGINX, WEIR, WEIR_POLICY, Contender, Running, upstream
from tests.perf.report import Column, Row, Table, as_json, render

CONTENDERS = (NGINX, WEIR, WEIR_POLICY)
CONNECTIONS = 32
UNARY_BODIES = {"1 KB": 1024, "100 KB": 100 * 1024}
STREAMS = 400
STREAM_INTERVAL_MS = 12
MEMORY_STREAMS = 2000

UNARY_COLUMNS = (
    Column("requests_per_second", "requests/s", ",.0f", is_compared=True),
    Column("p50_ms", "p50 ms", ".2f"),
    Column("p99_ms", "p99 ms", ".2f"),
    Column("cpu_us_per_request", "CPU µs/request", ".1f", is_compared=True),
    Column("busy", "core busy", ".0%"),
)
STREAM_COLUMNS = (
    Column("events_per_second", "events/s", ",.0f"),
    Column("cpu_us_per_event", "CPU µs/event", ".2f", is_compared=True),
    Column("busy", "core busy", ".0%"),
    Column("late", "rate missed", ".0%"),
)
MEMORY_COLUMNS = (
    Column("kib_per_stream", "KiB/stream", ".1f", is_compared=True),
    Column("idle_mib", "MiB idle", ".0f"),
    Column("loaded_mib", "MiB with streams", ".0f"),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how often."""

    rounds: int
    unary_seconds: float
    stream_seconds: float
    cores: Cores

    def each(self, contenders: Sequence[Contender]) -> Iterator[Contender]:
        """Yield the contenders in turns, once per round."""
        for _ in range(self.rounds):
            yield from contenders


@contextmanager
def _running(contender: Contender, cores: Cores) -> Iterator[tuple[Running, Path]]:
    """Run `contender` in front of a fresh upstream, with all their files in a folder that goes away."""
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as name:
        folder = Path(name)
        with (
            upstream(folder, cores.upstream) as upstream_port,
            contender.start(folder, upstream_port, cores.proxy) as running,
        ):
            yield running, folder


def _medians(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def measure_unary(plan: Plan, contenders: Sequence[Contender], label: str, body_bytes: int) -> Table:
    """Throughput, latency and CPU of requests that are answered at once."""
    runs: dict[str, list[dict[str, float]]] = {}
    for contender in plan.each(contenders):
        with _running(contender, plan.cores) as (running, folder):
            figures = unary.measure(
                running, folder, body_bytes, CONNECTIONS, plan.unary_seconds, plan.cores.load
            )
        if figures.errors:
            raise SystemExit(f"bench: {contender.name} answered {figures.errors} requests with an error")
        runs.setdefault(contender.name, []).append(asdict(figures))
    return Table(
        f"unary chat, {label} body, {CONNECTIONS} connections",
        UNARY_COLUMNS,
        [Row(name, _medians(figures)) for name, figures in runs.items()],
    )


def measure_streams(plan: Plan, contenders: Sequence[Contender]) -> Table:
    """CPU per relayed event."""
    runs: dict[str, list[dict[str, float]]] = {}
    for contender in plan.each(contenders):
        with _running(contender, plan.cores) as (running, _):
            uvloop.run(streams.verify(running))
            figures = uvloop.run(streams.measure(running, STREAMS, STREAM_INTERVAL_MS, plan.stream_seconds))
        runs.setdefault(contender.name, []).append(asdict(figures))
    return Table(
        f"{STREAMS} streams, one event of about 250 bytes every {STREAM_INTERVAL_MS} ms each",
        STREAM_COLUMNS,
        [Row(name, _medians(figures)) for name, figures in runs.items()],
    )


def measure_memory(plan: Plan, contenders: Sequence[Contender]) -> Table:
    """Resident memory per open stream."""
    rows = []
    for contender in contenders:
        with _running(contender, plan.cores) as (running, _):
            figures = uvloop.run(streams.measure_memory(running, MEMORY_STREAMS))
        rows.append(Row(contender.name, asdict(figures)))
    return Table(f"{MEMORY_STREAMS:,} open streams", MEMORY_COLUMNS, rows)


def _tables(plan: Plan, contenders: Sequence[Contender], only: str | None) -> Iterator[Table]:
    if only in (None, "unary"):
        for label, size in UNARY_BODIES.items():
            yield measure_unary(plan, contenders, label, size)
    if only in (None, "streams"):
        yield measure_streams(plan, contenders)
    if only in (None, "memory"):
        yield measure_memory(plan, contenders)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description="Measure Weir beside nginx on one core.")
    parser.add_argument("--quick", action="store_true", help="one short round: a smoke test, not a result")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=3, help="turns per contender (default 3)")
    parser.add_argument("--only", choices=("unary", "streams", "memory"))
    parser.add_argument("--contender", action="append", choices=("nginx", "weir", "weir-policy"))
    return parser.parse_args()


def main() -> int:
    """Measure and print; 0 unless something did not run."""
    arguments = _arguments()
    machine.install_yardsticks()
    machine.raise_file_limit()
    cores = machine.choose_cores()
    # The load is made by this very process, and what it starts.
    machine.pin(cores.load)
    rounds = 1 if arguments.quick else arguments.rounds
    plan = Plan(rounds, 2 if arguments.quick else 6, 3 if arguments.quick else 8, cores)
    chosen = arguments.contender
    named = dict(zip(("nginx", "weir", "weir-policy"), CONTENDERS, strict=True))
    contenders = [named[name] for name in chosen] if chosen else list(CONTENDERS)
    head = (
        f"{machine.cpu_model()}, Python {sys.version.split()[0]}; proxy on core {cores.proxy}, load on core "
        f"{cores.load}, upstream on core {cores.upstream}; median of {rounds}"
    )
    results = []
    if not arguments.json:
        print(head, flush=True)
    for table in _tables(plan, contenders, arguments.only):
        results.append(as_json(table))
        if not arguments.json:
            print(f"\n{render(table)}", flush=True)
    if arguments.json:
        print(json.dumps({"machine": head, "results": results}, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
