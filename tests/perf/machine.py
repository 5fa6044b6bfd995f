"""What the benchmark needs of the machine (Linux): cores, processes, their CPU and memory, yardsticks."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")


@dataclass(frozen=True, slots=True)
class Cores:
    """Which core runs what. On one core alone they are all the same, and figures mean little."""

    proxy: int
    load: int
    upstream: int


def choose_cores() -> Cores:
    """Return the first core for the proxy and others, if there are others, for everything else."""
    allowed = sorted(os.sched_getaffinity(0))
    return Cores(proxy=allowed[0], load=allowed[1 % len(allowed)], upstream=allowed[min(2, len(allowed) - 1)])


def pin(core: int) -> None:
    """Pin this process, and what it starts from now on, to `core`."""
    os.sched_setaffinity(0, {core})


def raise_file_limit() -> None:
    """Allow as many open sockets as the machine does."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def free_port() -> int:
    """Return a loopback port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def process(
    command: Sequence[str], core: int, log: Path, env: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `command` on `core` with its output in `log`; end it, and only it, at the end."""
    with log.open("wb") as output:
        started = subprocess.Popen(
            ["taskset", "-c", str(core), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **env},
        )
    try:
        yield started
    finally:
        started.send_signal(signal.SIGTERM)
        try:
            started.wait(2)
        except subprocess.TimeoutExpired:
            # A server that drains takes longer than a benchmark waits; the second signal is final.
            started.send_signal(signal.SIGTERM)
            try:
                started.wait(3)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()


def _family(pid: int) -> list[int]:
    """Return `pid` and all its descendants."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            found += [int(child) for child in task.read_text().split()]
    return found


def cpu_seconds(pid: int) -> float:
    """Return the CPU time, user and system, that `pid` and its descendants have used."""
    ticks = 0
    for member in _family(pid):
        # The second field, the command's name, may hold spaces and parentheses.
        fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_PER_SECOND


def resident_bytes(pid: int) -> int:
    """Return the resident memory of `pid` and its descendants."""
    pages = [int(Path(f"/proc/{member}/statm").read_text().split()[1]) for member in _family(pid)]
    return sum(pages) * _PAGE_BYTES


def cpu_model() -> str:
    """Return the processor's name."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown processor"


def install_yardsticks() -> None:
    """Install nginx, wrk and taskset from Debian where they are missing.

    Raises SystemExit, saying what to do, where that is not possible.
    """
    packages = {"nginx": "nginx-light", "wrk": "wrk", "taskset": "util-linux"}
    missing = [package for command, package in packages.items() if not _found(command)]
    if not missing:
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise SystemExit(f"bench: install these first: {' '.join(missing)}")
    print(f"bench: installing {' '.join(missing)}", flush=True)
    # RUNLEVEL keeps Debian from starting the nginx that it installs.
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *missing]):
        subprocess.run(["apt-get", *command], env=env, check=True, stdout=subprocess.DEVNULL)


def _found(command: str) -> bool:
    return shutil.which(command, path=f"{os.environ.get('PATH', '')}:/usr/sbin") is not None
