"""Who says how much: header levels, pass-through and refusals, upstreams' own timing, browsers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.chat import ANSWER, CHAT, CHAT_STREAM, DONE, PATH, chat_policy, delta, finish
from tests.support.raw_client import RawAnswer
from tests.support.raw_upstream import Call
from tests.support.served import served
from tests.support.timing import entries

WEIRS = ("x-weir-", "server-timing")


def own_headers(answer: RawAnswer) -> set[str]:
    """Return the names of the headers that Weir added."""
    names = {name.decode().lower() for name, _ in answer.headers}
    return {name for name in names if name.startswith(WEIRS)}


MINIMAL = {"x-weir-request-id", "server-timing", "x-weir-ttft-ms"}
LEVELS = {
    'headers: "off"': set(),
    "headers: minimal": MINIMAL,
    "headers: full": MINIMAL
    | {"x-weir-route", "x-weir-policy", "x-weir-urgency", "x-weir-lane", "x-weir-steps"},
}


@pytest.mark.parametrize("level", LEVELS)
def test_a_route_says_how_much_is_said(tmp_path: Path, level: str) -> None:
    def script(call: Call) -> None:
        if b'"stream":true' in call.body:
            call.stream_head()
            call.chunk(delta("x") + finish() + DONE)
            call.end_chunks()
        elif call.header("x-do") == b"close":
            call.close()
        else:
            call.json(ANSWER, b"418 Teapot" if call.header("x-do") == b"418" else b"200 OK")

    policy = chat_policy(level, "steps: [{cap_output: {default: 9}}]")
    with served(tmp_path, script, policy) as (proxy, _):

        def ask(body: bytes, do: str = "") -> RawAnswer:
            with proxy.client() as client:
                return client.request("POST", PATH, body, [("x-do", do)])

        assert own_headers(ask(CHAT_STREAM)) == LEVELS[level]
        unary = LEVELS[level] - {"x-weir-ttft-ms"}
        for do in ("", "418", "close"):
            assert own_headers(ask(CHAT, do)) == unary
        (record, *_) = proxy.log(4)
    assert record["ttft_ms"] is not None, "the log is not asked"
    assert record["overhead_ms"] > 0


def test_what_passes_through_and_what_is_refused_says_it_too(tmp_path: Path) -> None:
    with served(tmp_path, lambda call: call.json(ANSWER), chat_policy()) as (proxy, _):
        passed = proxy.client().request("GET", "/v1/models")
        refused = proxy.client().request("GET", "/v1/../x")
    unmatched = {"x-weir-request-id", "x-weir-policy", "x-weir-urgency", "x-weir-lane", "server-timing"}
    assert own_headers(passed) == unmatched
    assert passed.header("x-weir-lane") == 'stream; reason="no route matched"'
    assert set(entries(passed)) == {"queue", "connect", "first_byte", "overhead"}
    assert own_headers(refused) == {"x-weir-request-id", "x-weir-policy", "server-timing"}


@pytest.mark.parametrize("body", [CHAT, CHAT_STREAM], ids=["unary", "stream"])
@pytest.mark.parametrize("policies", [None, chat_policy()], ids=["unmatched", "matched"])
def test_server_timing_is_appended_to_the_upstreams_own(
    tmp_path: Path, policies: str | None, body: bytes
) -> None:
    own = b'Server-Timing: cache;desc="hit";dur=1.5, db\r\nserver-timing: app;dur=2\r\n'

    def script(call: Call) -> None:
        if body is CHAT:
            call.json(ANSWER, headers=own)
        else:
            call.stream_head(own)
            call.chunk(delta("x") + finish() + DONE)
            call.end_chunks()

    with served(tmp_path, script, policies) as (proxy, _):
        lines = proxy.client().request("POST", PATH, body).all("server-timing")
    assert lines[:2] == ['cache;desc="hit";dur=1.5, db', "app;dur=2"]
    assert len(lines) == 3
    assert "overhead;dur=" in lines[2]


@pytest.mark.parametrize("origin", ["*", "https://app.test"])
def test_browsers_may_read_it_where_the_upstream_answers_them(tmp_path: Path, origin: str) -> None:
    headers = f"Access-Control-Allow-Origin: {origin}\r\n".encode()
    with served(tmp_path, lambda call: call.json(ANSWER, headers=headers), chat_policy()) as (proxy, _):
        answer = proxy.client().request("POST", PATH, CHAT)
    exposed = {
        name.strip().lower() for name in (answer.header("access-control-expose-headers") or "").split(",")
    }
    assert own_headers(answer) <= exposed


def test_weirs_headers_stand_after_the_upstreams(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        call.json(ANSWER, headers=b"X-B: 1\r\nX-A: 2\r\n")

    with served(tmp_path, script, chat_policy()) as (proxy, _):
        answer = proxy.client().request("POST", PATH, CHAT)
    names = [name.decode() for name, _ in answer.headers]
    assert names[:4] == ["Content-Type", "X-B", "X-A", "Content-Length"]
    assert all(name.lower().startswith(WEIRS) for name in names[4:])
