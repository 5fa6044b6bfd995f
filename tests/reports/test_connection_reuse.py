"""Pooled connections that the upstream has closed: nobody notices, nothing runs twice (report B29).

Choice: a request is sent again only if it went out on a reused connection, no byte of an answer came and the
kernel says that the upstream acknowledged none of it. What may have arrived is answered with 502 instead. A
reset within the 40 ms for which an acknowledgement may be delayed counts as not arrived.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.chat import ANSWER, CHAT, CHAT_STREAM, DONE, PATH, chat_policy, finish
from tests.support.raw_upstream import Call
from tests.support.served import served
from tests.support.shapes import spoken

POLICIES = pytest.mark.parametrize("policy", [None, chat_policy()], ids=["unmatched", "matched"])
STREAM = spoken("a") + finish() + DONE


def answer(call: Call) -> None:
    """Answer completely and keep the connection."""
    if b'"stream":true' in call.body:
        call.stream_head()
        call.chunk(STREAM)
        call.end_chunks()
    else:
        call.json(ANSWER)


# B29
@POLICIES
@pytest.mark.parametrize("how", ["fin with the answer", "fin", "reset"])
def test_a_connection_that_the_upstream_closed_harms_nobody(
    tmp_path: Path, policy: str | None, how: str
) -> None:
    arrived, closed = threading.Event(), threading.Event()

    def script(call: Call) -> None:
        if how == "fin with the answer":
            # Corked: the kernel sends the answer together with the end.
            call.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        answer(call)
        if how != "fin with the answer":
            arrived.wait(2.0)
        call.reset() if how == "reset" else call.close()
        closed.set()

    with served(tmp_path, script, policy) as (proxy, upstream), proxy.client() as client:
        for number in range(50):
            arrived.clear()
            closed.clear()
            request_body = CHAT_STREAM if number % 2 else CHAT
            got = client.request("POST", PATH, request_body, [("x-number", str(number))])
            assert (got.status, got.is_whole) == (200, True), number
            arrived.set()
            if how != "fin with the answer":
                assert closed.wait(2.0)
        counts = Counter(call.header("x-number") for call in upstream.calls)
    assert set(counts.values()) == {1}, "a request was executed twice"
    assert len(counts) == 50


# B29
@POLICIES
@pytest.mark.parametrize("how", ["fin", "reset"])
def test_a_connection_that_closed_unnoticed_is_replaced(tmp_path: Path, policy: str | None, how: str) -> None:
    close, closed = threading.Event(), threading.Event()

    def script(call: Call) -> None:
        answer(call)
        if call.number % 2:
            return
        close.wait(2.0)
        call.reset() if how == "reset" else call.close()
        closed.set()

    with served(tmp_path, script, policy) as (proxy, upstream), proxy.client() as client:
        for _ in range(10):
            close.clear()
            closed.clear()
            assert client.request("POST", PATH, CHAT).status == 200
            # While its event loop is busy the request comes first, the end of the pooled connection second.
            proxy.loop.call_soon_threadsafe(time.sleep, 0.05)
            time.sleep(0.01)
            client.send_request("POST", PATH, CHAT)
            close.set()
            assert closed.wait(2.0)
            assert client.read_answer("POST").status == 200
        assert len(upstream.calls) == 20
        assert sum(record["retries"] for record in proxy.log(20)) >= 5, (
            "nothing was stale: this shows nothing"
        )


# B29
@POLICIES
def test_idle_connections_are_used_again(tmp_path: Path, policy: str | None) -> None:
    with served(tmp_path, answer, policy) as (proxy, upstream), proxy.client() as client:
        for request_body in (CHAT, CHAT_STREAM, CHAT, CHAT_STREAM) * 5:
            assert client.request("POST", PATH, request_body).status == 200
        assert upstream.connections == 1


# B29
@POLICIES
def test_long_bodies_use_connections_again_too(tmp_path: Path, policy: str | None) -> None:
    conversation = CHAT.replace(b"{", b'{"user":"%b",' % (b"x" * 200_000), 1)
    with served(tmp_path, answer, policy) as (proxy, upstream), proxy.client() as client:
        for _ in range(5):
            assert client.request("POST", PATH, conversation).status == 200
        assert upstream.connections == 1
        assert {call.body.count(b"x" * 200_000) for call in upstream.calls} == {1}


# B29
@pytest.mark.parametrize("how", ["fin", "fin later", "reset later", "half an answer"])
def test_a_request_that_the_upstream_may_have_begun_is_never_sent_again(tmp_path: Path, how: str) -> None:
    def script(call: Call) -> None:
        if (call.header("x-number") or b"warm") == b"warm":
            answer(call)
            return
        if how == "half an answer":
            call.send(b"HTTP/1.1 200 OK\r\nConte")
        if "later" in how:
            time.sleep(0.06)
        call.reset() if "reset" in how else call.close()

    with served(tmp_path, script, chat_policy()) as (proxy, upstream), proxy.client() as client:
        for number in range(10):
            assert client.request("POST", PATH, CHAT, [("x-number", "warm")]).status == 200
            got = client.request("POST", PATH, CHAT, [("x-number", str(number))])
            assert got.status == 502
            assert b"upstream_closed" in got.body
        counts = Counter(call.header("x-number") for call in upstream.calls)
    assert counts.pop(b"warm") == 10
    assert set(counts.values()) == {1}, "a request was executed twice"


# B29
def test_a_fresh_connection_that_dies_is_not_tried_again(tmp_path: Path) -> None:
    with served(tmp_path, Call.close, chat_policy()) as (proxy, upstream):
        assert proxy.client().request("POST", PATH, CHAT).status == 502
        assert len(upstream.calls) == 1


# B29
def test_many_dead_idle_connections_do_not_use_up_the_resends(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        time.sleep(0.1)
        answer(call)
        call.close()

    with served(tmp_path, script, chat_policy()) as (proxy, upstream):
        callers = [proxy.client() for _ in range(12)]
        for _ in range(2):
            for caller in callers:
                caller.send_request("POST", PATH, CHAT)
            for caller in callers:
                assert caller.read_answer("POST").status == 200
        assert len(upstream.calls) == 24


# B29
def test_bytes_that_nobody_asked_for_spoil_a_connection(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        answer(call)
        time.sleep(0.01)
        call.send(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
        call.wait_for_close(1.0)

    with served(tmp_path, script, chat_policy()) as (proxy, upstream), proxy.client() as client:
        for _ in range(5):
            assert client.request("POST", PATH, CHAT).body == ANSWER
            time.sleep(0.04)
        assert upstream.connections == 5
