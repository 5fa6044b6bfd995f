"""Weir's own errors, as typed clients read them (report B125)."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from proxy.core.errors import CODES
from tests.support.chat import ANSWER, CHAT, CHAT_STREAM, PATH, chat_policy
from tests.support.raw_client import RawAnswer
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir import weir

LIMITED = chat_policy(
    "max_body: 64KiB", "steps: [{cap_output: {max: 50}}, {set_params: {store: {forbid: true}}}]"
)


def answer_ok(call: Call) -> None:
    call.json(ANSWER)


def strict_error(answer: RawAnswer) -> dict[str, object]:
    """Read an error as a typed client does."""
    assert answer.is_whole
    assert answer.header("content-type") == "application/json"
    assert answer.header("x-weir-request-id")
    assert list(json.loads(answer.body)) == ["error"]
    error: dict[str, object] = json.loads(answer.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert "Traceback" not in error["message"]
    assert isinstance(error["type"], str)
    assert error["param"] is None or isinstance(error["param"], str)
    kind = next(kind for kind in CODES if kind.code == error["code"])
    assert (answer.status, error["type"]) == (kind.status, kind.type)
    return error


# B125
@pytest.mark.parametrize(
    ("method", "target", "body", "headers", "code"),
    [
        ("GET", "/../x", None, [], "bad_request_target"),
        ("POST", PATH, b"{", [], "invalid_body"),
        ("POST", PATH, b'{"store":true}', [], "rejected_by_policy"),
        ("POST", PATH, b'{"n":1}' + b" " * 200_000, [], "body_too_large"),
        ("POST", PATH, b"x", [("Content-Encoding", "zzz")], "unsupported_content_encoding"),
        ("FOO", "/v1/models", None, [], "method_not_supported"),
        ("GET", "/v1/models", None, [("X", "y" * 70_000)], "headers_too_large"),
        ("GET", "/v1/models", None, [("Host", "two")], "bad_request"),
        ("GET", "/v1/models", None, [], "upstream_connect_failed"),
    ],
)
def test_every_error_of_weirs_own_has_openais_shape(
    tmp_path: Path, method: str, target: str, body: bytes | None, headers: list[tuple[str, str]], code: str
) -> None:
    with RawUpstream(answer_ok) as upstream:
        url = upstream.url
    with weir(tmp_path, url, LIMITED) as proxy:
        error = strict_error(proxy.client().request(method, target, body, headers))
        assert error["code"] == code
        assert error["param"] == ("store" if code == "rejected_by_policy" else None)
        assert proxy.metric("weir_errors_total", code=code) == 1


# B125
@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("silent", "upstream_first_byte_timeout"),
        ("closing", "upstream_closed"),
        ("garbage", "upstream_protocol_error"),
        ("stalling", "upstream_idle_timeout"),
        ("trickling", "upstream_total_timeout"),
    ],
)
@pytest.mark.parametrize("body", [CHAT, CHAT_STREAM], ids=["whole", "stream"])
def test_failures_of_an_upstream_have_openais_shape(
    tmp_path: Path, kind: str, code: str, body: bytes
) -> None:
    def script(call: Call) -> None:
        if kind == "closing":
            call.close()
        elif kind == "garbage":
            call.send(b"SSH-2.0-OpenSSH_9.6\r\n")
        elif kind != "silent":
            call.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{")
            for _ in range(20 if kind == "trickling" else 0):
                call.send(b" ")
                if call.wait_for_close(0.05):
                    return
        call.wait_for_close(5)

    with RawUpstream(script) as upstream:
        limits = "timeouts: {first_byte: 200ms, idle: 200ms, total: 500ms}"
        with weir(tmp_path, None, chat_policy(base_url=upstream.url, upstream=limits)) as proxy:
            assert strict_error(proxy.client().request("POST", PATH, body))["code"] == code


@contextmanager
def listener(greeting: bytes | None) -> Iterator[int]:
    """Accept connections on a port; send a greeting and close, or hold them open in silence."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            held = []
            while True:
                try:
                    sock, _ = server.accept()
                except OSError:
                    break
                if greeting is not None:
                    sock.sendall(greeting)
                    sock.close()
                held.append(sock)
            for sock in held:
                sock.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


# B125
@pytest.mark.parametrize(
    ("base_url", "greeting", "code"),
    [
        ("http://a..b/v1", None, "upstream_dns_failed"),
        ("https://127.0.0.1:PORT/v1", b"HTTP/1.1 400 Bad Request\r\n\r\n", "upstream_tls_failed"),
        ("https://127.0.0.1:PORT/v1", None, "upstream_connect_timeout"),
    ],
)
def test_failures_to_connect_have_openais_shape(
    tmp_path: Path, base_url: str, greeting: bytes | None, code: str
) -> None:
    with listener(greeting) as port:
        url = base_url.replace("PORT", str(port))
        with weir(tmp_path, None, chat_policy(base_url=url, upstream="timeouts: {connect: 200ms}")) as proxy:
            assert strict_error(proxy.client().request("POST", PATH, CHAT))["code"] == code


# B125
def test_a_full_route_says_so_in_openais_shape_and_when_to_come_back(tmp_path: Path) -> None:
    may_answer = threading.Event()

    def script(call: Call) -> None:
        may_answer.wait(5)
        call.json(ANSWER)

    with (
        RawUpstream(script) as upstream,
        weir(tmp_path, upstream.url, chat_policy("max_concurrent: 1")) as proxy,
    ):
        first = proxy.client()
        first.send_request("POST", PATH, CHAT)
        upstream.wait_for_calls(1)
        refused = proxy.client().request("POST", PATH, CHAT)
        may_answer.set()
        assert first.read_answer().status == 200
        assert proxy.client().request("POST", PATH, CHAT).status == 200
    assert strict_error(refused)["code"] == "too_many_concurrent_requests"
    assert refused.header("retry-after") == "1"
