"""What a cluster sees when a process ends or an upstream is away (reports B110, B111)."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from tests.support.chat import ANSWER, CHAT, CHAT_STREAM, DONE, PATH, chat_policy, delta, finish
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.websocket import TEXT, FrameReader, frame, handshake_headers, switching
from tests.support.weir import weir
from tests.support.weir_process import WeirProcess, weir_process

SIGNALS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])


class Script:
    """Answers at once, but for streams, which wait for `may_end`, and websockets, which say hello."""

    def __init__(self) -> None:
        self.may_end = threading.Event()

    def __call__(self, call: Call) -> None:
        if call.header("upgrade"):
            call.send(switching(call.header("sec-websocket-key")) + frame(TEXT, b"hello"))
            call.wait_for_close(5)
        elif b'"stream":true' in call.body:
            call.stream_head()
            call.chunk(delta("hel"))
            self.may_end.wait(5)
            call.chunk(delta("lo") + finish() + DONE)
            call.end_chunks()
        else:
            call.json(ANSWER)


def is_refused(process: WeirProcess) -> bool:
    """Tell whether connections are not accepted any more."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(process.address) != 0


def wait_until_refused(process: WeirProcess, seconds: float = 5.0) -> float:
    """Wait until no connection is accepted any more; return how long that took."""
    begin = time.monotonic()
    while not is_refused(process):
        assert time.monotonic() - begin < seconds, process.output
        time.sleep(0.01)
    return time.monotonic() - begin


# B110
@SIGNALS
def test_a_signal_ends_nothing_at_once(tmp_path: Path, number: signal.Signals) -> None:
    script = Script()
    with (
        RawUpstream(script) as upstream,
        weir_process(tmp_path, upstream.url, "--drain-delay", "400ms", policies=chat_policy()) as process,
    ):
        assert (process.admin("/readyz").status, process.admin("/healthz").status) == (200, 200)
        streaming, kept = process.client(), process.client()
        streaming.send_request("POST", PATH, CHAT_STREAM)
        streaming.read_head()
        assert kept.request("POST", PATH, CHAT).status == 200

        process.signal(number)
        while process.admin("/readyz").status == 200:
            time.sleep(0.001)
        assert process.admin("/healthz").status == 200
        assert process.client().request("POST", PATH, CHAT).status == 200, "new connections are served"
        assert kept.request("POST", PATH, CHAT).status == 200, "so are requests on kept connections"
        assert wait_until_refused(process) > 0.1

        assert process.admin("/healthz").status == 200, "probes answer to the end"
        assert process.admin("/readyz").status == 503
        script.may_end.set()
        body = b"".join(piece or b"CUT" for piece in streaming.chunks())
        assert process.wait() == 0, process.output
    assert body == delta("hel") + delta("lo") + finish() + DONE
    records = [json.loads(line) for line in process.log_file.read_text().splitlines()]
    assert [record["status"] for record in records] == [200] * 4
    assert "Traceback" not in process.output


# B110
def test_answers_while_draining_ask_callers_to_go_elsewhere(tmp_path: Path) -> None:
    with (
        RawUpstream(Script()) as upstream,
        weir_process(tmp_path, upstream.url, "--drain-delay", "300ms", policies=chat_policy()) as process,
    ):
        clients = [process.client() for _ in range(4)]
        for client in clients:
            assert client.request("POST", PATH, CHAT).header("connection") is None
        process.signal(signal.SIGTERM)
        while process.admin("/readyz").status == 200:
            time.sleep(0.001)
        answers = [
            clients[0].request("POST", PATH, CHAT),
            clients[1].request("GET", "/unmatched"),
            clients[2].request("GET", "/../refused"),
        ]
        assert [answer.status for answer in answers] == [200, 200, 400]
        assert [answer.header("connection") for answer in answers] == ["close"] * 3
        assert [client.is_closed_within(1) for client in clients] == [True] * 4, (
            "the idle one at the end, too"
        )
        for client in clients:
            client.close()
        assert process.wait() == 0


# B110
def test_what_does_not_end_within_the_timeout_is_broken_off_and_recorded(tmp_path: Path) -> None:
    options = ["--drain-timeout", "200ms"]
    with RawUpstream(Script()) as upstream, weir_process(tmp_path, upstream.url, *options) as process:
        streaming, realtime = process.client(), process.client()
        streaming.send_request("POST", PATH, CHAT_STREAM)
        streaming.read_head()
        realtime.send_request("GET", "/v1/realtime", None, handshake_headers())
        realtime.read_head()
        frames = FrameReader(realtime.receive)
        assert frames.next() is not None
        process.signal(signal.SIGTERM)
        begin = time.monotonic()
        assert list(streaming.chunks())[-1] is None, "never a well-formed end"
        assert frames.next() is None
        assert time.monotonic() - begin > 0.15, "both had their time"
        assert process.wait() == 0, process.output
    records = [json.loads(line) for line in process.log_file.read_text().splitlines()]
    assert sorted(record["status"] for record in records) == [101, 200]
    assert "Traceback" not in process.output


# B110
@SIGNALS
def test_a_second_signal_ends_at_once(tmp_path: Path, number: signal.Signals) -> None:
    options = ["--drain-delay", "20s", "--drain-timeout", "20s"]
    with RawUpstream(Script()) as upstream, weir_process(tmp_path, upstream.url, *options) as process:
        streaming = process.client()
        streaming.send_request("POST", PATH, CHAT_STREAM)
        streaming.read_head()
        process.signal(number)
        while process.admin("/readyz").status == 200:
            time.sleep(0.001)
        process.signal(number)
        assert process.wait(2) == 0


# B110
def test_a_signal_right_after_the_announcement_is_an_orderly_end(tmp_path: Path) -> None:
    with RawUpstream(Script()) as upstream, weir_process(tmp_path, upstream.url) as process:
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
    assert "Traceback" not in process.output


# B111
def test_an_upstream_that_is_away_neither_restarts_nor_empties_the_service(tmp_path: Path) -> None:
    with RawUpstream(Script()) as upstream:
        url = upstream.url
    with weir(tmp_path, url, chat_policy()) as proxy:
        for _ in range(20):
            assert proxy.client().request("POST", PATH, CHAT).status == 502
        assert proxy.admin("/healthz") == (200, b"ok\n")
        assert proxy.admin("/readyz") == (200, b"ready\n")


# B111
def test_an_upstream_that_never_answers_does_not_hold_the_probes(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        call.wait_for_close(5)

    with RawUpstream(script) as upstream:
        policies = chat_policy(base_url=upstream.url, upstream="timeouts: {first_byte: 300ms}")
        with weir(tmp_path, None, policies) as proxy:
            clients = [proxy.client() for _ in range(50)]
            for client in clients:
                client.send_request("POST", PATH, CHAT)
            upstream.wait_for_calls(50)
            begin = time.monotonic()
            assert proxy.admin("/healthz")[0] == proxy.admin("/readyz")[0] == 200
            assert time.monotonic() - begin < 0.2
            assert {client.read_answer().status for client in clients} == {504}
