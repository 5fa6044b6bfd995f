"""Anthropic's SDK as it is: the whole life of Message Batches. Prints what it saw as JSON.

`past` as its first argument: results by the SDK's own method, which goes where the provider says; otherwise
as docs/providers.md says.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from anthropic import Anthropic, NotFoundError

client = Anthropic(max_retries=0)
seen: dict[str, Any] = {}


def create(*texts: str) -> Any:
    return client.messages.batches.create(
        requests=[
            {
                "custom_id": f"line-{number}",
                "params": {
                    "model": "claude-haiku-4-5",
                    "max_tokens": 4096,
                    "messages": [{"role": "user", "content": text}],
                },
            }
            for number, text in enumerate(texts)
        ]
    )


def ended(batch: Any) -> Any:
    until = time.monotonic() + 30
    while batch.processing_status != "ended":
        assert time.monotonic() < until, batch
        time.sleep(0.02)
        batch = client.messages.batches.retrieve(batch.id)
    return batch


def results(batch_id: str) -> dict[str, str]:
    if sys.argv[1] == "past":
        return {each.custom_id: each.result.type for each in client.messages.batches.results(batch_id)}
    text = client.get(f"/v1/messages/batches/{batch_id}/results", cast_to=str)
    return {each["custom_id"]: each["result"]["type"] for each in map(json.loads, text.splitlines())}


batch = ended(create("one", "it is bad", "three"))
seen["counts"] = batch.request_counts.model_dump()
seen["results"] = results(batch.id)
stopped = create("four", "five")
seen["canceling"] = client.messages.batches.cancel(stopped.id).processing_status
seen["canceled"] = results(ended(stopped).id)
seen["listed"] = [each.id for each in client.messages.batches.list(limit=1)] == [stopped.id, batch.id]
seen["deleted"] = client.messages.batches.delete(batch.id).type
try:
    client.messages.batches.retrieve(batch.id)
except NotFoundError as error:
    seen["unknown"] = error.status_code
print(json.dumps(seen))
