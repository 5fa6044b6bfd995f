"""The batch lane when things go away: the store, the process, the worker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.cli.main import main
from proxy.sim.scenario import Timing
from tests.support.deferring import OWN_KEY, POLICY, PRICES, deferring
from tests.support.job_worker import FAST
from tests.support.raw_client import RawAnswer
from tests.support.redis_server import running as redis_running
from tests.support.weir import RunningWeir
from tests.support.weir_process import ROOT, weir_process
from tests.unit.sim.running import Sim, running

CHAT = b'{"model":"gpt-5-mini","messages":[{"role":"user","content":"Classify: late parcel"}]}'
NOW = CHAT.replace(b"{", b'{"service_tier":"priority",', 1)
ALICE = [("Authorization", "Bearer sk-alice"), ("x-stainless-retry-count", "0")]
ALICE_AGAIN = [("Authorization", "Bearer sk-alice"), ("x-stainless-retry-count", "1")]
SLOW = replace(FAST, timing=Timing(base_ms=1500, prefill_ms_per_token=0, decode_ms_per_token=0))


def chat(proxy: RunningWeir, body: bytes = CHAT, headers: list[tuple[str, str]] | None = None) -> RawAnswer:
    return proxy.client(20).request("POST", "/v1/chat/completions", body, headers or ALICE)


def lane(answer: RawAnswer) -> str:
    return answer.header("x-weir-lane") or ""


def seconds_for(proxy: RunningWeir, body: bytes) -> float:
    begun = time.monotonic()
    assert chat(proxy, body).status == 200
    return time.monotonic() - begun


def until_deferred(proxy: RunningWeir, seconds: float = 15.0) -> None:
    until = time.monotonic() + seconds
    while not lane(chat(proxy)).startswith("batch"):
        assert time.monotonic() < until, "deferral did not recover"
        time.sleep(0.2)


def test_a_frozen_store_pauses_deferral_and_nothing_else(tmp_path: Path) -> None:
    with redis_running("valkey") as server, deferring(tmp_path, store=server.url) as (proxy, _):
        assert lane(chat(proxy)).startswith("batch; tier=flex")
        quick = min(seconds_for(proxy, NOW) for _ in range(3))
        server.signal(signal.SIGSTOP)
        try:
            first = chat(proxy)
            frozen = [seconds_for(proxy, body) for body in (NOW, CHAT, NOW, CHAT)]
            refused = chat(proxy)
            asked = proxy.client().request("GET", "/weir/v1/jobs", headers=ALICE)
            down = proxy.metric("weir_job_store_unavailable")
        finally:
            server.signal(signal.SIGCONT)
        until_deferred(proxy)
    assert first.status == 200, "whoever met the store in this moment is served all the same"
    assert "job store unavailable" in lane(refused)
    assert (asked.status, json.loads(asked.body)["error"]["code"]) == (503, "job_store_unavailable")
    assert down == 1
    assert max(frozen) < quick + 0.5, "nobody waits for a store that is known to be gone"


def test_a_store_that_is_away_at_the_start_is_taken_up_when_it_comes(tmp_path: Path) -> None:
    with redis_running("valkey") as server:
        server.kill()
        with deferring(tmp_path, store=server.url) as (proxy, _):
            assert "job store unavailable" in lane(chat(proxy))
            server.start()
            until_deferred(proxy)


def test_a_held_caller_is_told_to_come_again_and_finds_its_job(tmp_path: Path) -> None:
    """The process is stopped while it holds a caller; its successor has the answer."""
    with running(SLOW) as sim:
        box: list[RawAnswer] = []
        with deferring(tmp_path, sim=sim, drain_timeout_seconds=0.2) as (proxy, _):
            client = proxy.client(20)
            client.send_request("POST", "/v1/chat/completions", CHAT, ALICE)
            reader = threading.Thread(target=lambda: box.append(client.read_answer()))
            reader.start()
            time.sleep(0.4)
            proxy.loop.call_soon_threadsafe(proxy.app.stop)
            reader.join(10)
        (told,) = box
        with deferring(tmp_path, sim=sim) as (proxy, _):
            answer = chat(proxy, headers=ALICE_AGAIN)
            jobs = json.loads(proxy.admin("/jobs")[1])["jobs"]
    assert (told.status, json.loads(told.body)["error"]["code"]) == (503, "shutting_down")
    assert int(told.header("retry-after") or 0) <= 60
    assert answer.status == 200
    assert len(jobs) == 1


@contextmanager
def worker_process(tmp_path: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "proxy.cli.main", "worker", *options]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        process.stdout.close()


def written(tmp_path: Path, sim: Sim, tiers: str = "flex", after: str = "20ms") -> tuple[str, str]:
    policy = POLICY.replace("URL", f"{sim.address}/v1").replace("KEY", OWN_KEY)
    policy = policy.replace("TIERS", tiers).replace("after: 20ms", f"after: {after}").replace(", EXTRA", "")
    prices, file = tmp_path / "prices.yaml", tmp_path / "policy.yaml"
    prices.write_text(PRICES, encoding="utf-8")
    file.write_text(policy, encoding="utf-8")
    return str(file), str(prices)


def test_the_commands_serve_work_and_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A ticket taken from `weir serve`, worked on by it and by `weir worker`, shown by `weir jobs`."""
    with running(FAST) as sim:
        policy, prices = written(tmp_path, sim)
        store = f"sqlite:{tmp_path / 'jobs.db'}"
        options = ["--policies", policy, "--store", store, "--prices", prices]
        with weir_process(tmp_path, None, *options) as served, worker_process(tmp_path, *options) as worker:
            ticket = served.client().request(
                "POST", "/v1/chat/completions", CHAT, [*ALICE, ("Prefer", "respond-async")]
            )
            where = ticket.header("location") or ""
            until = time.monotonic() + 15
            while (answer := served.client().request("GET", where, headers=ALICE)).status == 202:
                assert time.monotonic() < until
                time.sleep(0.05)
            host, port = served.admin_address
            by_admin = ["--admin", f"{host}:{port}"]
            assert main(["jobs", "list", "--json", *by_admin]) == 0
            job_id = json.loads(capsys.readouterr().out)["jobs"][0]["id"]
            assert main(["jobs", "retry", job_id, *by_admin]) == 1
            refused = capsys.readouterr().err
            assert main(["jobs", "show", job_id, "--store", store]) == 0
            shown = capsys.readouterr().out
            assert worker.stdout is not None
            assert b"working on jobs" in worker.stdout.readline()
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(15) == 0
    assert answer.status == 200
    assert where.endswith(job_id)
    assert refused.count("delivered") == 1, "a job that ended well is not tried again, and says so once"
    assert "bookings" in shown
