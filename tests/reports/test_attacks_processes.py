"""Ways to keep a process from starting, stopping or telling the truth about itself."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.chat import ANSWER
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir_process import ROOT, WeirProcess, weir_process

DEADLINE_SECONDS = 30.0
# Several processes start in each of these, which takes long where others keep the machine busy.
pytestmark = pytest.mark.timeout(120)
WORKERS = pytest.mark.parametrize("workers", ["1", "2"])


def answer(call: Call) -> None:
    call.json(ANSWER)


HELD = """
import asyncio, threading, uvloop
from proxy import app
from proxy.settings import Settings

async def run():
    settings = Settings(listen="127.0.0.1:0", admin="off", access_log="off", upstream_url="http://127.0.0.1:9/v1")
    asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
    await app.serve(settings, {}, app.load_policies(settings, {}), lambda line: print(line, flush=True))

uvloop.run(run())
"""


def test_a_thread_that_does_not_come_back_does_not_keep_the_process() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HELD], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert "listening" in process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_SECONDS) == 0
        finally:
            process.kill()


def wait_until_held_back(process: subprocess.Popen[str]) -> None:
    """Wait until Python itself has started, before which nothing can hold a signal back."""
    begin = time.monotonic()
    while True:
        status = Path(f"/proc/{process.pid}/status").read_text()
        if int(re.findall(r"^SigBlk:\s+(\w+)$", status, re.MULTILINE)[0], 16) & 1:
            return
        assert time.monotonic() - begin < DEADLINE_SECONDS
        time.sleep(0.005)


@WORKERS
@pytest.mark.parametrize("delay_seconds", [0.0, 0.6])
def test_a_hangup_while_starting_is_remembered(tmp_path: Path, workers: str, delay_seconds: float) -> None:
    command = [sys.executable, "-m", "proxy.cli.main", "serve", "--listen", "127.0.0.1:0", "--admin", "off"]
    command += ["--workers", workers, "--access-log", "off"]
    environment = os.environ | {"WEIR_UPSTREAM": "http://127.0.0.1:9/v1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_until_held_back(process)
        time.sleep(delay_seconds)
        process.send_signal(signal.SIGHUP)
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(DEADLINE_SECONDS)
        finally:
            process.kill()
    assert "listening" in line
    assert process.returncode == 0


def test_two_processes_with_workers_do_not_share_a_port(tmp_path: Path) -> None:
    with (
        RawUpstream(answer) as upstream,
        weir_process(tmp_path, upstream.url, "--workers", "2") as process,
    ):
        host, port = process.address
        command = [sys.executable, "-m", "proxy.cli.main", "serve", "--listen", f"{host}:{port}"]
        second = subprocess.run(
            [*command, "--admin", "off", "--workers", "2", "--access-log", "off"],
            env=os.environ | {"WEIR_UPSTREAM": upstream.url},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
        assert process.client().request("GET", "/v1/models").status == 200
    assert second.returncode == 2
    assert f"cannot listen on {host}:{port}: Address already in use" in second.stderr


def counted(process: WeirProcess) -> float:
    page = process.admin("/metrics").body.decode()
    found = re.findall(r"^weir_requests_total\{.*\} (\S+)$", page, re.MULTILINE)
    return sum(map(float, found))


def workers_of(process: WeirProcess) -> list[int]:
    parent = process.process.pid
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def test_counts_outlast_the_worker_that_counted(tmp_path: Path) -> None:
    with (
        RawUpstream(answer) as upstream,
        weir_process(tmp_path, upstream.url, "--workers", "2") as process,
    ):
        for _ in range(20):
            with process.client() as client:
                assert client.request("GET", "/v1/models").status == 200
        assert counted(process) == 20
        for worker in workers_of(process):
            os.kill(worker, signal.SIGKILL)
        begin = time.monotonic()
        while process.admin("/readyz").status != 200 or time.monotonic() - begin < 0.5:
            assert counted(process) == 20
            assert time.monotonic() - begin < DEADLINE_SECONDS
            time.sleep(0.05)
        with process.client() as client:
            assert client.request("GET", "/v1/models").status == 200
        assert counted(process) == 21


def test_an_answer_that_comes_late_is_not_taken_for_a_later_one(tmp_path: Path) -> None:
    with (
        RawUpstream(answer) as upstream,
        weir_process(tmp_path, upstream.url, "--workers", "2") as process,
    ):
        workers = workers_of(process)
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
        try:
            counted(process)  # nobody answers in time
        finally:
            for worker in workers:
                os.kill(worker, signal.SIGCONT)
        for _ in range(10):
            with process.client() as client:
                assert client.request("GET", "/v1/models").status == 200
        assert counted(process) == 10
