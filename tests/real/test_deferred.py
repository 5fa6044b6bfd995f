"""The official SDKs, unchanged, against a deferrable route: flex, the batch tier, held streams, a ticket."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.sim.scenario import BatchRules
from tests.real.processes import run_python
from tests.real.registry import KEY
from tests.support.deferring import deferring, poll
from tests.support.job_worker import FAST

# Long enough for the one that is cancelled.
SCENARIO = replace(FAST, batches=BatchRules(turnaround_seconds=1.0, creations_per_hour=0))
CHAT = b'{"model":"gpt-5-mini","messages":[{"role":"user","content":"Classify: no parcel"}]}'


@pytest.mark.parametrize("environment", ["openai-1", "openai-2", "openai-3"])
def test_the_sdk_is_answered_through_cheaper_tiers(environment: str, tmp_path: Path) -> None:
    with deferring(tmp_path, scenario=SCENARIO) as (proxy, sim):
        variables = {"OPENAI_BASE_URL": f"{proxy.url}/v1", "OPENAI_API_KEY": KEY}
        printed = run_python(environment, "deferring.py", [], tmp_path, variables)
        seen = json.loads(printed.rstrip().rpartition("\n")[2])
        executions = sim.stats()["executions_by_tier"]
    assert seen["chat"]["text"]
    assert seen["chat"]["tier"] == "flex"
    assert seen["chat"]["lane"].startswith("batch; tier=flex")
    assert seen["created"]["status"] == "queued"
    assert seen["retrieved"]["id"] == seen["created"]["id"]
    assert seen["retrieved"]["status"] == "completed"
    assert seen["retrieved"]["text"]
    assert seen["retrieved"]["tokens"] > 0
    assert seen["cancelled"] in ("cancelled", "completed")
    assert seen["streamed"]["text"]
    assert seen["streamed"]["tokens"] > 0
    assert set(executions) <= {"flex", "batch"}


def test_a_background_response_is_retrieved_through_the_batch_tier(tmp_path: Path) -> None:
    with deferring(tmp_path, "batch", SCENARIO, extra="streams: direct") as (proxy, sim):
        variables = {"OPENAI_BASE_URL": f"{proxy.url}/v1", "OPENAI_API_KEY": KEY}
        printed = run_python("openai-3", "deferring.py", [], tmp_path, variables)
        seen = json.loads(printed.rstrip().rpartition("\n")[2])
        batches = sim.stats()["batches_created"]
    assert seen["retrieved"]["status"] == "completed"
    assert seen["cancelled"] == "cancelled"
    assert batches >= 1


def test_a_ticket_needs_nothing_but_http(tmp_path: Path) -> None:
    headers = [("Authorization", f"Bearer {KEY}")]
    with deferring(tmp_path, "batch", SCENARIO) as (proxy, _):
        ticket = proxy.client().request(
            "POST", "/v1/chat/completions", CHAT, [*headers, ("Prefer", "respond-async")]
        )
        answer = poll(proxy, ticket.header("location") or "", headers)
    assert (ticket.status, answer.status) == (202, 200)
    assert json.loads(answer.body)["object"] == "chat.completion"
