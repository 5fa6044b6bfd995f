"""Whether a request wants an answer for a machine, which is worthless when it is cut short."""

from __future__ import annotations

from proxy.core.document import Document
from proxy.core.json_values import decode
from proxy.dialects.marking import with_plain_letters

# Constraints of vLLM, SGLang and llama.cpp, each with its own top-level field: a text, an object or a list.
_GUIDES = (
    "guided_json",
    "guided_regex",
    "guided_grammar",
    "guided_choice",
    "structured_outputs",
    "grammar",
    "json_schema",
)
# An empty schema allows any JSON, which still has to parse.
_SCHEMAS = frozenset({"guided_json", "json_schema"})

_FORMAT_FIELDS = frozenset({"response_format", "text", "output_format", "output_config", *_GUIDES})
_TOOL_FIELDS = frozenset({"tools", "functions"})
STRUCTURED_FIELDS = _FORMAT_FIELDS | _TOOL_FIELDS
"""Where none of these is present, no structured answer is wanted."""


def wants_structured(document: Document) -> bool:
    """Tell whether the answer must parse: a JSON format, a grammar, or tools that may be called.

    Read are the fields of `wants_format`, and `tools` and `functions` unless `tool_choice` is `none`.
    """
    return document.has_any(STRUCTURED_FIELDS) and (wants_format(document) or may_call_tools(document))


def wants_format(document: Document) -> bool:
    """Tell whether the caller constrains the form of the answer, tools aside.

    Read are `response_format` (chat), `text.format` (Responses), `output_format` and `output_config.format`
    (Anthropic), and self-hosted servers' guides. Empty ones, and those of a type that none takes, constrain
    nothing.
    """
    return document.has_any(_FORMAT_FIELDS) and (
        _is_format(document.value("response_format"))
        or _is_format(_part(document.value("text"), "format"))
        or _is_format(document.value("output_format"))
        or _is_format(_part(document.value("output_config"), "format"))
        or any(_guides(document, guide) for guide in _GUIDES)
    )


def asks_for_citations(document: Document) -> bool:
    """Tell whether an Anthropic request wants its documents or search results cited.

    Citations cannot stand in JSON: the API answers 400 to both (Anthropic's page on structured outputs).
    """
    raw = document.get("messages")
    if raw is None or b'"citations"' not in with_plain_letters(raw):
        return False
    messages = (decode(message) for message in document.elements("messages") or ())
    return any(_is_cited(message.get("content")) for message in messages if isinstance(message, dict))


def _is_cited(content: object) -> bool:
    """Tell whether any block of a message, or of a tool result in it, is to be cited."""
    for block in content if isinstance(content, list) else ():
        if not isinstance(block, dict):
            continue
        wanted = block.get("citations")
        if isinstance(wanted, dict) and wanted.get("enabled") is True:
            return True
        inner = block.get("content")
        for part in inner if isinstance(inner, list) else ():
            wanted = part.get("citations") if isinstance(part, dict) else None
            if isinstance(wanted, dict) and wanted.get("enabled") is True:
                return True
    return False


def may_call_tools(document: Document) -> bool:
    """Tell whether the request offers tools or functions and does not forbid to call them."""
    return document.has_any(_TOOL_FIELDS) and (
        (_offers(document, "tools") and document.value("tool_choice") != "none")
        or (_offers(document, "functions") and document.value("function_call") != "none")
    )


def _is_format(value: object) -> bool:
    kind = value.get("type") if isinstance(value, dict) else None
    return isinstance(kind, str) and kind not in ("", "text")


def _guides(document: Document, guide: str) -> bool:
    raw = document.get(guide)
    if raw is None or raw[:1] not in (b'"', b"{", b"["):
        return False
    return bool(raw.strip(b'"{}[] \t\r\n')) or (guide in _SCHEMAS and raw[:1] == b"{")


def _part(value: object, key: str) -> object:
    return value.get(key) if isinstance(value, dict) else None


def _offers(document: Document, field: str) -> bool:
    raw = document.get(field)
    # Not decoded: tools are the largest thing in an agent's request after its messages.
    return raw is not None and raw.startswith(b"[") and raw.lstrip(b"[ \t\r\n")[:1] == b"{"
