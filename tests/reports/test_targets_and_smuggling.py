"""Where a request may lead, and what may pass for one (reports B112, B113, B119, B120)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from proxy.policy.findings import PolicyErrors
from proxy.policy.load import load
from tests.support.chat import ANSWER, CHAT, PATH, chat_policy
from tests.support.raw_client import RawClient
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir import weir

EVERYTHING = "version: 1\nroutes: [{name: all, match: {path: '/v1/*'}, steps: [{cap_output: {max: 50}}]}]\n"
POLICIES = pytest.mark.parametrize("policies", [None, EVERYTHING], ids=["unmatched", "matched"])


def answer_ok(call: Call) -> None:
    call.json(ANSWER)


# B112
@POLICIES
def test_a_caller_cannot_choose_the_target_by_body_or_headers(tmp_path: Path, policies: str | None) -> None:
    with RawUpstream(answer_ok) as elsewhere, RawUpstream(answer_ok) as upstream:
        url = elsewhere.url
        fields = {"api_base": url, "base_url": url, "api_key": "mine", "api_version": "x", "endpoint": url}
        body = json.dumps(
            {"model": "m", "messages": [], "metadata": fields, "extra_body": fields, "litellm_params": fields}
            | fields
        ).encode()
        lines = [
            ("X-Base-Url", url),
            ("X-Forwarded-Host", f"127.0.0.1:{elsewhere.port}"),
            ("X-Weir-Upstream", url),
            ("X-Original-Host", f"127.0.0.1:{elsewhere.port}"),
            ("Forwarded", f"host=127.0.0.1:{elsewhere.port}"),
        ]
        with weir(tmp_path, upstream.url, policies, upstream_key="operators-key") as proxy:
            assert proxy.client().request("POST", PATH, body, lines).status == 200
        call = upstream.calls[0]
        assert elsewhere.connections == 0
        assert call.body == body, "inert data"
        assert call.header("authorization") == b"Bearer operators-key"


# B112
@POLICIES
def test_the_host_header_of_a_caller_chooses_nothing(tmp_path: Path, policies: str | None) -> None:
    with RawUpstream(answer_ok) as elsewhere, RawUpstream(answer_ok) as upstream:
        with weir(tmp_path, upstream.url, policies) as proxy:
            for host in (f"127.0.0.1:{elsewhere.port}", "169.254.169.254", "evil.test@127.0.0.1", ""):
                client = proxy.client()
                client.send(f"GET /v1/models HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
                assert client.read_answer().status == 200
        own = f"127.0.0.1:{upstream.port}".encode()
        assert [call.header("host") for call in upstream.calls] == [own] * 4
        assert elsewhere.connections == 0


# B112
@POLICIES
@pytest.mark.parametrize(
    "line",
    [
        "GET http://127.0.0.1:{port}/v1/models",
        "GET http://169.254.169.254/latest/meta-data",
        "GET HTTP://weir.test/v1/models",
        "GET //127.0.0.1:{port}/v1/models",
        "GET /v1/http://127.0.0.1:{port}/x",
        "GET @127.0.0.1:{port}/v1/models",
        "GET :{port}/v1/models",
        "GET 127.0.0.1:{port}",
        "GET ?x",
        "OPTIONS *",
        "CONNECT 127.0.0.1:{port}",
        "CONNECT weir.test:443",
    ],
)
def test_a_request_line_that_names_a_target_is_refused(
    tmp_path: Path, policies: str | None, line: str
) -> None:
    with RawUpstream(answer_ok) as elsewhere, RawUpstream(answer_ok) as upstream:
        with weir(tmp_path, upstream.url, policies, upstream_key="operators-key") as proxy:
            client = proxy.client()
            client.send(f"{line.format(port=elsewhere.port)} HTTP/1.1\r\nHost: weir.test\r\n\r\n".encode())
            answer = client.read_answer()
        assert (elsewhere.connections, upstream.calls) == (0, [])
    assert answer.status in (400, 501)
    assert set(json.loads(answer.body)["error"]) == {"message", "type", "param", "code"}


ESCAPES = [
    "/v1/../admin", "/v1/%2e%2e/admin", "/v1/%2E%2e/admin", "/v1/.%2e/admin", "/v1/..%2fadmin",
    "/v1/..%2Fadmin", "/v1/%2e%2e%2fadmin", "/v1//admin", "//admin", "/v1/.;/admin", "/v1/..;/admin",
    "/v1/..;x=1/admin", "/v1/%2e%2e;/admin", "/v1/./admin", "/v1/%2e/admin", "/v1/..\\admin",
    "/v1\\..\\admin", "/v1/%5c../admin", "/v1/..%5cadmin", "/v1/%252e%252e/admin",
    "/v1/%25252e%25252e/admin", "/v1/..%252fadmin", "/v1/x/..", "/..", "/v1/x/.", "/.", "/v1/%2f/admin",
    "/v1%2f%2fadmin", "/v1/x%00/admin", "/v1/x%0d%0aX-Evil:1", "/v1/x%7f", "/v1/models#frag",
    "/v1/%c0%ae%c0%ae/%2e%2e/x",
]  # fmt: skip
ODD_BUT_GOOD = [
    "/v1/files/...", "/v1/files/..name", "/v1/files/name..", "/v1/files/.hidden", "/v1/files/a%2fb",
    "/v1/a;b/c", "/v1/models?next=/../x//y", "/v1/models?x=%2e%2e%2f\\", "/v1/files/%E4%BD%A0",
    "/v1/models/", "/v1/100%25",
]  # fmt: skip


# B113
@POLICIES
@pytest.mark.parametrize("target", ESCAPES)
def test_a_path_that_could_leave_its_prefix_is_refused(
    tmp_path: Path, policies: str | None, target: str
) -> None:
    with RawUpstream(answer_ok) as upstream:
        with weir(tmp_path, upstream.url + "/deep/base", policies) as proxy, proxy.client() as client:
            answer = client.request("GET", target)
        assert upstream.calls == []
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (400, "bad_request_target")
    assert "admin" not in answer.body.decode()


# B113
@POLICIES
@pytest.mark.parametrize("target", ODD_BUT_GOOD)
def test_a_path_that_only_looks_odd_passes(tmp_path: Path, policies: str | None, target: str) -> None:
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        assert proxy.client().request("GET", target).status == 200
        assert upstream.calls[0].target == target.encode()


# B113
def test_the_path_that_is_matched_is_the_path_that_is_sent(tmp_path: Path) -> None:
    policies = chat_policy("steps: [{set_params: {seed: {forbid: true}}}]")
    spellings = [
        "/v1/chat/completions",
        "/v1/chat/completions/",
        "/v1/%63hat/completions",
        "/v1/chat%2fcompletions",
    ]
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        for spelling in spellings:
            answer = proxy.client().request("POST", spelling, b'{"model":"m","seed":1}')
            assert (spelling, answer.status) == (spelling, 400)
        assert upstream.calls == []


# B119
@pytest.mark.parametrize(
    "text", [r"m\r\nX-Evil: 1", r"m\nX-Evil: 1", r"m\rX-Evil: 1", r"m\u0000\u2028\u0085", r"m\"\\"]
)
def test_line_breaks_in_a_body_never_become_headers(tmp_path: Path, text: str) -> None:
    body = f'{{"model":"{text}","messages":[],"max_tokens":99,"stop":"{text}","user":"{text}","{text}":1}}'
    policies = chat_policy(
        "steps: [{cap_output: {max: 50}}, {add_stop: ['a']}, {set_params: {top_p: {max: 1}}}]"
    )
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        answer = proxy.client().request("POST", PATH, body.encode())
        log = proxy.log(1)
        assert b"evil" not in upstream.calls[0].head.lower()
    assert answer.status == 200
    assert len(log) == 1
    assert all(name.lower() != b"x-evil" and b"Evil" not in value for name, value in answer.headers)


# B119
@pytest.mark.parametrize("line_break", ["\\n", "\\r\\n", "\\x00", "\\u2028"])
@pytest.mark.parametrize(
    "line",
    ["  - {name: NAME, match: {}}", "  - {name: x, match: {}, upstream: NAME}"],
    ids=["name", "upstream"],
)
def test_line_breaks_in_names_of_a_policy_are_refused_at_load(
    tmp_path: Path, line_break: str, line: str
) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("version: 1\nroutes:\n" + line.replace("NAME", f'"a{line_break}X-Evil: 1"'))
    with pytest.raises(PolicyErrors, match="line breaks or control"):
        load((str(file),), {}, None)


# B119
@pytest.mark.parametrize(
    "value", [b"a\x01b", b"a\x00b", b"a\rX-Evil: 1", b"a\nX-Evil: 1", b"a\x7fb", b"\xff" * 300]
)
@pytest.mark.parametrize("name", [b"traceparent", b"x-weir-urgency", b"x-request-id"])
def test_control_characters_in_trace_headers_never_come_back(
    tmp_path: Path, name: bytes, value: bytes
) -> None:
    policies = chat_policy("allow_caller: [x-weir-urgency]")
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        answer = proxy.client().request("POST", PATH, CHAT, [(name, value)])
        assert len(proxy.log(1)) == 1
        if answer.status == 200:
            assert upstream.calls[0].body == CHAT
    assert answer.status in (200, 400)
    assert all(key.lower() != b"x-evil" and b"\xff" not in back for key, back in answer.headers)


AMBIGUOUS = {
    "length-then-chunked": b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked-then-length": b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    "two-lengths": b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
    "equal-lengths": b"Content-Length: 4\r\nContent-Length: 4\r\n\r\nabcd",
    "length-list": b"Content-Length: 4, 4\r\n\r\nabcd",
    "signed-length": b"Content-Length: +4\r\n\r\nabcd",
    "negative-length": b"Content-Length: -4\r\n\r\nabcd",
    "hex-length": b"Content-Length: 0x4\r\n\r\nabcd",
    "huge-length": b"Content-Length: 99999999999999999999999\r\n\r\nabcd",
    "empty-length": b"Content-Length:\r\n\r\nabcd",
    "space-before-colon": b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "space-before-length-colon": b"Content-Length : 4\r\n\r\nabcd",
    "obs-fold": b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "obs-fold-value": b"X-A: 1\r\n 2\r\n\r\n",
    "obs-fold-first": b" X-A: 1\r\n\r\n",
    "chunked-twice": b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "chunked-not-last": b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "gzip-chunked": b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "identity": b"Transfer-Encoding: identity\r\n\r\nabcd",
    "xchunked": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "quoted-chunked": b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n',
    "vertical-tab": b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "two-codings": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "bare-cr": b"X-A: 1\rTransfer-Encoding: chunked\r\n\r\n",
    "bare-lf": b"X-A: 1\nContent-Length: 4\r\n\r\nabcd",
    "nul": b"X-A: 1\x00\r\n\r\n",
    "no-colon": b"X-A\r\n\r\n",
    "empty-name": b": 1\r\n\r\n",
    "space-in-name": b"X A: 1\r\n\r\n",
    "two-hosts": b"Host: other.test\r\n\r\n",
    "bad-chunk-size": b"Transfer-Encoding: chunked\r\n\r\n4x\r\nabcd\r\n0\r\n\r\n",
    "signed-chunk-size": b"Transfer-Encoding: chunked\r\n\r\n+4\r\nabcd\r\n0\r\n\r\n",
    "huge-chunk-size": b"Transfer-Encoding: chunked\r\n\r\n10000000000000004\r\nabcd\r\n0\r\n\r\n",
    "chunk-without-crlf": b"Transfer-Encoding: chunked\r\n\r\n4\r\nabcdX\r\n0\r\n\r\n",
    "lf-chunks": b"Transfer-Encoding: chunked\r\n\r\n4\nabcd\n0\n\n",
}
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: weir.test\r\n\r\n"


def is_refused(client: RawClient) -> bool:
    """Tell whether the answer is a 400 of Weir's own and the connection ends with it."""
    answer = client.read_answer()
    return (
        answer.status == 400
        and json.loads(answer.body)["error"]["code"] == "bad_request"
        and answer.header("connection") == "close"
        and client.is_closed_within(2)
    )


# B120
@POLICIES
@pytest.mark.parametrize("kind", AMBIGUOUS)
@pytest.mark.parametrize("is_bytewise", [False, True])
def test_an_ambiguous_request_is_refused_and_nothing_follows_it(
    tmp_path: Path, policies: str | None, kind: str, is_bytewise: bool
) -> None:
    raw = b"POST /v1/chat/completions HTTP/1.1\r\nHost: weir.test\r\n" + AMBIGUOUS[kind] + SMUGGLED
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        client = proxy.client()
        if is_bytewise:
            for index in range(0, len(raw), 3):
                client.send(raw[index : index + 3])
        else:
            client.send(raw)
        assert is_refused(client)
        assert upstream.calls == []


# B120
@pytest.mark.parametrize("kind", ["length-then-chunked", "two-lengths", "space-before-colon", "obs-fold"])
def test_a_good_request_before_an_ambiguous_one_is_answered(tmp_path: Path, kind: str) -> None:
    good = b"POST /v1/good HTTP/1.1\r\nHost: weir.test\r\nContent-Length: 2\r\n\r\n{}"
    bad = b"POST /v1/bad HTTP/1.1\r\nHost: weir.test\r\n" + AMBIGUOUS[kind] + SMUGGLED
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url) as proxy:
        client = proxy.client()
        client.send(good + bad)
        assert client.read_answer().status == 200
        assert is_refused(client)
        assert [call.target for call in upstream.calls] == [b"/v1/good"]


# B120
def test_pipelined_requests_stay_apart_upstream(tmp_path: Path) -> None:
    one = (
        b"POST /v1/one HTTP/1.1\r\nHost: weir.test\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    )
    two = b"POST /v1/two HTTP/1.1\r\nHost: weir.test\r\nContent-Length: 2\r\n\r\n[]"
    with RawUpstream(answer_ok) as upstream, weir(tmp_path, upstream.url) as proxy:
        client = proxy.client()
        client.send(one + two + one)
        assert [client.read_answer().status for _ in range(3)] == [200] * 3
        assert [(call.target, call.body) for call in upstream.calls] == [
            (b"/v1/one", b"{}"),
            (b"/v1/two", b"[]"),
            (b"/v1/one", b"{}"),
        ]
