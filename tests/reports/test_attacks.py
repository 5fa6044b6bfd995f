"""Faults that an attacker found before users could: each with its whole kind."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import pytest

from tests.support.chat import ANSWER, PATH, chat_policy
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.served import UPSTREAM, served
from tests.support.unix_upstream import UnixUpstream
from tests.support.weir import weir

SMUGGLED = b"POST /v1/admin/smuggled HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
JSON_BODY = b'{"model":"m","messages":[]}'
UPGRADES = {
    "h2c": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQ\r\n",
    "websocket": b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
    "unknown": b"Connection: upgrade\r\nUpgrade: foo\r\n",
}


def answer(call: Call) -> None:
    call.json(ANSWER)


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("body", [JSON_BODY, SMUGGLED], ids=["json", "request"])
@pytest.mark.parametrize("upgrade", UPGRADES)
@pytest.mark.parametrize("is_split", [False, True], ids=["one-packet", "two-packets"])
def test_the_body_of_a_request_that_asks_for_an_upgrade_is_its_body(
    tmp_path: Path, upgrade: str, body: bytes, framing: str, is_split: bool
) -> None:
    framed = body if framing == "length" else b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    length = b"Content-Length: %d" % len(body) if framing == "length" else b"Transfer-Encoding: chunked"
    head = b"POST /v1/other HTTP/1.1\r\nHost: weir.test\r\n%b%b\r\n\r\n" % (UPGRADES[upgrade], length)
    with served(tmp_path, answer) as (proxy, upstream):
        client = proxy.client()
        client.send(head)
        if is_split:
            time.sleep(0.02)
        client.send(framed)
        assert client.read_answer("POST").status == 200
        assert client.request("GET", "/v1/next").status == 200
    assert [call.target for call in upstream.calls] == [b"/v1/other", b"/v1/next"]
    assert upstream.calls[0].body == body
    assert upstream.calls[0].header("upgrade") is None


def test_asking_for_an_upgrade_dodges_no_policy(tmp_path: Path) -> None:
    policy = chat_policy("steps: [{cap_output: {max: 10}}]")
    with served(tmp_path, answer, policy) as (proxy, upstream):
        for name in ("websocket", "h2c"):
            body = b'{"model":"m","messages":[],"max_tokens":999}'
            headers = [("Connection", "Upgrade"), ("Upgrade", name)]
            assert proxy.client().request("POST", PATH, body, headers).status == 200
    assert [json.loads(call.body)["max_tokens"] for call in upstream.calls] == [10, 10]


BIG = b'{"model":"secret-1","messages":[{"role":"user","content":"%b"}]}' % (b"x" * 5000)
HOUSE = """
version: 1
upstreams:
  public: {base_url: "%s"}
  house: {base_url: "%s"}
defaults: {upstream: public}
routes:
  - name: confidential
    match: {path: /v1/chat/completions, %s}
    upstream: house
    max_body: 1KiB
"""


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_a_body_too_long_to_read_still_goes_to_its_routes_upstream(tmp_path: Path, framing: str) -> None:
    with RawUpstream(answer) as public, RawUpstream(answer) as house:
        policy = HOUSE % (public.url, house.url, "headers: {x-team: legal}")
        with weir(tmp_path, None, policy) as proxy:
            headers = [("x-team", "legal")]
            body = BIG
            if framing == "chunked":
                headers.append(("Transfer-Encoding", "chunked"))
                body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BIG), BIG)
            told = proxy.client().request("POST", PATH, body, headers)
    assert told.header("x-weir-route") == "confidential"
    assert (len(house.calls), len(public.calls)) == (1, 0)
    assert house.calls[0].body == BIG


def test_a_body_too_long_to_read_is_refused_where_it_decides_the_upstream(tmp_path: Path) -> None:
    with RawUpstream(answer) as public, RawUpstream(answer) as house:
        policy = HOUSE % (public.url, house.url, 'model: "secret-*"')
        with weir(tmp_path, None, policy) as proxy:
            refusal = proxy.client().request("POST", PATH, BIG)
            assert proxy.log(1)[0]["error"] == "body_too_large"
    assert refusal.status == 413
    assert (len(house.calls), len(public.calls)) == (0, 0)


def test_a_handshake_goes_to_its_routes_upstream(tmp_path: Path) -> None:
    with RawUpstream(answer) as public, RawUpstream(answer) as house:
        policy = (HOUSE % (public.url, house.url, "headers: {x-team: legal}")).replace(
            "/v1/chat/completions", "/v1/realtime"
        )
        headers = [("x-team", "legal"), ("Connection", "Upgrade"), ("Upgrade", "websocket")]
        with weir(tmp_path, None, policy) as proxy:
            assert proxy.client().request("GET", "/v1/realtime", None, headers).status == 200
    assert (len(house.calls), len(public.calls)) == (1, 0)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_body_of_very_many_compressed_members_holds_nobody_up(tmp_path: Path, layers: int) -> None:
    bomb = gzip.compress(b"") * 50_000
    coding = "gzip"
    if layers == 2:
        bomb, coding = gzip.compress(bomb), "gzip, gzip"
    policy = chat_policy("steps: [{cap_output: {max: 10}}]")
    with served(tmp_path, answer, policy) as (proxy, _):
        refusal = proxy.client().request("POST", PATH, bomb, [("Content-Encoding", coding)])
    assert (refusal.status, json.loads(refusal.body)["error"]["code"]) == (400, "invalid_body")


UNSUPPORTED = b'{"error":{"message":"Unsupported parameter: \'max_tokens\'","param":"max_tokens"}}'
TOO_LARGE = b'{"error":{"message":"max_tokens is too large: 300","param":"max_tokens"}}'


@pytest.mark.parametrize(
    ("refusal", "always", "learns"),
    [(UNSUPPORTED, False, True), (UNSUPPORTED, True, False), (TOO_LARGE, False, False)],
    ids=["unsupported", "the caller's own mistake quotes it", "a value wrong for one prompt"],
)
def test_only_a_confirmed_refusal_of_a_parameter_is_remembered(
    tmp_path: Path, refusal: bytes, always: bool, learns: bool
) -> None:
    def script(call: Call) -> None:
        if b"trouble" in call.body and (always or b"max_tokens" in call.body):
            call.json(refusal, b"400 Bad Request")
        else:
            call.json(ANSWER)

    policy = chat_policy("steps: [{cap_output: {default: 300}}]", base_url=UPSTREAM)
    with served(tmp_path, script, policy) as (proxy, upstream):
        client = proxy.client()
        client.request("POST", PATH, b'{"model":"m","messages":[],"user":"trouble"}')
        client.request("POST", PATH, b'{"model":"m","messages":[],"user":"calm"}')
    assert (b"max_tokens" not in upstream.calls[-1].body) is learns


@pytest.mark.parametrize("tokens", ["1" + "0" * 400, "1e400", "-5", str(2**70)])
def test_absurd_usage_is_no_usage_and_still_one_record(tmp_path: Path, tokens: str) -> None:
    body = b'{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":%b}}' % tokens.encode()

    with served(tmp_path, lambda call: call.json(body), chat_policy()) as (proxy, _):
        told = proxy.client().request("POST", PATH, JSON_BODY)
        (record,) = proxy.log(1)
        assert proxy.metric("weir_in_flight") == 0
    assert told.body == body
    assert record["tokens_in"] is None


def test_a_request_over_a_unix_socket_is_never_sent_twice(tmp_path: Path) -> None:
    with UnixUpstream(tmp_path / "upstream.sock", answers=1) as upstream:
        policy = (
            "version: 1\nupstreams: {local: {base_url: 'http://local/v1', "
            f"unix_socket: {upstream.path}}}}}\n"
        )
        with weir(tmp_path, None, policy) as proxy:
            client = proxy.client()
            assert client.request("POST", "/v1/x", b"{}").status == 200
            assert client.request("POST", "/v1/x", b"{}").status == 502
    assert upstream.requests == 2
