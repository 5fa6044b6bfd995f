"""What sharing and warming bring to bursts of chats, against the simulated provider.

Two bursts: 50 identical chats at temperature 0, half of them streamed, and 30 chats with 4,000 tokens of
instructions in common, the latter with warming and without. Times are ratios within one run; a simulated
provider shows the mechanism and says nothing about any real one.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxy.sim.scenario import Scenario, Timing
from tests.support.weir import RunningWeir, weir
from tests.unit.sim.running import Sim, running

PATH = "/v1/chat/completions"
POLICY = """
version: 1
upstreams:
  sim: {base_url: "http://127.0.0.1:%d/v1", provider: openai}
defaults: {upstream: sim}
routes:
  - name: chats
    match: {path: /v1/chat/completions}
    urgency: {default: soon}
    allow_caller: [x-weir-urgency]
    coalesce: {strategies: [%s], warm_max_wait: 10s}
"""
SOON = [("x-weir-urgency", "soon"), ("Authorization", "Bearer bench")]
SHARED = {
    "model": "gpt-4o",
    "temperature": 0,
    "messages": [{"role": "user", "content": "What does a weir do?"}],
}
INSTRUCTIONS = {"role": "system", "content": "Answer with care and in full sentences. " * 500}
SHARED_CALLERS, WARM_CALLERS = 50, 30
STEADY = Scenario(timing=Timing(base_ms=100, decode_ms_per_token=5, output_tokens=40))


@dataclass(frozen=True, slots=True)
class Answer:
    """One caller's answer and when it began, since it was asked for."""

    body: bytes
    first_byte_seconds: float


@dataclass(frozen=True, slots=True)
class Figure:
    """A line of the report: what was counted, what it was, and what it had to be."""

    what: str
    value: str
    bound: str
    is_met: bool


def figures() -> Iterator[Figure]:
    """Measure both bursts."""
    yield from _sharing()
    yield from _warming()


def _sharing() -> Iterator[Figure]:
    bodies = [SHARED | {"stream": True} if number % 2 else SHARED for number in range(SHARED_CALLERS)]
    with running(STEADY) as sim:
        answers = _burst(sim, "share", bodies)
        executions = int(sim.stats()["executions_total"])
    texts = {_text(answer.body) for answer in answers}
    yield Figure(
        f"{SHARED_CALLERS} identical chats, half streamed: executions", str(executions), "1", executions == 1
    )
    yield Figure("  different answers among them", str(len(texts)), "1", len(texts) == 1)


def _warming() -> Iterator[Figure]:
    asked = [[INSTRUCTIONS, {"role": "user", "content": f"Question {n}?"}] for n in range(WARM_CALLERS)]
    how = {"model": "gpt-4o", "stream": True, "stream_options": {"include_usage": True}}
    bodies = [how | {"messages": messages} for messages in asked]
    shares, medians, slowest = [], [], 0.0
    for strategy in ("pace", "warm"):
        with running(STEADY) as sim:
            answers = _burst(sim, strategy, bodies)
        usages = [_usage(answer.body) for answer in answers]
        cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
        shares.append(cached / sum(usage["prompt_tokens"] for usage in usages))
        firsts = sorted(answer.first_byte_seconds for answer in answers)
        medians.append(statistics.median(firsts))
        slowest = firsts[-1] / firsts[0]
    least = (WARM_CALLERS - 1) / WARM_CALLERS * 0.95
    what = f"{WARM_CALLERS} chats, 4,000 tokens in common: prompt tokens read from the cache"
    yield Figure(what, f"{shares[1]:.1%} (without: {shares[0]:.1%})", f">= {least:.1%}", shares[1] >= least)
    yield Figure(
        "  first byte of the slowest, in first bytes of the leader", f"{slowest:.2f}", "<= 2", slowest <= 2
    )
    yield Figure(
        "  median first byte, against all at once", f"{medians[1] / medians[0]:.2f}", "(shown)", True
    )


def _burst(sim: Sim, strategy: str, bodies: Sequence[dict[str, Any]]) -> list[Answer]:
    """Send all bodies at once; return the answers in their order."""
    with (
        tempfile.TemporaryDirectory() as folder,
        weir(Path(folder), None, POLICY % (sim.port, strategy)) as proxy,
    ):
        ready = threading.Barrier(len(bodies))
        with ThreadPoolExecutor(len(bodies)) as callers:
            return list(callers.map(lambda body: _ask(proxy, json.dumps(body).encode(), ready), bodies))


def _ask(proxy: RunningWeir, body: bytes, ready: threading.Barrier) -> Answer:
    client = proxy.client(timeout_seconds=30.0)
    ready.wait(30)
    began = time.perf_counter()
    client.send_request("POST", PATH, body, SOON)
    client.buffer = client.receive()
    first_byte_seconds = time.perf_counter() - began
    answer = client.read_answer("POST")
    assert answer.status == 200, answer
    assert answer.is_whole
    return Answer(answer.body, first_byte_seconds)


def _text(body: bytes) -> str:
    if body.startswith(b"{"):
        return str(json.loads(body)["choices"][0]["message"]["content"])
    deltas = [choice["delta"] for event in _events(body) for choice in event["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


def _usage(body: bytes) -> dict[str, Any]:
    return next(event["usage"] for event in _events(body) if event.get("usage"))


def _events(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(event[6:]) for event in body.split(b"\n\n") if event.startswith(b"data: {")]
