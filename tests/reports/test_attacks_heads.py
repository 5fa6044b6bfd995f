"""Heads of answers that say what no head may say, or what was meant for somebody else."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.support.chat import ANSWER, CHAT, PATH, chat_policy
from tests.support.raw_upstream import Call
from tests.support.served import served

POLICIES = pytest.mark.parametrize("policies", [None, chat_policy()], ids=["unmatched", "matched"])


@POLICIES
@pytest.mark.parametrize("status", ["042", "000", "099", "20", "2000", "-20"])
def test_a_status_that_is_none_is_an_error_of_the_upstreams(
    tmp_path: Path, policies: str | None, status: str
) -> None:
    def script(call: Call) -> None:
        call.send(f"HTTP/1.1 {status} Odd\r\nContent-Length: 2\r\n\r\n{{}}".encode())
        call.close()

    with served(tmp_path, script, policies) as (proxy, _):
        answer = proxy.client().request("POST", PATH, CHAT)
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (502, "upstream_protocol_error")


@POLICIES
@pytest.mark.parametrize("byte", [0x00, 0x01, 0x08, 0x0B, 0x1B, 0x7F])
def test_control_characters_in_a_reason_are_not_passed_on(
    tmp_path: Path, policies: str | None, byte: int
) -> None:
    def script(call: Call) -> None:
        call.send(b"HTTP/1.1 200 O%cK\r\nContent-Length: 2\r\n\r\n{}" % byte)
        call.close()

    with served(tmp_path, script, policies) as (proxy, _):
        client = proxy.client()
        client.send_request("POST", PATH, CHAT)
        answer = client.read_answer()
    assert answer.status in (200, 502)
    assert byte not in answer.reason
    if answer.status == 200:
        assert (answer.reason, answer.body) == (b"", b"{}")


@POLICIES
@pytest.mark.parametrize("reason", [b"", b"Fine\tthanks", b"d\xe9j\xe0 vu", b"two  words"])
def test_other_reasons_pass_as_they_are(tmp_path: Path, policies: str | None, reason: bytes) -> None:
    def script(call: Call) -> None:
        call.send(b"HTTP/1.1 200 %b\r\nContent-Length: 2\r\n\r\n{}" % reason)
        call.close()

    with served(tmp_path, script, policies) as (proxy, _):
        assert proxy.client().request("POST", PATH, CHAT).reason == reason


@POLICIES
@pytest.mark.parametrize("level", ["full", "minimal", "off"])
def test_what_another_weir_says_of_itself_is_not_taken_for_ours(
    tmp_path: Path, policies: str | None, level: str
) -> None:
    names = ("request-id", "route", "policy", "urgency", "lane", "steps", "tokens", "ttft-ms", "tpot-ms")
    lines = "".join(f"X-Weir-{name}: theirs\r\n" for name in names).encode()

    def script(call: Call) -> None:
        call.json(ANSWER, headers=lines + b"Server-Timing: theirs;dur=1\r\n")

    policies = policies and policies + f"    headers: {level}\n"
    with served(tmp_path, script, policies) as (proxy, _):
        answer = proxy.client().request("POST", PATH, CHAT)
    assert [value for _, value in answer.headers if value == b"theirs"] == []
    assert answer.all("server-timing")[0] == "theirs;dur=1"
    expected = 0 if policies and level == "off" else 1
    assert len(answer.all("x-weir-request-id")) == expected


@POLICIES
def test_a_coding_that_is_none_is_none(tmp_path: Path, policies: str | None) -> None:
    def script(call: Call) -> None:
        call.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nContent-Type: application/json\r\n\r\n")
        call.send(ANSWER[:10])
        time.sleep(0.02)
        call.send(ANSWER[10:])
        call.close()

    with served(tmp_path, script, policies) as (proxy, _):
        client = proxy.client()
        for _ in range(2):
            answer = client.request("POST", PATH, CHAT)
            assert (answer.status, answer.body, answer.is_whole) == (200, ANSWER, True)
            assert answer.header("transfer-encoding") in (None, "chunked")


GOODBYE = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def test_bytes_on_a_connection_that_nobody_uses_close_it(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        call.json(ANSWER)
        if call.connection == 1:
            time.sleep(0.05)
            call.send(GOODBYE)
            call.wait_for_close(2)

    with served(tmp_path, script) as (proxy, upstream):
        client = proxy.client()
        assert client.request("POST", PATH, CHAT).status == 200
        time.sleep(0.15)
        assert client.request("POST", PATH, CHAT).status == 200
    assert [call.connection for call in upstream.calls] == [1, 2]


@pytest.mark.parametrize("number", [0, 1])
def test_a_goodbye_that_crosses_a_request_is_not_its_answer(tmp_path: Path, number: int) -> None:
    """`number`: which request of its connection is told 408; only one that was reused has been silent."""

    def script(call: Call) -> None:
        if call.connection == 1 and call.number == number:
            call.send(GOODBYE)
            call.close()
        else:
            call.json(ANSWER)

    with served(tmp_path, script) as (proxy, upstream):
        client = proxy.client()
        statuses = [client.request("POST", PATH, CHAT).status for _ in range(2)]
    assert statuses == ([408, 200] if number == 0 else [200, 200])
    assert len(upstream.calls) == (2 if number == 0 else 3)


def test_a_408_that_took_its_time_is_an_answer(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        if call.number == 1:
            time.sleep(1.2)
            call.send(GOODBYE)
            call.close()
        else:
            call.json(ANSWER)

    with served(tmp_path, script) as (proxy, upstream):
        client = proxy.client()
        assert [client.request("POST", PATH, CHAT).status for _ in range(2)] == [200, 408]
    assert len(upstream.calls) == 2


def test_a_second_goodbye_is_the_answer(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        if (call.connection, call.number) == (1, 0):
            call.json(ANSWER)
        else:
            call.send(GOODBYE)
            call.close()

    with served(tmp_path, script) as (proxy, upstream):
        client = proxy.client()
        assert [client.request("POST", PATH, CHAT).status for _ in range(2)] == [200, 408]
    assert len(upstream.calls) == 3
