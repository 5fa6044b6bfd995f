"""Weir's own batch API as its callers see it: upload lines, create a batch, wait for its end, read its files.

caller = BatchCaller(proxy)
ended = caller.ended(caller.batch([chat_line("a", "hello")]))
results = caller.results(ended)
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any, Protocol

from tests.support.raw_client import RawAnswer, RawClient

CHAT = "/v1/chat/completions"
END_SECONDS = 20.0
LIVE = frozenset({"validating", "in_progress", "finalizing", "cancelling"})
POLICY = """
version: 1
upstreams: {local: {base_url: URL, provider: llamacpp}}
defaults: {upstream: local}
"""


class Reachable(Protocol):
    """A running Weir, in a thread or a process."""

    def client(self, timeout_seconds: float = 10.0) -> RawClient:
        """Open a connection."""
        ...


def chat_line(custom_id: str, text: str = "hello", url: str = CHAT, **more: Any) -> dict[str, Any]:
    """Return one line of an input file."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}], **more}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


class BatchCaller:
    """Somebody who uses the API. `headers` go with every request."""

    def __init__(self, weir: Reachable, *headers: tuple[str, str]) -> None:
        self._weir = weir
        self._headers = headers

    def ask(self, method: str, path: str, body: bytes = b"", *headers: tuple[str, str]) -> RawAnswer:
        """Ask once, on a connection of its own."""
        with self._weir.client() as client:
            return client.request(method, path, body, headers=[*self._headers, *headers])

    def json(self, method: str, path: str, asked: Any = None) -> dict[str, Any]:
        """Ask for what must be answered well, and return it."""
        body = b"" if asked is None else json.dumps(asked).encode()
        answer = self.ask(method, path, body, ("content-type", "application/json"))
        assert answer.status == 200, answer.body
        told: dict[str, Any] = json.loads(answer.body)
        return told

    def upload(self, content: bytes) -> str:
        """Upload an input file and return its id."""
        parts = (
            b'--cut\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            b'--cut\r\nContent-Disposition: form-data; name="file"; filename="lines.jsonl"\r\n'
            b"Content-Type: application/octet-stream\r\n\r\n" + content + b"\r\n--cut--\r\n"
        )
        answer = self.ask("POST", "/v1/files", parts, ("content-type", "multipart/form-data; boundary=cut"))
        assert answer.status == 200, answer.body
        return str(json.loads(answer.body)["id"])

    def batch(self, lines: Iterable[Any], endpoint: str = CHAT, window: str = "24h", **more: Any) -> str:
        """Upload lines, create a batch of them and return its id."""
        content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        asked = {"input_file_id": self.upload(content), "endpoint": endpoint, "completion_window": window}
        return str(self.json("POST", "/v1/batches", asked | more)["id"])

    def look(self, batch_id: str) -> dict[str, Any]:
        """Return a batch as it stands."""
        return self.json("GET", f"/v1/batches/{batch_id}")

    def until(self, batch_id: str, completed: int = 0, seconds: float = END_SECONDS) -> dict[str, Any]:
        """Wait until so many lines of a batch are completed, or it has ended."""
        deadline = time.monotonic() + seconds
        while True:
            batch = self.look(batch_id)
            if batch["status"] not in LIVE or 0 < completed <= batch["request_counts"]["completed"]:
                return batch
            assert time.monotonic() < deadline, batch
            time.sleep(0.02)

    def ended(self, batch_id: str, seconds: float = END_SECONDS) -> dict[str, Any]:
        """Wait for the end of a batch."""
        return self.until(batch_id, seconds=seconds)

    def lines(self, batch: dict[str, Any], which: str) -> list[dict[str, Any]]:
        """Return what a result file of an ended batch says: `output` or `error`."""
        file_id = batch[f"{which}_file_id"]
        if file_id is None:
            return []
        content = self.ask("GET", f"/v1/files/{file_id}/content").body
        size = self.json("GET", f"/v1/files/{file_id}")["bytes"]
        assert size == len(content)
        assert content.endswith(b"\n")
        return [json.loads(line) for line in content.splitlines()]

    def results(self, batch: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the results of an ended batch by custom id; none may be told twice."""
        lines = self.lines(batch, "output") + self.lines(batch, "error")
        by_id = {line["custom_id"]: line for line in lines}
        assert len(by_id) == len(lines)
        assert len({line["id"] for line in lines}) == len(lines)
        return by_id
