from __future__ import annotations

import asyncio
import json
import socket
import time
from pathlib import Path

import pytest

from proxy.sim.server import make_app, serve
from tests.unit.sim.running import CHAT, FAST, Sim, running


def test_announces_the_real_port_once_it_accepts(sim: Sim) -> None:
    assert sim.address == f"http://127.0.0.1:{sim.port}"
    assert sim.port != 0
    assert sim.chat().status == 200


def test_serves_on_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "sim.sock"

    async def main() -> tuple[str, bytes]:
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(serve(f"unix:{path}", FAST, ready.set_result))
        address = await ready
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b"GET /sim/stats HTTP/1.1\r\nHost: sim\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return address, answer

    address, answer = asyncio.run(main())
    assert address == f"unix:{path}"
    assert answer.startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("listen", ["", "8080", ":8080", "localhost", "localhost:http", "unix:"])
def test_refuses_an_address_that_it_cannot_read(listen: str) -> None:
    with pytest.raises(ValueError, match="expected HOST:PORT or unix:PATH"):
        asyncio.run(serve(listen, FAST, lambda address: None))


def test_a_taken_port_is_an_os_error(sim: Sim) -> None:
    with pytest.raises(OSError):
        asyncio.run(serve(f"127.0.0.1:{sim.port}", FAST, lambda address: None))


def test_takes_a_body_of_many_megabytes(sim: Sim) -> None:
    body = {"messages": [{"role": "user", "content": "x" * 3_000_000}]}
    assert sim.chat(body).json()["usage"]["prompt_tokens"] == 375_006


def test_unknown_paths_and_methods_have_the_api_s_error_shape(sim: Sim) -> None:
    unknown = sim.send("POST", "/v1/nothing", {})
    assert (unknown.status, unknown.json()["error"]["message"]) == (404, "Invalid URL (POST /v1/nothing)")
    assert sim.send("GET", "/v1/chat/completions").status == 405
    assert sim.send("GET", "/v1/messages").json()["type"] == "error"


def test_bad_json_is_a_400_in_the_api_s_shape(sim: Sim) -> None:
    reply = sim.post("/v1/chat/completions", b"{nope")
    assert (reply.status, reply.json()["error"]["type"]) == (400, "invalid_request_error")
    assert sim.post("/v1/messages", b"{nope").json()["type"] == "error"


def test_a_connection_is_kept_for_the_next_request(sim: Sim) -> None:
    connection = sim.open()
    for body in ({}, {"stream": True}, {"n": 0}):
        connection.request("POST", "/v1/chat/completions", json.dumps({**CHAT, **body}))
        response = connection.getresponse()
        response.read()
    assert connection.sock is not None
    connection.close()


def test_stops_at_once_even_while_an_answer_stalls() -> None:
    with running() as sim:
        held = socket.create_connection(("127.0.0.1", sim.port))
        body = json.dumps({**CHAT, "stream": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: s\r\nContent-Length: {len(body)}\r\n"
        held.sendall(head.encode() + b"x-sim-stall-after: 1\r\n\r\n" + body)
        assert held.recv(65536).startswith(b"HTTP/1.1 200")
        started = time.monotonic()
    assert time.monotonic() - started < 3
    held.close()


def test_applications_share_no_state() -> None:
    first, second = make_app(FAST), make_app(FAST)
    assert first is not second
    with running() as one, running() as two:
        one.chat()
        assert (one.stats()["executions_total"], two.stats()["executions_total"]) == (1, 0)
