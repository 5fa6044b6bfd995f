"""A simulated provider on loopback in a thread of its own, and the small client that these tests use."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proxy.core.clock import Clock
from proxy.sim.scenario import Scenario, Timing
from proxy.sim.server import serve

INSTANT = Timing(base_ms=0, prefill_ms_per_token=0, decode_ms_per_token=0)
FAST = Scenario(timing=INSTANT)
USER = [{"role": "user", "content": "Say something about rivers."}]
CHAT: dict[str, Any] = {"model": "gpt-4o", "messages": USER}
MESSAGES: dict[str, Any] = {"model": "claude-sonnet-5-5", "max_tokens": 100, "messages": USER}
ANTHROPIC = {"anthropic-version": "2023-06-01"}
WEATHER_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["c", "f"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer; `is_cut` tells that the connection closed before its proper end."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    is_cut: bool = False
    read_at: list[float] = field(default_factory=list)

    def json(self) -> Any:
        return json.loads(self.body)

    def blocks(self) -> list[bytes]:
        """Return the SSE events and comments."""
        return [block for block in self.body.split(b"\n\n") if block]

    def events(self) -> list[Any]:
        """Return the JSON of all events but `[DONE]`."""
        lines = [line for block in self.blocks() for line in block.split(b"\n") if line.startswith(b"data: ")]
        return [json.loads(line[6:]) for line in lines if line != b"data: [DONE]"]

    def names(self) -> list[str]:
        """Return the names of all named events."""
        lines = [line for block in self.blocks() for line in block.split(b"\n")]
        return [line[7:].decode() for line in lines if line.startswith(b"event: ")]


def as_caller(key: str) -> dict[str, str]:
    """Return the headers of the caller with `key`, of one without any if it is empty."""
    return {"authorization": f"Bearer {key}"} if key else {}


@dataclass(frozen=True, slots=True)
class Sim:
    """A running simulated provider."""

    address: str

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def open(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)

    def send(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Send one request and read the whole answer; `body` is JSON unless it is bytes."""
        raw = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        with contextlib.closing(self.open()) as connection:
            connection.request(method, path, raw, dict(headers or {}))
            response = connection.getresponse()
            parts, is_cut, read_at = [], False, [time.monotonic()]
            try:
                while part := response.read1(65536):
                    parts.append(part)
                    read_at.append(time.monotonic())
            except http.client.IncompleteRead as error:
                parts.append(error.partial)
                is_cut = True
            length = response.getheader("content-length")
            is_cut = is_cut or (length is not None and len(b"".join(parts)) < int(length))
            found = {name.lower(): value for name, value in response.getheaders()}
            response.close()
            return Reply(response.status, found, b"".join(parts), is_cut, read_at)

    def post(self, path: str, body: object, **headers: str) -> Reply:
        """Post JSON; `x_sim_status="503"` becomes the header `x-sim-status`."""
        return self.send(
            "POST", path, body, {name.replace("_", "-"): value for name, value in headers.items()}
        )

    def chat(self, changes: Mapping[str, object] | None = None, **headers: str) -> Reply:
        """Post a small valid chat request with `changes`."""
        return self.post("/v1/chat/completions", {**CHAT, **(changes or {})}, **headers)

    def messages(self, changes: Mapping[str, object] | None = None, **headers: str) -> Reply:
        """Post a small valid Messages request with `changes`."""
        return self.post("/v1/messages", {**MESSAGES, **(changes or {})}, **{**ANTHROPIC, **headers})

    def upload(
        self,
        content: bytes,
        *,
        purpose: str = "batch",
        form: Mapping[str, str] | None = None,
        key: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Upload a file as the caller with `key`; `form` holds further fields, or other values for these."""
        parts = [
            f'--sim\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
            for name, value in {"purpose": purpose, **(form or {})}.items()
        ]
        parts.append(b'--sim\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n')
        parts.append(b"Content-Type: application/jsonl\r\n\r\n" + content + b"\r\n--sim--\r\n")
        head = {"content-type": "multipart/form-data; boundary=sim", **as_caller(key)}
        return self.send("POST", "/v1/files", b"".join(parts), {**head, **(headers or {})})

    def get(self, path: str, key: str = "", **headers: str) -> Reply:
        """Get a path as the caller with `key`."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.send("GET", path, None, {**as_caller(key), **named})

    def stats(self) -> Any:
        return self.send("GET", "/sim/stats").json()

    def stats_when(self, is_so: Callable[[Any], bool]) -> Any:
        """Return the stats as soon as they are as wanted; whatever they are after five seconds."""
        until = time.monotonic() + 5
        while not is_so(stats := self.stats()) and time.monotonic() < until:
            time.sleep(0.01)
        return stats


@contextlib.contextmanager
def running(
    scenario: Scenario = FAST, clock: Clock | None = None, state: Path | None = None
) -> Iterator[Sim]:
    """Run a simulated provider until the end of the context, with a state file if one is given."""
    ready = threading.Event()
    addresses: list[str] = []
    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = []
    failures: list[BaseException] = []

    def announce(address: str) -> None:
        addresses.append(address)
        ready.set()

    async def main() -> None:
        task = asyncio.ensure_future(serve("127.0.0.1:0", scenario, announce, clock=clock, state=state))
        started.append((asyncio.get_running_loop(), task))
        with contextlib.suppress(asyncio.CancelledError):
            await task

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            failures.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="simulated provider", daemon=True)
    thread.start()
    ready.wait(10)
    try:
        assert addresses, failures
        yield Sim(addresses[0])
    finally:
        for loop, task in started:
            if not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)
        thread.join(10)
    assert not thread.is_alive()
    assert not failures, failures
