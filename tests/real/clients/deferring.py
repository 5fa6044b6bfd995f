"""The official SDK as it is, against a route whose requests are deferred. Prints what it saw as JSON."""

from __future__ import annotations

import json
import time

from openai import OpenAI

client = OpenAI()
seen: dict[str, object] = {}

raw = client.chat.completions.with_raw_response.create(
    model="gpt-5-mini", messages=[{"role": "user", "content": "Classify: late parcel"}]
)
chat = raw.parse()
seen["chat"] = {
    "text": chat.choices[0].message.content,
    "tier": chat.service_tier,
    "lane": raw.headers.get("x-weir-lane"),
}

response = client.responses.create(model="gpt-5-mini", input="Summarise: late parcel", background=True)
seen["created"] = {"id": response.id, "status": response.status}
until = time.monotonic() + 30
while response.status in ("queued", "in_progress") and time.monotonic() < until:
    time.sleep(0.05)
    response = client.responses.retrieve(response.id)
seen["retrieved"] = {
    "id": response.id,
    "status": response.status,
    "text": response.output_text,
    "tokens": response.usage.output_tokens if response.usage is not None else None,
}

other = client.responses.create(model="gpt-5-mini", input="Never mind", background=True)
seen["cancelled"] = client.responses.cancel(other.id).status
client.responses.delete(other.id)

pieces = []
with client.chat.completions.create(
    model="gpt-5-mini",
    messages=[{"role": "user", "content": "Classify: wrong parcel"}],
    stream=True,
    stream_options={"include_usage": True},
    extra_headers={"x-weir-urgency": "deferrable"},
) as stream:
    usage = None
    for chunk in stream:
        usage = chunk.usage or usage
        pieces += [choice.delta.content for choice in chunk.choices if choice.delta.content]
seen["streamed"] = {"text": "".join(pieces), "tokens": usage.completion_tokens if usage is not None else None}
print(json.dumps(seen))
