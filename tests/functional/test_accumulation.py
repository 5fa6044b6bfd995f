"""Nothing accumulates: streams, broken and aborted ones among them, leave memory flat and gauges at zero.

Weir runs as a process of its own, so that its memory is nobody else's. `WEIR_ACCUMULATION_STREAMS` sets how
many streams are measured, after a warm-up of their own: `make soak` runs this same test with 50,000.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import uvloop

from tests.support.chat import chat_policy
from tests.support.storm.callers import leaves, patient, pipelines
from tests.support.storm.storm import Storm
from tests.support.storm.upstream import FaultyUpstream
from tests.support.weir_process import WeirProcess, weir_process

STREAMS_COUNT = int(os.environ.get("WEIR_ACCUMULATION_STREAMS") or 2_000)
SEED = int(os.environ.get("WEIR_CHAOS_SEED") or 20_260)
WARM_UP_COUNT = max(800, STREAMS_COUNT // 10)
SAMPLES_COUNT = 20
MOST_BYTES_PER_STREAM = 1024

BAD = ("part_then_close", "part_then_reset", "nothing_then_close", "nonsense", "refusal")
MIX = (*("whole",) * 12, "pieces", *BAD)
CALLERS = (patient,) * 8 + (leaves, pipelines)


@dataclass
class Growth:
    """How much memory a process had after how many streams."""

    process: WeirProcess
    counts: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)

    def sample(self, count: int) -> None:
        """Note what is resident now."""
        self.counts.append(count)
        self.bytes.append(self.process.memory_bytes())

    @property
    def slope(self) -> float:
        """Bytes per stream, by least squares."""
        return fitted_slope(self.counts, self.bytes)


def fitted_slope(x: Sequence[float], y: Sequence[float]) -> float:
    middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((each - middle_x) ** 2 for each in x)
    return sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True)) / spread


def test_the_slope_is_that_of_the_line() -> None:
    assert fitted_slope([0, 10, 20, 30], [5, 25, 45, 65]) == pytest.approx(2)
    assert fitted_slope([0, 10, 20, 30], [5, 5, 5, 5]) == 0


@pytest.mark.timeout(900)
def test_streams_leave_memory_flat_and_nothing_open(tmp_path: Path) -> None:
    uvloop.run(many_streams(tmp_path))


async def many_streams(tmp_path: Path) -> None:
    upstream = FaultyUpstream()
    url = await upstream.start()
    policies = chat_policy(
        "commit_after: 1s", base_url=url, upstream="timeouts: {connect: 5s, first_byte: 10s, idle: 10s}"
    )
    try:
        with weir_process(tmp_path, None, policies=policies) as process:
            files_before = process.open_files_count()
            growth = Growth(process)
            begin = time.monotonic()
            asked_count = await measure(process, growth)
            seconds = time.monotonic() - begin
            await asyncio.to_thread(check_rest, process, files_before + upstream.open_connections)
            sys.stdout.write(
                f"{asked_count} requests in {seconds:.0f} s, {growth.slope:+.0f} bytes per request, "
                f"peak {process.peak_memory_bytes() / 2**20:.1f} MiB (seed {SEED})\n"
            )
    finally:
        await upstream.stop()
    assert growth.slope < MOST_BYTES_PER_STREAM, list(zip(growth.counts, growth.bytes, strict=True))


async def measure(process: WeirProcess, growth: Growth) -> int:
    """Send the streams of the warm-up, then those that count; return how many requests there were."""

    def began(number: int) -> None:
        if number >= WARM_UP_COUNT and (number - WARM_UP_COUNT) % max(1, STREAMS_COUNT // SAMPLES_COUNT) == 0:
            growth.sample(number)

    storm = Storm(
        process.address, SEED, CALLERS, kinds=("stream",), upstream_faults=MIX, parallel=16, began=began
    )
    await storm.run(WARM_UP_COUNT + STREAMS_COUNT)
    assert storm.faults == [], "\n".join(storm.faults)
    return len(storm.asked)


def check_rest(process: WeirProcess, most_files: int) -> None:
    """Check that nothing counts as open or in progress but idle connections to the upstream."""
    deadline = time.monotonic() + 5.0
    gauges = {
        b"weir_in_flight 0.0",
        b"weir_downstream_connections 0.0",
        b'weir_upstream_connections{state="in_use",upstream="up"} 0.0',
        b"weir_access_log_dropped_total 0.0",
    }
    while True:
        left = gauges - set(process.admin("/metrics").body.split(b"\n"))
        if not left and process.open_files_count() <= most_files:
            return
        assert time.monotonic() < deadline, (left, process.open_files_count(), most_files)
        time.sleep(0.05)
