"""Weir with short leases as a process of its own, to be killed: `python -m tests.support.batch_process`.

with batch_process(folder, policy, store) as running:
    caller = BatchCaller(running)
    running.kill()
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.support.job_worker import QUICK
from tests.support.raw_client import RawClient
from tests.support.weir import weir

ROOT = Path(__file__).resolve().parent.parent.parent
WORKER = replace(QUICK, name="", lease_seconds=0.5)
_START_SECONDS = 20.0


class BatchProcess:
    """A running process."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self._process = process
        self._port = port

    def client(self, timeout_seconds: float = 10.0) -> RawClient:
        """Open a connection."""
        return RawClient(("127.0.0.1", self._port), timeout_seconds)

    def kill(self) -> None:
        """End it by force, in the middle of whatever it does."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(10)


@contextmanager
def batch_process(folder: Path, policy: str, store: str) -> Iterator[BatchProcess]:
    """Serve until the block ends."""
    command = [sys.executable, "-m", "tests.support.batch_process", str(folder), policy, store]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )
    assert process.stdin is not None
    assert process.stdout is not None
    late = threading.Timer(_START_SECONDS, process.kill)
    late.start()
    try:
        line = process.stdout.readline()
        late.cancel()
        assert line, "it did not start"
        yield BatchProcess(process, int(line))
    finally:
        late.cancel()
        process.stdin.close()
        process.wait(20)
        process.stdout.close()


def main() -> None:
    """Serve until standard input ends."""
    folder, policy, store = sys.argv[1:]
    with weir(Path(folder), None, policy, store=store, worker=WORKER) as proxy:
        sys.stdout.write(proxy.url.rpartition(":")[2] + "\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
