"""Lines of batches give way to callers' requests: cut off, sent again, none lost and none told twice."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

from tests.functional.test_batch_server_run import echo, said, serving, text_of
from tests.support.raw_upstream import Call
from tests.support.serving import CHAT, BatchCaller, chat_line
from tests.support.weir import RunningWeir

POLICY = """
version: 1
upstreams: {local: {base_url: URL, provider: llamacpp, batch_api: {give_way: true, may_meet: SHARE}}}
defaults: {upstream: local}
"""
NOW = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "now"}]}).encode()


class Server:
    """Answers callers at once, and lines once they are let; sees which lines' callers left before."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.is_on_line = threading.Event()
        self.left: list[str] = []

    def __call__(self, call: Call) -> None:
        """Answer, or see that nobody listens any more."""
        if said(call) == "now":
            echo(call)
            return
        self.is_on_line.set()
        call.socket.settimeout(0.01)
        while not self.may_answer.is_set():
            try:
                if not call.socket.recv(1):
                    self.left.append(said(call))
                    call.is_closed = True
                    return
            except TimeoutError:
                continue
        call.socket.settimeout(None)
        echo(call)


def ask(proxy: RunningWeir) -> None:
    with proxy.client() as client:
        answer = client.request("POST", CHAT, NOW, headers=[("content-type", "application/json")])
        assert answer.status == 200


def until(server: Server, count: int) -> None:
    deadline = time.monotonic() + 5
    while len(server.left) < count:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_line_in_flight_is_cut_off_and_sent_again(tmp_path: Path) -> None:
    server = Server()
    with serving(tmp_path, server, policy=POLICY.replace("SHARE", "0.01")) as (proxy, upstream):
        ask(proxy)
        caller = BatchCaller(proxy)
        batch_id = caller.batch([chat_line(f"line-{n}", f"text {n}") for n in range(5)])
        assert server.is_on_line.wait(5)
        # One in a hundred is let meet it.
        ask(proxy)
        assert server.left == []
        for times in (1, 2):
            server.is_on_line.clear()
            ask(proxy)
            until(server, times)
            assert server.is_on_line.wait(5)
        server.may_answer.set()
        batch = caller.ended(batch_id)
        results = caller.results(batch)
        assert proxy.metric("weir_served_lines_gave_way_total", upstream="local") == len(server.left) >= 2
        assert proxy.metric("weir_served_lines_in_flight") == 0
        assert proxy.metric("weir_served_interactive_total", met="unproven") == 1
        records = [each for each in proxy.log(5 + 4 + len(server.left)) if each.get("error")]
    assert batch["request_counts"] == {"total": 5, "completed": 5, "failed": 0}
    assert {name: text_of(result) for name, result in results.items()} == {
        f"line-{n}": f"text {n}" for n in range(5)
    }
    assert {each["error"] for each in records} == {"line_gave_way"}
    assert len(records) == len(server.left)
    # The one that was cut off is the one that is sent again first.
    order = [said(call) for call in upstream.calls if said(call) != "now"]
    assert order[:3] == ["text 0"] * 3
    assert len(order) == 5 + len(server.left)


def test_lines_get_done_however_often_callers_come(tmp_path: Path) -> None:
    def script(call: Call) -> None:
        if said(call) != "now":
            time.sleep(0.1)
        echo(call)

    with serving(tmp_path, script, policy=POLICY.replace("SHARE", "0.2")) as (proxy, upstream):
        ask(proxy)
        caller = BatchCaller(proxy)
        batch_id = caller.batch([chat_line(f"line-{n}", f"text {n}") for n in range(4)])
        deadline = time.monotonic() + 20
        while caller.json("GET", f"/v1/batches/{batch_id}")["status"] != "completed":
            assert time.monotonic() < deadline
            ask(proxy)
            time.sleep(0.02)
        batch = caller.ended(batch_id)
        gave_way = proxy.metric("weir_served_lines_gave_way_total", upstream="local")
        retried = proxy.metric("weir_served_line_retries_total")
    assert batch["request_counts"] == {"total": 4, "completed": 4, "failed": 0}
    # Each is cut off three times at most and runs to its end then; that is no try that failed.
    assert 0 < gave_way <= 12
    assert retried == 0
    assert len([call for call in upstream.calls if said(call) != "now"]) <= 4 + gave_way


def test_a_batch_is_cancelled_while_its_lines_are_cut_off(tmp_path: Path) -> None:
    server = Server()
    with serving(tmp_path, server, policy=POLICY.replace("SHARE", "0.01")) as (proxy, _):
        ask(proxy)
        caller = BatchCaller(proxy)
        batch_id = caller.batch([chat_line(f"line-{n}") for n in range(2000)])
        assert server.is_on_line.wait(5)
        ask(proxy)
        ask(proxy)
        caller.json("POST", f"/v1/batches/{batch_id}/cancel")
        server.may_answer.set()
        batch = caller.ended(batch_id)
        assert proxy.metric("weir_served_lines_in_flight") == 0
    assert batch["status"] == "cancelled"
    counts = batch["request_counts"]
    assert counts["completed"] + counts["failed"] == 2000
