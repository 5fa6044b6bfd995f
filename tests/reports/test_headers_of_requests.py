"""Request headers and credentials on their way out: limits, encodings, trust (reports B68-B70, B73, B74)."""

from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib
from pathlib import Path

import pytest

from tests.support.chat import ANSWER, CHAT, CHAT_STREAM, PATH, chat_policy
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir import weir

POLICIES = pytest.mark.parametrize("policies", [None, chat_policy()], ids=["unmatched", "matched"])
CAPPED = chat_policy("steps: [{cap_output: {max: 50}}]")


def answer_ok(call: Call) -> None:
    call.json(ANSWER)


# B68
@POLICIES
def test_large_headers_pass_in_both_directions(tmp_path: Path, policies: str | None) -> None:
    token = b"Bearer " + b"t" * 12_000

    def script(call: Call) -> None:
        call.json(ANSWER, headers=b"X-Large: " + b"y" * 40_000 + b"\r\n")

    with RawUpstream(script) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        answer = proxy.client().request(
            "POST", PATH, CHAT, [("Authorization", token), ("X-More", b"z" * 30_000)]
        )
        call = upstream.calls[0]
    assert answer.status == 200
    assert answer.header("x-large") == "y" * 40_000
    assert (call.header("authorization"), len(call.header("x-more") or b"")) == (token, 30_000)


# B68
@pytest.mark.parametrize(
    ("head_bytes", "target", "lines"),
    [
        (64 * 1024, "/v1/models", [("X-Large", "z" * 70_000)]),
        (8 * 1024, "/v1/models", [("X-Large", "z" * 9_000)]),
        (8 * 1024, "/v1/models?q=" + "z" * 9_000, []),
        (64 * 1024, "/v1/models", [(f"X-{number}", "v") for number in range(300)]),
    ],
    ids=["default", "configured", "target", "count"],
)
def test_request_heads_over_the_limit_are_431_in_openais_shape(
    tmp_path: Path, head_bytes: int, target: str, lines: list[tuple[str, str]]
) -> None:
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, head_bytes=head_bytes) as proxy:
        with proxy.client() as client:
            answer = client.request("GET", target, headers=lines)
            assert client.is_closed_within(1)
        assert upstream.calls == []
        assert proxy.client().request("GET", "/v1/models").status == 200
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["code"], answer.header("content-type")) == (
        431,
        "headers_too_large",
        "application/json",
    )
    assert set(error) == {"message", "type", "param", "code"}
    assert answer.header("x-weir-request-id")


# B68
def test_response_heads_over_the_limit_are_502_in_openais_shape(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        call.json(ANSWER, headers=b"X-Large: " + b"y" * 140_000 + b"\r\n")

    with RawUpstream(script) as upstream, weir(tmp_path, upstream.url) as proxy:
        answer = proxy.client().request("POST", PATH, CHAT)
    assert answer.status == 502
    assert json.loads(answer.body)["error"]["code"] == "upstream_protocol_error"


# B69
@pytest.mark.parametrize("body", [CHAT, CHAT_STREAM], ids=["whole", "stream"])
def test_names_beyond_ascii_survive_in_headers_and_log(tmp_path: Path, body: bytes) -> None:
    named = body.replace(b'"m"', '"中文模型"'.encode())
    policies = (
        "version: 1\nroutes:\n  - name: 优先\n"
        "    match: {path: /v1/chat/completions, model: 中文模型}\n    steps: [{cap_output: {default: 7}}]\n"
    )
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        answer = proxy.client().request("POST", PATH, named)
        record = proxy.log(1)[0]
        metrics = proxy.admin("/metrics")[1].decode()
        assert '"中文模型"'.encode() in upstream.calls[0].body
    assert answer.status == 200
    assert answer.header("x-weir-route") == "%E4%BC%98%E5%85%88"
    assert all(value.isascii() for _, value in answer.headers)
    assert (record["route"], record["model"]) == ("优先", "中文模型")
    assert 'route="优先"' in metrics


# B69
@POLICIES
@pytest.mark.parametrize(
    "value",
    ["优先".encode(), "Größe".encode("latin-1"), b"\xff\xfe\x80", b"tab\there"],
    ids=["utf8", "latin1", "raw", "tab"],
)
def test_header_bytes_beyond_ascii_pass_unchanged(tmp_path: Path, policies: str | None, value: bytes) -> None:
    def script(call: Call) -> None:
        call.json(ANSWER, headers=b"X-Back: " + (call.header("x-there") or b"") + b"\r\n")

    with RawUpstream(script) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        answer = proxy.client().request("POST", PATH, CHAT, [("X-There", value)])
    assert answer.status == 200
    assert [back for name, back in answer.headers if name == b"X-Back"] == [value]


# B70
@pytest.mark.parametrize(
    "policies",
    [None, chat_policy(), chat_policy("steps: [{cap_output: {max: 5000}}]")],
    ids=["unmatched", "matched", "nothing-to-edit"],
)
@pytest.mark.parametrize("coding", ["gzip", "deflate", "GZIP", "x-gzip", "gzip, gzip"])
def test_compressed_requests_that_no_step_edits_pass_as_they_came(
    tmp_path: Path, policies: str | None, coding: str
) -> None:
    packed = zlib.compress(CHAT) if coding == "deflate" else gzip.compress(CHAT)
    packed = gzip.compress(packed) if coding == "gzip, gzip" else packed
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        assert proxy.client().request("POST", PATH, packed, [("Content-Encoding", coding)]).status == 200
        call = upstream.calls[0]
    assert (call.body, call.header("content-encoding")) == (packed, coding.encode())
    assert call.header("content-length") == b"%d" % len(packed)


# B70
@pytest.mark.parametrize("coding", ["gzip", "deflate", "gzip, gzip", "identity, gzip"])
def test_compressed_requests_that_a_step_edits_go_out_plain_and_say_so(tmp_path: Path, coding: str) -> None:
    body = CHAT[:-1] + b',"max_tokens":900}'
    packed = zlib.compress(body) if coding == "deflate" else gzip.compress(body)
    packed = gzip.compress(packed) if coding == "gzip, gzip" else packed
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, CAPPED) as proxy:
        assert proxy.client().request("POST", PATH, packed, [("Content-Encoding", coding)]).status == 200
        call = upstream.calls[0]
    assert call.body == body.replace(b"900", b"50")
    assert call.header("content-encoding") is None
    assert call.header("content-length") == b"%d" % len(call.body)


# B70
@pytest.mark.parametrize("coding", ["unheard-of", "gzip, unheard-of"])
@pytest.mark.parametrize(
    ("policies", "status"),
    [(None, 200), (chat_policy(), 200), (chat_policy("on_oversize: reject"), 415), (CAPPED, 415)],
    ids=["unmatched", "matched", "reject", "enforcing"],
)
def test_unknown_codings_pass_unless_the_route_must_read(
    tmp_path: Path, coding: str, policies: str | None, status: int
) -> None:
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        answer = proxy.client().request("POST", PATH, b"\x00\xffwhatever", [("Content-Encoding", coding)])
        bodies = [call.body for call in upstream.calls]
    assert answer.status == status
    assert bodies == ([b"\x00\xffwhatever"] if status == 200 else [])
    if status == 415:
        assert json.loads(answer.body)["error"]["code"] == "unsupported_content_encoding"


# B70
@pytest.mark.parametrize("is_nested", [False, True])
def test_a_compression_bomb_is_413_where_the_route_must_read(tmp_path: Path, is_nested: bool) -> None:
    bomb = gzip.compress(b"\x00" * (64 * 1024 * 1024), 9)
    coding = "gzip, gzip" if is_nested else "gzip"
    bomb = gzip.compress(bomb, 9) if is_nested else bomb
    policies = chat_policy("steps: [{cap_output: {max: 50}}]", "max_body: 1MiB")
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        tracemalloc.start()
        try:
            answer = proxy.client().request("POST", PATH, bomb, [("Content-Encoding", coding)])
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        calls = list(upstream.calls)
    assert (answer.status, calls) == (413, [])
    assert peak_bytes < 8 * 1024 * 1024
    assert json.loads(answer.body)["error"]["code"] == "body_too_large"


# B70
@pytest.mark.parametrize(
    "body",
    [gzip.compress(b"\x00" * 3_000_000), gzip.compress(CHAT)[:-9], b"no gzip", b""],
    ids=["too-large", "truncated", "not-gzip", "empty"],
)
def test_a_compressed_body_that_cannot_be_read_passes_where_nobody_must_read(
    tmp_path: Path, body: bytes
) -> None:
    with (
        RawUpstream(answer_ok) as upstream,
        weir(tmp_path, upstream.url, chat_policy("max_body: 1MiB")) as proxy,
    ):
        answer = proxy.client().request("POST", PATH, body, [("Content-Encoding", "gzip")])
        calls = list(upstream.calls)
    assert answer.status == 200
    assert [(call.body, call.header("content-encoding")) for call in calls] == [(body, b"gzip")]


# B73
CREDENTIALS = [
    ("Authorization", "Bearer internal"),
    ("Cookie", "session=internal"),
    ("X-Api-Key", "internal"),
    ("api-key", "internal"),
    ("X-Goog-Api-Key", "internal"),
    ("OpenAI-Organization", "internal"),
    ("OpenAI-Project", "internal"),
    ("Proxy-Authorization", "Basic internal"),
]


@pytest.mark.parametrize(
    ("provider", "name", "value"),
    [
        ("openai", b"Authorization", b"Bearer route-key"),
        ("generic", b"Authorization", b"Bearer route-key"),
        ("azure", b"api-key", b"route-key"),
        ("anthropic", b"x-api-key", b"route-key"),
    ],
)
@pytest.mark.parametrize("path", [PATH, "/v1/files", "/v2/other"])
@pytest.mark.parametrize("is_sent_by_caller", [True, False])
def test_an_upstream_with_a_key_sees_that_key_and_nothing_of_the_callers(
    tmp_path: Path, provider: str, name: bytes, value: bytes, path: str, is_sent_by_caller: bool
) -> None:
    with RawUpstream(answer_ok) as upstream:
        policies = chat_policy(base_url=upstream.url, upstream=f"provider: {provider}, api_key: route-key")
        with weir(tmp_path, None, policies) as proxy:
            lines = [*CREDENTIALS, *CREDENTIALS] if is_sent_by_caller else []
            assert proxy.client().request("POST", path, CHAT, lines).status == 200
        call = upstream.calls[0]
    assert b"internal" not in call.head
    sent = [(key.lower(), sent) for key, sent in call.headers if sent.endswith(b"route-key")]
    assert sent == [(name.lower(), value)]


# B73
@POLICIES
def test_an_upstream_without_a_key_sees_exactly_the_callers_credentials(
    tmp_path: Path, policies: str | None
) -> None:
    lines = [line for line in CREDENTIALS if line[0] != "Proxy-Authorization"]
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        with proxy.client() as client:
            client.request("POST", PATH, CHAT, lines)
            client.request("POST", PATH, CHAT)
        first, second = upstream.calls
    assert first.headers[-len(lines) :] == [(name.encode(), value.encode()) for name, value in lines]
    assert [name.lower() for name, _ in second.headers] == [b"host", b"content-length", b"content-type"]


# B73
@POLICIES
def test_cookies_of_one_caller_never_reach_another(tmp_path: Path, policies: str | None) -> None:
    def script(call: Call) -> None:
        call.json(ANSWER, headers=b"Set-Cookie: session=of-the-first; Path=/\r\n")

    with RawUpstream(script) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        for _ in range(2):
            assert proxy.client().request("POST", PATH, CHAT).header("set-cookie") is not None
        assert upstream.connections == 1, "the second caller shares the first one's upstream connection"
        assert [call.header("cookie") for call in upstream.calls] == [None, None]


# B74
STEERING = [
    ("X-Weir-Urgency", "deferrable"),
    ("x-weir-deadline", "2h"),
    ("x-weir-explain", "dry-run"),
    ("X-Weir-Route", "other"),
    ("X-WEIR-Policy", "other"),
    ("x-weir-lane", "batch"),
    ("x-weir-request-id", "spoofed"),
]


@POLICIES
def test_a_caller_cannot_steer_a_route_that_does_not_let_it(tmp_path: Path, policies: str | None) -> None:
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        answer = proxy.client().request("POST", PATH, CHAT, STEERING)
        call = upstream.calls[0]
        record = proxy.log(1)[0]
    assert b"weir-" not in call.head.lower()
    assert (answer.status, answer.body) == (200, ANSWER)
    assert (record["urgency"], record["lane"], record["route"]) == (
        "interactive",
        "stream",
        "chat" if policies else None,
    )
    assert "spoofed" not in (answer.all("x-weir-request-id"), record["request_id"])
    if policies:
        assert "x-weir-urgency ignored: the route does not allow it" in record["urgency_reason"]


# B74
def test_a_caller_steers_only_by_what_the_route_lists(tmp_path: Path) -> None:
    policies = chat_policy("allow_caller: [x-weir-urgency]")
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        answer = proxy.client().request("POST", PATH, CHAT, STEERING)
        call = upstream.calls[0]
    assert answer.header("x-weir-urgency") == 'deferrable; reason="header x-weir-urgency"'
    assert answer.body == ANSWER, "the dry run was not allowed"
    assert b"weir-" not in call.head.lower()


# B74
@POLICIES
def test_forwarding_headers_are_data_to_weir(tmp_path: Path, policies: str | None) -> None:
    lines = [
        ("X-Forwarded-For", "10.0.0.1"),
        ("X-Forwarded-Host", "evil.test"),
        ("X-Forwarded-Prefix", "/admin"),
        ("X-Forwarded-Proto", "https"),
        ("Forwarded", "for=10.0.0.1"),
        ("X-Real-IP", "10.0.0.1"),
        ("X-Original-URL", "/admin"),
        ("X-Rewrite-URL", "/admin"),
    ]
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        assert proxy.client().request("POST", PATH, CHAT, lines).status == 200
        call = upstream.calls[0]
        log = json.dumps(proxy.log(1))
    assert call.target == PATH.encode()
    assert call.headers[-len(lines) :] == [(name.encode(), value.encode()) for name, value in lines]
    assert "10.0.0.1" not in log, "an address that anyone can claim is not recorded as if it were known"
