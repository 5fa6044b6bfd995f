"""Usage objects of the dialects, read into Weir's one convention (see `proxy.core.usage`).

What is missing, or is not a count, is `None`; an object without any count is no usage at all.
"""

from __future__ import annotations

from typing import Any

from proxy.core.usage import Usage

_NOTHING = Usage()
_MAX_TOKENS = 10**12


def openai_usage(usage: object) -> Usage | None:
    """Read the usage of chat, completions, embeddings and moderations.

    `prompt_tokens` includes cached tokens. DeepSeek writes `prompt_cache_hit_tokens` instead of details.
    """
    if not isinstance(usage, dict):
        return None
    prompt = _part(usage, "prompt_tokens_details")
    cached = _count(prompt.get("cached_tokens"))
    return _unless_empty(
        Usage(
            input_tokens=_count(usage.get("prompt_tokens")),
            output_tokens=_count(usage.get("completion_tokens")),
            cached_tokens=_count(usage.get("prompt_cache_hit_tokens")) if cached is None else cached,
            cache_write_tokens=_count(prompt.get("cache_write_tokens")),
            reasoning_tokens=_count(_part(usage, "completion_tokens_details").get("reasoning_tokens")),
        )
    )


def responses_usage(usage: object) -> Usage | None:
    """Read the usage of a Responses object; `input_tokens` includes cached tokens."""
    if not isinstance(usage, dict):
        return None
    details = _part(usage, "input_tokens_details")
    return _unless_empty(
        Usage(
            input_tokens=_count(usage.get("input_tokens")),
            output_tokens=_count(usage.get("output_tokens")),
            cached_tokens=_count(details.get("cached_tokens")),
            cache_write_tokens=_count(details.get("cache_write_tokens")),
            reasoning_tokens=_count(_part(usage, "output_tokens_details").get("reasoning_tokens")),
        )
    )


def messages_usage(usage: object) -> Usage | None:
    """Read the usage of an Anthropic message.

    There `input_tokens` is only what was neither read from nor written to the cache: the whole prompt is the
    sum of the three.
    """
    if not isinstance(usage, dict):
        return None
    uncached = _count(usage.get("input_tokens"))
    read = _count(usage.get("cache_read_input_tokens"))
    written = _count(usage.get("cache_creation_input_tokens"))
    return _unless_empty(
        Usage(
            input_tokens=None if uncached is None else uncached + (read or 0) + (written or 0),
            output_tokens=_count(usage.get("output_tokens")),
            cached_tokens=read,
            cache_write_tokens=written,
        )
    )


def _part(usage: dict[str, Any], name: str) -> dict[str, Any]:
    part = usage.get(name)
    return part if isinstance(part, dict) else {}


def _count(value: object) -> int | None:
    """Return a count; nothing for what no answer can have, however long the number."""
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= _MAX_TOKENS else None


def _unless_empty(usage: Usage) -> Usage | None:
    return None if usage == _NOTHING else usage
