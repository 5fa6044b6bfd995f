"""Callers that mean harm: deep JSON, costly patterns, endless and slow bodies, keys to fish (B115-B118)."""

from __future__ import annotations

import json
import threading
import time
import tracemalloc
from pathlib import Path

import pytest

from tests.support.chat import ANSWER, CHAT, CHAT_STREAM, DONE, PATH, chat_policy, delta, finish
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir import RunningWeir, weir

DEEP = 20_000
CAPPED = chat_policy("steps: [{cap_output: {max: 50}}]")
STEPS = chat_policy(
    "steps: [{cap_output: {default: 50}}, {add_stop: ['###']}, {set_params: {top_p: {default: 1}}}]"
)


def answer_ok(call: Call) -> None:
    call.json(ANSWER)


# B115
@pytest.mark.parametrize("policies", [None, chat_policy()], ids=["unmatched", "matched"])
def test_a_key_that_an_upstream_rejects_is_not_logged(tmp_path: Path, policies: str | None) -> None:
    refusal = b'{"error":{"message":"Incorrect API key: sk-wro*****key","type":"x","param":null,"code":"y"}}'

    def script(call: Call) -> None:
        call.json(refusal, b"401 Unauthorized")

    lines = [
        ("Authorization", "Bearer sk-wrong-key"),
        ("x-api-key", "sk-wrong-key"),
        ("api-key", "sk-wrong-key"),
    ]
    with RawUpstream(script) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        answer = proxy.client().request("POST", PATH + "?key=sk-wrong-key", CHAT, lines)
        log = json.dumps(proxy.log(1))
        metrics = proxy.admin("/metrics")[1]
    assert (answer.status, answer.body) == (401, refusal)
    assert "sk-wr" not in log
    assert b"sk-wr" not in metrics


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


BODIES = {
    "tools": b'{"model":"m","messages":[],"tools":%b}' % nested(DEEP),
    "unknown-field": b'{"model":"m","messages":[],"x":%b,"max_tokens":9}' % nested(DEEP),
    "objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "whole-body": nested(DEEP),
    "unclosed": b"[" * DEEP,
    "in-a-string": b'{"model":"m","messages":[],"x":"%b"}' % nested(DEEP),
}


# B116
@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize(
    "policies",
    [None, chat_policy(), STEPS, CAPPED, chat_policy("match: {path: /v1/*, tools: true}")],
    ids=["unmatched", "matched", "steps", "enforcing", "condition"],
)
def test_deeply_nested_bodies_fail_nothing_of_weirs(tmp_path: Path, kind: str, policies: str | None) -> None:
    if policies is not None and "tools: true" in policies:
        policies = policies.replace(f"    match: {{path: {PATH}}}\n", "")
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        client = proxy.client()
        answer = client.request("POST", PATH, BODIES[kind])
        assert proxy.client().request("POST", PATH, CHAT).status == 200, "the process lives"
        bodies = [call.body for call in upstream.calls]
    is_refused = policies == CAPPED and kind != "in-a-string"
    if is_refused:
        assert json.loads(answer.body)["error"]["code"] == "invalid_body"
    assert answer.status == (400 if is_refused else 200)
    expected = [] if is_refused else [BODIES[kind]]
    if policies == STEPS and kind == "in-a-string":
        expected = [BODIES[kind][:-1] + b',"max_tokens":50,"stop":["###"],"top_p":1}']
    assert bodies[:-1] == expected


# B116
@pytest.mark.parametrize("body", [CHAT, CHAT_STREAM], ids=["whole", "stream"])
def test_deeply_nested_answers_pass(tmp_path: Path, body: bytes) -> None:
    deep = b'{"choices":%b,"usage":{"prompt_tokens":%b}}' % (nested(DEEP), nested(DEEP))

    def script(call: Call) -> None:
        if b'"stream"' not in call.body:
            call.json(deep)
            return
        call.stream_head()
        call.chunk(b"data: " + deep + b"\n\n" + delta("x") + b"data: " + deep + b"\n\n" + finish() + DONE)
        call.end_chunks()

    with RawUpstream(script) as upstream, weir(tmp_path, upstream.url, chat_policy()) as proxy:
        answer = proxy.client().request("POST", PATH, body)
        record = proxy.log(1)[0]
    assert answer.is_whole
    assert answer.body.count(deep) == (1 if body == CHAT else 2)
    assert (answer.status, record["error"]) == (200, None)


# B117
@pytest.mark.parametrize("pattern", ["(a+)+$", "^a", "a|b", "[a-z]+", "a{1,100}", "(?i)a"])
def test_patterns_are_never_regular_expressions(tmp_path: Path, pattern: str) -> None:
    policies = f"version: 1\nroutes:\n  - name: chat\n    match: {{path: {PATH}, model: '{pattern}'}}\n"
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        plain = proxy.client().request("POST", PATH, b'{"model":"%b"}' % (b"a" * 40 + b"b"))
        exact = proxy.client().request("POST", PATH, json.dumps({"model": pattern}).encode())
    assert plain.header("x-weir-route") is None
    assert exact.header("x-weir-route") == "chat"


def longest_probe_seconds(proxy: RunningWeir, is_over: threading.Event) -> float:
    """Ask for health until `is_over`; return how long the slowest answer took."""
    slowest = 0.0
    while not is_over.is_set():
        begin = time.monotonic()
        assert proxy.admin("/healthz")[0] == 200
        slowest = max(slowest, time.monotonic() - begin)
    return slowest


# B117
@pytest.mark.parametrize("place", ["model", "path", "header"])
def test_many_stars_meet_a_long_text_in_linear_time(tmp_path: Path, place: str) -> None:
    stars = "*a" * 30 + "*b"
    conditions = {
        "model": f"model: '{stars}'",
        "path": f"path: '{stars}'",
        "header": f"headers: {{x-team: '{stars}'}}",
    }
    policies = (
        f"version: 1\nroutes:\n  - name: stars\n    match: {{{conditions[place]}}}\n"
        f"  - name: rest\n    match: {{}}\n"
        f"    steps: [{{add_stop: {{sequences: [x], exclude_models: ['{stars}']}}}}]\n"
    )
    length = 1_000_000 if place == "model" else 30_000
    text = "a" * length
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        is_over = threading.Event()
        slowest: list[float] = []
        prober = threading.Thread(target=lambda: slowest.append(longest_probe_seconds(proxy, is_over)))
        prober.start()
        body = json.dumps({"model": text if place == "model" else "m", "messages": []}).encode()
        target = f"{PATH}/{text}" if place == "path" else PATH
        begin = time.monotonic()
        answer = proxy.client().request("POST", target, body, [("X-Team", text)] if place == "header" else [])
        took_seconds = time.monotonic() - begin
        is_over.set()
        prober.join()
    assert (answer.status, answer.header("x-weir-route")) == (200, "rest")
    assert took_seconds < 1
    assert slowest[0] < 0.3


# B118
def test_an_endless_body_is_refused_at_the_limit_and_what_follows_is_not_kept(tmp_path: Path) -> None:
    policies = chat_policy("max_body: 64KiB", "on_oversize: reject")
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        client = proxy.client()
        client.send_request("POST", PATH, b"", [("Transfer-Encoding", "chunked")])
        client.send(piece + piece)
        answer = client.read_answer()
        tracemalloc.start()
        try:
            for _ in range(500):
                client.send(piece)
            assert proxy.client().request("POST", PATH, CHAT).status == 200
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert [call.body for call in upstream.calls] == [CHAT]
    assert (answer.status, answer.header("connection")) == (413, "close")
    assert peak_bytes < 4_000_000


# B118
@pytest.mark.parametrize("policies", [None, chat_policy()], ids=["unmatched", "matched"])
def test_a_body_that_stops_coming_is_given_up(tmp_path: Path, policies: str | None) -> None:
    with (
        RawUpstream(answer_ok) as upstream,
        weir(tmp_path, upstream.url, policies, body_seconds=0.2) as proxy,
    ):
        clients = [proxy.client() for _ in range(20)]
        for client in clients:
            client.send_request("POST", PATH, None, [("Content-Length", "1000")])
            client.send(b"{")
        begin = time.monotonic()
        answers = [client.read_answer() for client in clients]
        assert time.monotonic() - begin < 1
        assert all(client.is_closed_within(3) for client in clients[:1])
        assert upstream.calls == []
        assert proxy.metric("weir_in_flight") == 0
    assert {(answer.status, json.loads(answer.body)["error"]["code"]) for answer in answers} == {
        (408, "request_timeout")
    }


# B118
@pytest.mark.parametrize("is_silent", [True, False])
def test_a_head_that_trickles_is_given_up(tmp_path: Path, is_silent: bool) -> None:
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, header_seconds=0.3) as proxy:
        client = proxy.client()
        client.send(b"POST / HTTP/1.1\r\nX-Slow: ")
        begin = time.monotonic()
        client.socket.settimeout(0.05)
        answer = b""
        while not answer and time.monotonic() - begin < 2:
            try:
                answer = client.socket.recv(65536)
            except TimeoutError:
                if not is_silent:
                    client.send(b"x")
        assert time.monotonic() - begin < 1
        assert upstream.calls == []
    assert answer.startswith(b"HTTP/1.1 408 ")


# B118
def test_a_caller_that_never_asks_is_let_go(tmp_path: Path) -> None:
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, header_seconds=0.2) as proxy:
        assert proxy.client().is_closed_within(2)
