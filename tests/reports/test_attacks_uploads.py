"""Uploads that are too large for whom they reach: its word reaches the caller."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.support.raw_client import RawClient
from tests.support.raw_upstream import Call
from tests.support.served import served

ROUNDS = 12
TOO_LARGE = b'{"error":"too large"}'


@pytest.mark.parametrize("framing", ["length", "close"])
def test_a_refusal_that_comes_with_a_reset_is_what_the_caller_sees(tmp_path: Path, framing: str) -> None:
    def script(call: Call) -> None:
        length = b"Content-Length: %d\r\n" % len(TOO_LARGE) if framing == "length" else b""
        call.receive()
        call.send(b"HTTP/1.1 413 Payload Too Large\r\n%bConnection: close\r\n\r\n%b" % (length, TOO_LARGE))
        call.reset()

    with served(tmp_path, script, reads_body=False) as (proxy, _):
        statuses = []
        for _ in range(ROUNDS):
            with proxy.client() as client:
                head = b"POST /v1/files HTTP/1.1\r\nHost: weir.test\r\nContent-Length: 8000000\r\n\r\n"
                try:
                    client.send(head)
                    for _ in range(80):
                        client.send(b"x" * 100_000)
                except OSError:
                    pass  # the answer may come first, and the connection close after it
                answer = client.read_answer("POST")
                statuses.append(answer.status)
                if answer.status == 413:
                    assert answer.body in (TOO_LARGE, b"") if framing == "close" else TOO_LARGE
    assert statuses == [413] * ROUNDS


@pytest.mark.parametrize(
    ("coding", "status", "code"),
    [("gzip", 413, "body_too_large"), ("lzma", 415, "unsupported_content_encoding"), ("br", 0, "")],
)
def test_explaining_a_bomb_is_refused(tmp_path: Path, coding: str, status: int, code: str) -> None:
    bomb = gzip.compress(b" " * 200_000_000, 9)
    with served(tmp_path, lambda call: call.json(b"{}")) as (proxy, _):
        host, _, port = proxy.admin_url.removeprefix("http://").rpartition(":")
        with RawClient((host, int(port))) as client:
            answer = client.request("POST", "/explain", bomb, [("Content-Encoding", coding)])
    if status:
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (status, code)
    else:
        assert answer.status in (400, 415), "it is not brotli, whether or not that can be read"


def test_a_compressed_body_is_explained_as_what_it_holds(tmp_path: Path) -> None:
    with served(tmp_path, lambda call: call.json(b"{}")) as (proxy, _):
        host, _, port = proxy.admin_url.removeprefix("http://").rpartition(":")
        with RawClient((host, int(port))) as client:
            body = gzip.compress(b'{"model":"of-the-body","messages":[]}')
            answer = client.request("POST", "/explain", body, [("Content-Encoding", "gzip")])
    assert answer.status == 200
    assert b"of-the-body" in answer.body
