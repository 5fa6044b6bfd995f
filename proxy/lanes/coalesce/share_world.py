"""Requests whose answers depend on more than themselves: the provider looks at a world that changes. Pure.

Owns the names of what makes a provider look: tools that it runs itself, searches, documents that it fetches,
and models that always search. What the caller runs itself is no such thing.
"""

from __future__ import annotations

from proxy.core.document import Document
from proxy.core.json_values import decode

_OWN_TOOLS = frozenset({"function", "custom", None})
"""Tools that the caller runs itself. Whatever else a provider offers looks around."""

_LOOKING = (
    "data_sources",  # Azure OpenAI on your data
    "enable_search",  # DashScope
    "mcp_servers",  # Anthropic, xAI
    "plugins",  # OpenRouter: web, file-parser
    "search_parameters",  # xAI's live search
    "search_settings",  # Groq's compound systems
    "web_search_options",  # OpenAI, Perplexity
)
_IS_ABSENT = (None, b"null", b"false", b"[]")

_SEARCHING_MODELS = (":online", "search-preview", "search-api", "deep-research", "sonar", "compound")
"""Parts of names of models that search unasked: OpenRouter's suffix, OpenAI's, Perplexity's and Groq's."""


def looks_around(document: Document, model: str) -> bool:
    """Tell whether the provider looks at something that may have changed for the next request."""
    if any(document.get(name) not in _IS_ABSENT for name in _LOOKING):
        return True
    if any(part in model for part in _SEARCHING_MODELS):
        return True
    return any(not _is_own(decode(tool)) for tool in document.array("tools") or ())


def _is_own(tool: object) -> bool:
    return isinstance(tool, dict) and tool.get("type") in _OWN_TOOLS
