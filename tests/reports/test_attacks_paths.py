"""Ways around a route: other spellings of its path, and the upstream's own path for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.chat import ANSWER
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir import weir

BODY = b'{"model":"m","messages":[],"max_tokens":999}'
POLICY = """
version: 1
upstreams:
  up: {base_url: "%s", api_key: secret}
routes:
  - name: limited
    match: {path: /v1/chat/completions}
    steps: [{cap_output: {max: 10}}]
"""


def answer(call: Call) -> None:
    call.json(ANSWER)


def asked(tmp_path: Path, base: str, target: str, policy: str = POLICY) -> tuple[int, Call | None]:
    """Return the status of a request to `target` and what came of it at an upstream with that base path."""
    with RawUpstream(answer) as upstream:
        url = upstream.url.removesuffix("/v1")
        with weir(tmp_path, None, policy % (url + base)) as proxy:
            status = proxy.client().request("POST", target, BODY).status
        return status, upstream.calls[0] if upstream.calls else None


@pytest.mark.parametrize(
    ("base", "target"),
    [
        ("/openai/v1", "/openai/v1/chat/completions"),
        ("/openai/v1/", "/openai/v1/chat/completions/?a=b"),
        ("/openai/v1", "/OpenAI/V1/chat/completions"),
        ("/openai/v1", "/openai/%761/chat/completions"),
        ("/openai/v1", "/openai;a=b/v1;c/chat/completions"),
        ("/openai/v1", "/openai/v1/chat%2fcompletions"),
        ("/OpenAI/v1", "/openai/v1/chat/completions"),
        ("/open%61i/v1", "/openai/v1/chat/completions"),
        ("/api", "/api/chat/completions"),
        ("", "/chat/completions"),
        ("/v1", "/v1/Chat/Completions"),
        ("/v1", "/v1/chat/completions;x=1"),
        ("/v1", "/v1/chat;/completions"),
        ("/v1", "/v1/chat%252Fcompletions"),
        ("/v1", "/v1/chat%25252Fcompletions"),
        ("/v1", "/v1/%2563hat/completions"),
    ],
)
def test_no_spelling_of_a_path_dodges_its_route(tmp_path: Path, base: str, target: str) -> None:
    status, call = asked(tmp_path, base, target)
    assert status == 200
    assert call is not None
    assert json.loads(call.body)["max_tokens"] == 10
    reached = base.rstrip("/") + target.removeprefix("/v1") if target.startswith("/v1") else target
    assert call.target == reached.encode(), "what the caller would have reached"


@pytest.mark.parametrize(
    ("base", "target"),
    [
        ("/v1/openai", "/%761/openai/chat/completions"),
        ("/v1/openai", "/V1/openai/chat/completions"),
        ("/v1/openai", "/v1;x/openai/chat/completions"),
        ("/v1/openai", "/v1%2fopenai/chat/completions"),
        ("/v1/openai", "/%25761/openai/chat/completions"),
        ("/openai/v1", "/openai%2fv1/chat/completions"),
        ("/openai/v1", "/openai%252fv1/chat/completions"),
        ("/v1", "/v1/;x/chat/completions"),
        ("/v1", "/v1/chat%2525252Fcompletions"),
    ],
)
def test_a_path_that_hides_what_it_asks_for_is_refused(tmp_path: Path, base: str, target: str) -> None:
    assert asked(tmp_path, base, target) == (400, None)


TWO = """
version: 1
upstreams:
  first: {base_url: "%s/first/v1"}
  second: {base_url: "%s/second/v1"}
  house: {base_url: "%s/house"}
defaults: {upstream: first}
routes:
  - name: limited
    match: {path: /v1/chat/completions}
    steps: [{cap_output: {max: 10}}]
    upstream: %s
"""


@pytest.mark.parametrize(
    ("chosen", "target", "reached"),
    [
        ("first", "/first/v1/chat/completions", "/first/v1/chat/completions"),
        ("first", "/second/v1/chat/completions", "/second/v1/chat/completions"),
        ("house", "/first/v1/chat/completions?a=b", "/house/chat/completions?a=b"),
        ("house", "/FIRST/v1/chat/completions", "/house/chat/completions"),
    ],
)
def test_the_chosen_upstream_is_asked_in_its_own_terms(
    tmp_path: Path, chosen: str, target: str, reached: str
) -> None:
    with RawUpstream(answer) as origin, RawUpstream(answer) as house:
        here, there = (server.url.removesuffix("/v1") for server in (origin, house))
        with weir(tmp_path, None, TWO % (here, here, there, chosen)) as proxy:
            told = proxy.client().request("POST", target, BODY)
    assert told.header("x-weir-route") == "limited"
    (call,) = origin.calls + house.calls
    assert call.target == reached.encode()
    assert (len(house.calls) == 1) is (chosen == "house")
    assert json.loads(call.body)["max_tokens"] == 10


def test_an_upstream_that_a_route_for_other_paths_leads_to_is_not_dodged_either(tmp_path: Path) -> None:
    policy = """
version: 1
upstreams: {first: {base_url: "http://127.0.0.1:9/v1"}, second: {base_url: "%s/deep/v1"}}
defaults: {upstream: first}
routes:
  - {name: limited, match: {path: /v1/chat/completions}, upstream: second, steps: [{cap_output: {max: 10}}]}
  - {name: rest, match: {}, upstream: second}
"""
    with (
        RawUpstream(answer) as upstream,
        weir(tmp_path, None, policy % upstream.url.removesuffix("/v1")) as proxy,
    ):
        told = proxy.client().request("POST", "/deep/v1/chat/completions", BODY)
        other = proxy.client().request("POST", "/elsewhere", BODY)
    assert (told.header("x-weir-route"), other.header("x-weir-route")) == ("limited", "rest")
    assert json.loads(upstream.calls[0].body)["max_tokens"] == 10
    assert [call.target for call in upstream.calls] == [b"/deep/v1/chat/completions", b"/elsewhere"]


def test_a_route_may_name_an_upstreams_own_path(tmp_path: Path) -> None:
    policy = POLICY.replace("/v1/chat/completions", "/openai/v1/chat/*")
    status, call = asked(tmp_path, "/openai/v1", "/openai/v1/chat/completions", policy)
    assert status == 200
    assert call is not None
    assert json.loads(call.body)["max_tokens"] == 10


def test_a_body_of_an_unnamed_path_is_read_as_what_its_name_below_v1_speaks(tmp_path: Path) -> None:
    policy = POLICY.replace("/v1/chat/completions", "/v1/messages")
    status, call = asked(tmp_path, "/api/llm", "/api/llm/messages", policy)
    assert status == 200
    assert call is not None
    assert json.loads(call.body)["max_tokens"] == 10
