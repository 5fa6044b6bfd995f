"""What merging brings to a burst of embeddings, and costs idle traffic, against the simulated provider.

The provider, Weir and the callers are processes of their own, and one upstream call takes 50 ms. Two hundred
callers ask at once for one vector each; then one asks again and again, through the coalesce lane and through
the stream lane in turns. Times are ratios or differences within one run.
"""

from __future__ import annotations

import base64
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxy.sim.embeddings import unit_vector
from proxy.sim.text import split_tokens
from tests.perf.lanes_chats import Figure
from tests.support.raw_client import RawClient
from tests.support.weir_process import WeirProcess, weir_process

PATH, MODEL = "/v1/embeddings", "text-embedding-3-small"
CALLERS, BURSTS, IN_TURNS = 200, 5, 100
DIMENSIONS = 64
SCENARIO = "seed: 1\ntiming: {base_ms: 50, prefill_ms_per_token: 0, decode_ms_per_token: 0}\n"
POLICY = """
version: 1
routes:
  - name: straight
    match: {path: /v1/embeddings, headers: {x-way: straight}}
  - name: pooled
    match: {path: /v1/embeddings}
    urgency: {default: soon}
    coalesce: {max_wait: 20ms}
"""
MOST_CALLS, MOST_WALL_CALLS, MOST_ADDED_MS = 10, 4.0, 1.0


@dataclass(frozen=True, slots=True)
class _Burst:
    calls: int
    wall_seconds: float
    wrong: int


def figures() -> Iterator[Figure]:
    """Measure a burst and idle traffic."""
    with _provider() as port, tempfile.TemporaryDirectory() as folder:
        upstream = f"http://127.0.0.1:{port}/v1"
        with weir_process(Path(folder), upstream, policies=POLICY) as proxy:
            _one(proxy.client(), "straight", "warm-up")
            one_call_seconds, added_ms = _in_turns(proxy)
            bursts = [_burst(proxy, port, number) for number in range(BURSTS)]
    calls = max(burst.calls for burst in bursts)
    wrong = sum(burst.wrong for burst in bursts)
    ratio = statistics.median(burst.wall_seconds for burst in bursts) / one_call_seconds
    what = f"{CALLERS} callers at once, one input each: upstream calls (most of {BURSTS} bursts)"
    yield Figure(what, str(calls), f"<= {MOST_CALLS}", calls <= MOST_CALLS)
    yield Figure("  wrong vectors", str(wrong), "0", wrong == 0)
    bound = f"<= {MOST_WALL_CALLS:g}"
    yield Figure("  wall time, in single calls (median)", f"{ratio:.2f}", bound, ratio <= MOST_WALL_CALLS)
    bound = f"<= {MOST_ADDED_MS:g} ms"
    what = "one after another: added to each by the lane (median)"
    yield Figure(what, f"{added_ms:.3f} ms", bound, added_ms <= MOST_ADDED_MS)


@contextmanager
def _provider() -> Iterator[int]:
    """Run the simulated provider; its port."""
    with tempfile.TemporaryDirectory() as folder:
        scenario = Path(folder) / "scenario.yaml"
        scenario.write_text(SCENARIO, encoding="utf-8")
        command = [sys.executable, "-m", "proxy.cli.main", "simulate", "--listen", "127.0.0.1:0"]
        env = {**os.environ, "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen([*command, "--scenario", str(scenario)], stdout=subprocess.PIPE, env=env)
        try:
            assert process.stdout is not None
            line = process.stdout.readline().decode()
            yield int(line.strip().rpartition(":")[2].strip("/"))
        finally:
            process.terminate()
            process.wait(10)
            if process.stdout is not None:
                process.stdout.close()


def _asked(text: str) -> bytes:
    asked = {"model": MODEL, "input": text, "encoding_format": "base64", "dimensions": DIMENSIONS}
    return json.dumps(asked).encode()


def _is_right(text: str, answer: Any) -> bool:
    wanted = unit_vector(f"1 {MODEL}", split_tokens(text), 1536, DIMENSIONS).tobytes()
    (element,) = answer["data"]
    return element["index"] == 0 and base64.b64decode(element["embedding"]) == wanted


def _one(client: RawClient, way: str, text: str) -> float:
    """Ask once; return the seconds that it took."""
    began = time.perf_counter()
    answer = client.request("POST", PATH, _asked(text), [("x-way", way)])
    took_seconds = time.perf_counter() - began
    assert answer.status == 200, answer
    return took_seconds


def _in_turns(proxy: WeirProcess) -> tuple[float, float]:
    """Return the seconds of one call through the stream lane, and the milliseconds that pooling adds."""
    client = proxy.client()
    took: dict[str, list[float]] = {"straight": [], "pooled": []}
    for number in range(IN_TURNS):
        for way, seconds in took.items():
            seconds.append(_one(client, way, f"text {number}"))
    straight, pooled = statistics.median(took["straight"]), statistics.median(took["pooled"])
    return straight, (pooled - straight) * 1000


def _burst(proxy: WeirProcess, port: int, number: int) -> _Burst:
    with RawClient(("127.0.0.1", port)) as provider:
        provider.request("POST", "/sim/reset")
        texts = [f"burst {number} text {caller}" for caller in range(CALLERS)]
        wall_seconds, answers = _ask_all(proxy, texts)
        stats = json.loads(provider.request("GET", "/sim/stats").body)
    wrong = sum(not _is_right(text, answer) for text, answer in zip(texts, answers, strict=True))
    return _Burst(int(stats["requests"][PATH]), wall_seconds, wrong)


def _ask_all(proxy: WeirProcess, texts: list[str]) -> tuple[float, list[Any]]:
    """Connect everybody first, then ask at once; return the wall time and the answers."""
    clients = [proxy.client(30.0) for _ in texts]
    bodies = [_asked(text) for text in texts]
    began = time.perf_counter()
    for client, body in zip(clients, bodies, strict=True):
        client.send_request("POST", PATH, body)
    # All wait for the same few calls, so reading one after the other holds nobody up.
    answers = [client.read_answer("POST") for client in clients]
    wall_seconds = time.perf_counter() - began
    for client in clients:
        client.close()
    assert {answer.status for answer in answers} == {200}
    return wall_seconds, [json.loads(answer.body) for answer in answers]
