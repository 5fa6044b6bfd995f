"""What one message costs: framing, role, name, text, tool calls and media, in all three dialects.

Owns the knowledge of which parts of a message a model reads. Refuses to parse JSON, to cache, and to
know how a text is counted (it is given a function). Ids, cache markers and signatures cost nothing;
types that it does not know are counted by the strings inside them and called estimated.

Source of the framing: the cookbook's formula, 3 tokens a message + role + content + name and 1, and 3
more for the reply (`REPLY_PRIMING_TOKENS`, once per request, added by whoever adds up a request).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from proxy.tokens.bounded import byte_estimate
from proxy.tokens.media import (
    MEDIA_KINDS,
    looks_like_data,
    media_tokens,
    opaque_tokens,
    unknown_data_tokens,
)
from proxy.tokens.models import ModelProfile
from proxy.tokens.port import Count

REPLY_PRIMING_TOKENS = 3
TOOL_CALL_TOKENS = 3
"""Framing of one tool call or result item: an estimate, the real rendering is not published."""

FULL_COUNT_BYTES_PER_MESSAGE = 512 * 1024
"""Beyond this the rest of a message is estimated from its length, so that one message ends in time."""
MAX_PIECES = 20_000
"""A message of more strings, parts and values than this is refused with `ValueError`: even walking through
it would hold the interpreter. Whoever measures estimates it from its bytes."""

CountText = Callable[[str], Count]

_TEXT_KINDS = frozenset(("text", "input_text", "output_text", "refusal", "summary_text", "reasoning_text"))
_PLAIN_CHAT_KINDS = frozenset(("text", "refusal"))
_OPAQUE_KEYS = frozenset(("encrypted_content", "encrypted_index", "encrypted_stdout"))
_UNREAD_KEYS = frozenset(
    (
        "type", "role", "id", "object", "status", "index", "call_id", "tool_call_id", "tool_use_id",
        "item_id", "response_id", "previous_response_id", "file_id", "container_id", "media_type",
        "cache_control", "prompt_cache_breakpoint", "signature", "phase", "caller", "annotations",
        "citations", "logprobs", "is_error", "created_by",
    )
)  # fmt: skip
# Strings that are text for the model however they look; elsewhere in an unknown type base64 is data.
_TEXT_KEYS = frozenset(("text", "thinking", "arguments", "input", "output"))
_TOOL_RESULT_TEXT = ("tool_result", "content")
_CHAT_KEYS = frozenset(("role", "content", "name", "refusal"))


def measure_message(value: object, profile: ModelProfile, count_text: CountText) -> Count:
    """Count one decoded message, Responses item, `input` string or Anthropic `system` value.

    Raises `ValueError` beyond `MAX_PIECES` and `RecursionError` for endless nesting.
    """
    meter = _Meter(profile, count_text)
    meter.add_message(value)
    return Count(meter.tokens, meter.exact)


def compact_json(value: object) -> str:
    """Spell a value as a model would be shown it: no spaces, no escapes, lone surrogates kept."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class _Meter:
    """Adds up one message. Lives for one call."""

    __slots__ = ("_bytes_left", "_count_text", "_pieces_left", "_profile", "exact", "tokens")

    def __init__(self, profile: ModelProfile, count_text: CountText) -> None:
        self._profile = profile
        self._count_text = count_text
        self._bytes_left = FULL_COUNT_BYTES_PER_MESSAGE
        self._pieces_left = MAX_PIECES
        self.tokens = 0
        self.exact = profile.exact_messages

    def add_message(self, value: object) -> None:
        self.tokens += self._profile.message_tokens
        if not isinstance(value, dict):
            self._add_content(value)
            return
        role, name = value.get("role"), value.get("name")
        if not isinstance(role, str):
            self._add_estimated(value)
            return
        self._add_text(role)
        self._add_content(value.get("content"))
        if isinstance(value.get("refusal"), str):
            self._add_text(value["refusal"])
        if isinstance(name, str):
            self._add_text(name)
            self.tokens += self._profile.name_tokens
        rest = {key: inner for key, inner in value.items() if key not in _CHAT_KEYS and inner}
        if not rest.keys() <= _UNREAD_KEYS or "type" in rest:
            self._add_estimated(rest)

    def _add_content(self, content: object) -> None:
        if isinstance(content, str):
            self._add_text(content)
        elif isinstance(content, list):
            for part in content:
                self._add_part(part)
        elif content is not None:
            self._add_estimated(content)

    def _add_part(self, part: object) -> None:
        self._spend_piece()
        if isinstance(part, dict):
            kind, text = _kind(part), part.get("text", part.get("refusal"))
            if kind in _TEXT_KINDS and isinstance(text, str):
                self.exact = self.exact and kind in _PLAIN_CHAT_KINDS
                self._add_text(text)
                return
        self._add_estimated(part)

    def _add_estimated(self, value: object) -> None:
        self.exact = False
        self._walk(value)

    def _walk(self, value: object) -> None:
        """Add whatever a model may read in a value of unknown shape. Depth is the JSON parser's to limit."""
        self._spend_piece()
        match value:
            case str():
                self._add_leaf(value)
            case list():
                for inner in value:
                    self._walk(inner)
            case dict():
                self._walk_object(value)
            case bool() | int() | float():
                self.tokens += 1
            case _:
                pass

    def _walk_object(self, value: Mapping[str, object]) -> None:
        kind = _kind(value)
        if kind in MEDIA_KINDS and not _is_text_document(value):
            self.tokens += media_tokens(value, self._profile)
            return
        if "arguments" in value or "input" in value or "output" in value:
            self.tokens += TOOL_CALL_TOKENS
        for key, inner in value.items():
            if key in _UNREAD_KEYS:
                continue
            if key in _OPAQUE_KEYS or (key == "data" and kind == "redacted_thinking"):
                self.tokens += opaque_tokens(inner) if isinstance(inner, str) else 0
            elif key == "input" and isinstance(inner, dict):
                self._add_text(compact_json(inner))
            elif isinstance(inner, str) and (
                key in _TEXT_KEYS or (key == "content" and kind == "tool_result")
            ):
                self._add_text(inner)
            else:
                self._walk(inner)

    def _add_leaf(self, text: str) -> None:
        if looks_like_data(text):
            self.tokens += unknown_data_tokens(text, self._profile)
        else:
            self._add_text(text)

    def _add_text(self, text: str) -> None:
        if not text:
            return
        self._bytes_left -= len(text)
        if self._bytes_left < 0:
            self.tokens += byte_estimate(text)
            self.exact = False
            return
        count = self._count_text(text)
        self.tokens += count.tokens
        self.exact = self.exact and count.exact

    def _spend_piece(self) -> None:
        self._pieces_left -= 1
        if self._pieces_left < 0:
            raise ValueError(f"a message of more than {MAX_PIECES} pieces")


def _kind(part: Mapping[str, object]) -> str:
    kind = part.get("type")
    return kind if isinstance(kind, str) else ""


def _is_text_document(part: Mapping[str, object]) -> bool:
    """Anthropic documents may carry plain text or content blocks instead of a file."""
    source = part.get("source")
    return isinstance(source, dict) and source.get("type") in ("text", "content")
