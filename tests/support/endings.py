"""Exchanges that end in every way that there is: an upstream, a policy, and a look at what was recorded."""

from __future__ import annotations

import socket
import time
from typing import Any

from tests.support.chat import ANSWER, DONE, PATH, delta, finish
from tests.support.raw_client import RawClient
from tests.support.raw_upstream import Call
from tests.support.weir import RunningWeir

SETTLED_SECONDS = 0.06
"""Longer than it takes to write the log: a second record would be there."""

ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
STREAM = ROLE + delta("hi") + finish() + DONE


def settled(proxy: RunningWeir, count: int) -> list[dict[str, Any]]:
    """Return the records of exchanges that have ended, after checking that they are `count`, each once."""
    proxy.log(count)
    deadline = time.monotonic() + 5
    while proxy.metric("weir_in_flight") != 0:
        assert time.monotonic() < deadline, "something stays in flight"
        time.sleep(0.005)
    time.sleep(SETTLED_SECONDS)
    records = proxy.log(count)
    assert len(records) == count, records
    ids = {record["request_id"] for record in records}
    assert len(ids) == count
    assert None not in ids
    assert proxy.metric("weir_requests_total") == count
    assert proxy.metric("weir_errors_total") == sum(record["error"] is not None for record in records)
    assert len({tuple(record) for record in records}) <= 1, "every line has the same fields"
    return records


def script(call: Call) -> None:
    """Answer in the way that the request's `x-do` header asks for."""
    match (call.header("x-do") or b"").decode():
        case "500":
            call.json(b'{"error":{"message":"no"}}', b"500 Internal Server Error")
        case "400":
            call.json(b'{"error":{"message":"no"}}', b"400 Bad Request")
        case "503":
            call.json(b"{}", b"503 Service Unavailable", b"Retry-After: 0\r\n")
        case "retry later":
            call.json(b"{}", b"503 Service Unavailable", b"Retry-After: 30\r\n")
        case "close":
            call.close()
        case "reset":
            call.reset()
        case "garbage":
            call.send(b"SSH-2.0-nothing\r\n\r\n")
            call.close()
        case "silent":
            call.wait_for_close(5)
        case "head":
            call.stream_head()
            call.wait_for_close(5)
        case "role, end":
            call.stream_head()
            call.chunk(ROLE)
            call.end_chunks()
        case "role":
            call.stream_head()
            call.chunk(ROLE)
            call.wait_for_close(5)
        case "midway":
            call.stream_head()
            call.chunk(ROLE + delta("x"))
            call.wait_for_close(5)
        case "midway, reset":
            call.stream_head()
            call.chunk(ROLE + delta("x"))
            time.sleep(0.02)
            call.reset()
        case "half a body":
            call.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n{")
            call.wait_for_close(5)
        case "error event":
            call.stream_head()
            call.chunk(b'data: {"error":{"message":"overloaded"}}\n\n')
            call.end_chunks()
        case "huge usage":
            usage = b'{"prompt_tokens":%b,"completion_tokens":1e300,"x":NaN}' % (b"9" * 40)
            call.json(ANSWER[:-1] + b',"usage":%b}' % usage)
        case _ if b'"stream":true' in call.body:
            call.stream_head()
            call.chunk(STREAM)
            call.end_chunks()
        case _:
            call.json(ANSWER)


POLICY = """
version: 1
upstreams:
  up: {{base_url: '{url}', timeouts: {{first_byte: 200ms, idle: 200ms}},
        retry: {{statuses: [503], attempts: 1}}}}
  patient: {{base_url: '{url}', retry: {{statuses: [503], attempts: 1}}}}
  dead: {{base_url: 'http://127.0.0.1:{dead}/v1'}}
defaults: {{upstream: up}}
routes:
  - {{name: dead, match: {{path: {path}, headers: {{x-route: dead}}}}, upstream: dead}}
  - {{name: patient, match: {{path: {path}, headers: {{x-route: patient}}}}, upstream: patient}}
  - name: strict
    match: {{path: {path}, headers: {{x-route: strict}}}}
    steps: [{{set_params: {{seed: {{forbid: true}}}}}}]
    max_body: 1KiB
  - name: chat
    match: {{path: {path}}}
    steps: [{{cap_output: {{default: 50}}}}]
    allow_caller: [x-weir-explain]
"""


def policy(url: str) -> str:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        dead = gone.getsockname()[1]
    return POLICY.format(url=url, dead=dead, path=PATH)


def on(route: str) -> tuple[tuple[str, str], ...]:
    return (("x-route", route),)


def leave(client: RawClient, how: str) -> None:
    """Close the connection, with a FIN or with a reset."""
    if how == "reset":
        client.reset()
    else:
        client.close()
