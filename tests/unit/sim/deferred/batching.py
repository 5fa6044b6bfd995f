"""Input files and batches as the tests of the simulator's deferred work need them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from proxy.core.clock import ManualClock
from proxy.sim.deferred.rules import BatchRules
from proxy.sim.scenario import Scenario
from tests.unit.sim.running import INSTANT, Reply, Sim, as_caller

CHAT_URL = "/v1/chat/completions"
FINAL = ("completed", "failed", "expired", "cancelled")
QUICK = Scenario(timing=INSTANT, batches=BatchRules(turnaround_seconds=0.02, cancel_seconds=0.01))
TURNAROUND_SECONDS = 100.0


def body_of(text: str, **changes: object) -> dict[str, object]:
    return {"model": "gpt-4o", "messages": [{"role": "user", "content": text}], **changes}


def line(custom_id: str, body: Mapping[str, object] | None = None, **changes: object) -> dict[str, object]:
    """Return a line as JSON has it; its body asks about its own id unless another is given."""
    asked = body_of(f"About {custom_id}.") if body is None else body
    return {"custom_id": custom_id, "method": "POST", "url": CHAT_URL, "body": asked, **changes}


def jsonl(lines: Sequence[Mapping[str, object]]) -> bytes:
    return b"".join(json.dumps(item).encode() + b"\n" for item in lines)


def lines_about(count: int) -> list[dict[str, object]]:
    return [line(f"c{number}") for number in range(count)]


def create(
    sim: Sim,
    lines: Sequence[Mapping[str, object]] | bytes,
    *,
    key: str = "",
    endpoint: str = CHAT_URL,
    headers: Mapping[str, str] | None = None,
    **body: object,
) -> Reply:
    """Upload an input file and create a batch of it."""
    content = lines if isinstance(lines, bytes) else jsonl(lines)
    file_id = sim.upload(content, key=key).json()["id"]
    asked = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h", **body}
    return sim.send("POST", "/v1/batches", asked, {**as_caller(key), **(headers or {})})


def retrieve(sim: Sim, batch_id: str, key: str = "") -> Any:
    return sim.get(f"/v1/batches/{batch_id}", key).json()


def retrieved_when(sim: Sim, batch_id: str, is_so: Callable[[Any], bool], key: str = "") -> Any:
    """Return the batch as soon as it is as wanted; whatever it is after ten seconds."""
    until = time.monotonic() + 10
    while not is_so(batch := retrieve(sim, batch_id, key)) and time.monotonic() < until:
        time.sleep(0.005)
    return batch


def seen_as(sim: Sim, batch_id: str, status: str) -> Any:
    """Return the batch as soon as it has a status; whatever it is after ten seconds."""
    return retrieved_when(sim, batch_id, lambda batch: batch["status"] == status)


def ended(sim: Sim, batch_id: str, key: str = "") -> Any:
    return retrieved_when(sim, batch_id, lambda batch: batch["status"] in FINAL, key)


def run(sim: Sim, lines: Sequence[Mapping[str, object]] | bytes, **options: Any) -> Any:
    """Create a batch and return it once it has ended."""
    return ended(sim, create(sim, lines, **options).json()["id"])


def results(sim: Sim, file_id: str | None, key: str = "") -> list[Any]:
    """Return the lines of an output or error file, none where there is no file."""
    if file_id is None:
        return []
    return [json.loads(raw) for raw in sim.get(f"/v1/files/{file_id}/content", key).body.splitlines()]


def outputs(sim: Sim, batch: Any) -> dict[str, Any]:
    return {item["custom_id"]: item for item in results(sim, batch["output_file_id"])}


def errors(sim: Sim, batch: Any) -> dict[str, Any]:
    return {item["custom_id"]: item for item in results(sim, batch["error_file_id"])}


def slow(**rules: Any) -> tuple[Scenario, ManualClock]:
    """Return a scenario and a clock by which a batch takes a hundred seconds."""
    batches = BatchRules(turnaround_seconds=TURNAROUND_SECONDS, cancel_seconds=5.0, **rules)
    return Scenario(timing=INSTANT, batches=batches), ManualClock()
