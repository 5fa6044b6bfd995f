"""Time that passes unseen: waiting that no limit ends, and waiting that is booked as something else."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from tests.support.chat import ANSWER, CHAT, CHAT_STREAM, PATH, chat_policy
from tests.support.raw_upstream import Call
from tests.support.served import UPSTREAM, served
from tests.support.timing import entries


class Holding:
    """Answers a request only once the test says so."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()

    def __call__(self, call: Call) -> None:
        self.may_answer.wait(5)
        call.json(ANSWER)


def bounded(timeouts: str) -> str:
    return chat_policy(base_url=UPSTREAM, upstream=f"max_connections: 1, timeouts: {{{timeouts}}}")


@pytest.mark.parametrize(
    ("timeouts", "status", "code"),
    [
        ("first_byte: 5s, total: 300ms", 504, "upstream_total_timeout"),
        ("first_byte: 300ms, total: off, idle: 5s", 503, "upstream_busy"),
    ],
)
@pytest.mark.parametrize("length_bytes", [0, 100_000], ids=["buffered", "uploaded"])
def test_waiting_for_a_connection_ends_with_the_limits_of_the_upstream(
    tmp_path: Path, timeouts: str, status: int, code: str, length_bytes: int
) -> None:
    script = Holding()
    policy = bounded(timeouts)
    with served(tmp_path, script, policy) as (proxy, upstream):
        first = proxy.client()
        first.send_request("POST", PATH, CHAT)
        upstream.wait_for_calls(1)
        begin = time.monotonic()
        second = proxy.client()
        path, body = ("/v1/other", b"x" * length_bytes) if length_bytes else (PATH, CHAT)
        waited = second.request("POST", path, body)
        seconds = time.monotonic() - begin
        script.may_answer.set()
        record = next(
            record for record in proxy.log(2) if record["request_id"] == waited.header("x-weir-request-id")
        )
        calls = len(upstream.calls)
    assert (waited.status, json.loads(waited.body)["error"]["code"]) == (status, code)
    assert 0.1 < seconds < 2
    assert (waited.header("retry-after") is not None) is (status == 503)
    assert record["queue_ms"] > 100
    assert record["connect_ms"] < 50
    assert calls <= 2, "nothing was sent for it (the first one may have been retried)"


def test_waiting_counts_towards_the_total_of_the_answer(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        time.sleep(0.3)
        call.json(ANSWER)

    with served(tmp_path, script, bounded("total: 450ms")) as (proxy, _):
        first, second = proxy.client(), proxy.client()
        for client in (first, second):
            client.send_request("POST", PATH, CHAT)
        statuses = [client.read_answer().status for client in (first, second)]
    assert sorted(statuses) == [200, 504]


def test_a_place_that_becomes_free_by_a_close_is_queued_for_and_then_connected_to(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        time.sleep(0.2)
        call.json(ANSWER, headers=b"Connection: close\r\n")
        call.close()

    with served(tmp_path, script, bounded("total: 5s")) as (proxy, _):
        first, second = proxy.client(), proxy.client()
        first.send_request("POST", PATH, CHAT)
        time.sleep(0.02)
        second.send_request("POST", PATH, CHAT)
        assert first.read_answer().status == second.read_answer().status == 200
        queued = max(record["queue_ms"] for record in proxy.log(2))
        connected = max(record["connect_ms"] for record in proxy.log(2))
    assert queued > 100
    assert connected < queued


def hold_and_break(call: Call) -> None:
    """Begin an answer, let it wait, and never say anything."""
    if b'"stream":true' in call.body:
        call.stream_head()
        call.chunk(b": hello\n\n")
    else:
        call.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{")
    time.sleep(0.25)
    call.close()


@pytest.mark.parametrize("body", [CHAT, CHAT_STREAM], ids=["json", "stream"])
def test_holding_an_answer_that_fails_is_not_weirs_own_time(tmp_path: Path, body: bytes) -> None:
    with served(tmp_path, hold_and_break, chat_policy()) as (proxy, _):
        failed = proxy.client().request("POST", PATH, body)
        (record,) = proxy.log(1)
    assert failed.status == 502
    assert entries(failed)["overhead"] < 100
    assert record["overhead_ms"] < 100


def test_nor_is_it_for_a_caller_that_leaves(tmp_path: Path) -> None:
    with served(tmp_path, hold_and_break, chat_policy()) as (proxy, upstream):
        client = proxy.client()
        client.send_request("POST", PATH, CHAT)
        upstream.wait_for_calls(1)
        time.sleep(0.15)
        client.close()
        (record,) = proxy.log(1)
    assert record["error"] == "client_closed"
    assert 0 < record["overhead_ms"] < 100


def test_attempts_that_failed_are_not_weirs_own_time(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        if b"max_tokens" in call.body:
            time.sleep(0.25)
            error = b'{"error":{"message":"Unsupported parameter","param":"max_tokens"}}'
            call.json(error, b"400 Bad Request")
        else:
            call.json(ANSWER)

    policy = chat_policy("steps: [{cap_output: {default: 300}}]")
    with served(tmp_path, script, policy) as (proxy, _):
        answer = proxy.client().request("POST", PATH, CHAT)
        (record,) = proxy.log(1)
    assert (answer.status, record["retries"]) == (200, 1)
    assert record["overhead_ms"] < 100
