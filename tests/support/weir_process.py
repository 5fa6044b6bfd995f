"""Run `weir serve` as a process of its own: for signals, memory, standard output and error.

with weir_process(tmp_path, upstream.url, policies=POLICY) as process:
    answer = process.client().request("POST", "/v1/chat/completions", body)
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.raw_client import RawAnswer, RawClient

ROOT = Path(__file__).resolve().parent.parent.parent
START_SECONDS = 20.0
STOP_SECONDS = 10.0


class WeirProcess:
    """A serving process. `output` is everything it has printed, standard error included."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log_file = log
        self.lines: list[str] = []
        self._is_announced = threading.Event()
        self._clients: list[RawClient] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.decode(errors="replace"))
            if "listening on http" in self.lines[-1]:
                self._is_announced.set()
        self._is_announced.set()

    def wait_until_announced(self) -> None:
        """Wait for the line that says where it listens."""
        assert self._is_announced.wait(START_SECONDS), self.output
        assert self.process.poll() is None, self.output

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return "".join(self.lines)

    def _address(self, announcement: str) -> tuple[str, int]:
        line = next(line for line in self.lines if announcement in line)
        host, _, port = line.split("http://", 1)[1].split()[0].rpartition(":")
        return host, int(port)

    @property
    def address(self) -> tuple[str, int]:
        """Where callers connect."""
        return self._address("listening on http://")

    @property
    def admin_address(self) -> tuple[str, int]:
        """Where the admin API listens."""
        return self._address("admin on http://")

    def client(self, timeout_seconds: float = 10.0) -> RawClient:
        """Open a connection to the proxy; it is closed with the process at the latest."""
        client = RawClient(self.address, timeout_seconds)
        self._clients.append(client)
        return client

    def admin(self, path: str) -> RawAnswer:
        """GET a path of the admin API."""
        with RawClient(self.admin_address) as client:
            return client.request("GET", path)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def wait(self, seconds: float = STOP_SECONDS) -> int:
        """Wait for the process to end by itself; return its exit status."""
        status = self.process.wait(seconds)
        self._reader.join(STOP_SECONDS)
        return status

    def peak_memory_bytes(self) -> int:
        """Return the most memory that was resident at once so far (Linux)."""
        return self._status_bytes("VmHWM")

    def memory_bytes(self) -> int:
        """Return the memory that is resident now (Linux)."""
        return self._status_bytes("VmRSS")

    def _status_bytes(self, name: str) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith(name))
        return int(line.split()[1]) * 1024

    def open_files_count(self) -> int:
        """Return how many files and sockets are open (Linux)."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def close(self) -> None:
        """End the process, whatever it is doing."""
        for client in self._clients:
            client.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(STOP_SECONDS)
        self._reader.join(STOP_SECONDS)
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def weir_process(
    tmp_path: Path,
    upstream: str | None,
    *options: str,
    policies: str | None = None,
    environment: dict[str, str] | None = None,
) -> Iterator[WeirProcess]:
    """Serve until the block ends. `upstream` is the base URL of the default upstream, `options` are flags."""
    log = tmp_path / "process.log"
    command = [sys.executable, "-m", "proxy.cli.main", "serve", "--listen", "127.0.0.1:0"]
    command += ["--admin", "127.0.0.1:0", "--access-log", str(log), *options]
    if policies is not None:
        file = tmp_path / "process-policy.yaml"
        file.write_text(policies, encoding="utf-8")
        command += ["--policies", str(file)]
    env = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    env |= {"PYTHONUNBUFFERED": "1", "WEIR_STORE": "off"} | (environment or {})
    if upstream is not None:
        env["WEIR_UPSTREAM"] = upstream
    process = WeirProcess(
        subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT), log
    )
    try:
        process.wait_until_announced()
        yield process
    finally:
        process.close()
