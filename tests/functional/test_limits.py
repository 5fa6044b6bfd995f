"""Each limit, set the way an operator sets it, has its effect, and no request dodges it."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from tests.support.chat import ANSWER, CHAT, PATH, chat_policy
from tests.support.raw_client import RawAnswer
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.served import served
from tests.support.weir_process import WeirProcess, weir_process

FLAGS = {
    "--max-head": "4KiB",
    "--max-upstream-head": "8KiB",
    "--header-timeout": "300ms",
    "--body-timeout": "300ms",
    "--keep-alive": "300ms",
}


def answer(call: Call) -> None:
    long = b"X-Long: " + b"x" * 10_000 + b"\r\n" if call.target == b"/v1/long" else b""
    call.json(ANSWER, headers=long)


def code(refusal: RawAnswer) -> tuple[int, str]:
    return refusal.status, json.loads(refusal.body)["error"]["code"]


def check_limits_of_a_process(process: WeirProcess) -> None:
    """Meet each limit of `FLAGS`, and stay within each of them."""
    with process.client() as client:
        assert client.request("GET", "/v1/models", None, [("X-Long", "x" * 3_000)]).status == 200
        assert code(client.request("GET", "/v1/models", None, [("X-Long", "x" * 5_000)])) == (
            431,
            "headers_too_large",
        )
    with process.client() as client:
        assert code(client.request("GET", "/v1/long")) == (502, "upstream_protocol_error")
    for sent in (b"GET / HT", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{"):
        with process.client() as client:
            begin = time.monotonic()
            client.send(sent)
            assert code(client.read_answer()) == (408, "request_timeout")
            assert 0.25 < time.monotonic() - begin < 3
    with process.client() as client:
        assert client.request("POST", PATH, CHAT).body == ANSWER
        begin = time.monotonic()
        assert client.is_closed_within(3)
        assert time.monotonic() - begin > 0.25


def test_limits_of_the_process_are_set_by_flags(tmp_path: Path) -> None:
    options = [word for pair in FLAGS.items() for word in pair]
    with RawUpstream(answer) as upstream, weir_process(tmp_path, upstream.url, *options) as process:
        check_limits_of_a_process(process)


def test_limits_of_the_process_are_set_by_variables(tmp_path: Path) -> None:
    environment = {"WEIR_" + flag[2:].upper().replace("-", "_"): text for flag, text in FLAGS.items()}
    with (
        RawUpstream(answer) as upstream,
        weir_process(tmp_path, upstream.url, environment=environment) as process,
    ):
        check_limits_of_a_process(process)


# --- per route ----------------------------------------------------------------------------------------------

TWO_ROUTES = """
version: 1
routes:
  - name: small
    match: {path: /v1/chat/completions, headers: {x-size: small}}
    steps: [{cap_output: {max: 9}}]
    max_body: 1KiB
    max_json_depth: 5
    max_concurrent: 1
  - name: large
    match: {path: /v1/chat/completions}
    steps: [{cap_output: {max: 9}}]
    max_body: 64KiB
    max_json_depth: 50
"""
SMALL, LARGE = [("x-size", "small")], [("x-size", "large")]


def sized(size_bytes: int) -> bytes:
    body = b'{"model":"m","messages":[],"x":""}'
    return body.replace(b'""', b'"%b"' % (b"x" * (size_bytes - len(body))))


def nested(depth: int) -> bytes:
    return b'{"model":"m","messages":[],"x":%b%b}' % (b"[" * (depth - 1), b"]" * (depth - 1))


@pytest.mark.parametrize(("headers", "limit_bytes"), [(SMALL, 1024), (LARGE, 65536)])
def test_each_route_has_its_own_size_of_bodies(
    tmp_path: Path, headers: list[tuple[str, str]], limit_bytes: int
) -> None:
    with served(tmp_path, answer, TWO_ROUTES) as (proxy, _):
        assert proxy.client().request("POST", PATH, sized(limit_bytes), headers).status == 200
        refusal = proxy.client().request("POST", PATH, sized(limit_bytes + 1), headers)
        assert code(refusal) == (413, "body_too_large")


@pytest.mark.parametrize(("headers", "depth"), [(SMALL, 5), (LARGE, 50)])
def test_each_route_has_its_own_depth_of_bodies(
    tmp_path: Path, headers: list[tuple[str, str]], depth: int
) -> None:
    with served(tmp_path, answer, TWO_ROUTES.replace("path: /v1/chat/completions}", "path: /v1/*}")) as (
        proxy,
        _,
    ):
        assert proxy.client().request("POST", PATH, nested(depth), headers).status == 200
        refusal = proxy.client().request("POST", PATH, nested(depth + 1), headers)
        assert code(refusal) == (400, "invalid_body")


def test_a_body_beyond_a_limit_passes_unread_where_nothing_is_enforced(tmp_path: Path) -> None:
    policy = chat_policy("steps: [{cap_output: {default: 9}}]", "max_body: 1KiB", "max_json_depth: 5")
    with served(tmp_path, answer, policy) as (proxy, upstream):
        for body in (sized(2000), nested(6)):
            assert proxy.client().request("POST", PATH, body).status == 200
            assert upstream.calls[-1].body == body


def test_each_route_has_its_own_places_and_gives_them_back_however_a_request_ends(tmp_path: Path) -> None:
    release = threading.Event()

    def script(call: Call) -> None:
        if call.header("x-wait"):
            release.wait(5)
        if call.header("x-reset"):
            call.reset()
        else:
            call.json(ANSWER)

    with served(tmp_path, script, TWO_ROUTES) as (proxy, upstream):
        holder = proxy.client()
        holder.send_request("POST", PATH, CHAT, [*SMALL, ("x-wait", "1")])
        upstream.wait_for_calls(1)
        assert code(proxy.client().request("POST", PATH, CHAT, SMALL)) == (
            429,
            "too_many_concurrent_requests",
        )
        assert proxy.client().request("POST", PATH, CHAT, LARGE).status == 200
        release.set()
        assert holder.read_answer().status == 200
        for headers in ([("x-reset", "1")], [], [("x-reset", "1")], []):
            status = proxy.client().request("POST", PATH, CHAT, [*SMALL, *headers]).status
            assert status == (502 if headers else 200)
        leaver = proxy.client()
        leaver.send_request("POST", PATH, CHAT, [*SMALL, ("x-wait", "1")])
        leaver.close()
        proxy.log(7)
        assert proxy.client().request("POST", PATH, CHAT, SMALL).status == 200


# --- no way around ------------------------------------------------------------------------------------------

DODGES = {
    "asks for HTTP/2": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\n",
    "asks for a websocket": b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
    "says it is no JSON": b"Content-Type: text/plain\r\n",
    "waits for leave": b"Expect: 100-continue\r\n",
}


@pytest.mark.parametrize("is_split", [True, False])
@pytest.mark.parametrize("kind", DODGES)
def test_a_header_is_no_way_around_a_limit(tmp_path: Path, kind: str, is_split: bool) -> None:
    body = b'{"model":"m","messages":[],"max_tokens":100000}'
    head = b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n%b\r\n" % (
        PATH.encode(),
        len(body),
        DODGES[kind],
    )
    with served(tmp_path, answer, TWO_ROUTES) as (proxy, upstream), proxy.client() as client:
        client.send(head if is_split else head + body)
        if is_split:
            time.sleep(0.05)
            client.send(body)
        assert client.read_answer().status == 200
        assert client.request("POST", PATH, CHAT).status == 200, "the connection is still in step"
        assert json.loads(upstream.calls[0].body)["max_tokens"] == 9
        assert upstream.calls[0].header("upgrade") is None


def test_trailers_are_no_way_around_the_size_of_a_head(tmp_path: Path) -> None:
    with served(tmp_path, answer, head_bytes=8 * 1024) as (proxy, _), proxy.client() as client:
        client.send(b"POST /v1/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n")
        try:
            for _ in range(200):
                client.send(b"X-Trailer: 1\r\n" * 100)
        except OSError:
            pass  # the answer is on its way, and the connection may be closed already
        assert client.read_head().status == 431
