"""A Weir that serves `/v1/files` and `/v1/batches` for an upstream, and a caller of it.

with served_weir(tmp_path, POLICY) as proxy:
    caller = ApiCaller(proxy, "alice")
    file_id = caller.upload(LINES)
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.forms import CONTENT_TYPE, upload_form
from tests.support.raw_client import HeaderList, RawAnswer
from tests.support.weir import RunningWeir, weir

SECRET = "a-secret-for-tests-that-is-long-enough-0123456789"
NOWHERE = "http://127.0.0.1:9/v1"
"""Nobody answers there: lines wait, so that batches stay as they are."""

SERVED = f"""
version: 1
upstreams:
  local: {{base_url: {NOWHERE}, provider: vllm, api_key: k}}
"""


def line(custom_id: str, **body: Any) -> bytes:
    """Return a line of an input file."""
    request = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **body}
    told = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": request}
    return json.dumps(told).encode() + b"\n"


LINES = line("a") + line("b")


def wish(file_id: str, **more: Any) -> bytes:
    """Return the body that creates a batch."""
    asked = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    return json.dumps(asked | more).encode()


@contextmanager
def served_weir(tmp_path: Path, policies: str = SERVED, **settings: Any) -> Iterator[RunningWeir]:
    """Serve until the block ends."""
    settings = {"store": f"sqlite:{tmp_path}/jobs.db"} | settings
    with weir(tmp_path, None, policies, **settings) as proxy:
        yield proxy


class ApiCaller:
    """One caller with a key of its own, `None` for none. Each request has a connection of its own."""

    def __init__(self, proxy: RunningWeir, key: str | None = "alice") -> None:
        self._proxy = proxy
        self.headers: list[tuple[str, str]] = [] if key is None else [("Authorization", f"Bearer {key}")]

    def ask(self, method: str, target: str, body: bytes | None = None, headers: HeaderList = ()) -> RawAnswer:
        """Send a request and return its answer."""
        with self._proxy.client() as client:
            return client.request(method, target, body, [*self.headers, *headers])

    def post_form(self, body: bytes, headers: HeaderList = ()) -> RawAnswer:
        """Upload a form."""
        return self.ask("POST", "/v1/files", body, [("Content-Type", CONTENT_TYPE), *headers])

    def upload(self, content: bytes = LINES) -> str:
        """Upload a file and return its id."""
        answer = self.post_form(upload_form(content))
        assert answer.status == 200, answer
        return str(json.loads(answer.body)["id"])

    def create(self, file_id: str, headers: HeaderList = (), **more: Any) -> dict[str, Any]:
        """Create a batch and return it."""
        answer = self.ask("POST", "/v1/batches", wish(file_id, **more), headers)
        assert answer.status == 200, answer
        return told(answer)

    def listed(self, target: str) -> list[str]:
        """Return the ids of a list."""
        return [each["id"] for each in told(self.ask("GET", target))["data"]]


def api_records(proxy: RunningWeir, count: int) -> list[dict[str, Any]]:
    """Return the access log's records of what the batch API answered, at least so many; none of lines."""
    deadline = time.monotonic() + 5.0
    while True:
        found = [record for record in proxy.log() if record["lane_reason"] == "batch API of Weir"]
        if len(found) >= count:
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.01)


def record_of(proxy: RunningWeir, answer: RawAnswer) -> dict[str, Any]:
    """Return the access log's record of an exchange."""
    deadline = time.monotonic() + 5.0
    while True:
        for record in proxy.log():
            if record["request_id"] == answer.header("x-weir-request-id"):
                return record
        assert time.monotonic() < deadline, answer
        time.sleep(0.01)


def told(answer: RawAnswer) -> dict[str, Any]:
    """Return the object that an answer holds."""
    found = json.loads(answer.body)
    assert isinstance(found, dict)
    return found


def refusal(answer: RawAnswer) -> tuple[int, str, str | None]:
    """Return status, code and param of an error in OpenAI's shape."""
    error = told(answer)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return answer.status, error["code"], error["param"]
