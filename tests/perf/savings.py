"""What each step brings, measured against the simulated provider: python -m tests.perf.savings [--json]

For each step one workload that it is made for runs twice through Weir, streamed: without the step and with
it. Time to first token and total time are the caller's, tokens are what the provider billed, money follows
from the shipped price table. A simulated provider shows the mechanism and says nothing about any real one.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxy.sim.scenario import Scenario
from proxy.upstream.providers.prices import load_prices
from tests.support.raw_client import RawClient
from tests.support.weir import weir
from tests.unit.sim.running import running

MODEL = "gpt-4o"
WIDTHS = (16, 16, 16, 14, 14, 16)
MEASURE_ONLY = "version: 1\nroutes:\n  - {name: measured, match: {path: /v1/chat/completions}}\n"
POLICY = "version: 1\nroutes:\n  - name: stepped\n    match: {path: /v1/chat/completions}\n    steps: [%s]\n"
SENTENCE = "The weir keeps the level of the upper reach steady while the mill takes what it needs. "


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests that one step is made for; `headers` steer the simulated provider."""

    step: str
    what: str
    policy: str
    requests: tuple[dict[str, Any], ...]
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Figures:
    """Means over the requests of a workload; `usd` is per 1,000 requests."""

    ttft_ms: float
    total_ms: float
    input_tokens: float
    cached_tokens: float
    output_tokens: float
    usd: float


def workloads() -> Iterator[Workload]:
    """Yield one workload per step."""
    turns = [{"role": role, "content": SENTENCE * 6} for _ in range(20) for role in ("user", "assistant")]
    question = {"role": "user", "content": "And what does it cost to repair?"}
    system = {"role": "system", "content": "You answer questions about rivers."}
    yield Workload(
        "trim_history",
        "a support chat of 20 exchanges",
        "trim_history: {budget: 1200, keep_last: 4}",
        tuple(_chat([system, *turns, question | {"content": f"Question {n}: why?"}]) for n in range(3)),
    )
    yield Workload(
        "dedupe_context",
        "retrieved passages, most of them twice",
        "dedupe_context: {min_chars: 80}",
        tuple(_chat([system, question | {"content": _sources(n)}]) for n in range(3)),
    )
    yield Workload(
        "align_prefix",
        "a date before long instructions, which the provider caches otherwise",
        'align_prefix: {volatile: ["Today is *"]}',
        tuple(
            _chat([system | {"content": f"Today is day {n}.\n\n" + "Be exact. " * 900}, question])
            for n in range(6)
        ),
    )
    yield Workload(
        "cap_output",
        "nobody set a limit, the model would write 200 tokens",
        "cap_output: {default: 60}",
        (_chat([system, question]),) * 2,
        (("x-sim-tokens", "200"),),
    )
    yield Workload(
        "add_stop",
        "the model goes on to write the user's next line",
        'add_stop: ["\\n\\nUser:"]',
        (_chat([system, question]),) * 2,
        (("x-sim-content", "It costs about a year's rent.%0A%0AUser: " + SENTENCE.strip() * 4),),
    )
    yield Workload(
        "choose_model",
        "a short question to a large model",
        "choose_model: [{when: {tokens: {max: 2000}}, model: gpt-4o-mini}]",
        (_chat([system, question]),) * 2,
    )

    yield Workload(
        "shape_output",
        "a standing instruction; the simulated model does not heed it, so this shows only what it costs",
        'shape_output: {terse: "Answer in at most two sentences."}',
        (_chat([system, question]),) * 2,
    )
    yield Workload(
        "set_params",
        "three choices asked for where one is read",
        "set_params: {n: {max: 1}}",
        (_chat([system, question]) | {"n": 3},) * 2,
    )


def _sources(number: int) -> str:
    passages = [f"Source {n % 4}: " + f"Fact {n % 4} about weirs. " * 30 for n in range(12)]
    listed = "\n\n".join(f"[{place}] {text}" for place, text in enumerate(passages, 1))
    return f"{listed}\n\nQuestion {number}: what is a weir?"


def _chat(messages: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def measure(workload: Workload, policy: str) -> Figures:
    """Run a workload through Weir with `policy` in front of a fresh simulated provider."""
    with tempfile.TemporaryDirectory() as folder, running(Scenario()) as provider:
        upstream = f"http://127.0.0.1:{provider.port}/v1"
        with weir(Path(folder), upstream, policy) as proxy:
            rows = [_run(proxy.client(60.0), body, workload.headers) for body in workload.requests]
    return Figures(*(statistics.mean(column) for column in zip(*rows, strict=True)))


def _run(
    client: RawClient, body: dict[str, Any], headers: tuple[tuple[str, str], ...]
) -> tuple[float, float, float, float, float, float]:
    began = time.perf_counter()
    client.send_request("POST", "/v1/chat/completions", json.dumps(body).encode(), headers)
    client.read_head()
    first = 0.0
    text = b""
    for piece in client.chunks():
        text += piece or b""
        if not first and b'"content":"' in text.replace(b'"content":""', b""):
            first = time.perf_counter()
    ended = time.perf_counter()
    events = [json.loads(line[6:]) for line in text.split(b"\n") if line.startswith(b"data: {")]
    usage = next(event["usage"] for event in reversed(events) if event.get("usage"))
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    price = load_prices().price("openai", events[0]["model"])
    assert price is not None
    usd = price.cost_usd(usage["prompt_tokens"], usage["completion_tokens"], cached) or 0.0
    milliseconds = (first - began) * 1000, (ended - began) * 1000
    return *milliseconds, usage["prompt_tokens"], cached, usage["completion_tokens"], usd * 1000


def run(as_json: bool) -> None:
    """Measure every workload without and with its step, and print the figures side by side."""
    rows = []
    for workload in workloads():
        before = measure(workload, MEASURE_ONLY)
        after = measure(workload, POLICY % f"{{{workload.policy}}}")
        rows.append((workload, before, after))
    if as_json:
        facts = [{"step": row[0].step, "before": _fields(row[1]), "after": _fields(row[2])} for row in rows]
        print(json.dumps(facts))
        return
    print(_line("step", ["TTFT ms", "total ms", "tokens in", "cached", "tokens out", "$/1,000"]))
    for workload, before, after in rows:
        old, new = _fields(before), _fields(after)
        cells = [f"{_shown(name, old[name])} → {_shown(name, new[name])}" for name in old]
        print(_line(workload.step, cells))
        print(f"  {workload.what}")


def _line(first: str, cells: list[str]) -> str:
    return f"{first:14}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True))


def _shown(name: str, value: float) -> str:
    return f"{value:,.2f}" if name == "usd" else f"{value:,.0f}"


def _fields(figures: Figures) -> dict[str, float]:
    return {name: getattr(figures, name) for name in Figures.__slots__}


if __name__ == "__main__":
    run("--json" in sys.argv[1:])
