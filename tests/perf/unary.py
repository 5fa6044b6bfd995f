"""Requests that are answered at once: wrk's load, and the proxy's CPU under it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.perf import machine
from tests.perf.proxies import Running
from tests.perf.requests import chat_body

_SCRIPT = Path(__file__).parent / "post.lua"


@dataclass(frozen=True, slots=True)
class UnaryFigures:
    """One run. `busy` is how much of its core the proxy used: below about 0.95 the load was the limit."""

    requests_per_second: float
    p50_ms: float
    p99_ms: float
    cpu_us_per_request: float
    busy: float
    errors: int


def measure(
    running: Running, folder: Path, body_bytes: int, connections: int, seconds: float, core: int
) -> UnaryFigures:
    """Load `running` from `core` for `seconds`, after a short warm-up."""
    body = folder / f"body-{body_bytes}.json"
    body.write_bytes(chat_body(body_bytes))
    _wrk(running.unary_port, body, connections, 1, core)
    started, cpu_before = time.monotonic(), machine.cpu_seconds(running.pid)
    result = _wrk(running.unary_port, body, connections, max(1, round(seconds)), core)
    cpu = machine.cpu_seconds(running.pid) - cpu_before
    elapsed = time.monotonic() - started
    requests = max(1, int(result["requests"]))
    return UnaryFigures(
        requests_per_second=requests / (result["duration_us"] / 1e6),
        p50_ms=result["p50_us"] / 1000,
        p99_ms=result["p99_us"] / 1000,
        cpu_us_per_request=cpu / requests * 1e6,
        busy=cpu / elapsed,
        errors=int(result["errors"]),
    )


def _wrk(port: int, body: Path, connections: int, seconds: int, core: int) -> dict[str, float]:
    run = subprocess.run(
        [
            *("taskset", "-c", str(core), "wrk", "-t", "1", "-c", str(connections), "-d", f"{seconds}s"),
            *("--timeout", "10s", "-s", str(_SCRIPT), f"http://127.0.0.1:{port}/v1/chat/completions"),
        ],
        env={**os.environ, "BENCH_BODY": str(body)},
        capture_output=True,
        text=True,
        timeout=seconds + 30,
        check=False,
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith('{"requests"')]
    if not lines:
        raise SystemExit(f"bench: wrk failed:\n{run.stdout}{run.stderr}")
    result: dict[str, float] = json.loads(lines[-1])
    return result
