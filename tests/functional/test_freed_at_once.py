"""What served an exchange is freed as it ends, however it ends: no cycle waits for the garbage collector.

Cycles would not leak, but a collector that comes seldom lets them pile up between its visits.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from pathlib import Path
from types import FrameType

import pytest
import uvloop

from tests.support.chat import chat_policy
from tests.support.storm.callers import keeps_alive, leaves, nonsense, patient, pipelines, speaks_websocket
from tests.support.storm.storm import KINDS, Storm
from tests.support.storm.upstream import FAULTS, KIND, FaultyUpstream
from tests.support.weir import RunningWeir, weir

CALLERS = (patient, patient, leaves, keeps_alive, pipelines, nonsense, speaks_websocket)
SLOW = {"nothing_for_long", "part_then_nothing"}
FAULTS_IN_TURN = (*KIND, *(FAULTS.keys() - SLOW), "refusal", "whole_then_reset")
CALLERS_COUNT = 120
SEED = 20_260
SETTLE_SECONDS = 5.0
ROUTES = {
    "plain": "",
    "shared": "coalesce: {strategies: [share]}",
}


def test_a_cycle_would_show() -> None:
    class Held:
        """Names itself."""

        __module__ = "proxy.somewhere"

        def __init__(self) -> None:
            self.itself = self

    gc.collect()
    gc.disable()
    try:
        Held()
        assert sum(what_only_the_collector_frees().values()) == 1
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", sorted(ROUTES))
def test_exchanges_and_connections_leave_nothing_to_the_collector(tmp_path: Path, kind: str) -> None:
    uvloop.run(many_callers(tmp_path, ROUTES[kind]))


async def many_callers(tmp_path: Path, route: str) -> None:
    upstream = FaultyUpstream()
    policies = chat_policy(
        "commit_after: 1s",
        *([route] if route else []),
        base_url=await upstream.start(),
        upstream="timeouts: {connect: 5s, first_byte: 5s, idle: 5s}",
    )
    try:
        with weir(tmp_path, None, policies=policies) as proxy:
            assert not isinstance(proxy.address, str)
            gc.collect()
            gc.disable()
            try:
                storm = Storm(proxy.address, SEED, CALLERS, KINDS, FAULTS_IN_TURN, parallel=16)
                await storm.run(CALLERS_COUNT)
                await all_closed(proxy, upstream)
                left = what_only_the_collector_frees()
            finally:
                gc.enable()
    finally:
        await upstream.stop()
    assert left == {}


async def all_closed(proxy: RunningWeir, upstream: FaultyUpstream) -> None:
    """Wait until nothing is open any more, idle connections to the upstream included."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        upstream.hang_up()
        if await asyncio.to_thread(proxy.call, open_count, proxy) == 0 and not upstream.open_connections:
            return
        assert time.monotonic() < deadline, "connections stay open"
        await asyncio.sleep(0.02)


def open_count(proxy: RunningWeir) -> int:
    service = proxy.app.service
    pools = proxy.app.routing.upstreams.pools.values()
    upstreams_count = sum(pool.open_connections for pool in pools)
    return len(service.connections) + len(service.tunnels) + upstreams_count


def what_only_the_collector_frees() -> Counter[str]:
    """Tell what is garbage in cycles; call `gc.collect()` before what is looked at begins."""
    alive = survivors()
    gc.collect()
    return alive - survivors()


def survivors() -> Counter[str]:
    """Count what belongs to Weir, by type, and the frames of its functions that something still holds."""
    found: Counter[str] = Counter()
    for each in gc.get_objects():
        kind = type(each)
        if str(kind.__module__).startswith(("proxy.", "httptools")):
            found[f"{kind.__module__}.{kind.__qualname__}"] += 1
        elif kind is FrameType and "/proxy/" in each.f_code.co_filename:
            found[f"frame of {each.f_code.co_name}"] += 1
    return found
