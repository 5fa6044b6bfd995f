"""P7: every decision explains itself, and what is explained is what a live call then does.

Shipped policies and all golden cases run live against a recording upstream: headers, log and the bytes sent
must equal what `POST /explain` had said just before; `weir explain` and a dry run say the same.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proxy.app import load_policies
from proxy.cli.main import main
from proxy.policy.builtin import PLACEHOLDER
from proxy.policy.load import load
from proxy.settings import Settings
from proxy.tokens.counter import TokenCounter
from proxy.tokens.port import Counter
from proxy.tokens.vocabulary import Vocabularies
from tests.golden.case import GoldenCase, case_files, read_case
from tests.support.chat import ANSWER, CHAT, CHAT_STREAM, DONE, PATH, chat_policy, delta, finish
from tests.support.explained import (
    Asked,
    ask_all,
    compared,
    explanation,
    leads_to,
    live_through,
    steps_header,
)
from tests.support.raw_client import RawClient
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.served import served
from tests.support.weir import weir

ROOT = Path(__file__).resolve().parent.parent.parent
SHIPPED = sorted([*(ROOT / "policies").glob("*.yaml"), *(ROOT / "policies" / "examples").glob("*.yaml")])
ENVIRONMENT = {"OPENAI_API_KEY": "sk-made-up"}


def answer(call: Call) -> None:
    """Answer in a shape that every API takes for an answer."""
    if b'"stream":true' in call.body or b'"stream": true' in call.body:
        call.stream_head()
        call.chunk(delta("x") + finish() + DONE)
        call.end_chunks()
    else:
        call.json(ANSWER)


@pytest.fixture(scope="module")
def counter() -> Counter:
    """The counter that `weir serve` and `weir explain` use."""
    return TokenCounter(Vocabularies())


# --- shipped policies ---------------------------------------------------------------------------------------


def chat(*said: str, **fields: Any) -> bytes:
    """Return a chat request in which these things were said in turn."""
    roles = ("user", "assistant")
    messages = [{"role": roles[index % 2], "content": text} for index, text in enumerate(said or ("hi",))]
    return json.dumps({"model": "gpt-4o", "messages": messages} | fields).encode()


TOOL_LOOP = json.dumps(
    {
        "model": "gpt-4o",
        "messages": [
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "1", "content": "line\n" * 3000},
        ],
    }
).encode()

REQUESTS = [
    Asked(),
    Asked(CHAT_STREAM),
    Asked(chat(), "/v1/responses"),
    Asked(b'{"model":"claude-5","max_tokens":9,"messages":[]}', "/v1/messages"),
    Asked(b'{"model":"m","prompt":"hi"}', "/v1/completions"),
    Asked(b'{"model":"m","input":["a","b"]}', "/v1/embeddings"),
    Asked(b'{"input":"a"}', "/v1/moderations"),
    Asked(b'{"model":"gpt-4o"}', "/openai/deployments/x/chat/completions"),
    Asked(b"not json"),
    Asked(b"[1,2]", "/v1/embeddings"),
    *(
        Asked(body, headers=headers)
        for headers in (
            {"x-team": "support"},
            {"x-team": "helpdesk"},
            {"x-team": "agents"},
            {"x-app": "extract-1"},
            {"x-app": "parties"},
            {"x-app": "transcripts"},
            {"x-app": "live-chat"},
            {"x-job": "nightly-7"},
        )
        for body in (chat(), chat(stream=True), chat(max_tokens=5000, stop=["a", "b", "c", "d"]), TOOL_LOOP)
    ),
    Asked(chat("word " * 900, "yes " * 900, "so?"), headers={"x-team": "helpdesk"}),
    Asked(chat(temperature=1, seed=2, n=3), headers={"x-app": "extract-1"}),
    Asked(chat(logit_bias={"1": 2}), headers={"x-app": "extract-1"}),
    Asked(chat(model="o3"), headers={"x-app": "transcripts"}),
    Asked(chat(model="gpt-4o-mini"), headers={"x-app": "live-chat", "x-weir-urgency": "deferrable"}),
    Asked(chat(model="gpt-4o-mini"), headers={"x-app": "live-chat"}),
    Asked(chat(model="llama-3")),
    Asked(chat("Is this contract fine?")),
    Asked(chat("word " * 2000)),
    *(
        Asked(chat("hello"), headers={name: value})
        for name, value in (
            ("x-job", "classify"),
            ("x-app", "long-instructions"),
            ("x-app", "handbook"),
            ("x-app", "research"),
            ("x-app", "tickets"),
        )
    ),
]


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_a_shipped_policy_does_what_it_explains(tmp_path: Path, file: Path, counter: Counter) -> None:
    with RawUpstream(answer) as upstream:
        settings = Settings(policies=(str(file),), upstream_url=upstream.url)
        policies = leads_to(load_policies(settings, ENVIRONMENT), upstream.url)
        with weir(tmp_path, None, policies, counter=counter) as proxy:
            told = ask_all(proxy, upstream, REQUESTS)
    taken = {each["route"] for each in told if "rejected" not in each}
    assert taken >= {route.name for route in policies.routes}, "REQUESTS leave a route of this policy out"


SOME_SHIPPED = [
    file for file in SHIPPED if file.stem in ("00-default", "cap-output", "choose-model", "urgent-chat")
]
"""All say the same through the same code; loading the vocabularies for each of them would take its time."""


@pytest.mark.parametrize("file", SOME_SHIPPED, ids=lambda file: file.stem)
def test_the_command_says_what_the_admin_api_says(
    tmp_path: Path,
    file: Path,
    counter: Counter,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", ENVIRONMENT["OPENAI_API_KEY"])
    monkeypatch.delenv("WEIR_UPSTREAM", raising=False)
    headers = {"x-team": "support", "x-app": "extract-1"}
    asked = tmp_path / "request.json"
    asked.write_bytes(chat("what?", temperature=1))
    command = ["explain", "--json", "--policies", str(file), str(asked)]
    command += [word for name, value in headers.items() for word in ("--header", f"{name}: {value}")]
    assert main(command) == 0
    printed = capsysbinary.readouterr().out
    with RawUpstream(answer) as upstream:
        settings = Settings(policies=(str(file),), upstream_url="https://api.openai.com/v1")
        policies = leads_to(load_policies(settings, ENVIRONMENT), upstream.url)
        with weir(tmp_path, None, policies, counter=counter) as proxy:
            assert explanation(proxy, PATH, asked.read_bytes(), list(headers.items())) + b"\n" == printed


# --- golden cases, live -------------------------------------------------------------------------------------


def live(case: GoldenCase) -> bool:
    """Tell whether a case can be asked over the wire without further preparation."""
    return case.method == "POST" and not case.refused


CASES = [case for file in case_files() if live(case := read_case(file))]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.file.stem)
def test_a_golden_case_does_live_what_it_explains(tmp_path: Path, case: GoldenCase) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(case.policy, encoding="utf-8")
    with RawUpstream(answer) as upstream:
        policies = leads_to(load([str(policy)], {}, PLACEHOLDER), upstream.url)
        with weir(tmp_path, None, policies) as proxy:
            lived = live_through(proxy, upstream, Asked(case.body, case.path, case.headers))
    # Now that it has stopped, its log is written.
    (told,) = compared(proxy, [lived])
    assert case.expect is not None
    if "rejected" in case.expect:
        assert told["rejected"]["code"] == case.expect["rejected"]["code"]
    else:
        assert told["route"] == case.expect["route"]


def test_most_golden_cases_are_asked_live() -> None:
    assert len(CASES) > 0.9 * len(case_files())


# --- every reason -------------------------------------------------------------------------------------------

REASONS = f"""
version: 1
routes:
  - name: batch
    match: {{path: ["{PATH}", /v1/odd], headers: {{x-route: batch}}}}
    urgency: {{default: deferrable, deadline: 24h}}
    caller_patience: 10m
    batch: {{upstream_tiers: [batch]}}
  - name: no-batch
    match: {{path: {PATH}, headers: {{x-route: no-batch}}}}
    urgency: {{default: deferrable}}
  - name: soon
    match: {{path: ["{PATH}", /v1/odd], headers: {{x-route: soon}}}}
    urgency: {{default: soon}}
  - name: ruled
    match: {{path: {PATH}, headers: {{x-route: ruled}}}}
    urgency:
      rules:
        - {{match: {{headers: {{x-a: "1"}}}}, urgency: soon}}
        - {{match: {{model: "late-*"}}, urgency: deferrable}}
  - name: chat
    match: {{path: [{PATH}, /v1/responses, /v1/odd]}}
    allow_caller: [x-weir-urgency]
"""

BACKGROUND = b'{"model":"m","input":"a","background":true}'
URGENT: list[tuple[Asked, str, str]] = [
    (Asked(headers={"x-weir-urgency": "soon"}), "soon", "header x-weir-urgency"),
    (
        Asked(headers={"x-weir-urgency": "later"}),
        "interactive",
        "route default; x-weir-urgency ignored: not one of interactive, soon, deferrable",
    ),
    (
        Asked(headers={"x-weir-urgency": "soon", "x-route": "ruled"}),
        "interactive",
        "route default; x-weir-urgency ignored: the route does not allow it",
    ),
    *(
        (Asked(chat(service_tier=tier)), urgency, f"service_tier {tier}")
        for tier, urgency in (
            ("flex", "deferrable"),
            ("priority", "interactive"),
            ("fast", "interactive"),
            ("ultrafast", "interactive"),
        )
    ),
    (
        Asked(b'{"model":"m","input":"a","background":true}', "/v1/responses"),
        "deferrable",
        "background requested",
    ),
    (Asked(CHAT_STREAM), "interactive", "stream requested"),
    (Asked(headers={"x-route": "ruled", "x-a": "1"}), "soon", "route rule 1"),
    (Asked(chat(model="late-1"), headers={"x-route": "ruled"}), "deferrable", "route rule 2"),
    (Asked(), "interactive", "route default"),
    (
        Asked(TOOL_LOOP, headers={"x-route": "batch"}),
        "interactive",
        "tool loop in progress: never deferrable (route default)",
    ),
    (Asked(path="/v1/files"), "interactive", "no route matched"),
]
LANES: list[tuple[Asked, str, str]] = [
    (Asked(), "stream", "interactive"),
    (Asked(headers={"x-route": "soon"}), "coalesce", "soon"),
    (Asked(path="/v1/odd", headers={"x-route": "soon"}), "stream", "unknown API shape is not pooled (soon)"),
    (
        Asked(path="/v1/odd", headers={"x-route": "batch"}),
        "stream",
        "unknown API shape cannot be deferred (deferrable)",
    ),
    (
        Asked(CHAT_STREAM, headers={"x-weir-urgency": "deferrable"}),
        "coalesce",
        "a stream that needs its tokens as they come is not deferred (deferrable)",
    ),
    (Asked(headers={"x-route": "no-batch"}), "coalesce", "the route has no batch section (deferrable)"),
    (Asked(headers={"x-route": "batch"}), "coalesce", "batch lane not enabled (deferrable)"),
    (Asked(path="/v1/files"), "stream", "no route matched"),
]


def test_every_reason_of_urgency_and_lane_stands_in_header_log_and_explanation(tmp_path: Path) -> None:
    with served(tmp_path, answer, REASONS) as (proxy, upstream):
        told = ask_all(proxy, upstream, [each[0] for each in URGENT] + [each[0] for each in LANES])
        for each, (_, urgency, reason) in zip(told, URGENT, strict=False):
            assert each["urgency"] == {"value": urgency, "reason": reason}
        for each, (_, lane, reason) in zip(told[len(URGENT) :], LANES, strict=True):
            assert each["lane"] == {"value": lane, "reason": reason}
        for _, lane, reason in LANES[:-1]:
            assert proxy.metric("weir_lane_decisions_total", lane=lane, reason=reason) > 0


STEPS = chat_policy(
    "steps:",
    "  - cap_output: {default: 9}",
    "  - add_stop: [END]",
    "  - set_params: {chat_template_kwargs.thinking: {default: false}, top_p: {max: 1}}",
    "allow_caller: [x-weir-explain]",
)


def test_every_outcome_of_a_step_stands_in_header_log_and_explanation(tmp_path: Path) -> None:
    asked = [
        Asked(),
        Asked(b'{"model":"m","messages":[],"max_tokens":9,"stop":["END"],"top_p":2}'),
        Asked(b'{"model":"o3","messages":[],"stop":["1","2","3","4"]}'),
        Asked(b"not json"),
        Asked(b""),
    ]
    with served(tmp_path, answer, STEPS) as (proxy, upstream):
        told = ask_all(proxy, upstream, asked)
    statuses = {step["status"] for each in told for step in each.get("steps", [])}
    assert statuses == {"applied", "unchanged", "skipped"}, "failed: see test_p2_fail_open"


def test_the_header_of_steps_is_a_structured_field_whatever_a_step_is_about(tmp_path: Path) -> None:
    policy = chat_policy("steps: [{set_params: {topP: {default: 1}, _a.B: {default: 2}}}]")
    with served(tmp_path, answer, policy) as (proxy, _):
        got = proxy.client().request("POST", PATH, CHAT)
        (record,) = proxy.log(1)
    assert record["steps"] == ["set_params;applied;topP=default;_a.B=default"]
    (step,) = steps_header(got.header("x-weir-steps"))
    assert step["detail"] == {"topp": "default", "x_a.b": "default"}


def test_a_dry_run_is_the_same_object_and_sends_nothing(tmp_path: Path) -> None:
    dry = [("x-weir-explain", "dry-run")]
    with served(tmp_path, answer, STEPS) as (proxy, upstream):
        for body in (CHAT, CHAT_STREAM, b'{"model":"o3","messages":[]}', CHAT + b" " * 60_000):
            got = proxy.client().request("POST", PATH, body, dry)
            assert got.status == 200
            assert got.header("content-type") == "application/json"
            assert got.header("x-weir-request-id")
            assert got.body == explanation(proxy, PATH, body, dry)
        assert upstream.calls == []
        for record in proxy.log(4):
            assert (record["status"], record["upstream"], record["error"]) == (200, None, None)


def refused_runs() -> list[tuple[str, str]]:
    other = STEPS.replace("allow_caller: [x-weir-explain]", "allow_caller: [x-weir-urgency]")
    later = (
        f"version: 1\nroutes:\n  - {{name: mine, match: {{path: {PATH}, model: m}}}}\n"
        f"  - {{name: theirs, match: {{path: {PATH}}}, allow_caller: [x-weir-explain]}}\n"
    )
    return [("not listed", other), ("listed by another route", later), ("no route", "version: 1\n")]


@pytest.mark.parametrize(("kind", "policies"), refused_runs(), ids=[kind for kind, _ in refused_runs()])
def test_a_route_that_does_not_allow_a_dry_run_serves_the_request(
    tmp_path: Path, kind: str, policies: str
) -> None:
    with served(tmp_path, answer, policies) as (proxy, upstream):
        got = proxy.client().request("POST", PATH, CHAT, [("x-weir-explain", "dry-run")])
        assert (got.status, got.body) == (200, ANSWER)
        (call,) = upstream.calls
    assert call.header("x-weir-explain") is None


def test_a_rejected_request_names_its_route_and_step_in_log_and_header(tmp_path: Path) -> None:
    policy = chat_policy("steps: [{cap_output: {default: 9}}, {set_params: {seed: {forbid: true}}}]")
    with served(tmp_path, answer, policy) as (proxy, upstream):
        body = b'{"model":"gpt-4o","messages":[],"seed":1}'
        (told,) = ask_all(proxy, upstream, [Asked(body)])
        refusal = proxy.client().request("POST", PATH, body)
        record = proxy.log(2)[1]
    assert told["rejected"]["param"] == "seed"
    assert refusal.header("x-weir-route") == record["route"] == "chat"
    names = [(step["name"], step["status"]) for step in told["rejected"]["steps"]]
    assert names == [("cap_output", "applied"), ("set_params", "rejected")]
    assert [step["name"] for step in steps_header(refusal.header("x-weir-steps"))] == [
        "cap_output",
        "set_params",
    ]
    assert record["model"] == "gpt-4o"


def test_the_admin_api_refuses_a_path_that_no_request_may_have(tmp_path: Path) -> None:
    with served(tmp_path, answer, chat_policy()) as (proxy, _):
        host, _, port = proxy.admin_url.removeprefix("http://").rpartition(":")
        with RawClient((host, int(port))) as client:
            refusal = client.request("POST", "/explain?path=/v1/%2e%2e/x", CHAT)
    error = json.loads(refusal.body)["error"]
    assert (refusal.status, error["code"]) == (400, "bad_request_target")
    assert set(error) == {"message", "type", "param", "code"}
