"""Websockets pass as opaque bytes after a handshake that is relayed (reports B79-B81)."""

from __future__ import annotations

import asyncio
import json
import queue
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tests.support.chat import CHAT, CHAT_STREAM, PATH, chat_policy
from tests.support.raw_client import RawAnswer, RawClient
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.websocket import (
    BINARY,
    CLOSE,
    CONTINUATION,
    KEY,
    PING,
    PONG,
    TEXT,
    FrameReader,
    accept_value,
    closing,
    frame,
    handshake_headers,
    switching,
)
from tests.support.weir import weir

REALTIME = "/v1/realtime?model=gpt-realtime&x=%27"
MASK = b"\x11\x22\x33\x44"
EVERYTHING = "version: 1\nroutes: [{name: all, match: {}, steps: [{cap_output: {max: 50}}]}]\n"
POLICIES = pytest.mark.parametrize("policies", [None, EVERYTHING], ids=["unmatched", "matched"])


def accepting(
    talk: Callable[[Call, FrameReader], None], protocol: bytes | None = None
) -> Callable[[Call], None]:
    """Return a script that accepts a handshake, talks, and closes."""

    def script(call: Call) -> None:
        call.send(switching(call.header("sec-websocket-key"), protocol))
        talk(call, FrameReader(call.receive))
        call.close()

    return script


def echo(call: Call, frames: FrameReader) -> None:
    """Return every frame unmasked, until a close frame, which is answered with its own payload."""
    while (got := frames.next()) is not None:
        call.send(frame(PONG if got.opcode == PING else got.opcode, got.payload, None, got.is_final))
        if got.opcode == CLOSE:
            return


def open_socket(client: RawClient, protocols: str | None = None) -> tuple[RawAnswer, FrameReader]:
    """Shake hands; return the 101 and a reader of what follows."""
    client.send_request("GET", REALTIME, None, handshake_headers(protocols))
    head = client.read_head()
    return head, FrameReader(client.receive)


# B79
@POLICIES
@pytest.mark.parametrize(
    ("code", "reason"), [(1009, "too big"), (1008, "policy"), (4000, "ключ 🔑"), (1000, "")]
)
def test_a_close_by_the_upstream_keeps_its_code_and_reason(
    tmp_path: Path, policies: str | None, code: int, reason: str
) -> None:
    def talk(call: Call, frames: FrameReader) -> None:
        call.send(closing(code, reason))
        back = frames.next()
        answered.append(back.payload if back is not None else b"")

    answered: list[bytes] = []
    with RawUpstream(accepting(talk)) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        with proxy.client() as client:
            head, frames = open_socket(client)
            got = frames.next()
            assert got is not None
            client.send(frame(CLOSE, got.payload, MASK))
            assert frames.next() is None, "the connection ends with the websocket"
        record = proxy.log(1)[0]
    assert head.status == 101
    assert got.raw == closing(code, reason)
    assert answered == [closing(code, reason)[2:]]
    assert (record["status"], record["error"]) == (101, None)


# B79
@pytest.mark.parametrize(("code", "reason"), [(1000, "bye"), (1001, ""), (4999, "x" * 120)])
def test_a_close_by_the_caller_keeps_its_code_and_reason(tmp_path: Path, code: int, reason: str) -> None:
    with RawUpstream(accepting(echo)) as upstream, weir(tmp_path, upstream.url) as proxy:
        _, frames = open_socket(client := proxy.client())
        client.send(closing(code, reason, MASK))
        got = frames.next()
        assert frames.next() is None
    assert got is not None
    assert got.raw == closing(code, reason)


# B79
@pytest.mark.parametrize("leaver", ["upstream", "caller"])
@pytest.mark.parametrize("is_reset", [False, True])
def test_a_side_that_vanishes_takes_the_other_with_it(tmp_path: Path, leaver: str, is_reset: bool) -> None:
    seen: list[bool] = []

    def talk(call: Call, frames: FrameReader) -> None:
        frames.next()
        if leaver == "caller":
            call.send(frame(TEXT, b"hello"))
            seen.append(call.wait_for_close(2))
        elif is_reset:
            call.reset()

    with RawUpstream(accepting(talk)) as upstream, weir(tmp_path, upstream.url) as proxy:
        _, frames = open_socket(client := proxy.client())
        client.send(frame(TEXT, b"hi", MASK))
        if leaver == "caller":
            frames.next()
            if is_reset:
                client.reset()
            else:
                client.close()
        else:
            assert client.is_closed_within(2)
        proxy.log(1)
        assert proxy.metric("weir_in_flight") == 0
    assert seen == ([True] if leaver == "caller" else [])


# B79
@POLICIES
@pytest.mark.parametrize("status", [b"400 Bad Request", b"401 Unauthorized", b"403 Forbidden", b"429 Slow"])
def test_a_refused_handshake_is_the_upstreams_answer(
    tmp_path: Path, policies: str | None, status: bytes
) -> None:
    body = b'{"error":{"message":"no","type":"t","param":null,"code":"c"}}'

    def script(call: Call) -> None:
        call.json(body, status, b"Retry-After: 3\r\n")

    with RawUpstream(script) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        answer = proxy.client().request("GET", REALTIME, None, handshake_headers())
    assert (answer.status, answer.body, answer.header("retry-after")) == (int(status[:3]), body, "3")
    assert answer.header("upgrade") is None


# B80
BROWSER = "realtime, openai-insecure-api-key.caller-key, openai-beta.realtime-v1"


@POLICIES
@pytest.mark.parametrize("offered", ["realtime, other.v1", "realtime,other.v1", BROWSER])
def test_offered_subprotocols_and_the_selection_pass(
    tmp_path: Path, policies: str | None, offered: str
) -> None:
    script = accepting(echo, b"realtime")
    with RawUpstream(script) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        head, _ = open_socket(proxy.client(), offered)
        call = upstream.calls[0]
    assert call.header("sec-websocket-protocol") == offered.encode()
    assert call.target == REALTIME.encode()
    assert (head.status, head.all("sec-websocket-protocol")) == (101, ["realtime"])
    assert head.all("sec-websocket-accept") == [accept_value(KEY).decode()]
    assert (head.header("upgrade"), head.header("connection")) == ("websocket", "Upgrade")


# B80
@pytest.mark.parametrize("offered", [BROWSER, "openai-insecure-api-key.caller-key"])
@pytest.mark.parametrize("lines", [[], [("Authorization", "Bearer caller-key"), ("Cookie", "s=caller-key")]])
def test_the_key_among_subprotocols_becomes_the_upstreams_own_and_is_never_logged(
    tmp_path: Path, offered: str, lines: list[tuple[str, str]]
) -> None:
    with RawUpstream(accepting(echo, b"realtime")) as upstream:
        policies = chat_policy(base_url=upstream.url, upstream="provider: openai, api_key: route-key")
        with weir(tmp_path, None, policies) as proxy:
            client = proxy.client()
            client.send_request("GET", REALTIME, None, [*handshake_headers(offered), *lines])
            head = client.read_head()
            client.send(closing(1000, "", MASK))
            assert client.is_closed_within(2)
            log = json.dumps(proxy.log(1))
        call = upstream.calls[0]
    assert call.header("sec-websocket-protocol") == offered.replace("caller-key", "route-key").encode()
    assert call.header("authorization") == b"Bearer route-key"
    assert b"caller-key" not in call.head
    assert "caller-key" not in log
    assert "route-key" not in log
    assert b"route-key" not in b"".join(name + value for name, value in head.headers)


# B81
@POLICIES
@pytest.mark.parametrize("opcode", [TEXT, BINARY])
def test_large_frames_pass_both_ways(tmp_path: Path, policies: str | None, opcode: int) -> None:
    payload = bytes(range(1, 128)) * (6 * 1024 * 1024 // 127 + 1)
    with RawUpstream(accepting(echo)) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        _, frames = open_socket(client := proxy.client())
        client.send(frame(opcode, payload, MASK))
        got = frames.next()
    assert got is not None
    assert (got.opcode, got.is_final) == (opcode, True)
    assert got.payload == payload


# B81
def test_fragments_and_pings_between_them_pass_as_they_came(tmp_path: Path) -> None:
    sent = [
        (TEXT, b"one ", False),
        (PING, b"still there?", True),
        (CONTINUATION, b"", False),
        (CONTINUATION, "zwei €".encode()[:-1], False),
        (PING, b"", True),
        (CONTINUATION, "€".encode()[-1:], True),
        (BINARY, bytes(range(256)) * 300, True),
    ]
    with RawUpstream(accepting(echo)) as upstream, weir(tmp_path, upstream.url) as proxy:
        _, frames = open_socket(client := proxy.client())
        wire = b"".join(frame(opcode, payload, MASK, is_final) for opcode, payload, is_final in sent)
        for cut in range(0, len(wire), 1000):
            client.send(wire[cut : cut + 1000])
        got = [frames.next() for _ in sent]
    back = [
        frame(PONG if opcode == PING else opcode, payload, None, final) for opcode, payload, final in sent
    ]
    assert [one.raw for one in got if one is not None] == back


# B81
@POLICIES
def test_frames_that_ride_with_the_handshakes_are_not_lost(tmp_path: Path, policies: str | None) -> None:
    def script(call: Call) -> None:
        greeting = frame(TEXT, b"session.created") + frame(BINARY, b"\x00" * 5000)
        call.send(switching(call.header("sec-websocket-key")) + greeting)
        echo(call, FrameReader(call.receive))
        call.close()

    with RawUpstream(script) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        client = proxy.client()
        lines = b"".join(f"{name}: {value}\r\n".encode() for name, value in handshake_headers())
        early = frame(TEXT, b"too eager", MASK)
        client.send(b"GET %b HTTP/1.1\r\nHost: weir.test\r\n%b\r\n%b" % (REALTIME.encode(), lines, early))
        client.read_head()
        frames = FrameReader(client.receive)
        got = [frames.next() for _ in range(3)]
    payloads = [one.payload for one in got if one is not None]
    assert payloads == [b"session.created", b"\x00" * 5000, b"too eager"]


# B81
def test_all_that_was_sent_before_a_close_arrives(tmp_path: Path) -> None:
    payload = bytes(4 * 1024 * 1024)

    def talk(call: Call, frames: FrameReader) -> None:
        call.send(frame(BINARY, payload) + closing(1000, ""))

    with RawUpstream(accepting(talk)) as upstream, weir(tmp_path, upstream.url) as proxy:
        _, frames = open_socket(proxy.client())
        upstream.wait_for_calls(1)
        time.sleep(0.05)  # let the upstream's close overtake the caller's reading
        got = [frames.next() for _ in range(3)]
    assert [one and one.opcode for one in got] == [BINARY, CLOSE, None]
    assert got[0] is not None
    assert got[0].payload == payload


def pushes_until_held_back(sock: socket.socket) -> bool:
    """Write as long as the other side takes it; tell whether it stopped before 64 MB."""
    sock.settimeout(0.2)
    try:
        for _ in range(1024):
            sock.sendall(bytes(65536))
    except TimeoutError:
        return True
    return False


# B81
@pytest.mark.parametrize("sender", ["upstream", "caller"])
def test_a_slow_reader_holds_the_sender_back(tmp_path: Path, sender: str) -> None:
    held: queue.Queue[bool] = queue.Queue()
    is_over = threading.Event()

    def talk(call: Call, frames: FrameReader) -> None:
        if sender == "upstream":
            held.put(pushes_until_held_back(call.socket))
        is_over.wait(5)

    with RawUpstream(accepting(talk)) as upstream, weir(tmp_path, upstream.url) as proxy:
        open_socket(client := proxy.client())
        if sender == "caller":
            held.put(pushes_until_held_back(client.socket))
        is_held = held.get(timeout=5)
        is_over.set()
    assert is_held


# B79, B80, B81
def test_websocket_libraries_on_both_sides_work_through_weir(tmp_path: Path) -> None:
    large = "ä" * 3_000_000

    async def realtime(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=("realtime",), max_msg_size=0)
        await socket.prepare(request)
        async for message in socket:
            if message.data == "bye":
                await socket.close(code=4001, message=b"as you wish")
            elif message.type is aiohttp.WSMsgType.TEXT:
                await socket.send_str(message.data)
            else:
                await socket.send_bytes(message.data)
        return socket

    async def talk(url: str) -> tuple[str | None, object, object, int | None, object]:
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(
                f"{url}/v1/realtime", protocols=("other", "realtime"), max_msg_size=0
            ) as socket,
        ):
            await socket.send_str(large)
            text = (await socket.receive()).data
            await socket.send_bytes(b"\x00\xff")
            data = (await socket.receive()).data
            await socket.send_str("bye")
            last = await socket.receive()
            return socket.protocol, text, data, socket.close_code, last.extra

    async def run() -> tuple[str | None, object, object, int | None, object]:
        app = web.Application()
        app.router.add_get("/v1/realtime", realtime)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        try:
            return await asyncio.to_thread(through_weir, f"http://{host}:{port}/v1")
        finally:
            await runner.cleanup()

    def through_weir(upstream: str) -> tuple[str | None, object, object, int | None, object]:
        with weir(tmp_path, upstream) as proxy:
            return asyncio.run(talk(proxy.url))

    protocol, text, data, code, reason = asyncio.run(run())
    assert (protocol, text, data, code, reason) == ("realtime", large, b"\x00\xff", 4001, "as you wish")


# B80
@pytest.mark.parametrize(
    "policies", [None, chat_policy("heartbeat: 50ms"), EVERYTHING], ids=["unmatched", "heartbeat", "matched"]
)
@pytest.mark.parametrize("body", [CHAT, CHAT_STREAM], ids=["unary", "stream"])
def test_a_switch_of_protocols_that_nobody_asked_for_is_no_answer(
    tmp_path: Path, policies: str | None, body: bytes
) -> None:
    def script(call: Call) -> None:
        call.send(switching(None) + b"\x81\x02hi")
        call.wait_for_close(2)

    with RawUpstream(script) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        answer = proxy.client().request("POST", PATH, body)
        (record,) = proxy.log(1)
        assert proxy.call(lambda: len(proxy.app.service.tunnels)) == 0
    assert (answer.status, record["error"]) == (502, "upstream_protocol_error")
