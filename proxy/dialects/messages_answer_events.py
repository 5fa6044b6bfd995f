"""A complete Anthropic message told as its events: see `proxy.dialects.answer_events`.

    message_start
    for each block   content_block_start, its deltas, content_block_stop
    message_delta, message_stop

Blocks that are not streamed in parts (redacted thinking, results of server tools) begin whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from proxy.dialects.openai_events import compact_json

Json = Mapping[str, Any]
_CALLS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
_ENDING = ("stop_reason", "stop_sequence", "container", "stop_details")


def message_events(answer: Json) -> bytes | None:
    """Return the event stream; `None` for what is no message. Raises what odd types raise."""
    blocks, usage = answer.get("content"), answer.get("usage")
    if answer.get("type") != "message" or not isinstance(blocks, list):
        return None
    opening = {**answer, "content": [], "stop_reason": None, "stop_sequence": None}
    opening.pop("context_management", None)
    if isinstance(usage, dict):
        opening["usage"] = {**usage, "output_tokens": min(1, int(usage.get("output_tokens") or 0))}
    events = [_event("message_start", {"message": opening})]
    for index, block in enumerate(blocks):
        begun, deltas = _block(block)
        events.append(_event("content_block_start", {"index": index, "content_block": begun}))
        events += [_event("content_block_delta", {"index": index, "delta": delta}) for delta in deltas]
        events.append(_event("content_block_stop", {"index": index}))
    ending: dict[str, Any] = {
        "delta": {key: answer[key] for key in _ENDING if key in answer},
        "usage": usage,
    }
    if "context_management" in answer:
        ending["context_management"] = answer["context_management"]
    return b"".join((*events, _event("message_delta", ending), _event("message_stop", {})))


def _event(name: str, fields: Json) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode("ascii"), compact_json({"type": name, **fields}))


def _block(block: Json) -> tuple[Json, list[Json]]:
    """Return a block as it begins and the deltas that complete it."""
    kind = block.get("type")
    if kind == "text":
        cited: list[Any] = block.get("citations") or []
        begun = {**block, "text": ""}
        if cited:
            begun["citations"] = []
        return begun, [*_text(block["text"]), *_citations(cited)]
    if kind in _CALLS and isinstance(block.get("input"), dict):
        written = compact_json(block["input"]).decode("ascii")
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": written}]
    if kind == "thinking":
        deltas: list[Json] = [{"type": "thinking_delta", "thinking": block["thinking"]}]
        if block.get("signature"):
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        return {**block, "thinking": "", "signature": ""}, deltas
    return block, []


def _text(text: str) -> Iterator[Json]:
    if text:
        yield {"type": "text_delta", "text": text}


def _citations(cited: list[Any]) -> Iterator[Json]:
    for citation in cited:
        yield {"type": "citations_delta", "citation": citation}
