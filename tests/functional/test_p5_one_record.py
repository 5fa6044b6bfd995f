"""P5: exactly one record per exchange, however it ends, and nothing stays in flight.

Each case makes a number of exchanges end in some way. Then there is one line in the access log for each, no
two have the same id, each counts once in the metrics, and the gauge of exchanges in progress is back at 0.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.chat import CHAT, CHAT_STREAM, PATH, chat_policy
from tests.support.endings import leave, on, policy, script, settled
from tests.support.raw_upstream import RawUpstream
from tests.support.weir import weir

# --- exchanges that end by themselves -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ending:
    """A request and how its exchange ends: the status and error code of its record."""

    status: int
    error: str | None = None
    do: str = ""
    body: bytes = CHAT
    headers: tuple[tuple[str, str], ...] = ()
    target: str = PATH


CUT = "upstream_closed"
ENDINGS = {
    "answer": Ending(200),
    "stream": Ending(200, body=CHAT_STREAM),
    "unmatched answer": Ending(200, target="/v1/models"),
    "unread body": Ending(200, target="/v1/files", body=b"x" * 200_000),
    "upstream's error": Ending(500, do="500"),
    "retried, then refused": Ending(503, do="503"),
    "changed, refused, resent": Ending(400, do="400"),
    "connection refused": Ending(502, "upstream_connect_failed", headers=on("dead")),
    "closed at once": Ending(502, CUT, do="close"),
    "reset at once": Ending(502, CUT, do="reset"),
    "nonsense": Ending(502, "upstream_protocol_error", do="garbage"),
    "no first byte": Ending(504, "upstream_first_byte_timeout", do="silent"),
    "silent after its head": Ending(504, "upstream_idle_timeout", do="head", body=CHAT_STREAM),
    "no first token": Ending(502, CUT, do="role, end", body=CHAT_STREAM),
    "reset midway": Ending(200, CUT, do="midway, reset", body=CHAT_STREAM),
    "stalled midway": Ending(200, "upstream_idle_timeout", do="midway", body=CHAT_STREAM),
    "stalled body": Ending(504, "upstream_idle_timeout", do="half a body"),
    "error event": Ending(200, "upstream_error_event", do="error event", body=CHAT_STREAM),
    "unbelievable usage": Ending(200, do="huge usage"),
    "bad target": Ending(400, "bad_request_target", target="/v1/../x"),
    "rejected by policy": Ending(
        400, "rejected_by_policy", headers=on("strict"), body=CHAT[:-1] + b',"seed":1}'
    ),
    "too large": Ending(413, "body_too_large", headers=on("strict"), body=b'{"a":"%b"}' % (b"x" * 2_000)),
    "unreadable": Ending(400, "invalid_body", headers=on("strict"), body=b"not json"),
    "unknown coding": Ending(
        415, "unsupported_content_encoding", headers=(*on("strict"), ("Content-Encoding", "x-odd"))
    ),
    "dry run": Ending(200, headers=(("x-weir-explain", "dry-run"),)),
    "odd model": Ending(200, body=rb'{"model":"\ud800\u0000","messages":[]}'),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_an_exchange_is_recorded_once_however_it_ends(tmp_path: Path, name: str) -> None:
    ending = ENDINGS[name]
    with RawUpstream(script) as upstream, weir(tmp_path, None, policy(upstream.url)) as proxy:
        headers = [("x-do", ending.do), *ending.headers]
        answer = proxy.client().request("POST", ending.target, ending.body, headers)
        assert answer.status == ending.status
        (record,) = settled(proxy, 1)
    assert (record["status"], record["error"]) == (ending.status, ending.error)
    assert record["request_id"] == answer.header("x-weir-request-id")


def test_the_text_format_has_one_line_for_each_exchange_too(tmp_path: Path) -> None:
    log = tmp_path / "text.log"
    chosen = [ENDINGS[name] for name in ("answer", "stream", "upstream's error", "bad target", "odd model")]
    with (
        RawUpstream(script) as upstream,
        weir(tmp_path, None, policy(upstream.url), log_format="text", access_log=str(log)) as proxy,
    ):
        answers = []
        for ending in chosen:
            with proxy.client() as client:
                headers = [("x-do", ending.do), *ending.headers]
                answers.append(client.request("POST", ending.target, ending.body, headers))
    lines = log.read_text().splitlines()
    assert len(lines) == len(chosen)
    for line, ending, answer in zip(lines, chosen, answers, strict=True):
        assert f" request_id={answer.header('x-weir-request-id')} " in line
        assert f" status={ending.status} " in line
        assert (" error=" in line) == (ending.error is not None)


UNREADABLE = {
    "bad header": (b"GET /v1/models HTTP/1.1\r\nHost: a\r\nX A: 1\r\n\r\n", 400),
    "no host": (b"GET /v1/models HTTP/1.1\r\n\r\n", 400),
    "long head": (b"GET /v1/models HTTP/1.1\r\nHost: a\r\nX: %b\r\n\r\n" % (b"x" * 70_000), 431),
    "odd method": (b"BREW /v1/models HTTP/1.1\r\nHost: a\r\n\r\n", 501),
    "half a head": (b"GET /v1/models HTTP/1.1\r\nHost", 408),
    "half a body": (b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{" % PATH.encode(), 408),
    "bad chunk": (
        b"POST %b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz" % PATH.encode(),
        400,
    ),
    "bad chunk of an unread body": (
        b"POST /v1/files HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\nzz",
        400,
    ),
    "half an unread body": (b"POST /v1/files HTTP/1.1\r\nHost: a\r\nContent-Length: 99999\r\n\r\nx", 408),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_request_that_cannot_be_read_is_recorded_once(tmp_path: Path, name: str) -> None:
    raw, status = UNREADABLE[name]
    with (
        RawUpstream(lambda call: None, reads_body=False) as upstream,
        weir(tmp_path, upstream.url, chat_policy(), header_seconds=0.1, body_seconds=0.1) as proxy,
        proxy.client() as client,
    ):
        client.send(raw)
        answer = client.read_answer()
        (record,) = settled(proxy, 1)
    assert answer.status == record["status"] == status
    assert record["request_id"] == answer.header("x-weir-request-id")
    assert json.loads(answer.body)["error"]["code"] == record["error"]


# --- callers that leave -------------------------------------------------------------------------------------

PHASES: dict[str, tuple[str, bytes, tuple[tuple[str, str], ...]]] = {
    "before the answer": ("silent", CHAT, on("patient")),
    "after the head": ("head", CHAT_STREAM, on("patient")),
    "after the role": ("role", CHAT_STREAM, on("patient")),
    "midway": ("midway", CHAT_STREAM, on("patient")),
    "half a body": ("half a body", CHAT, on("patient")),
    "waiting to retry": ("retry later", CHAT, on("patient")),
    "unread": ("silent", CHAT, (("x-other", "1"),)),
}


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_caller_that_leaves_is_recorded_once(tmp_path: Path, phase: str, how: str) -> None:
    do, body, headers = PHASES[phase]
    with RawUpstream(script) as upstream, weir(tmp_path, None, policy(upstream.url)) as proxy:
        client = proxy.client()
        target = "/v1/unmatched" if phase == "unread" else PATH
        client.send_request("POST", target, body, [("x-do", do), *headers])
        upstream.wait_for_calls(1)
        if phase == "midway":
            client.read_head()
        time.sleep(0.03)
        assert proxy.metric("weir_in_flight") == 1
        leave(client, how)
        (record,) = settled(proxy, 1)
    assert record["error"] == "client_closed"
    assert record["path"] == target


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("target", [PATH, "/v1/files"], ids=["read", "unread"])
def test_a_caller_that_leaves_while_it_sends_is_recorded_once(tmp_path: Path, target: str, how: str) -> None:
    with (
        RawUpstream(lambda call: None, reads_body=False) as upstream,
        weir(tmp_path, upstream.url, chat_policy()) as proxy,
    ):
        client = proxy.client()
        client.send(b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: 99999\r\n\r\n{" % target.encode())
        time.sleep(0.05)
        leave(client, how)
        (record,) = settled(proxy, 1)
    assert record["error"] == "client_closed"


def test_a_caller_that_leaves_the_queue_for_a_connection_is_recorded_once(tmp_path: Path) -> None:
    one = "max_connections: 1"
    with RawUpstream(script) as upstream:
        text = chat_policy(base_url=upstream.url, upstream=one)
        with weir(tmp_path, None, text) as proxy:
            first, second = proxy.client(), proxy.client()
            first.send_request("POST", PATH, CHAT, [("x-do", "silent")])
            upstream.wait_for_calls(1)
            second.send_request("POST", PATH, CHAT)
            time.sleep(0.05)
            second.close()
            assert proxy.log(1)[0]["error"] == "client_closed"
            first.close()
            records = settled(proxy, 2)
    assert {record["error"] for record in records} == {"client_closed"}


def test_a_caller_that_never_sends_a_request_is_no_exchange(tmp_path: Path) -> None:
    with RawUpstream(script) as upstream, weir(tmp_path, upstream.url) as proxy:
        proxy.client().close()
        proxy.client().reset()
        with proxy.client() as client:
            client.send(b"GET /v1/mod")
        settled(proxy, 0)


def test_a_caller_that_leaves_after_the_answer_changes_nothing(tmp_path: Path) -> None:
    with RawUpstream(script) as upstream, weir(tmp_path, upstream.url, chat_policy()) as proxy:
        for body in (CHAT, CHAT_STREAM):
            client = proxy.client()
            assert client.request("POST", PATH, body).is_whole
            client.reset()
        records = settled(proxy, 2)
    assert {(record["status"], record["error"]) for record in records} == {(200, None)}
