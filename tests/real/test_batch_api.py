"""Batches that Weir works off itself look to OpenAI's SDK as a provider's do: one script, the same facts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from proxy.sim.scenario import BatchRules
from tests.real.test_batch_pass_through import openai_life
from tests.support.job_worker import FAST
from tests.support.weir import weir
from tests.unit.sim.running import running

SIM = replace(FAST, batches=BatchRules(turnaround_seconds=0.2, cancel_seconds=0.05, creations_per_hour=0))
SERVED = """
version: 1
upstreams:
  sim: {{base_url: "{url}/v1", api_key: sk-of-weir, batch_api: {{mode: serve}}}}
"""
SAME = (
    "ended",
    "output",
    "errors",
    "streamed",
    "batches",
    "files",
    "file",
    "deleted",
    "gone",
    "unknown",
    "failed",
)


@pytest.mark.parametrize("environment", ["openai-1", "openai-2", "openai-3"])
def test_the_sdk_of_openai_sees_no_difference(environment: str, tmp_path: Path) -> None:
    with running(SIM) as sim:
        at_provider = openai_life(environment, sim.address, tmp_path)
        files_before = sim.stats()["batch_lines"]
        policies = SERVED.format(url=sim.address)
        with weir(tmp_path, None, policies, store=f"sqlite:{tmp_path}/jobs.db") as proxy:
            at_weir = openai_life(environment, proxy.url, tmp_path)
        assert sim.stats()["batch_lines"] == files_before
    assert {name: at_weir[name] for name in SAME} == {name: at_provider[name] for name in SAME}
    assert at_weir["cancelled"] in ("cancelled", "completed")
