"""Ways to keep a process from starting, stopping or telling the truth about itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.chat import ANSWER, chat_policy
from tests.support.raw_upstream import Call, RawUpstream
from tests.support.weir_process import ROOT, weir_process

DEADLINE_SECONDS = 15.0
WORKERS = pytest.mark.parametrize("workers", ["1", "2"])


def answer(call: Call) -> None:
    call.json(ANSWER)


@WORKERS
def test_a_thread_that_does_not_come_back_does_not_keep_the_process(tmp_path: Path, workers: str) -> None:
    policies = tmp_path / "policies"
    policies.mkdir()
    file = policies / "a.yaml"
    file.write_text(chat_policy())
    options = ["--policies", str(policies), "--workers", workers, "--drain-timeout", "100ms"]
    with RawUpstream(answer) as upstream, weir_process(tmp_path, upstream.url, *options) as process:
        file.unlink()
        os.mkfifo(file)  # whoever opens it waits for a writer that never comes
        process.signal(signal.SIGHUP)
        time.sleep(0.3)
        process.signal(signal.SIGTERM)
        begin = time.monotonic()
        assert process.wait(DEADLINE_SECONDS) == 0, process.output
        assert time.monotonic() - begin < 8


@WORKERS
@pytest.mark.parametrize("delay_seconds", [0.1, 0.4, 0.8, 1.2])
def test_a_hangup_while_starting_is_remembered(tmp_path: Path, workers: str, delay_seconds: float) -> None:
    command = [sys.executable, "-m", "proxy.cli.main", "serve", "--listen", "127.0.0.1:0", "--admin", "off"]
    command += ["--workers", workers, "--access-log", "off"]
    environment = os.environ | {"WEIR_UPSTREAM": "http://127.0.0.1:9/v1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
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
