"""Upstreams that close after an answer without having said so, as llama.cpp's server does after each stream.

A request that is sent on such a connection just before it closes is lost: the upstream's machine has taken
it, so it must not be sent again, and the caller gets an error. It must not be sent there in the first place.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from tests.support.chat import CHAT, CHAT_STREAM, DONE, PATH, delta, finish
from tests.support.raw_upstream import Call
from tests.support.served import served

KEEP_ALIVE = b"Keep-Alive: timeout=5, max=100\r\n"
CLOSE_AFTER_SECONDS = 0.005


def _stream(call: Call) -> None:
    call.stream_head(KEEP_ALIVE)
    for event in (delta("hello"), finish(), DONE):
        call.chunk(event)
    call.end_chunks()


def _streams_and_closes(call: Call) -> None:
    _stream(call)
    time.sleep(CLOSE_AFTER_SECONDS)
    call.close()


def test_no_request_is_sent_on_a_connection_that_is_about_to_close(tmp_path: Path) -> None:
    with served(tmp_path, _streams_and_closes) as (proxy, upstream):
        client = proxy.client()
        for _ in range(10):
            answer = client.request("POST", PATH, CHAT_STREAM)
            assert (answer.status, answer.is_whole) == (200, True)
        assert len(upstream.calls) == 10


def test_callers_side_by_side_are_not_hit_either(tmp_path: Path) -> None:
    statuses: list[int] = []
    with served(tmp_path, _streams_and_closes) as (proxy, upstream):
        # The first answer shows what this upstream does.
        proxy.client().request("POST", PATH, CHAT_STREAM)
        time.sleep(0.05)

        def ask() -> None:
            client = proxy.client()
            statuses.extend(client.request("POST", PATH, CHAT_STREAM).status for _ in range(5))

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert statuses == [200] * 30
        assert len(upstream.calls) == 31


def test_one_connection_at_most_waits_for_the_next(tmp_path: Path) -> None:
    """Where the policy allows one connection only, the next request waits until that one is closed."""
    policy = """
version: 1
upstreams: {up: {base_url: http://upstream.test/v1, max_connections: 1}}
routes: [{name: chat, match: {path: /v1/chat/completions}}]
"""
    with served(tmp_path, _streams_and_closes, policy) as (proxy, upstream):
        client = proxy.client()
        assert [client.request("POST", PATH, CHAT_STREAM).status for _ in range(5)] == [200] * 5
        assert upstream.connections == 5


def test_connections_that_stay_are_used_again(tmp_path: Path) -> None:
    with served(tmp_path, _stream) as (proxy, upstream):
        client = proxy.client()
        for _ in range(3):
            client.request("POST", PATH, CHAT_STREAM)
        time.sleep(0.15)
        for _ in range(20):
            client.request("POST", PATH, CHAT_STREAM)
        # Each of the first is left alone until one has proved itself.
        assert upstream.connections == 3


def test_answers_of_known_length_prove_nothing(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        if b'"stream":true' in call.body:
            _streams_and_closes(call)
        else:
            call.json(b'{"choices":[]}', headers=KEEP_ALIVE)

    with served(tmp_path, script) as (proxy, upstream):
        client = proxy.client()
        for _ in range(5):
            for body in (CHAT, CHAT, CHAT_STREAM):
                assert client.request("POST", PATH, body).status == 200
        assert len(upstream.calls) == 15


def test_an_upstream_that_closes_right_after_answers_is_given_time_to(tmp_path: Path) -> None:
    """Without a word, 5 ms after each answer: what is sent meanwhile would be taken in and lost."""

    def script(call: Call) -> None:
        call.json(b'{"choices":[]}')
        time.sleep(0.005)
        call.close()

    with served(tmp_path, script) as (proxy, upstream):
        client = proxy.client()
        for _ in range(2):
            assert client.request("POST", PATH, CHAT).status == 200
            time.sleep(0.05)  # so that the close is seen before the next request
        for pause_seconds in (0.0, 0.002, 0.004, 0.005, 0.006) * 8:
            assert client.request("POST", PATH, CHAT).status == 200
            time.sleep(pause_seconds)
        assert len(upstream.calls) == 42, "none was sent twice"


def test_a_connection_closed_once_in_a_while_changes_nothing(tmp_path: Path) -> None:
    """Many servers let a connection carry a hundred requests, and close it then without a word."""

    def script(call: Call) -> None:
        call.json(b'{"choices":[]}')
        if len(upstream.calls) % 60 == 0:
            call.close()

    with served(tmp_path, script) as (proxy, upstream):
        client = proxy.client()
        for number in range(130):
            assert client.request("POST", PATH, CHAT).status == 200
            if number % 60 == 59:
                time.sleep(0.05)
        assert upstream.connections == 3


def test_an_upstream_that_closed_early_is_trusted_again(tmp_path: Path) -> None:
    closes = [True, True]

    def script(call: Call) -> None:
        call.json(b'{"choices":[]}')
        if closes:
            closes.pop()
            call.close()

    with served(tmp_path, script) as (proxy, upstream):
        client = proxy.client()
        for _ in range(2):
            assert client.request("POST", PATH, CHAT).status == 200
            time.sleep(0.05)
        for _ in range(70):
            client.request("POST", PATH, CHAT)
        time.sleep(0.15)
        before = upstream.connections
        for _ in range(20):
            assert client.request("POST", PATH, CHAT).status == 200
        assert upstream.connections == before


def test_a_connection_is_not_kept_as_long_as_its_server_keeps_it(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        call.json(b"{}", headers=b"Keep-Alive: max=9, timeout=1\r\n")

    with served(tmp_path, script) as (proxy, upstream):
        client = proxy.client()
        for _ in range(5):
            client.request("POST", PATH, CHAT)
        assert upstream.connections == 1
        assert upstream.calls[-1].wait_for_close(0.9), "it outlived the server's patience"
        assert client.request("POST", PATH, CHAT).status == 200
        assert upstream.connections == 2
