"""The life of a batch that Weir works off itself, by OpenAI's own client, in two parts for a restart between.

working_off.py begin LINES REFUSED     upload, look, create; prints the ids
working_off.py finish BATCH_ID         wait, download, list, delete; prints what was found
"""

from __future__ import annotations

import io
import json
import sys
import time
from typing import Any

import openai

LIVE = {"validating", "in_progress", "finalizing", "cancelling"}
END_SECONDS = 80.0


def line(number: int, is_refused: bool) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": "tiny",
        "messages": [
            {"role": "system", "content": "Answer in one word."},
            {"role": "user", "content": f"Which number comes after {number}?"},
        ],
        "max_tokens": 4,
        "temperature": 0,
    }
    if is_refused:
        body["response_format"] = {"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}}
    return {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}


def begin(client: openai.OpenAI, lines: int, refused: int) -> dict[str, Any]:
    text = "".join(json.dumps(line(number, number < refused)) + "\n" for number in range(lines))
    file = client.files.create(file=("lines.jsonl", io.BytesIO(text.encode())), purpose="batch")
    assert file.bytes == len(text.encode())
    assert client.files.retrieve(file.id).filename == "lines.jsonl"
    assert client.files.content(file.id).content == text.encode()
    assert [each.id for each in client.files.list(purpose="batch")] == [file.id]
    batch = client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"test": "working off"},
    )
    return {"file": file.id, "batch": batch.id, "status": batch.status}


def finish(client: openai.OpenAI, batch_id: str) -> dict[str, Any]:
    deadline = time.monotonic() + END_SECONDS
    while (batch := client.batches.retrieve(batch_id)).status in LIVE and time.monotonic() < deadline:
        time.sleep(0.1)
    told: dict[str, Any] = {"batch": batch.model_dump(mode="json")}
    for which, file_id in (("output", batch.output_file_id), ("errors", batch.error_file_id)):
        content = client.files.content(file_id).content if file_id else b""
        assert not file_id or client.files.retrieve(file_id).bytes == len(content)
        told[which] = [json.loads(each) for each in content.splitlines()]
    told["listed"] = [each.id for each in client.batches.list()]
    told["purposes"] = sorted(each.purpose for each in client.files.list())
    told["deleted"] = client.files.delete(batch.input_file_id).deleted
    try:
        client.batches.cancel(batch_id)
    except openai.ConflictError as refusal:
        told["cancelled late"] = refusal.status_code
    try:
        client.files.retrieve(batch.input_file_id)
    except openai.NotFoundError as refusal:
        told["deleted file"] = refusal.status_code
    return told


def main() -> None:
    client = openai.OpenAI()
    if sys.argv[1] == "begin":
        told = begin(client, int(sys.argv[2]), int(sys.argv[3]))
    else:
        told = finish(client, sys.argv[2])
    print(json.dumps(told))


if __name__ == "__main__":
    main()
