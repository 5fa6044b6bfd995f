"""Weir with a batch lane in front of the simulated provider, everything quick enough for tests.

with deferring(tmp_path) as (proxy, sim):
    answer = proxy.client().request("POST", "/v1/chat/completions", body)
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from proxy.sim.scenario import Scenario
from tests.support.job_worker import FAST, QUICK
from tests.support.raw_client import RawAnswer
from tests.support.weir import RunningWeir, weir
from tests.unit.sim.running import Sim, running

PRICES = """
version: 1
date: "2026-11-30"
source: tests
providers:
  openai:
    tiers:
      standard: {endpoints: [], typical_seconds: 1}
      flex: {endpoints: [/v1/chat/completions, /v1/responses], typical_seconds: 1}
      batch: {endpoints: [/v1/chat/completions, /v1/responses, /v1/embeddings], typical_seconds: 2}
    models:
      - {models: [gpt-5-mini, text-embedding-3-small], input: 1, output: 2, batch: 0.5, flex: 0.5}
"""
POLICY = """
version: 1
upstreams: {openai: {base_url: URL, provider: openai, KEY}}
routes:
  - name: deferrable
    match: {path: [/v1/chat/completions, /v1/responses, /v1/embeddings]}
    urgency: {default: deferrable, deadline: 1h}
    caller_patience: 10m
    allow_caller: [prefer, x-weir-urgency, x-weir-deadline]
    batch: {upstream_tiers: [TIERS], flush: {jobs: 10, after: 20ms}, EXTRA}
"""
QUICK_WORKER = replace(QUICK, name="")
OWN_KEY = "api_key: sk-weir-own"


@contextmanager
def deferring(
    tmp_path: Path,
    tiers: str = "flex, batch",
    scenario: Scenario = FAST,
    key: str = OWN_KEY,
    extra: str = "",
    sim: Sim | None = None,
    policy: str = POLICY,
    **settings: Any,
) -> Iterator[tuple[RunningWeir, Sim]]:
    """Serve until the block ends.

    `extra` are further keys of the route's `batch` section, `policy` is written as POLICY is.
    """
    if sim is None:
        with ExitStack() as stack:
            own = stack.enter_context(running(scenario))
            yield stack.enter_context(
                deferring(tmp_path, tiers, scenario, key, extra, own, policy, **settings)
            )
        return
    prices = tmp_path / "prices.yaml"
    prices.write_text(PRICES, encoding="utf-8")
    policy = policy.replace("URL", f"{sim.address}/v1").replace("KEY", key)
    policy = policy.replace("TIERS", tiers).replace(", EXTRA", f", {extra}" if extra else "")
    chosen: dict[str, Any] = {"store": f"sqlite:{tmp_path / 'jobs.db'}", "prices": str(prices)} | settings
    with weir(tmp_path, None, policy, worker=QUICK_WORKER, **chosen) as proxy:
        yield proxy, sim


def poll(proxy: RunningWeir, path: str, headers: list[tuple[str, str]], seconds: float = 10.0) -> RawAnswer:
    """Ask for a job until it is no longer 202; assert that it ends in time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        answer = proxy.client().request("GET", path, headers=headers)
        if answer.status != 202:
            return answer
        time.sleep(0.02)
    raise AssertionError(f"{path} did not end")
