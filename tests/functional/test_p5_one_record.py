"""P5: exactly one record per exchange, however it ends, and nothing stays in flight.

Each case makes a number of exchanges end in some way. Then there is one line in the access log for each, no
two have the same id, each counts once in the metrics, and the gauge of exchanges in progress is back at 0.
"""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from proxy.app import load_policies
from proxy.core.document import Document
from proxy.policy.model import BoundStep, Match, OnError, PolicySet, Route
from proxy.settings import Settings
from proxy.steps.step import Outcome, Step, StepContext
from tests.support.chat import ANSWER, CHAT, CHAT_STREAM, DONE, PATH, chat_policy, delta, finish
from tests.support.raw_client import RawClient
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.websocket import TEXT, frame, handshake_headers, switching
from tests.support.weir import RunningWeir, weir
from tests.support.weir_process import weir_process

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


def on(route: str) -> tuple[tuple[str, str], ...]:
    return (("x-route", route),)


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


def leave(client: RawClient, how: str) -> None:
    """Close the connection, with a FIN or with a reset."""
    if how == "reset":
        client.reset()
    else:
        client.close()


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


# --- steps that crash ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Nothing:
    """A configuration without options."""


class PanicException(BaseException):
    """What a panic in a compiled library arrives as."""


def with_step(apply: Callable[[Document, Any, StepContext], Outcome], **route: Any) -> PolicySet:
    """Return a policy with one step; long bodies are decided in a thread."""
    settings = Settings(upstream_url="http://127.0.0.1:1/v1")
    step = BoundStep(Step("faulty", _Nothing, apply, counts_tokens=True), _Nothing())
    return replace(load_policies(settings, {}), routes=(Route("faulty", Match(), (step,), **route),))


def at(policies: PolicySet, url: str) -> PolicySet:
    """Return the same policies for another upstream."""
    return replace(policies, upstreams=load_policies(Settings(upstream_url=url), {}).upstreams)


CRASHES: dict[str, Callable[[], object]] = {
    "raises": lambda: 1 // 0,
    "panics": lambda: (_ for _ in ()).throw(PanicException("rust")),
    "returns nothing": lambda: None,
}


@pytest.mark.parametrize("on_error", [OnError.PASS, OnError.REJECT])
@pytest.mark.parametrize("is_long", [False, True], ids=["short", "long"])
@pytest.mark.parametrize("crash", CRASHES)
def test_a_step_that_crashes_is_recorded_once(
    tmp_path: Path, crash: str, is_long: bool, on_error: OnError
) -> None:
    def apply(document: Document, config: Any, context: StepContext) -> Any:
        return CRASHES[crash]()

    body = CHAT + b" " * (100_000 if is_long else 0)
    with (
        RawUpstream(script) as upstream,
        weir(tmp_path, upstream.url, at(with_step(apply, on_error=on_error), upstream.url)) as proxy,
    ):
        client = proxy.client()
        statuses = [client.request("POST", PATH, body).status for _ in range(2)]
        records = settled(proxy, 2)
    wanted = 200 if on_error is OnError.PASS else 400
    assert statuses == [record["status"] for record in records] == [wanted] * 2
    assert all(record["steps"][0].startswith("faulty;failed") for record in records)


def test_a_caller_that_leaves_while_its_request_is_decided_is_recorded_once(tmp_path: Path) -> None:
    is_deciding, may_end = threading.Event(), threading.Event()

    def apply(document: Document, config: Any, context: StepContext) -> Outcome:
        is_deciding.set()
        may_end.wait(5)
        raise ValueError("too late")

    with RawUpstream(script) as upstream:
        with weir(tmp_path, upstream.url, at(with_step(apply), upstream.url)) as proxy:
            client = proxy.client()
            client.send_request("POST", PATH, CHAT + b" " * 100_000)
            assert is_deciding.wait(5)
            client.close()
            assert proxy.log(1)[0]["error"] == "client_closed"
            may_end.set()
            settled(proxy, 1)
        assert upstream.calls == []


# --- many on one connection, tunnels, the end of the process ------------------------------------------------


def test_pipelined_requests_are_recorded_once_each(tmp_path: Path) -> None:
    with RawUpstream(script) as upstream, weir(tmp_path, None, policy(upstream.url)) as proxy:
        client = proxy.client()
        for do, body in (("", CHAT), ("500", CHAT), ("", CHAT_STREAM), ("role, end", CHAT_STREAM)):
            client.send_request("POST", PATH, body, [("x-do", do)])
        client.send_request("POST", PATH, CHAT, [("x-weir-explain", "dry-run")])
        client.send(b"GET /v1/models HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")
        answers = [client.read_answer("POST") for _ in range(6)]
        records = settled(proxy, 6)
    statuses = [200, 500, 200, 502, 200, 400]
    assert [answer.status for answer in answers] == statuses
    assert [record["status"] for record in records] == statuses
    assert [record["request_id"] for record in records] == [
        answer.header("x-weir-request-id") for answer in answers
    ]


def test_pipelined_requests_whose_caller_leaves_are_recorded_as_far_as_they_were_begun(
    tmp_path: Path,
) -> None:
    with RawUpstream(script) as upstream, weir(tmp_path, None, policy(upstream.url)) as proxy:
        client = proxy.client()
        for do in ("", "silent", "", ""):
            client.send_request("POST", PATH, CHAT, [("x-do", do), *on("patient")])
        assert client.read_answer("POST").status == 200
        upstream.wait_for_calls(2)
        client.close()
        records = settled(proxy, 2)
    assert [record["error"] for record in records] == [None, "client_closed"]


TUNNELS = ["caller closes", "caller resets", "upstream closes", "upstream resets", "refused"]


@pytest.mark.parametrize("kind", TUNNELS)
@pytest.mark.parametrize("policies", [None, chat_policy().replace(PATH, "/v1/realtime")])
def test_a_tunnel_is_recorded_once_when_both_sides_are_closed(
    tmp_path: Path, kind: str, policies: str | None
) -> None:
    is_recorded = threading.Event()

    def tunnel(call: Call) -> None:
        if kind == "refused":
            call.json(b"{}", b"403 Forbidden")
            return
        call.send(switching(call.header("sec-websocket-key")) + frame(TEXT, b"hello"))
        is_recorded.wait(5)
        if kind == "upstream closes":
            call.close()
        elif kind == "upstream resets":
            call.reset()
        else:
            call.wait_for_close(5)

    with RawUpstream(tunnel) as upstream, weir(tmp_path, upstream.url, policies) as proxy:
        client = proxy.client()
        client.send_request("GET", "/v1/realtime", None, handshake_headers())
        if kind == "refused":
            assert client.read_answer().status == 403
        else:
            assert client.read_head().status == 101
            time.sleep(0.03)
            assert proxy.log() == []
            assert proxy.metric("weir_in_flight") == 1
            is_recorded.set()
            if kind.startswith("caller"):
                leave(client, kind.split()[1].removesuffix("s"))
        (record,) = settled(proxy, 1)
    assert record["status"] == (403 if kind == "refused" else 101)
    assert record["error"] is None


def test_exchanges_that_the_end_of_the_process_breaks_off_are_recorded_once(tmp_path: Path) -> None:
    options = ["--drain-timeout", "100ms"]
    with (
        RawUpstream(script) as upstream,
        weir_process(tmp_path, None, *options, policies=policy(upstream.url)) as process,
    ):
        waiting = [
            ("silent", CHAT),
            ("role", CHAT_STREAM),
            ("midway", CHAT_STREAM),
            ("half a body", CHAT),
            ("retry later", CHAT),
        ]
        for do, body in waiting:
            process.client().send_request("POST", PATH, body, [("x-do", do), *on("patient")])
        upstream.wait_for_calls(len(waiting))
        process.client().send(b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{" % PATH.encode())
        time.sleep(0.05)
        process.signal(signal.SIGTERM)
        assert process.wait() == 0, process.output
    records = [json.loads(line) for line in process.log_file.read_text().splitlines()]
    assert len(records) == len({record["request_id"] for record in records}) == len(waiting) + 1
    assert {record["error"] for record in records} == {"client_closed"}


def test_many_mixed_exchanges_at_once_leave_a_record_each(tmp_path: Path) -> None:
    kinds = [("", CHAT), ("", CHAT_STREAM), ("500", CHAT), ("close", CHAT), ("midway, reset", CHAT_STREAM)]
    each = 20

    def ask(proxy: RunningWeir) -> None:
        for number in range(each):
            do, body = kinds[number % len(kinds)]
            with proxy.client() as client:
                client.send_request("POST", PATH, body, [("x-do", do)])
                if number % 3:
                    client.read_answer("POST")

    with RawUpstream(script) as upstream, weir(tmp_path, upstream.url, chat_policy()) as proxy:
        threads = [threading.Thread(target=ask, args=(proxy,)) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        settled(proxy, 10 * each)
