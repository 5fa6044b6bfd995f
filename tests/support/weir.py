"""Run Weir in a thread of the test process: the real app on real sockets, with the token counter's twin.

with weir(policies=POLICY, upstream=upstream.url) as proxy:
    answer = proxy.client().request("POST", "/v1/chat/completions", body)
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop

from proxy.app import App, load_policies
from proxy.jobs.worker.ports import WorkerSettings
from proxy.policy.model import PolicySet
from proxy.settings import Settings
from proxy.tokens.fixed import FixedCounter
from proxy.tokens.port import Counter
from tests.support.raw_client import RawClient

START_SECONDS = 10.0


def _address(url: str) -> tuple[str, int] | str:
    """Return what to connect to for a URL that Weir announced: host and port, or a socket's path."""
    if url.startswith("http+unix://"):
        return url.removeprefix("http+unix://")
    host, _, port = url.removeprefix("http://").rpartition(":")
    return host.strip("[]"), int(port)


class RunningWeir:
    """A proxy that serves. `log()` returns the records of exchanges that have ended so far."""

    def __init__(
        self, app: App, loop: asyncio.AbstractEventLoop, url: str, admin_url: str, log: Path
    ) -> None:
        self.app = app
        self.loop = loop
        self.url = url
        self.admin_url = admin_url
        self._log = log
        self.address = _address(url)
        self._clients: list[RawClient] = []

    def client(self, timeout_seconds: float = 10.0, receive_buffer_bytes: int | None = None) -> RawClient:
        """Open a connection to the proxy; it is closed with the proxy at the latest."""
        client = RawClient(self.address, timeout_seconds, receive_buffer_bytes)
        self._clients.append(client)
        return client

    def close_clients(self) -> None:
        """Close every connection that `client` has opened."""
        for client in self._clients:
            client.close()

    def log(self, count: int = 0, timeout_seconds: float = 5.0) -> list[dict[str, Any]]:
        """Return the access log, waiting until it has at least `count` records."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            # What follows the last end of a line is half a record, on its way.
            whole = self._log.read_text().rpartition("\n")[0] if self._log.exists() else ""
            lines = [json.loads(line) for line in whole.split("\n") if line]
            if len(lines) >= count:
                return lines
            assert time.monotonic() < deadline, f"only {len(lines)} of {count} records: {lines}"
            time.sleep(0.01)

    def admin(self, path: str) -> tuple[int, bytes]:
        """GET a path of the admin API; return status and body."""
        with RawClient(_address(self.admin_url)) as client:
            answer = client.request("GET", path)
            return answer.status, answer.body

    def metric(self, name: str, **labels: str) -> float:
        """Return the value of a metric's series, the sum over series that have these labels."""
        total = 0.0
        for line in self.admin("/metrics")[1].decode().splitlines():
            if line.startswith((name + "{", name + " ")) and all(
                f'{k}="{v}"' in line for k, v in labels.items()
            ):
                total += float(line.rsplit(" ", 1)[1])
        return total

    def call(self, function: Any, *arguments: Any) -> Any:
        """Run a function on the proxy's event loop and return its result."""

        async def run() -> Any:
            return function(*arguments)

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(START_SECONDS)


@contextmanager
def weir(
    tmp_path: Path,
    upstream: str | None,
    policies: str | Path | PolicySet | None = None,
    environment: dict[str, str] | None = None,
    counter: Counter | None = None,
    worker: WorkerSettings | None = None,
    **settings: Any,
) -> Iterator[RunningWeir]:
    """Serve until the block ends. `policies` is YAML, the path of a file or directory, or a whole set.

    `upstream` is the base URL of the default upstream.
    """
    log = tmp_path / f"access-{time.monotonic_ns()}.log"
    paths: tuple[str, ...] = ()
    if isinstance(policies, str):
        file = tmp_path / f"policy-{time.monotonic_ns()}.yaml"
        file.write_text(policies, encoding="utf-8")
        paths = (str(file),)
    elif isinstance(policies, Path):
        paths = (str(policies),)
    chosen = Settings(
        policies=paths,
        listen="127.0.0.1:0",
        admin="127.0.0.1:0",
        access_log=str(log),
        upstream_url=upstream,
        drain_timeout_seconds=2.0,
        store="off",
    )
    chosen = replace(chosen, **settings)
    started: threading.Event = threading.Event()
    box: dict[str, Any] = {}

    async def run() -> None:
        env = environment or {}
        try:
            loaded = policies if isinstance(policies, PolicySet) else load_policies(chosen, env)
            app = App(chosen, env, loaded, counter or FixedCounter(), worker)
            box["admin"] = await app.start_admin()
            box["url"] = await app.start()
            box["app"], box["loop"] = app, asyncio.get_running_loop()
        except BaseException as problem:
            box["problem"] = problem
            return
        finally:
            started.set()
        await app.run_until_stopped()

    thread = threading.Thread(target=lambda: uvloop.run(run()), name="weir under test", daemon=True)
    thread.start()
    assert started.wait(START_SECONDS), "Weir did not start"
    if "problem" in box:
        thread.join(START_SECONDS)
        raise box["problem"]
    running = RunningWeir(box["app"], box["loop"], box["url"], box["admin"], log)
    try:
        yield running
    finally:
        running.close_clients()
        box["loop"].call_soon_threadsafe(box["app"].stop)
        thread.join(START_SECONDS)
        assert not thread.is_alive(), "Weir did not stop"
