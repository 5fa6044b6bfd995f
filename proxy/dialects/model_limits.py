"""What a request says that another model would refuse, so that it is not sent to that model.

Known are OpenAI's families, whose refusals follow from the name (wire: 400 `unsupported_parameter` and
`unsupported_value`; inputs, formats and tools: the pages of its models). Of every other model nothing is
known, and nothing is said.
"""

from __future__ import annotations

from proxy.core.document import Document
from proxy.core.json_values import decode
from proxy.dialects.elements import read_head
from proxy.dialects.question import AUDIO, FILES, IMAGES, shows
from proxy.dialects.reasoning_models import (
    asks_for_reasoning,
    is_openai_reasoning,
    is_plain_openai,
    is_reasoning_model,
)
from proxy.dialects.structured_output import may_call_tools

# Never taken by a reasoning model on the chat endpoint, whatever its effort.
_NEVER = ("max_tokens", "stop", "prediction")
# Taken only with the value that changes nothing, unless reasoning is off.
_NEUTRAL = {
    "temperature": 1,
    "top_p": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "logprobs": False,
    "top_logprobs": 0,
    "logit_bias": {},
}
_OF_REASONING = ("reasoning_effort", "reasoning", "verbosity")

# The first ones take text alone and run no tools. A bare `gpt-4` is one of them, longer names need not be.
_EARLY = ("gpt-3.5", "gpt-35", "gpt-4-0", "gpt-4-1106", "gpt-4-32k")
_EARLY_EXACT = frozenset({"gpt-4"})
_TEXT_ONLY = ("o1-mini", "o1-preview", "o3-mini")
_NO_SCHEMA = ("gpt-4-turbo", "gpt-4o-2024-05-13", "chatgpt-", "o1-mini", "o1-preview")
_NO_TOOLS = ("chatgpt-", "o1-mini", "o1-preview")
_NO_PARALLEL_TOOLS = ("o1", "o3", "o4")


def refused_parameter(document: Document, dialect_name: str, model: str) -> str | None:
    """Return the first parameter of a chat or Responses request that `model` is known to refuse."""
    if dialect_name not in ("chat", "responses"):
        return None
    if is_openai_reasoning(model) and is_reasoning_model(model):
        refused = _refused_by_reasoning(document, dialect_name)
    elif is_plain_openai(model):
        refused = _refused_without_reasoning(document, dialect_name)
    else:
        return None
    return _refused_input(document, dialect_name, _bare(model)) if refused is None else refused


def _refused_input(document: Document, dialect_name: str, name: str) -> str | None:
    """Return what a model of OpenAI's by that name does not take in or give out."""
    is_early = name in _EARLY_EXACT or name.startswith(_EARLY)
    turns = "messages" if dialect_name == "chat" else "input"
    if is_early or name.startswith(_TEXT_ONLY):
        for kinds, said in ((IMAGES, "images"), (FILES, "files")):
            if shows(document, dialect_name, kinds):
                return f"{said} in {turns}"
    if "audio" not in name:
        modalities = document.value("modalities")
        if isinstance(modalities, list) and "audio" in modalities:
            return "modalities"
        if shows(document, dialect_name, AUDIO):
            return f"audio in {turns}"
    if "-search" not in name and document.get("web_search_options") not in (None, b"null"):
        return "web_search_options"
    if is_early or name.startswith(_NO_SCHEMA):
        for path in (("response_format", "type"), ("text", "format", "type")):
            if document.get_path(path) == b'"json_schema"':
                return ".".join(path[:-1])
    return _refused_tools(document, name, is_early=is_early)


def _refused_tools(document: Document, name: str, *, is_early: bool) -> str | None:
    if not may_call_tools(document):
        return None
    if name.startswith(_NO_TOOLS):
        return "tools"
    if (is_early or name.startswith("gpt-4-turbo")) and _has_hosted_tool(document):
        return "hosted tools"
    is_said = document.get("parallel_tool_calls") not in (None, b"null")
    return "parallel_tool_calls" if is_said and name.startswith(_NO_PARALLEL_TOOLS) else None


def _has_hosted_tool(document: Document) -> bool:
    """Tell whether any tool is one that OpenAI runs: MCP, searches, code, pictures."""
    tools = (decode(tool) for tool in document.elements("tools") or ())
    kinds = (tool.get("type") for tool in tools if isinstance(tool, dict))
    return any(isinstance(kind, str) and kind not in ("function", "custom") for kind in kinds)


def _bare(model: str) -> str:
    return model.rsplit("/", 1)[-1].lower().removeprefix("ft:")


def _refused_by_reasoning(document: Document, dialect_name: str) -> str | None:
    if dialect_name == "chat":
        for name in _NEVER:
            if document.get(name) not in (None, b"null", b"[]"):
                return name
    if asks_for_reasoning(document) is False:
        return None
    for name, neutral in _NEUTRAL.items():
        value = document.value(name)
        if value is not None and value != neutral:
            return name
    return None


def _refused_without_reasoning(document: Document, dialect_name: str) -> str | None:
    for name in _OF_REASONING:
        if document.get(name) not in (None, b"null"):
            return name
    if document.get_path(("text", "verbosity")) not in (None, b"null"):
        return "text.verbosity"
    # A reasoning item may only be replayed to a model that reasons.
    return "input" if dialect_name == "responses" and _replays_reasoning(document) else None


def _replays_reasoning(document: Document) -> bool:
    raw = document.get("input")
    if raw is None or b'"reasoning"' not in raw:
        return False
    heads = (read_head(item) for item in document.elements("input") or ())
    return any(head is not None and head.type == "reasoning" for head in heads)
