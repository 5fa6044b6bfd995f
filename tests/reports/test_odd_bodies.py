"""Answers that are not what was asked for, and requests that are JSON only by name (reports B123, B124)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.chat import ANSWER, CHAT, CHAT_STREAM, PATH, chat_policy
from tests.support.raw_client import RawAnswer
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir import weir

POLICIES = pytest.mark.parametrize("policies", [None, chat_policy()], ids=["unmatched", "matched"])
REQUESTS = pytest.mark.parametrize("body", [CHAT, CHAT_STREAM], ids=["whole", "stream"])
STEPS = chat_policy(
    "steps: [{cap_output: {default: 50}}, {add_stop: ['###']}, {set_params: {top_p: {default: 1}}}]"
)
CAPPED = chat_policy(
    "steps: [{cap_output: {default: 20, max: 50}}, {set_params: {n: {max: 2}, store: {forbid: true}}}]"
)
HTML = b"<html><body>502 Bad Gateway</body></html>"


def answer_ok(call: Call) -> None:
    call.json(ANSWER)


# B123
@POLICIES
@REQUESTS
@pytest.mark.parametrize(
    ("status", "content_type", "text"),
    [
        (b"502 Bad Gateway", b"text/html", HTML),
        (b"200 OK", b"text/html; charset=utf-8", HTML),
        (b"200 OK", b"application/json", HTML),
        (b"200 OK", b"application/json", b""),
        (b"500 Oops", b"application/json", b""),
        (b"200 OK", b"application/json", ANSWER[:40]),
        (b"200 OK", b"application/json", b"\xff\xfe\x00"),
        (b"200 OK", b"application/json", b"[]"),
        (b"200 OK", b"application/json", b"null"),
        (b"200 OK", b"application/json", b'{"choices":null,"usage":[]}'),
        (b"200 OK", b"application/json", b'{"choices":[1,null,{"message":3}],"usage":{"prompt_tokens":"x"}}'),
        (b"200 OK", b"application/json", b'{"usage":{"prompt_tokens":1e400,"completion_tokens":-5}}'),
        (b"200 OK", b"application/json", b'{"logprobs":-Infinity,"x":NaN}'),
        (b"200 OK", b"text/plain", b"data: not really a stream\n\n"),
        (b"299 Unheard Of", b"application/octet-stream", bytes(range(256))),
    ],
)
def test_an_answer_that_makes_no_sense_is_relayed(
    tmp_path: Path, policies: str | None, body: bytes, status: bytes, content_type: bytes, text: bytes
) -> None:
    def script(call: Call) -> None:
        call.send(
            b"HTTP/1.1 %b\r\nContent-Type: %b\r\nX-Own: 1\r\nContent-Length: %d\r\n\r\n%b"
            % (status, content_type, len(text), text)
        )

    with (
        RawUpstream(script) as upstream,
        weir(tmp_path, upstream.url, policies) as proxy,
        proxy.client() as client,
    ):
        for _ in range(2):
            answer = client.request("POST", PATH, body)
            assert (answer.status, answer.reason) == (int(status[:3]), status[4:])
            assert (answer.body, answer.is_whole) == (text, True)
            assert (answer.header("content-type"), answer.header("x-own")) == (content_type.decode(), "1")
        assert proxy.log(2)[0]["error"] is None


# B123
@POLICIES
@REQUESTS
@pytest.mark.parametrize("is_reset", [False, True])
def test_an_answer_shorter_than_it_says_is_never_a_whole_one(
    tmp_path: Path, policies: str | None, body: bytes, is_reset: bool
) -> None:
    def script(call: Call) -> None:
        call.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (len(ANSWER) + 100, ANSWER)
        )
        if is_reset:
            call.reset()
        else:
            call.close()

    with RawUpstream(script) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        try:
            answer: RawAnswer | None = proxy.client().request("POST", PATH, body)
        except ConnectionError:
            answer = None
        record = proxy.log(1)[0]
        assert len(upstream.calls) == 1, "not sent again: the upstream had begun work"
    if policies is not None:
        # The head was held for the body, so that there still is a true status to give.
        assert answer is not None
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (502, "upstream_closed")
    elif answer is not None:
        assert (answer.status, answer.is_whole) == (200, False)
    assert record["error"] == "upstream_closed"


ODD = {
    "array": b"[]",
    "array-of-objects": b'[{"model":"m","max_tokens":9999}]',
    "text": b'"hi"',
    "number": b"1",
    "null": b"null",
    "true": b"true",
    "empty": b"",
    "spaces": b" \r\n\t",
    "broken": b'{"model":"m","max_tokens":9999',
    "trailing-comma": b'{"model":"m","max_tokens":9999,}',
    "comment": b'{"model":"m",/* */"max_tokens":9999}',
    "two-objects": b'{"model":"m"}{"max_tokens":9999}',
    "single-quotes": b"{'model':'m','max_tokens':9999}",
    "utf-16": '{"model":"m","max_tokens":9999}'.encode("utf-16"),
    "utf-32": '{"model":"m","max_tokens":9999}'.encode("utf-32-le"),
    "form": b"model=m&max_tokens=9999",
    "binary": bytes(range(256)),
    "nul": b'{"model":"m"}\x00',
}
READABLE = {
    "bom": b'\xef\xbb\xbf{"model":"m","messages":[]}',
    "messages-text": b'{"model":"m","messages":"hi"}',
    "messages-object": b'{"model":"m","messages":{"role":"user"}}',
    "messages-null": b'{"model":"m","messages":null}',
    "messages-odd": b'{"model":"m","messages":[1,null,"x",[],{"role":7,"content":{}}]}',
    "stream-text": b'{"model":"m","messages":[],"stream":"true"}',
    "stream-number": b'{"model":"m","messages":[],"stream":1}',
    "stream-options-odd": b'{"model":"m","messages":[],"stream":true,"stream_options":[1]}',
    "model-odd": b'{"model":["m"],"messages":[]}',
    "stop-odd": b'{"model":"m","messages":[],"stop":7}',
    "tools-odd": b'{"model":"m","messages":[],"tools":"x","tool_choice":9,"response_format":[]}',
    "empty-object": b"{}",
    "nan": b'{"model":"m","messages":[],"x":NaN,"y":-Infinity}',
    "surrogates": b'{"model":"m","messages":[],"x":"\\ud83c","\\ud800":1}',
    "not-utf-8": b'{"model":"m","messages":[],"x":"\xff\xfe","\xff":1}',
}
TYPES = ["application/json", "application/json; charset=utf-16", "text/plain", "", "application/xml;;", "é"]


# B124
@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("policies", [None, chat_policy(), STEPS], ids=["unmatched", "matched", "steps"])
def test_a_body_that_is_no_object_passes_untouched(tmp_path: Path, kind: str, policies: str | None) -> None:
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        client = proxy.client()
        for content_type in TYPES:
            assert client.request("POST", PATH, ODD[kind], [("Content-Type", content_type)]).status == 200
        assert [call.body for call in upstream.calls] == [ODD[kind]] * len(TYPES)
        assert {record["error"] for record in proxy.log(len(TYPES))} == {None}


# B124
@pytest.mark.parametrize("kind", ODD)
def test_a_body_that_could_hide_from_a_limit_is_refused(tmp_path: Path, kind: str) -> None:
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, CAPPED) as proxy:
        answer = proxy.client().request("POST", PATH, ODD[kind], [("Content-Type", "text/plain")])
        bodies = [call.body for call in upstream.calls]
    if kind in ("empty", "spaces"):
        assert (answer.status, bodies) == (200, [ODD[kind]])
    else:
        assert (answer.status, bodies) == (400, [])
        assert json.loads(answer.body)["error"]["code"] == "invalid_body"


# B124
def test_only_limits_that_could_apply_refuse_an_unreadable_body(tmp_path: Path) -> None:
    free = (
        "version: 1\nroutes:\n  - {name: free, match: {path: /v1/chat/completions, headers: {x-free: '*'}}}\n"
    )
    capped = "  - {name: capped, match: {path: '/v1/*'}, steps: [{cap_output: {max: 50}}]}\n"
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, free + capped) as proxy:
        client = proxy.client()
        assert client.request("POST", PATH, b"{", [("X-Free", "1")]).status == 200
        assert client.request("POST", "/v1/audio/speech", b"{").status == 200, "an API without caps"
        assert client.request("GET", "/v1/models").status == 200
        assert client.request("GET", PATH).status == 200
        assert client.request("POST", PATH, b"{").status == 400


# B124
@pytest.mark.parametrize("kind", READABLE)
@pytest.mark.parametrize("policies", [None, chat_policy("usage: off"), STEPS, CAPPED])
def test_an_object_of_odd_types_never_fails(tmp_path: Path, kind: str, policies: str | None) -> None:
    body = READABLE[kind]
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        for content_type in ("application/json; charset=utf-8", "text/plain"):
            answer = proxy.client().request("POST", PATH, body, [("Content-Type", content_type)])
            sent = upstream.calls[-1].body
            assert answer.status == 200
            assert "failed" not in (answer.header("x-weir-steps") or "")
            # Whatever was added stands behind what the caller wrote.
            is_whole = policies is None or "steps" not in policies
            assert sent == body if is_whole else sent.startswith(body[:-1])


def every_value(body: bytes, name: str) -> list[object]:
    """Return all values of a top-level key, as the most lenient reader might take any of them."""
    pairs: list[tuple[str, object]] = json.loads(body, object_pairs_hook=list)
    return [value for key, value in pairs if key == name]


# B124
@pytest.mark.parametrize(
    "text",
    [
        '"max_tokens":9999,"max_tokens":10',
        '"max_tokens":10,"max_tokens":9999',
        '"max_tokens":null,"max_tokens":9999',
        '"max_tokens":9999,"max_tokens":null',
        r'"max\u005ftokens":9999,"max_tokens":10',
        r'"max_tokens":10,"\u006dax_tokens":9999',
        '"max_tokens":9999,"max_completion_tokens":9999',
        '"max_completion_tokens":10,"max_tokens":9999',
        '"max_tokens":9999.5',
        '"max_tokens":1e9',
        '"max_tokens":99999999999999999999999999',
        '"max_tokens":1e400',
        '"max_tokens" : 9999 , "max_tokens" : 9999',
    ],
)
def test_no_spelling_dodges_the_cap(tmp_path: Path, text: str) -> None:
    body = f'{{"model":"m",{text},"messages":[]}}'.encode()
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, CAPPED) as proxy:
        assert proxy.client().request("POST", PATH, body).status == 200
        sent = upstream.calls[0].body
    caps = [*every_value(sent, "max_tokens"), *every_value(sent, "max_completion_tokens")]
    assert [cap for cap in caps if not isinstance(cap, int) or not 0 < cap <= 50] == []
    assert caps
