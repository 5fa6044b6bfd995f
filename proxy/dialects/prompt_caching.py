"""What providers take to cache prompts: keys and marks, for which models, on which parts.

Owns those rules as data. Sources: OpenAI's prompt caching guide and the types of its SDK 3.57 (breakpoints
and `prompt_cache_options` from GPT-5.6 on, refused before; at least 1,024 tokens through a breakpoint; about
15 requests a minute per key); Anthropic's prompt caching page (`cache_control`, at most four, on the last
block of a prefix in the order tools, system, messages; never on thinking or empty text).
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from proxy.core.json_edits import child, splice_object, with_child
from proxy.core.json_spans import array_spans, parse_object
from proxy.core.json_values import decode
from proxy.dialects.text_parts import TextPart, quoted_text

REQUESTS_PER_KEY = 15
"""Requests a minute beyond which OpenAI spreads one cache key over several machines."""

LEAST_CACHED_TOKENS = 1_024
"""The shortest prefix that OpenAI caches, and what is assumed of a model without a known minimum."""

KEY_FIELD = "prompt_cache_key"
OPTIONS_FIELD = "prompt_cache_options"
EXPLICIT_ONLY = b'{"mode":"explicit"}'
"""`prompt_cache_options` by which nothing is cached, or paid for, but what breakpoints mark."""

_TAKE_KEYS = frozenset({"openai", "azure"})
_BREAKPOINTS_SINCE = (5, 6)
_NEWEST_MAJOR = 20
_GPT = re.compile(r"gpt-(\d{1,2})(?:\.(\d{1,2}))?(?![\w.])")
_MARKABLE_BLOCKS = frozenset({"image", "document", "tool_result", "search_result"})
_UNLIMITED_DEPTH = 1 << 30


class Mark(msgspec.Struct, frozen=True):
    """How an API marks the end of a prefix: a member of a content part."""

    name: str
    value: bytes
    part_type: str


_CACHE_CONTROL = Mark("cache_control", b'{"type":"ephemeral"}', "text")
_BREAKPOINTS = {
    "chat": Mark("prompt_cache_breakpoint", b'{"mode":"explicit"}', "text"),
    "responses": Mark("prompt_cache_breakpoint", b'{"mode":"explicit"}', "input_text"),
}


def takes_cache_key(provider: str, dialect_name: str) -> bool:
    """Tell whether requests may say which of them have a prefix in common."""
    return provider in _TAKE_KEYS and dialect_name in _BREAKPOINTS


def mark_for(provider: str, dialect_name: str, model: str) -> Mark | None:
    """Return how prefixes are marked for a model; `None` where they are not, or nobody knows."""
    if provider == "anthropic":
        return _CACHE_CONTROL if dialect_name == "messages" else None
    return _BREAKPOINTS.get(dialect_name) if provider == "openai" and takes_breakpoints(model) else None


@lru_cache(maxsize=512)
def takes_breakpoints(model: str) -> bool:
    """Tell whether an OpenAI model's name says GPT-5.6 or later."""
    version = _GPT.match(model.rsplit("/", 1)[-1].lower().removeprefix("ft:"))
    if version is None:
        return False
    major = int(version[1])
    return (major, int(version[2] or 0)) >= _BREAKPOINTS_SINCE and major <= _NEWEST_MAJOR


def with_text_marked(raw: bytes, part: TextPart, stable_chars: int, mark: Mark) -> bytes:
    """Return a message or value whose text is marked after its first characters; the rest becomes a part.

    Text that was no list of parts becomes one. Space alone makes no part: APIs refuse that.
    """
    text = part.text(raw)
    stable, rest = text[:stable_chars], text[stable_chars:]
    if not rest.strip():
        stable, rest = text, ""
    literal = quoted_text(stable) if rest else raw[part.start : part.end]
    kind = quoted_text(mark.part_type)
    behind = b',{"type":%b,"text":%b}' % (kind, quoted_text(rest)) if rest else b""
    if len(part.path) > 1:
        block = _at(raw, part)
        marked = _with_member(block, {"text": literal}, mark) + behind
        return with_child(raw, part.path[:-1], marked) or raw
    marked = b'{"type":%b,"text":%b,%b:%b}' % (kind, literal, quoted_text(mark.name), mark.value)
    return with_child(raw, part.path, b"[%b%b]" % (marked, behind)) or raw


def with_last_block_marked(raw: bytes, mark: Mark) -> bytes | None:
    """Return a message whose last block is marked; `None` where that block may not carry a mark."""
    content = child(raw, "content")
    if content is None:
        return None
    if content.startswith(b'"'):
        block = b'{"type":%b,"text":%b}' % (quoted_text(mark.part_type), content)
        content, index = b"[" + block + b"]", 0
    else:
        index = len(array_spans(content) or ()) - 1
        found = child(content, index) if index >= 0 else None
        if found is None:
            return None
        block = found
    if not _is_markable(block):
        return None
    marked = with_child(content, (index,), _with_member(block, {}, mark))
    return None if marked is None else with_child(raw, ("content",), marked)


def with_last_tool_marked(raw: bytes, mark: Mark) -> bytes | None:
    """Return a list of tools whose last one is marked; `None` where there is none."""
    spans = array_spans(raw)
    last = child(raw, -1) if spans else None
    if last is None or not last.startswith(b"{"):
        return None
    return with_child(raw, (-1,), _with_member(last, {}, mark))


def _is_markable(block: bytes) -> bool:
    if not block.startswith(b"{"):
        return False
    members = parse_object(block, _UNLIMITED_DEPTH)
    kind = decode(members.last_value("type") or b"null")
    if kind == "text":
        text = decode(members.last_value("text") or b"null")
        return isinstance(text, str) and bool(text.strip())
    return isinstance(kind, str) and kind in _MARKABLE_BLOCKS


def _with_member(block: bytes, edits: dict[str, bytes], mark: Mark) -> bytes:
    return splice_object(parse_object(block, _UNLIMITED_DEPTH), {**edits, mark.name: mark.value})


def _at(raw: bytes, part: TextPart) -> bytes:
    value = raw
    for key in part.path[:-1]:
        value = child(value, key) or b"{}"
    return value
