"""Batches that several processes work on, one after another or side by side; and callers beside them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.functional.test_batch_server_run import WORKER, echo, said, serving, text_of
from tests.support.batch_process import batch_process
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.redis_server import running as redis_running
from tests.support.serving import CHAT, POLICY, BatchCaller, chat_line
from tests.support.weir import weir

LINES = 60


def slow(call: Call) -> None:
    time.sleep(0.03)
    echo(call)


def test_no_line_is_lost_or_told_twice_however_often_its_process_is_killed(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'jobs.db'}"
    lines = [chat_line(f"line-{n}", f"text {n}") for n in range(LINES)]
    batch_id, done = "", 0
    with RawUpstream(slow) as upstream:
        policy = POLICY.replace("URL", upstream.url)
        for _ in range(2):
            with batch_process(tmp_path, policy, store) as running:
                caller = BatchCaller(running)
                batch_id = batch_id or caller.batch(lines)
                done = caller.until(batch_id, completed=done + 8)["request_counts"]["completed"]
                running.kill()
        with weir(tmp_path, None, policy, store=store, worker=WORKER) as proxy:
            caller = BatchCaller(proxy)
            batch = caller.ended(batch_id)
            results = caller.results(batch)
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
    assert {name: text_of(result) for name, result in results.items()} == {
        f"line-{n}": f"text {n}" for n in range(LINES)
    }
    assert batch["usage"]["input_tokens"] == 7 * LINES
    # What was on its way when its process died ran again, and nothing else.
    assert LINES <= len(upstream.calls) <= LINES + 2 * 32


def test_processes_share_batches_of_one_store(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"store": f"sqlite:{tmp_path / 'jobs.db'}", "worker": WORKER}
    with RawUpstream(slow) as upstream:
        policy = POLICY.replace("URL", upstream.url)
        with (
            weir(tmp_path, None, policy, **settings) as one,
            weir(tmp_path, None, policy, **settings) as other,
        ):
            caller = BatchCaller(one)
            ids = [caller.batch([chat_line(f"line-{n}") for n in range(15)]) for _ in range(10)]
            batches = [BatchCaller(other).ended(batch_id) for batch_id in ids]
            worked = [proxy.metric("weir_served_lines_total") for proxy in (one, other)]
    assert all(batch["request_counts"]["completed"] == 15 for batch in batches)
    assert sum(worked) == 150 == len(upstream.calls)
    assert min(worked) > 0


def test_a_server_of_redis_is_shared_likewise(tmp_path: Path) -> None:
    with redis_running("redis") as server, RawUpstream(slow) as upstream:
        policy = POLICY.replace("URL", upstream.url)
        settings: dict[str, Any] = {"store": server.url, "worker": WORKER}
        lines = [chat_line(f"line-{n}", f"text {n}") for n in range(30)]
        with weir(tmp_path, None, policy, **settings) as proxy:
            caller = BatchCaller(proxy)
            batch_id = caller.batch(lines)
            caller.until(batch_id, completed=3)
        with weir(tmp_path, None, policy, **settings) as proxy:
            caller = BatchCaller(proxy)
            batch = caller.ended(batch_id)
            results = caller.results(batch)
    assert batch["request_counts"] == {"total": 30, "completed": 30, "failed": 0}
    assert {text_of(result) for result in results.values()} == {f"text {n}" for n in range(30)}
    assert len(upstream.calls) == 30


def test_a_worker_that_serves_nobody_works_on_batches_too(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'jobs.db'}"
    with RawUpstream(echo) as upstream:
        policy = POLICY.replace("URL", upstream.url)
        file = tmp_path / "policy.yaml"
        file.write_text(policy, encoding="utf-8")
        with weir(tmp_path, None, policy, store=store, worker=WORKER) as proxy:
            batch_id = BatchCaller(proxy).batch([chat_line(f"line-{n}") for n in range(3)])
        options = ["--policies", str(file), "--store", store]
        command = [sys.executable, "-m", "proxy.cli.main", "worker", *options]
        worker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            other = POLICY.replace("local", "other").replace("URL", upstream.url)
            # Its policies do not know the upstream: it leaves the batch alone.
            with weir(tmp_path, None, other, store=store, worker=WORKER) as proxy:
                batch = BatchCaller(proxy).ended(batch_id)
        finally:
            worker.terminate()
            assert worker.wait(15) == 0
    assert batch["request_counts"]["completed"] == 3


def test_callers_requests_are_answered_while_a_batch_runs(tmp_path: Path) -> None:
    lanes = """
  - name: lanes
    match: {path: /v1/chat/completions}
"""
    with serving(tmp_path, slow, policy=POLICY + "routes:" + lanes) as (proxy, upstream):
        caller = BatchCaller(proxy)
        batch_id = caller.batch([chat_line(f"line-{n}", "of a batch") for n in range(200)])
        caller.until(batch_id, completed=3)
        asked = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "now"}]}).encode()
        with proxy.client() as client:
            answers = [
                client.request("POST", CHAT, asked, headers=[("content-type", "application/json")])
                for _ in range(20)
            ]
        caller.json("POST", f"/v1/batches/{batch_id}/cancel")
        caller.ended(batch_id)
        assert proxy.metric("weir_served_lines_in_flight") == 0
        limits = re.findall(
            r'^weir_served_limit\{upstream="local"\} (\S+)$',
            proxy.admin("/metrics")[1].decode(),
            re.MULTILINE,
        )
        assert len(limits) == 1
        assert 0 <= float(limits[0]) <= 32
        assert proxy.metric("weir_served_interactive_total", upstream="local") == 20
    assert {answer.status for answer in answers} == {200}
    assert sum(said(call) == "now" for call in upstream.calls) == 20


@pytest.mark.parametrize("routes", ["", "routes: [{name: all, match: {path: /v1/chat/completions}}]\n"])
def test_callers_are_seen_with_and_without_a_route(tmp_path: Path, routes: str) -> None:
    with serving(tmp_path, slow, policy=POLICY + routes) as (proxy, _):
        caller = BatchCaller(proxy)
        time.sleep(0.1)
        asked = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "now"}]}).encode()
        with proxy.client() as client:
            answer = client.request("POST", CHAT, asked, headers=[("content-type", "application/json")])
            assert answer.status == 200
        assert proxy.metric("weir_served_interactive_total", upstream="local", met="none") == 1
        caller.ended(caller.batch([chat_line("a")]))
        assert proxy.metric("weir_served_interactive_total", upstream="local") == 1
