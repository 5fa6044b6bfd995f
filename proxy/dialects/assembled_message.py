"""Anthropic's message events put together again: see `proxy.dialects.assembled_answer`."""

from __future__ import annotations

from typing import Any

from proxy.core.json_values import decode
from proxy.core.sse import event_data
from proxy.dialects.openai_events import compact_json


class MessageAssembler:
    """One stream of message events."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._message: dict[str, Any] | None = None
        self._blocks: dict[int, dict[str, Any]] = {}
        self._texts: dict[tuple[int, str], list[str]] = {}
        self._is_done = False

    def take(self, event: bytes) -> None:
        """Read one event."""
        data = event_data(event)
        said = decode(data) if data[:1] == b"{" else None
        if not isinstance(said, dict):
            return
        self.size_bytes += len(data)
        index = said.get("index")
        match said.get("type"):
            case "message_start" if isinstance(said.get("message"), dict):
                self._message = dict(said["message"])
            case "content_block_start" if isinstance(index, int) and isinstance(
                said.get("content_block"), dict
            ):
                self._blocks[index] = dict(said["content_block"])
            case "content_block_delta" if isinstance(index, int) and isinstance(said.get("delta"), dict):
                if index in self._blocks:
                    self._grow(index, said["delta"])
            case "message_delta":
                self._end(said)
            case "message_stop":
                self._is_done = True
            case _:
                pass

    def _grow(self, index: int, delta: dict[str, Any]) -> None:
        match delta.get("type"):
            case "text_delta":
                self._add(index, "text", delta.get("text"))
            case "thinking_delta":
                self._add(index, "thinking", delta.get("thinking"))
            case "input_json_delta":
                self._add(index, "input", delta.get("partial_json"))
            case "signature_delta":
                self._blocks[index]["signature"] = delta.get("signature")
            case "citations_delta":
                block = self._blocks[index]
                known = block.get("citations")
                block["citations"] = [*(known if isinstance(known, list) else ()), delta.get("citation")]
            case _:
                pass

    def _add(self, index: int, field: str, text: object) -> None:
        if isinstance(text, str):
            self._texts.setdefault((index, field), []).append(text)

    def _end(self, said: dict[str, Any]) -> None:
        message, delta, usage = self._message, said.get("delta"), said.get("usage")
        if message is None:
            return
        if isinstance(delta, dict):
            message.update(delta)
        if isinstance(usage, dict):
            known = message.get("usage")
            told = {key: value for key, value in usage.items() if value is not None}
            message["usage"] = {**(known if isinstance(known, dict) else {}), **told}
        if "context_management" in said:
            message["context_management"] = said["context_management"]

    @property
    def has_ended(self) -> bool:
        """Whether the last event has come."""
        return self._is_done

    def body(self) -> bytes | None:
        """Return the complete message, `None` before its last word."""
        message = self._message
        if message is None or not (self._is_done or message.get("stop_reason")):
            return None
        for (index, field), pieces in self._texts.items():
            block, text = self._blocks[index], "".join(pieces)
            if field != "input":
                given = block.get(field)
                block[field] = (given if isinstance(given, str) else "") + text
            elif text:
                block["input"] = decode(text.encode("utf-8", "replace"), {})
        self._texts.clear()
        content = [self._blocks[index] for index in sorted(self._blocks)]
        return compact_json({**message, "content": content})
