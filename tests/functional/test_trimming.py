"""A conversation that goes on through the whole proxy: what is remembered, what is shown, what it costs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.chat import ANSWER, PATH
from tests.support.raw_client import RawAnswer
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir import RunningWeir, weir

POLICY = """
version: 1
upstreams: {{up: {{base_url: '{url}', provider: openai}}}}
routes:
  - name: chat
    match: {{path: /v1/chat/completions}}
    allow_caller: [x-weir-explain]
    steps: [{{trim_history: {{budget: 2000}}}}]
"""
CACHED = "the prefix is likely cached: trimming would cost more"


@contextmanager
def talking(tmp_path: Path) -> Iterator[tuple[RunningWeir, RawUpstream]]:
    def script(call: Call) -> None:
        call.json(ANSWER)

    with RawUpstream(script) as upstream, weir(tmp_path, None, POLICY.format(url=upstream.url)) as proxy:
        yield proxy, upstream


def history(turns: int) -> list[dict[str, str]]:
    said = [
        {"role": role, "content": f"{role} {number} " + "word " * 90}
        for number in range(turns)
        for role in ("user", "assistant")
    ]
    return said[:-1]


def ask(
    proxy: RunningWeir, turns: int, model: str = "gpt-5.6-sol", key: str = "k", **headers: str
) -> RawAnswer:
    body = json.dumps({"model": model, "messages": history(turns)}).encode()
    lines = [("Authorization", f"Bearer {key}"), *headers.items()]
    return proxy.client().request("POST", PATH, body, lines)


def sent(upstream: RawUpstream) -> list[Any]:
    messages: list[Any] = json.loads(upstream.calls[-1].body)["messages"]
    return messages


def test_a_conversation_that_was_sent_a_moment_ago_is_not_cut(tmp_path: Path) -> None:
    with talking(tmp_path) as (proxy, upstream):
        assert (ask(proxy, 8).header("x-weir-steps") or "") == "trim_history;unchanged"
        answer = ask(proxy, 10)
        assert CACHED in (answer.header("x-weir-steps") or "")
        assert sent(upstream) == history(10)


def test_other_callers_and_models_have_no_part_in_that(tmp_path: Path) -> None:
    with talking(tmp_path) as (proxy, upstream):
        ask(proxy, 8)
        for other in ({"key": "other"}, {"model": "gpt-5.6-terra"}):
            assert "dropped=" in (ask(proxy, 10, **other).header("x-weir-steps") or "")
            assert len(sent(upstream)) < len(history(10))


def test_what_was_cut_is_cut_alike_in_the_next_turn(tmp_path: Path) -> None:
    with talking(tmp_path) as (proxy, upstream):
        ask(proxy, 10)
        first = sent(upstream)
        ask(proxy, 11)
        assert sent(upstream)[: len(first)] == first
        assert first[0] == history(11)[len(history(10)) - len(first)]


def test_explaining_a_request_does_not_make_it_remembered(tmp_path: Path) -> None:
    with talking(tmp_path) as (proxy, upstream):
        said = json.loads(ask(proxy, 9, **{"x-weir-explain": "dry-run"}).body)
        assert said["steps"][0]["name"] == "trim_history"
        assert upstream.calls == []
        assert "dropped=" in (ask(proxy, 10).header("x-weir-steps") or "")


def test_headers_and_log_tell_tokens_and_money(tmp_path: Path) -> None:
    with talking(tmp_path) as (proxy, _):
        answer = ask(proxy, 20)
        (record,) = proxy.log(1)
    tokens = dict(part.split("=") for part in (answer.header("x-weir-tokens") or "").split(", "))
    steps = dict(part.split("=") for part in (answer.header("x-weir-steps") or "").split(";")[1:])
    saved = int(tokens["in_before"]) - int(tokens["in"])
    assert int(steps["saved"]) == saved > 2000
    # Nothing was cached: gpt-5.6-sol writes its prefix at 5 dollars per million tokens.
    assert float(steps["saved_usd"].strip('"')) == round(saved * 5e-6, 6)
    assert record["tokens_in_before"] == int(tokens["in_before"])
