"""Bursts of chats against the simulated provider: shared answers, sampled answers, warmed prompt caches."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.core.sse import EventSplitter
from proxy.dialects import dialect_for_path
from proxy.dialects.assembled_answer import assembler
from proxy.sim.scenario import Scenario, Timing
from tests.support.raw_client import RawAnswer, RawClient
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir import RunningWeir, weir
from tests.unit.sim.running import Sim, running

CHAT = "/v1/chat/completions"
POLICY = """
version: 1
upstreams:
  sim: {base_url: "%s", provider: openai}
defaults: {upstream: sim}
routes:
  - name: pooled
    match: {path: ["/v1/*"]}
    urgency: {default: soon}
    allow_caller: [x-weir-urgency]
    coalesce: {max_wait: 500ms, warm_max_wait: 5s%s}
"""
SLOW = Scenario(timing=Timing(base_ms=800, prefill_ms_per_token=0.0, decode_ms_per_token=4, output_tokens=20))
QUESTION = {"model": "gpt-4o", "temperature": 0, "messages": [{"role": "user", "content": "Why rivers?"}]}
AUTHORIZATION = [("Authorization", "Bearer one")]


@contextmanager
def pooling(
    tmp_path: Path, scenario: Scenario = SLOW, options: str = ""
) -> Iterator[tuple[RunningWeir, Sim]]:
    with running(scenario) as sim:
        policies = POLICY % (f"http://127.0.0.1:{sim.port}/v1", options)
        with weir(tmp_path, None, policies) as proxy:
            yield proxy, sim


def send(
    proxy: RunningWeir, body: dict[str, Any], path: str = CHAT, headers: Any = AUTHORIZATION
) -> RawClient:
    client = proxy.client()
    client.send_request("POST", path, json.dumps(body).encode(), headers)
    return client


def text_of(answer: RawAnswer) -> str:
    """Return the text of an answer, streamed or not; it must be whole and good."""
    assert answer.status == 200
    assert answer.is_whole
    if answer.body.startswith(b"{"):
        return str(json.loads(answer.body)["choices"][0]["message"]["content"])
    assert answer.body.endswith(b"data: [DONE]\n\n")
    events = [json.loads(event[6:]) for event in answer.body.split(b"\n\n")[:-2]]
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


@pytest.mark.parametrize("is_first_streamed", [True, False])
def test_fifty_identical_chats_half_of_them_streamed_are_one_execution(
    tmp_path: Path, is_first_streamed: bool
) -> None:
    with pooling(tmp_path) as (proxy, sim):
        bodies = [{**QUESTION, "stream": True} if n % 2 != is_first_streamed else QUESTION for n in range(50)]
        clients = [send(proxy, body) for body in bodies]
        clients[0].close()
        answers = [client.read_answer() for client in clients[1:]]
        stats = sim.stats()
        assert stats["executions_total"] == 1
        assert len({text_of(answer) for answer in answers}) == 1
        whole = {answer.body for answer in answers if answer.body.startswith(b"{")}
        streamed = {answer.body for answer in answers if not answer.body.startswith(b"{")}
        assert len(whole) == 1
        assert len(streamed) == 1
        assert b'"usage"' not in streamed.pop()
        usage = json.loads(whole.pop())["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        records = proxy.log(50)
        assert sum(record["status"] == 200 for record in records) == 49
        assert proxy.metric("weir_upstream_calls_saved_total", strategy="share") == 49
        assert "strategy=share" in str(answers[0].header("x-weir-lane"))


@pytest.mark.parametrize("is_first_streamed", [True, False])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"model": "gpt-3.5-turbo-instruct", "prompt": "Why rivers?", "seed": 1}),
        ("/v1/responses", {"model": "gpt-4o", "input": "Why rivers?", "temperature": 0}),
        ("/v1/messages", {**QUESTION, "model": "claude-sonnet-5-5", "max_tokens": 30}),
    ],
)
def test_other_apis_share_in_both_forms(
    tmp_path: Path, path: str, body: dict[str, Any], is_first_streamed: bool
) -> None:
    headers = [*AUTHORIZATION, ("anthropic-version", "2023-06-01")]
    dialect = dialect_for_path(path)
    assert dialect is not None
    with pooling(tmp_path) as (proxy, sim):
        bodies = [{**body, "stream": True} if n % 2 != is_first_streamed else body for n in range(6)]
        answers = [client.read_answer() for client in [send(proxy, each, path, headers) for each in bodies]]
        assert sim.stats()["executions_total"] == 1
        assert {answer.status for answer in answers} == {200}
        whole = {answer.body for answer in answers if answer.body.startswith(b"{")}
        streamed = {answer.body for answer in answers if not answer.body.startswith(b"{")}
        assert (len(whole), len(streamed)) == (1, 1)
        value = assembler(dialect.name)
        assert value is not None
        for event in EventSplitter().feed(streamed.pop()):
            value.take(event)
        put_together, direct = json.loads(value.body() or b"null"), json.loads(whole.pop())
        if path == "/v1/completions":
            # Its stream tells usage only when asked.
            del direct["usage"]
        assert put_together == direct
        assert len({record["tokens_out"] for record in proxy.log(6)}) == 1


def test_callers_with_other_credentials_share_nothing(tmp_path: Path) -> None:
    with pooling(tmp_path) as (proxy, sim):
        people = (
            [("Authorization", "Bearer one")],
            [("Authorization", "Bearer two")],
            [("Authorization", "Bearer one"), ("OpenAI-Organization", "org-2")],
            [("Authorization", "Bearer one"), ("OpenAI-Project", "proj-2")],
        )
        for client in [send(proxy, QUESTION, headers=headers) for headers in people]:
            assert client.read_answer().status == 200
        assert sim.stats()["executions_total"] == 4


def test_metadata_does_not_split_and_splits_where_told_to(tmp_path: Path) -> None:
    bodies = [{**QUESTION, "user": f"u{n}"} for n in range(4)]
    with pooling(tmp_path) as (proxy, sim):
        for client in [send(proxy, body) for body in bodies]:
            client.read_answer()
        assert sim.stats()["executions_total"] == 1
    with pooling(tmp_path, options=", split_on: [user]") as (proxy, sim):
        for client in [send(proxy, body) for body in bodies]:
            client.read_answer()
        assert sim.stats()["executions_total"] == 4


def test_a_stream_joined_midway_comes_from_its_beginning(tmp_path: Path) -> None:
    with pooling(tmp_path) as (proxy, sim):
        body = {**QUESTION, "stream": True, "stream_options": {"include_usage": True}}
        first = send(proxy, body)
        first.read_head()
        late = send(proxy, body).read_answer()
        assert late.body.startswith(b"data: ")
        assert b'"usage":{' in late.body
        assert sim.stats()["executions_total"] == 1
        kept, first.buffer = first.buffer, b""
        first.buffer = kept
        assert b"".join(chunk or b"" for chunk in first.chunks()) == late.body


def test_the_last_caller_to_leave_ends_the_call(tmp_path: Path) -> None:
    with pooling(tmp_path) as (proxy, sim):
        clients = [send(proxy, {**QUESTION, "stream": True}) for _ in range(3)]
        for client in clients:
            client.read_head()
        for client in clients:
            client.close()
        stats = sim.stats_when(lambda stats: sum(stats["disconnects"].values()) > 0)
        assert sum(stats["disconnects"].values()) == 1
        assert stats["executions_total"] == 1


EVENT = (
    b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": "x" * 8000}}]}).encode() + b"\n\n"
)


def test_a_slow_reader_holds_nobody_back_and_is_let_go(tmp_path: Path) -> None:
    events = 2_000
    have_joined = threading.Event()

    def script(call: Call) -> None:
        call.stream_head()
        assert have_joined.wait(5)
        for _ in range(events):
            call.chunk(EVENT)
        call.chunk(b"data: [DONE]\n\n")
        call.end_chunks()

    with RawUpstream(script) as upstream, weir(tmp_path, None, POLICY % (upstream.url, "")) as proxy:
        body = json.dumps({**QUESTION, "stream": True}).encode()
        slow = proxy.client(receive_buffer_bytes=4096)
        slow.send_request("POST", CHAT, body, AUTHORIZATION)
        upstream.wait_for_calls(1)
        quick = [send(proxy, {**QUESTION, "stream": True}) for _ in range(3)]
        while proxy.metric("weir_in_flight") < 4:
            time.sleep(0.01)
        have_joined.set()
        with ThreadPoolExecutor(len(quick)) as readers:
            bodies = list(readers.map(lambda client: client.read_answer().body, quick))
        assert {len(each) for each in bodies} == {events * len(EVENT) + len(b"data: [DONE]\n\n")}
        assert len(upstream.calls) == 1
        answer = slow.read_answer()
        assert not answer.is_whole
        assert b"slow_reader" in answer.body[-400:]
        assert len(answer.body) < events * len(EVENT)
        assert sorted(record["error"] or "" for record in proxy.log(4)) == ["", "", "", "slow_reader"]


def test_a_refusal_reaches_each_caller_once_and_is_not_asked_for_again(tmp_path: Path) -> None:
    with pooling(tmp_path) as (proxy, sim):
        headers = [*AUTHORIZATION, ("x-sim-status", "429"), ("x-sim-first-byte-ms", "200")]
        answers = [
            client.read_answer()
            for client in [
                send(proxy, {**QUESTION, "stream": n % 2 == 0}, headers=headers) for n in range(10)
            ]
        ]
        assert {answer.status for answer in answers} == {429}
        assert sum(sim.stats()["statuses"].values()) == 1


def test_nobody_reads_what_another_ones_metadata_made_the_upstream_say(tmp_path: Path) -> None:
    have_joined = threading.Event()

    def script(call: Call) -> None:
        if b"SECRET" in call.body:
            assert have_joined.wait(5)
            call.json(b'{"error":{"message":"metadata only with store, was SECRET"}}', b"400 Bad Request")
        else:
            call.json(b'{"choices":[{"message":{"content":"fine"}}]}')

    with RawUpstream(script) as upstream, weir(tmp_path, None, POLICY % (upstream.url, "")) as proxy:
        first = send(proxy, {**QUESTION, "metadata": {"note": "SECRET"}})
        upstream.wait_for_calls(1)
        others = [send(proxy, {**QUESTION, "user": f"u{n}"}) for n in range(2)]
        while proxy.metric("weir_in_flight") < 3:
            time.sleep(0.01)
        have_joined.set()
        assert first.read_answer().status == 400
        for other in others:
            answer = other.read_answer()
            assert (answer.status, b"SECRET" in answer.body) == (200, False)
            assert "strategy=share; size=1;" in str(answer.header("x-weir-lane"))
        assert len(upstream.calls) == 3
        assert proxy.metric("weir_upstream_calls_saved_total", strategy="share") == 0


def test_samples_leave_together_and_bills_add_up(tmp_path: Path) -> None:
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Tell me something new."}]}
    with pooling(tmp_path) as (proxy, sim):
        clients = [send(proxy, body) for _ in range(8)]
        answers = [client.read_answer() for client in clients]
        stats = sim.stats()
        assert stats["executions_total"] == 2
        values = [json.loads(answer.body) for answer in answers]
        assert all([choice["index"] for choice in value["choices"]] == [0] for value in values)
        assert len({value["id"] for value in values}) == 8
        sampled = values[1:]
        assert len({value["choices"][0]["message"]["content"] for value in sampled}) > 1
        tokens = stats["tokens"]["default"] if "default" in stats["tokens"] else stats["tokens"]["standard"]
        billed = sum(tokens.get(kind, 0) for kind in ("input", "cached", "cache_write"))
        assert sum(value["usage"]["prompt_tokens"] for value in values) == billed
        assert sum(value["usage"]["completion_tokens"] for value in values) == tokens["output"]
        assert proxy.metric("weir_upstream_calls_saved_total", strategy="sample") == 6


PREFIX = {"role": "system", "content": "Answer with care and in full sentences. " * 500}


def burst(proxy: RunningWeir, **changes: Any) -> list[RawAnswer]:
    """Send 30 chats with one long system text at once."""
    asked = [[PREFIX, {"role": "user", "content": f"Question {n}"}] for n in range(30)]
    clients = [send(proxy, {"model": "gpt-4o", "messages": messages, **changes}) for messages in asked]
    return [client.read_answer() for client in clients]


BURSTY = Scenario(
    timing=Timing(base_ms=40, prefill_ms_per_token=0.05, decode_ms_per_token=1, output_tokens=5)
)


def cached_share(answers: list[RawAnswer]) -> float:
    """Return which part of all prompts was read from the cache."""
    usages = [json.loads(answer.body)["usage"] for answer in answers]
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    return float(cached / sum(usage["prompt_tokens"] for usage in usages))


def test_a_burst_reads_its_prefix_from_the_cache(tmp_path: Path) -> None:
    with pooling(tmp_path, BURSTY) as (proxy, sim):
        share = cached_share(burst(proxy))
        assert share > 29 / 30 * 0.95  # the cache works in steps of 128 tokens
        assert proxy.metric("weir_warm_prompt_tokens_total", prefix="cold", kind="cached") == 0
        warm_input = proxy.metric("weir_warm_prompt_tokens_total", prefix="warm", kind="input")
        warm_cached = proxy.metric("weir_warm_prompt_tokens_total", prefix="warm", kind="cached")
        assert warm_cached / warm_input > 0.95
        assert sim.stats()["executions_total"] == 30
        again = burst(proxy)
        assert cached_share(again) > 0.95
        assert all("queue;dur=0.000" in str(answer.header("server-timing")) for answer in again)


def test_without_warming_a_burst_reads_next_to_nothing(tmp_path: Path) -> None:
    # Slow enough that even a busy machine has asked for all before the first answer begins.
    timing = Timing(base_ms=1500, prefill_ms_per_token=0, decode_ms_per_token=1, output_tokens=5)
    with pooling(tmp_path, Scenario(timing=timing), ", strategies: [share, merge, sample, pace]") as (
        proxy,
        _,
    ):
        assert cached_share(burst(proxy)) < 0.05


def test_streams_wait_no_longer_than_the_first_takes_to_begin(tmp_path: Path) -> None:
    timing = Timing(base_ms=50, prefill_ms_per_token=0.05, decode_ms_per_token=50, output_tokens=20)
    with pooling(tmp_path, Scenario(timing=timing)) as (proxy, _):
        headers = [*AUTHORIZATION, ("x-weir-urgency", "soon")]
        messages = [[PREFIX, {"role": "user", "content": f"Question {n}"}] for n in range(5)]
        bodies = [{"model": "gpt-4o", "stream": True, "messages": each} for each in messages]
        for client in [send(proxy, body, headers=headers) for body in bodies]:
            assert client.read_answer().status == 200
        records = sorted(proxy.log(5), key=lambda record: float(record["queue_ms"]))
        leader, followers = records[0], records[1:]
        assert leader["queue_ms"] == 0
        for record in followers:
            assert 0 < record["queue_ms"] < leader["ttft_ms"] + 200
            assert record["queue_ms"] < leader["total_ms"] - 400
            assert record["ttft_ms"] < leader["ttft_ms"]


def test_nobody_interactive_waits_for_a_warm_cache(tmp_path: Path) -> None:
    with pooling(tmp_path, BURSTY) as (proxy, _):
        assert all(answer.status == 200 for answer in burst(proxy, stream=True))
        assert {record["queue_ms"] for record in proxy.log(30)} == {0}
