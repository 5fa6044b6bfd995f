from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.explanation import explain_request
from proxy.pipeline import Pipeline
from tests.unit.explanation.conftest import MakePipeline, chat

POLICY = """
version: 1
routes:
  - name: other
    match: {path: /v1/chat/completions, headers: {x-team: support}}
  - name: chat
    match: {path: /v1/chat/completions}
    steps:
      - cap_output: {max: 800}
      - shape_output: {terse: "Be very brief, please."}
      - choose_model: [{model: small}]
"""
QUESTION = (
    b'{"model":"big","messages":[{"role":"system","content":"s"},{"role":"user","content":"hello there"}]}'
)


def explained(pipeline: Pipeline, body: bytes) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(explain_request(pipeline, chat(body)))
    return said


def test_every_step_says_what_it_does_to_tokens_and_money(make_pipeline: MakePipeline) -> None:
    said = explained(make_pipeline(POLICY), QUESTION)
    cap, shape, choose = said["steps"]
    before, after = said["tokens"]["before"], said["tokens"]["after"]
    assert after - before == len("\n\nBe very brief, please.") // 4
    assert cap["tokens"] == {"before": before, "after": before}
    assert shape["tokens"] == {"before": before, "after": after}
    assert shape["usd"] == pytest.approx({"before": before * 1e-6, "after": after * 1e-6})
    assert choose["tokens"] == {"before": after, "after": after}
    assert choose["usd"] == pytest.approx({"before": after * 1e-6, "after": after * 1e-7})
    assert said["usd"] == pytest.approx({"before": before * 1e-6, "after": after * 1e-7})
    assert (said["route"], said["model"], said["upstream"]) == ("chat", "small", "default")
    assert said["lost"] == [{"route": "other", "reason": "header x-team is absent"}]
    assert said["body"]["model"] == "small"


def test_what_nobody_prices_has_no_money(make_pipeline: MakePipeline) -> None:
    nothing = {"before": None, "after": None}
    said = explained(make_pipeline(POLICY, is_priced=False), QUESTION)
    assert said["usd"] == nothing
    said = explained(make_pipeline(POLICY), QUESTION.replace(b"big", b"x"))
    assert said["usd"]["before"] is None
    assert said["usd"]["after"] == pytest.approx(said["tokens"]["after"] * 1e-7)


def test_the_whole_prompt_is_counted(make_pipeline: MakePipeline) -> None:
    pipeline = make_pipeline("version: 1\nroutes: [{name: all, match: {}}]")
    plain = explained(pipeline, QUESTION)["tokens"]["before"]
    tools = b'"tools":[{"type":"function","function":{"name":"%b"}}],' % (b"f" * 400)
    schema = b'"response_format":{"type":"json_schema","json_schema":{"name":"%b"}},' % (b"s" * 400)
    for more in (tools, schema):
        assert explained(pipeline, QUESTION.replace(b"{", b"{" + more, 1))["tokens"]["before"] >= plain + 100


@pytest.mark.parametrize("body", [b"", b"[1]", b'{"model"'])
def test_an_unread_body_has_no_figures(make_pipeline: MakePipeline, body: bytes) -> None:
    policy = POLICY.replace("{max: 800}", "{default: 800}")
    said = explained(make_pipeline(policy), body)
    assert said["tokens"] == said["usd"] == {"before": None, "after": None}
    assert [step["status"] for step in said["steps"]] == ["skipped"] * 3
    assert said["body"] == body.decode()


@pytest.mark.parametrize(
    "body", [b'{"model":"big","x":NaN}', b'\xef\xbb\xbf{"model":"big"}', b'{"model":"caf\xe9"}']
)
def test_a_body_that_may_not_stand_in_json_is_text(make_pipeline: MakePipeline, body: bytes) -> None:
    pipeline = make_pipeline("version: 1\nroutes: [{name: all, match: {}}]")
    assert isinstance(explained(pipeline, body)["body"], str)


def test_a_lone_surrogate_is_shown_as_written(make_pipeline: MakePipeline) -> None:
    routes = "[{name: other, match: {model: x}}, {name: all, match: {}}]"
    said = explained(make_pipeline(f"version: 1\nroutes: {routes}"), b'{"model":"\\ud83d"}')
    assert said["body"] == {"model": "\ud83d"}
    assert said["model"] == "\\ud83d"
    assert said["lost"][0]["reason"] == "model \\ud83d is not x"


def test_a_refusal_is_all_there_is(make_pipeline: MakePipeline) -> None:
    policy = POLICY.replace("{max: 800}", "{max: 800, on_exceed: reject}")
    said = explained(make_pipeline(policy), b'{"max_tokens":900}')
    steps = said["rejected"].pop("steps")
    assert [(step["name"], step["status"]) for step in steps][-1] == ("cap_output", "rejected")
    assert said["rejected"].pop("route")
    assert said == {
        "rejected": {
            "code": "rejected_by_policy",
            "status": 400,
            "message": "max_tokens is above this route's limit of 800",
            "param": "max_tokens",
        }
    }


POOLED = """
version: 1
routes:
  - name: chat
    match: {path: /v1/*}
    urgency: {default: soon}
    coalesce: {strategies: [share, merge, sample, pace]}
"""


def test_each_strategy_says_what_keeps_it_from_a_request(make_pipeline: MakePipeline) -> None:
    said = explained(make_pipeline(POOLED, is_pooling=True), b'{"model":"m","temperature":0,"messages":[]}')
    obstacles = {each["name"]: each["obstacle"] for each in said["strategies"]}
    assert list(obstacles) == ["share", "merge", "sample", "warm", "pace"]
    assert obstacles["share"] is None
    assert obstacles["merge"] == "not embeddings, moderations or completions"
    assert obstacles["warm"] == "not among the route's strategies"
    assert obstacles["pace"] == "max_in_flight is not set"


def test_on_other_lanes_no_strategy_is_asked(make_pipeline: MakePipeline) -> None:
    assert explained(make_pipeline(POLICY), QUESTION)["strategies"] == []
