"""Nobody outside can mint series (reports B108, B109)."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.support.chat import ANSWER, CHAT, PATH, chat_policy
from tests.support.metrics import series
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir import RunningWeir, weir

COUNT = 150
USED = ANSWER[:-1] + b',"usage":{"prompt_tokens":3,"completion_tokens":4}}'


def answer_with_usage(call: Call) -> None:
    call.json(USED)


def known_series(proxy: RunningWeir) -> set[str]:
    # The lag of the event loop appears with time, not with requests.
    return {text for text in series(proxy.admin("/metrics")[1]) if "event_loop_lag" not in text}


# B108
@pytest.mark.parametrize("policies", [None, "version: 1\nroutes: [{name: all, match: {}}]\n"])
def test_random_paths_queries_and_headers_make_no_series(tmp_path: Path, policies: str | None) -> None:
    seed = random.Random(108)

    def send(number: int) -> None:
        word = seed.randbytes(8).hex()
        method = ("GET", "POST", "DELETE", "PUT", "OPTIONS")[number % 5]
        headers = [(f"X-{word}", word), ("X-Weir-Route", word), ("traceparent", word), ("User-Agent", word)]
        assert client.request(method, f"/{word}/{word}?{word}", b"{}", headers).status == 200

    with RawUpstream(answer_with_usage) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        with proxy.client() as client:
            for number in range(5):
                send(number)
            before = known_series(proxy)
            for number in range(COUNT):
                send(number)
        after = known_series(proxy)
        assert proxy.metric("weir_requests_total") == COUNT + 5
    assert after == before


# B108
def test_methods_and_malformed_requests_make_no_series(tmp_path: Path) -> None:
    def send(line: bytes) -> None:
        with proxy.client() as client:
            client.send(line + b" HTTP/1.1\r\nHost: weir.test\r\n\r\n")
            assert client.read_head().status in (400, 501)

    with RawUpstream(answer_with_usage) as upstream, weir(tmp_path, upstream.url) as proxy:
        for line in (b"FOO /", b"GET /../x"):
            send(line)
        before = known_series(proxy)
        for number in range(20):
            send(b"FOO%d /" % number)
            send(b"GET /..%%2f%d" % number)
        assert known_series(proxy) == before


# B109
def test_model_names_of_callers_make_no_series(tmp_path: Path) -> None:
    policies = (
        "version: 1\nroutes:\n"
        "  - {name: known, match: {path: /v1/chat/completions, model: [gpt-4o, 'gpt-5*']}}\n"
        "  - {name: rest, match: {path: /v1/chat/completions}}\n"
    )
    odd = [
        b'"%b"' % (b"x" * 1_000_000),
        b"[1,2]",
        b"{}",
        b"7",
        b"null",
        b'""',
        b'"a\\nb\\u0000"',
        b'"\\ud800"',
    ]

    with RawUpstream(answer_with_usage) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        with proxy.client() as client:
            for model in (b'"gpt-4o"', b'"gpt-5-x"', b'"other-1"', b"null"):
                assert client.request("POST", PATH, CHAT.replace(b'"m"', model)).status == 200
            before = known_series(proxy)
            names = [b'"model-%d"' % number for number in range(COUNT)] + [
                b'"gpt-5-%d"' % n for n in range(20)
            ]
            for model in odd + names:
                assert client.request("POST", PATH, CHAT.replace(b'"m"', model)).status == 200
        after = known_series(proxy)
        records = proxy.log(4 + len(odd) + len(names))
    assert after == before
    assert max(len(json.dumps(record)) for record in records) < 4_000
    assert {text.split('model="')[1].split('"')[0] for text in after if 'model="' in text} == {
        "",
        "gpt-4o",
        "other",
    }


# B109
def test_model_names_of_upstreams_make_no_series(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        number = call.number
        call.json(
            USED[:-1]
            + b',"model":"m-%d","service_tier":"t-%d","system_fingerprint":"f-%d"}' % (number, number, number)
        )

    with RawUpstream(script) as upstream, weir(tmp_path, upstream.url, chat_policy()) as proxy:
        with proxy.client() as client:
            client.request("POST", PATH, CHAT)
            before = known_series(proxy)
            for _ in range(20):
                client.request("POST", PATH, CHAT)
        assert known_series(proxy) == before


# B109
def test_finish_reasons_and_statuses_of_upstreams_make_no_series(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        reason = b"reason-%d" % call.number
        status = b"%d Odd" % (200 + call.number if call.number < 4 else 400 + call.number)
        call.json(USED.replace(b"stop", reason), status)

    with RawUpstream(script) as upstream, weir(tmp_path, upstream.url, chat_policy()) as proxy:
        with proxy.client() as client:
            for _ in range(30):
                client.request("POST", PATH, CHAT)
        proxy.log(30)
        found = [text for text in known_series(proxy) if text.startswith("weir_requests_total")]
    assert sorted(text.split('status="')[1].split('"')[0] for text in found) == ["2xx", "4xx"]
