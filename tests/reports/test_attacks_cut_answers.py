"""Answers that break: whatever the framing, no caller may take a part for the whole."""

from __future__ import annotations

import signal
import socket
import ssl
import time
from pathlib import Path

import pytest

from tests.support.certificates import Authority
from tests.support.chat import CHAT_STREAM, DONE, PATH, chat_policy, delta, finish
from tests.support.raw_client import RawClient
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.served import served
from tests.support.weir_process import weir_process

OLD = b"%b %b HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
ASKED = OLD % (b"POST", PATH.encode(), len(CHAT_STREAM), CHAT_STREAM)
PLAIN = OLD % (b"POST", b"/v1/other", 2, b"{}")


def received(sock: socket.socket) -> tuple[bytes, str]:
    """Read to the end; return what came and how it ended: `end` or `reset`."""
    data = b""
    try:
        while piece := sock.recv(65536):
            data += piece
    except ConnectionResetError:
        return data, "reset"
    except ssl.SSLError:
        return data, "reset"
    return data, "end"


def cut(call: Call) -> None:
    if b"stream" in call.body:
        call.stream_head()
        call.chunk(delta("hello"))
    else:
        call.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
    time.sleep(0.05)
    call.close()


def whole(call: Call) -> None:
    call.stream_head()
    call.chunk(delta("hello") + finish() + DONE)
    call.end_chunks()


@pytest.mark.parametrize("request_bytes", [ASKED, PLAIN], ids=["stream", "plain"])
def test_an_old_caller_sees_a_reset_where_an_answer_breaks(tmp_path: Path, request_bytes: bytes) -> None:
    with served(tmp_path, cut, chat_policy()) as (proxy, _):
        client = proxy.client()
        client.send(request_bytes)
        data, end = received(client.socket)
    assert b"hello" in data, "what came before is not lost"
    assert (b"upstream_closed" in data) is (request_bytes is ASKED), "nor is the error event"
    assert end == "reset"


def test_an_old_caller_sees_an_orderly_end_of_a_whole_answer(tmp_path: Path) -> None:
    with served(tmp_path, whole, chat_policy()) as (proxy, _):
        client = proxy.client()
        client.send(ASKED)
        data, end = received(client.socket)
    assert data.endswith(finish() + DONE)
    assert end == "end"


def test_what_waits_for_an_old_caller_is_delivered_before_the_reset(tmp_path: Path) -> None:
    text = delta("x" * 1000)

    def script(call: Call) -> None:
        call.stream_head()
        for _ in range(2000):
            call.chunk(text)
        call.close()

    with served(tmp_path, script, chat_policy()) as (proxy, _):
        client = proxy.client(receive_buffer_bytes=8192)
        client.send(ASKED)
        time.sleep(0.3)
        data, end = received(client.socket)
    assert data.count(text) == 2000
    assert b"upstream_closed" in data
    assert end == "reset"


def test_an_old_caller_that_stops_reading_never_sees_an_orderly_end(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        call.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(200):
            call.chunk(b"x" * 100_000)
        call.end_chunks()

    with served(tmp_path, script, write_stall_seconds=0.2) as (proxy, _):
        client = proxy.client(receive_buffer_bytes=8192)
        client.send(PLAIN)
        proxy.log(1)
        data, end = received(client.socket)
    assert len(data) < 20_000_000
    assert end == "reset"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_old_caller_sees_a_reset_where_the_process_ends(tmp_path: Path, number: signal.Signals) -> None:
    def script(call: Call) -> None:
        call.stream_head()
        call.chunk(delta("hello"))
        call.wait_for_close(10)

    options = ["--drain-timeout", "100ms"]
    with (
        RawUpstream(script) as upstream,
        weir_process(tmp_path, upstream.url, *options, policies=chat_policy()) as process,
    ):
        client = process.client()
        client.send(ASKED)
        data = client.socket.recv(65536)
        process.signal(number)
        rest, end = received(client.socket)
    assert b"hello" in data + rest
    assert end == "reset"


def test_tls_ends_without_its_own_goodbye_where_an_answer_breaks(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    identity = authority.server()
    certificate, key = str(identity.certificate), str(identity.key)
    with served(tmp_path, cut, chat_policy(), tls_certificate=certificate, tls_key=key) as (proxy, _):
        context = ssl.create_default_context(cafile=str(authority.certificate))
        host, port = proxy.url.removeprefix("https://").split(":")
        with (
            RawClient((host, int(port))) as plain,
            context.wrap_socket(plain.socket, server_hostname="localhost", suppress_ragged_eofs=False) as tls,
        ):
            tls.sendall(ASKED)
            data, end = received(tls)
    assert b"upstream_closed" in data
    assert end == "reset"
