"""P5, continued: crashes of steps, many requests on one connection, tunnels, the end of the process."""

from __future__ import annotations

import json
import signal
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
from tests.support.chat import CHAT, CHAT_STREAM, PATH, chat_policy
from tests.support.endings import leave, on, policy, script, settled
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.websocket import TEXT, frame, handshake_headers, switching
from tests.support.weir import RunningWeir, weir
from tests.support.weir_process import weir_process

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
