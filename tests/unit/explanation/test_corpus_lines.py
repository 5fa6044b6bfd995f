from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.core.errors import BAD_TARGET, ProxyError
from proxy.explanation.corpus_lines import read_requests
from proxy.pipeline import Request

DEFAULT = Request("POST", "/v1/chat/completions", {"x-team": "support", "x-job": "a"}.get, b"")


def never(number: int) -> None:
    pytest.fail(f"line {number} was not read")


def read(*lines: bytes) -> list[Request]:
    return list(read_requests(lines, DEFAULT, bytes.decode, never))


def envelope(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


@pytest.mark.parametrize(
    "line",
    [
        b'{"model":"m", "messages":[]}',
        b'{"body":{"a":1}}',
        b'{"path":"/v1/x"}',
        b"[1]",
        b'"text"',
    ],
)
def test_a_line_that_is_no_envelope_is_a_body(line: bytes) -> None:
    assert read(line + b"\n") == [Request("POST", DEFAULT.path, DEFAULT.header, line)]


def test_bodies_keep_their_bytes() -> None:
    body = b'{ "seed":1E2 , "x":"\\u00e9\\ud83d" }'
    (request,) = read(b'{"path":"/v1/responses","body":%b}\n' % body)
    assert (request.path, request.body) == ("/v1/responses", body)


def test_a_body_given_as_text_is_that_text() -> None:
    (request,) = read(envelope(path="/v1/x", body='{"a": 1}'))
    assert request.body == b'{"a": 1}'
    (odd,) = read(b'{"path":"/v1/x","body":"\\ud83d"}')
    assert odd.body == "\ud83d".encode("utf-8", "surrogatepass")


def test_a_request_may_have_no_body() -> None:
    (request,) = read(envelope(path="/v1/models", method="GET", body=None))
    assert (request.method, request.path, request.body) == ("GET", "/v1/models", b"")


def test_headers_are_added_to_the_default_ones_in_any_case() -> None:
    (request,) = read(envelope(headers={"X-Job": "b", "X-N": 1}, body={}))
    assert [request.header(name) for name in ("x-job", "x-team", "x-n")] == ["b", "support", None]
    (without,) = read(envelope(headers=7, body={}, method="get"))
    assert (without.header("x-job"), without.method) == ("a", "GET")


def test_lines_of_a_batch_file_say_their_url() -> None:
    (request,) = read(envelope(custom_id="1", method="POST", url="/v1/embeddings", body={"input": "a"}))
    assert (request.path, request.body) == ("/v1/embeddings", b'{"input": "a"}')


def test_blank_lines_are_no_requests() -> None:
    assert len(read(b"\n", b"{}\r\n", b"  \n")) == 1


def test_a_target_that_leaves_its_path_ends_the_reading() -> None:
    def refuse(target: bytes) -> str:
        raise ProxyError(BAD_TARGET, "no")

    with pytest.raises(ProxyError):
        list(read_requests([envelope(path="/v1/../x", body={})], DEFAULT, refuse, never))


@pytest.mark.parametrize("line", [b"not json", b'{"model":"m","mess', b'{"a":1} trailing', b"\xff\xfe"])
def test_a_line_that_is_no_json_is_reported_with_its_number(line: bytes) -> None:
    numbers: list[int] = []
    lines = [b"{}\n", b"\n", line + b"\n", b'{"a":1}\n']
    bodies = [request.body for request in read_requests(lines, DEFAULT, bytes.decode, numbers.append)]
    assert (bodies, numbers) == ([b"{}", b'{"a":1}'], [3])


def test_a_body_nested_too_deeply_is_for_the_pipeline() -> None:
    body = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert [request.body for request in read(body)] == [body]
