"""`weir simulate --state`: what a provider keeps when its process is killed, and what it refuses to keep."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

from tests.support.command import run_weir, started
from tests.support.raw_client import RawClient

LINES = 20
FORM = [("content-type", "multipart/form-data; boundary=sim")]


def _line(number: int) -> bytes:
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": f"About {number}."}]}
    item = {"custom_id": f"c{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(item).encode()


def _form() -> bytes:
    purpose = b'--sim\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    file = b'--sim\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
    return purpose + file + b"\n".join(map(_line, range(LINES))) + b"\r\n--sim--\r\n"


def _get(client: RawClient, path: str) -> Any:
    return json.loads(client.request("GET", path).body)


def _batch_when(client: RawClient, path: str, completed: int) -> Any:
    until = time.monotonic() + 20
    while (batch := _get(client, path))["request_counts"]["completed"] < completed:
        assert time.monotonic() < until, batch
        time.sleep(0.01)
    return batch


def test_a_killed_provider_goes_on_with_a_batch_and_runs_no_line_twice(tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text("timing: {base_ms: 0}\nbatches: {turnaround_seconds: 2.0}\n")
    command = ["simulate", "--listen", "127.0.0.1:0", "--scenario", str(scenario)]
    command += ["--state", str(tmp_path / "state.db")]
    with started(*command) as process:
        client = process.client()
        file_id = json.loads(client.request("POST", "/v1/files", _form(), FORM).body)["id"]
        asked = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        created = client.request("POST", "/v1/batches", json.dumps(asked).encode(), [])
        path = f"/v1/batches/{json.loads(created.body)['id']}"
        _batch_when(client, path, 3)
        process.signal(signal.SIGKILL)
        process.wait()
    with started(*command) as process:
        client = process.client()
        batch = _batch_when(client, path, LINES)
        stats = _get(client, "/sim/stats")
        assert stats["batch_lines"] == {f"c{number}": 1 for number in range(LINES)}
        assert (stats["batches_created"], batch["request_counts"]["failed"]) == (1, 0)


def test_a_state_file_of_another_kind_is_a_usage_error(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("not a database\n" * 100)
    told = run_weir("simulate", "--listen", "127.0.0.1:0", "--state", str(other))
    assert told.returncode == 2
    assert b"cannot be used as a state file" in told.stderr
