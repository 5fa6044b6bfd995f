"""A prompt as tokens: how messages, parts, tools and media count in the simulator.

It owns the overheads (three tokens a message, as OpenAI's cookbook has it for chat, and a flat figure for
media) and refuses to validate: it reads what the rules of an API shape have let through.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from proxy.sim.text import digest_of, split_tokens

_MEDIA_TOKENS = 85
_TEXT_KEYS = ("text", "refusal", "thinking")


def content_tokens(content: object) -> tuple[str, ...]:
    """Return the tokens of a message's content: a string, an array of parts, or nothing."""
    if isinstance(content, str):
        return split_tokens(content)
    if isinstance(content, list):
        return tuple(token for part in content for token in part_tokens(part))
    return ()


def part_tokens(part: object) -> tuple[str, ...]:
    """Return the tokens of one content part; what is not text counts a flat 85, told apart by its digest."""
    if isinstance(part, str):
        return split_tokens(part)
    if not isinstance(part, Mapping):
        return ()
    for key in _TEXT_KEYS:
        value = part.get(key)
        if isinstance(value, str):
            return split_tokens(value)
    if "content" in part:
        return content_tokens(part["content"])
    if "input" in part or "arguments" in part:
        return json_tokens(part)
    return (f"<{digest_of((_canonical(part),))}>",) + ("<media>",) * (_MEDIA_TOKENS - 1)


def json_tokens(value: object) -> tuple[str, ...]:
    """Return the tokens of a JSON value, whatever its key order; none for None and empty values."""
    return split_tokens(_canonical(value)) if value else ()


def message_tokens(role: str, content: object, *extra: object) -> tuple[str, ...]:
    """Return a message's tokens: three of overhead, its content and `extra` values such as tool calls."""
    rest = tuple(token for value in extra for token in json_tokens(value))
    return ("<start>", f"<{role}>", "<message>", *content_tokens(content), *rest)


def plain_text(content: object) -> str:
    """Return the text of a message's content, media left out."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        return ""
    texts = (part.get("text") for part in content if isinstance(part, Mapping))
    return "".join(text for text in texts if isinstance(text, str))


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
