"""Several processes behind one port: shared traffic, one admin API, a dead worker replaced."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.settings import Settings
from proxy.supervisor import Supervisor
from tests.support.raw_client import RawClient
from tests.support.raw_upstream import Call, RawUpstream

DEADLINE_SECONDS = 20.0


class Served:
    """A `weir serve --workers 2` process and where it listens."""

    def __init__(
        self, process: subprocess.Popen[str], address: tuple[str, int], admin: tuple[str, int]
    ) -> None:
        self.process = process
        self.address = address
        self.admin = admin

    def get(self, address: tuple[str, int], path: str) -> tuple[int, str]:
        with RawClient(address) as client:
            answer = client.request("GET", path)
            return answer.status, answer.body.decode()

    def requests_counted(self) -> float:
        page = self.get(self.admin, "/metrics")[1]
        return sum(
            float(value) for value in re.findall(r"^weir_requests_total\{.*\} (\S+)$", page, re.MULTILINE)
        )

    def children(self) -> list[int]:
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        children = [int(pid) for pid in path.read_text().split()]
        return [pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@contextmanager
def serving(upstream: str) -> Iterator[Served]:
    command = [sys.executable, "-m", "proxy.cli.main", "serve", "--workers", "2", "--access-log", "off"]
    command += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    environment = os.environ | {"WEIR_UPSTREAM": upstream}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        try:
            assert process.stdout is not None
            found: dict[str, tuple[str, int]] = {}
            while "listening" not in found:
                line = process.stdout.readline()
                assert line, "Weir ended instead of serving"
                match = re.match(r"weir: (admin|listening) on http://([\d.]+):(\d+)", line)
                if match:
                    found[match[1]] = (match[2], int(match[3]))
            yield Served(process, found["listening"], found["admin"])
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(DEADLINE_SECONDS)
    assert process.returncode == 0


def answer(call: Call) -> None:
    call.json(b'{"ok":true}')


def test_workers_share_the_port_and_one_admin_api_speaks_for_all() -> None:
    with RawUpstream(answer) as upstream, serving(upstream.url) as served:
        for _ in range(20):
            assert served.get(served.address, "/v1/models")[0] == 200
        assert served.requests_counted() == 20
        assert served.get(served.admin, "/readyz")[0] == 200
        assert len(served.children()) == 2


def test_a_worker_that_dies_is_replaced_while_the_others_serve() -> None:
    with RawUpstream(answer) as upstream, serving(upstream.url) as served:
        first, second = served.children()
        os.kill(first, signal.SIGKILL)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while len(served.children()) < 2 or first in served.children():
            assert time.monotonic() < deadline, "no new worker"
            time.sleep(0.05)
        assert second in served.children()
        for _ in range(10):
            assert served.get(served.address, "/v1/models")[0] == 200


def test_a_port_that_another_weir_is_about_to_serve_is_taken() -> None:
    settings = Settings(listen="127.0.0.1:0", upstream_url="http://127.0.0.1:9/v1", store="off", workers=2)
    first = Supervisor(settings, {})  # whose workers do not listen yet
    try:
        with pytest.raises(OSError, match="in use"):
            Supervisor(replace(settings, listen=first.url.removeprefix("http://")), {})
    finally:
        first.close()


def test_a_unix_socket_with_several_workers_is_a_usage_error(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "proxy.cli.main",
        "serve",
        "--workers",
        "2",
        "--listen",
        f"unix:{tmp_path}/s",
    ]
    environment = os.environ | {"WEIR_UPSTREAM": "http://127.0.0.1:9/v1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20, check=False)
    assert ended.returncode == 2
    assert "unix socket" in ended.stderr
