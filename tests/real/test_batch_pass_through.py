"""The official SDKs' batches through Weir to providers that have them: the same as without Weir."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from proxy.sim.scenario import BatchRules
from tests.real.processes import run_python
from tests.support.batch_servers.anthropic import AnthropicServer
from tests.support.batch_servers.base import KEY, Held, Json
from tests.support.job_worker import FAST
from tests.support.served_app import served_app
from tests.support.weir import weir
from tests.unit.sim.running import running

ROUTED = """
version: 1
routes:
  - {name: messages, match: {path: /v1/messages}, steps: [{cap_output: {max: 5}}]}
  - {name: all, match: {path: '*'}, urgency: {default: soon}, steps: [{cap_output: {default: 5, max: 5}}]}
"""
"""Caps that would show in what a batch is made of."""
SLOW = replace(FAST, batches=BatchRules(turnaround_seconds=0.5, cancel_seconds=0.05, creations_per_hour=0))


def openai_life(environment: str, origin: str, home: Path, key: str = "sk-caller") -> Json:
    variables = {"OPENAI_BASE_URL": f"{origin}/v1", "OPENAI_API_KEY": key}
    printed = run_python(environment, "batching.py", [], home, variables)
    seen: Json = json.loads(printed.rstrip().rpartition("\n")[2])
    return seen


@pytest.mark.parametrize(
    ("environment", "policies"),
    [("openai-1", ROUTED), ("openai-2", ROUTED), ("openai-3", ROUTED), ("openai-3", None)],
    ids=["1", "2", "3", "3-unmatched"],
)
def test_the_sdk_of_openai_runs_batches_through_weir(
    environment: str, policies: str | None, tmp_path: Path
) -> None:
    with running(SLOW) as sim, weir(tmp_path, f"{sim.address}/v1", policies) as proxy:
        through = openai_life(environment, proxy.url, tmp_path)
        lines = sim.stats()["batch_lines"]
        assert len(proxy.log(10)) > 10
        if policies is None:
            assert through == openai_life(environment, sim.address, tmp_path, "sk-other")
    assert through["ended"] == ["completed", 3, 2, 1, {"run": "nightly"}]
    assert through["output"] == {"one": 200, "two": 200}
    assert through["errors"] == {"wrong": 400}
    assert through["cancelled"] in ("cancelled", "completed")
    assert through["unknown"] == [["NotFoundError", 404]] * 3
    assert through["gone"] == ["NotFoundError", 404]
    assert through["failed"][0] == "failed"
    assert set(lines.values()) == {1}


class WithResults(AnthropicServer):
    """Says that results are where it is; what it was sent is kept."""

    origin = ""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Json] = []

    def is_key(self, request: web.Request) -> bool:
        shown = request.headers.get("x-api-key", request.headers.get("Authorization", ""))
        return shown.removeprefix("Bearer ") == KEY and "anthropic-version" in request.headers

    def hold(self, held: Held, request: web.Request) -> None:
        self.made += [line["body"] for line in held.lines]
        super().hold(held, request)

    def shown(self, held: Held) -> Json:
        shown = super().shown(held)
        if shown["results_url"] is not None:
            shown["results_url"] = f"{self.origin}/v1/messages/batches/{held.id}/results"
        return shown


@contextmanager
def provider() -> Iterator[WithResults]:
    server = WithResults()
    server.script.is_held = False
    with served_app(server.app()) as origin:
        server.origin = origin
        yield server


def anthropic_life(where: str, origin: str, home: Path) -> Json:
    variables = {"ANTHROPIC_BASE_URL": origin, "ANTHROPIC_API_KEY": KEY}
    printed = run_python("openai-3", "batching_messages.py", [where], home, variables)
    seen: Json = json.loads(printed.rstrip().rpartition("\n")[2])
    return seen


LIFE: dict[str, Any] = {
    "results": {"line-0": "succeeded", "line-1": "errored", "line-2": "succeeded"},
    "canceling": "canceling",
    "canceled": {"line-0": "succeeded", "line-1": "canceled"},
    "listed": True,
    "deleted": "message_batch_deleted",
    "unknown": 404,
}


@pytest.mark.parametrize("policies", [None, ROUTED], ids=["unmatched", "routed"])
def test_the_sdk_of_anthropic_runs_batches_through_weir(policies: str | None, tmp_path: Path) -> None:
    """Results too, asked for as docs/providers.md says: nothing goes past Weir."""
    with provider() as server, weir(tmp_path, f"{server.origin}/v1", policies) as proxy:
        seen = anthropic_life("through", proxy.url, tmp_path)
        came = {request.headers.get("x-weir-request-id") for request in server.seen}
        assert len(proxy.log(len(server.seen))) == len(server.seen)
        assert {params["max_tokens"] for params in server.made} == {4096}
    assert came == {None}
    assert {name: seen[name] for name in LIFE} == LIFE
    assert seen["counts"] == {"processing": 0, "succeeded": 2, "errored": 1, "canceled": 0, "expired": 0}


def test_the_sdks_own_method_for_results_goes_where_the_provider_says(tmp_path: Path) -> None:
    """`results_url` is relayed as it came: the caller's own key opens it, past Weir."""
    with provider() as server, weir(tmp_path, f"{server.origin}/v1") as proxy:
        seen = anthropic_life("past", proxy.url, tmp_path)
        past = [request for request in server.seen if request.path.endswith("/results")]
        logged = proxy.log(len(server.seen) - len(past))
    assert {name: seen[name] for name in LIFE} == LIFE
    assert len(past) == 2
    assert len(logged) == len(server.seen) - len(past)
