"""The servers of the benchmark, each on one core, on loopback: the upstream, nginx as the yardstick, Weir."""

from __future__ import annotations

import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

from tests.perf import machine

_ROOT = Path(__file__).resolve().parents[2]
_POLICIES = Path(__file__).parent / "policies"
_START_SECONDS = 20.0

# One worker, connections kept on both sides, a line in a log per request: what Weir does, done by nginx.
# Bodies stay in memory. Streams have a server of their own, since only they need unbuffered answers.
_NGINX = """
daemon off; worker_processes 1; user root; pid {folder}/nginx.pid; error_log {folder}/error.log;
worker_rlimit_nofile 20000;
events {{ worker_connections 16384; }}
http {{
  access_log {folder}/access.log combined;
  client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  client_body_buffer_size 256k; client_max_body_size 64m; keepalive_requests 100000000;
  upstream provider {{ server 127.0.0.1:{upstream}; keepalive 64; keepalive_requests 100000000; }}
  proxy_http_version 1.1; proxy_set_header Connection ""; proxy_read_timeout 600s;
  server {{ listen 127.0.0.1:{unary} backlog=4096; location / {{ proxy_pass http://provider; }} }}
  server {{ listen 127.0.0.1:{stream} backlog=4096;
            location / {{ proxy_pass http://provider; proxy_buffering off; }} }}
}}
"""


@dataclass(frozen=True, slots=True)
class Running:
    """A server that accepts connections: its process and the ports for requests without and with a stream."""

    pid: int
    unary_port: int
    stream_port: int


@dataclass(frozen=True, slots=True)
class Contender:
    """A proxy to measure: `start(folder, upstream_port, core)` runs it with its files in `folder`."""

    name: str
    start: Callable[[Path, int, int], AbstractContextManager[Running]]


@contextmanager
def upstream(folder: Path, core: int) -> Iterator[int]:
    """Run the benchmark's provider; its port."""
    log = folder / "upstream.log"
    command = [sys.executable, "-m", "tests.perf.upstream"]
    with machine.process(command, core, log, {"PYTHONPATH": str(_ROOT)}) as started:
        yield int(_await_line(started, log, re.compile(r"upstream: (\d+)"), "the upstream"))


@contextmanager
def _nginx(folder: Path, upstream_port: int, core: int) -> Iterator[Running]:
    unary, stream = machine.free_port(), machine.free_port()
    configuration = folder / "nginx.conf"
    configuration.write_text(
        _NGINX.format(folder=folder, upstream=upstream_port, unary=unary, stream=stream), encoding="ascii"
    )
    log = folder / "nginx.log"
    command = ["nginx", "-p", str(folder), "-c", str(configuration), "-e", str(folder / "error.log")]
    with machine.process(command, core, log, {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}) as started:
        for port in (unary, stream):
            _await_port(started, log, port, "nginx")
        yield Running(started.pid, unary, stream)


@contextmanager
def _weir(folder: Path, upstream_port: int, core: int, policy: str) -> Iterator[Running]:
    port, admin = machine.free_port(), machine.free_port()
    log = folder / "weir.log"
    command = [
        str(Path(sys.executable).parent / "weir"),
        "serve",
        *("--policies", str(_POLICIES / policy)),
        *("--listen", f"127.0.0.1:{port}"),
        *("--admin", f"127.0.0.1:{admin}"),
        *("--access-log", str(folder / "access.log")),
    ]
    env = {"WEIR_UPSTREAM": f"http://127.0.0.1:{upstream_port}/v1"}
    with machine.process(command, core, log, env) as started:
        _await_line(started, log, re.compile(r"weir: listening on (http://\S+)"), "weir serve")
        yield Running(started.pid, port, port)


NGINX = Contender("nginx proxy_pass", _nginx)
WEIR = Contender("weir, no policy", lambda folder, port, core: _weir(folder, port, core, "none.yaml"))
WEIR_POLICY = Contender(
    "weir, cap + stop", lambda folder, port, core: _weir(folder, port, core, "cap_stop.yaml")
)


def _await_line(started: Popen[bytes], log: Path, line: re.Pattern[str], what: str) -> str:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        text = log.read_text(errors="replace")
        found = line.search(text)
        if found:
            return found[1]
        _check(started, deadline, text, what)


def _await_port(started: Popen[bytes], log: Path, port: int, what: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            _check(started, deadline, log.read_text(errors="replace"), what)
        else:
            return


def _check(started: Popen[bytes], deadline: float, text: str, what: str) -> None:
    if started.poll() is not None or time.monotonic() > deadline:
        raise SystemExit(f"bench: {what} did not start:\n{text[-2000:]}")
    time.sleep(0.02)
