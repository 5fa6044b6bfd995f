from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.explanation.corpus import Corpus
from proxy.explanation.corpus_lines import read_requests
from proxy.pipeline import Pipeline
from tests.support.corpus import corpus
from tests.unit.explanation.conftest import MakePipeline, chat

POLICY = """
version: 1
routes:
  - name: chat
    match: {path: /v1/chat/completions}
    urgency: {default: soon}
    steps:
      - cap_output: {default: 300, max: 800}
      - shape_output: {terse: "Be brief."}
      - choose_model: [{when: {keywords: [cheap]}, model: small}]
"""
SYSTEM = {"role": "system", "content": "s" * 400}


def _never(number: int) -> None:
    pytest.fail(f"line {number} was not read")


def body(*texts: str, **fields: Any) -> bytes:
    messages = [SYSTEM, *({"role": "user", "content": text} for text in texts)]
    return json.dumps({"model": "big", "messages": messages} | fields).encode()


def summed(pipeline: Pipeline, *bodies: bytes) -> dict[str, Any]:
    sums = Corpus(pipeline)
    for each in bodies:
        sums.add(chat(each))
    return sums.summary()


def test_requests_are_counted_by_what_becomes_of_them(make_pipeline: MakePipeline) -> None:
    said = summed(
        make_pipeline(POLICY), body("a"), body("b", max_tokens=900), body("c", max_tokens=5, tools=[])
    )
    assert (said["requests"], said["touched"], said["unmatched"], said["unread"]) == (3, 3, 0, 0)
    assert (said["routes"], said["urgency"], said["lane"]) == ({"chat": 3}, {"soon": 3}, {"stream": 3})
    assert said["caps"] == {"given": 1, "lowered": 1, "lowered_by_tokens": 100}
    cap, shape, choose = said["steps"]
    assert (cap["name"], cap["status"]) == ("cap_output", {"applied": 2, "unchanged": 1})
    assert (shape["status"], choose["status"]) == ({"applied": 3}, {"unchanged": 3})


def test_each_step_is_measured_against_the_world_before_it(make_pipeline: MakePipeline) -> None:
    said = summed(make_pipeline(POLICY), body("a"), body("a cheap one"))
    cap, shape, choose = said["steps"]
    assert cap["tokens"]["before"] == cap["tokens"]["after"] == said["tokens"]["before"]
    assert shape["tokens"]["after"] > shape["tokens"]["before"] == cap["tokens"]["after"]
    assert choose["tokens"] == {"before": shape["tokens"]["after"], "after": said["tokens"]["after"]}
    assert choose["usd"]["after"] < choose["usd"]["before"]
    assert said["usd"]["after"] == choose["usd"]["after"]


def test_savings_are_net_of_the_cache_hits_that_they_cost(make_pipeline: MakePipeline) -> None:
    policy = POLICY.replace("keywords: [cheap]", "keywords: [other]").replace("model: small", "model: big2")
    same = [body("a"), body("a", "b")]
    said = summed(make_pipeline(policy), *same)
    cached = said["tokens"]["before"] - said["uncached_tokens"]["before"]
    assert cached >= 100
    # The instruction at the tail of the system text keeps the prefix: as many hits as before.
    assert said["tokens"]["after"] - said["uncached_tokens"]["after"] >= cached
    # The second request goes to another model, whose cache is cold.
    moved = summed(make_pipeline(policy), body("a"), body("a", "other"))
    assert moved["uncached_tokens"]["after"] == moved["tokens"]["after"]
    assert moved["usd"]["unpriced_requests"] == 1


def test_refusals_unread_and_unmatched_requests_are_told_apart(make_pipeline: MakePipeline) -> None:
    policy = """
version: 1
routes:
  - name: strict
    match: {path: /v1/chat/completions, headers: {x-strict: "*"}}
    steps: [{cap_output: {max: 5, on_exceed: reject}}]
  - name: loose
    match: {path: /v1/chat/completions}
"""
    sums = Corpus(make_pipeline(policy))
    strict = chat(body("a", max_tokens=9), **{"x-strict": "1"})
    for _ in range(2):
        sums.add(strict)
    sums.add(chat(b"[1]"))
    sums.add(chat(b"{"))
    elsewhere = json.dumps({"path": "/v1/responses", "body": {"model": "big", "input": "x" * 40}}).encode()
    for request in read_requests([elsewhere], strict, bytes.decode, _never):
        sums.add(request)
    said = sums.summary()
    assert said["rejected"] == {"max_tokens is above this route's limit of 5": 2}
    assert (said["requests"], said["unread"], said["unmatched"], said["touched"]) == (5, 2, 1, 0)
    assert said["tokens"]["before"] == said["tokens"]["after"] > 0


@pytest.mark.parametrize("cap", ["1e400", "NaN", '"x"', "-1", "true"])
def test_odd_caps_do_not_upset_the_sums(make_pipeline: MakePipeline, cap: str) -> None:
    said = summed(make_pipeline(POLICY), b'{"model":"big","max_tokens":%b}' % cap.encode())
    assert said["caps"]["lowered_by_tokens"] == 0


def test_without_prices_there_is_no_money(make_pipeline: MakePipeline) -> None:
    said = summed(make_pipeline(POLICY, is_priced=False), body("a"))
    assert "usd" not in said
    assert all("usd" not in step for step in said["steps"])


def test_a_generated_corpus_adds_up(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline(POLICY)
    sums = Corpus(pipeline)
    requests = list(read_requests(corpus(24), chat(b""), bytes.decode, _never))
    for request in requests:
        sums.add(request)
    said = sums.summary()
    assert said["requests"] == len(requests) == said["unmatched"] + sum(said["routes"].values())
    for step in said["steps"]:
        assert sum(step["status"].values()) == said["routes"]["chat"]
    assert said["steps"][0]["tokens"]["before"] < said["tokens"]["before"], (
        "unmatched requests have tokens too"
    )
    for what in ("tokens", "uncached_tokens"):
        saved = sum(step[what]["before"] - step[what]["after"] for step in said["steps"])
        assert saved == said[what]["before"] - said[what]["after"]


def test_it_says_what_a_price_is_missing_for(make_pipeline: MakePipeline) -> None:
    upstreams = """upstreams:
  first: {base_url: "https://a.example/v1", provider: openai}
  house: {base_url: "https://b.example/v1"}
defaults: {upstream: first}
routes:"""
    policy = POLICY.replace("routes:", upstreams).replace("model: small", "upstream: house")
    said = summed(make_pipeline(policy), body("a cheap one", model="x"), body("b", model="no such \ud800"))
    usd = said["usd"]
    assert (usd["unpriced_upstreams"], usd["unpriced_models"]) == (["house"], ["x", "no such \\ud800"])
    assert summed(make_pipeline(policy), body("a"))["usd"]["unpriced_models"] == []
