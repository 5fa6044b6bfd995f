"""OpenAI's SDK as it is: the whole life of batches. Prints what it saw as JSON."""

from __future__ import annotations

import json
import time
from typing import Any

from openai import APIStatusError, OpenAI

client = OpenAI(max_retries=0)
seen: dict[str, Any] = {}


def line(custom_id: str, **body: Any) -> str:
    asked = {"model": "gpt-5-mini", "messages": [{"role": "user", "content": f"About {custom_id}."}], **body}
    return json.dumps(
        {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": asked}
    )


def create(lines: list[str]) -> Any:
    content = "\n".join(lines).encode() + b"\n"
    file = client.files.create(
        file=("in.jsonl", content),
        purpose="batch",
        extra_body={"expires_after": {"anchor": "created_at", "seconds": 3600}},
    )
    assert (file.bytes, file.purpose, file.filename) == (len(content), "batch", "in.jsonl")
    return client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"run": "nightly"},
    )


def ended(batch: Any) -> Any:
    until = time.monotonic() + 30
    while batch.status not in ("completed", "failed", "expired", "cancelled"):
        assert time.monotonic() < until, batch
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    return batch


def read(file_id: str) -> dict[str, int]:
    lines = [json.loads(each) for each in client.files.content(file_id).text.splitlines()]
    return {each["custom_id"]: each["response"]["status_code"] for each in lines}


def refused(call: Any) -> tuple[str, int]:
    try:
        call()
    except APIStatusError as error:
        return type(error).__name__, error.status_code
    raise AssertionError("it was not refused")


batch = ended(create([line("one"), line("two"), line("wrong", temperature=7)]))
counts = batch.request_counts
seen["ended"] = [batch.status, counts.total, counts.completed, counts.failed, batch.metadata]
seen["output"] = read(batch.output_file_id)
seen["errors"] = read(batch.error_file_id)
with client.files.with_streaming_response.content(batch.output_file_id) as response:
    seen["streamed"] = sum(len(piece) for piece in response.iter_bytes()) > 0
cancelled = create([line("three")])
client.batches.cancel(cancelled.id)
seen["cancelled"] = ended(cancelled).status
seen["batches"] = [each.id for each in client.batches.list(limit=1)] == [cancelled.id, batch.id]
seen["files"] = batch.output_file_id in [each.id for each in client.files.list(limit=1)]
seen["file"] = client.files.retrieve(batch.output_file_id).purpose
seen["deleted"] = client.files.delete(batch.output_file_id).deleted
seen["gone"] = refused(lambda: client.files.content(batch.output_file_id))
seen["unknown"] = [
    refused(lambda: client.files.retrieve("file-0")),
    refused(lambda: client.batches.retrieve("batch_0")),
    refused(lambda: client.batches.cancel("batch_0")),
]
bad = ended(create([line("same"), line("same")]))
seen["failed"] = [bad.status, bad.errors.data[0].line]
print(json.dumps(seen))
