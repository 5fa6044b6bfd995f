"""What a request says that another model would refuse, so that it is not sent to that model.

Known are OpenAI's families, whose refusals follow from the name (wire: 400 `unsupported_parameter` and
`unsupported_value`). Of every other model nothing is known, and nothing is said.
"""

from __future__ import annotations

from proxy.core.document import Document
from proxy.dialects.elements import read_head
from proxy.dialects.reasoning_models import asks_for_reasoning, is_openai_reasoning, is_reasoning_model

# Never taken by a reasoning model on the chat endpoint, whatever its effort.
_NEVER = ("max_tokens", "stop")
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
_PLAIN_OPENAI = ("gpt-3.5", "gpt-4", "chatgpt-")


def refused_parameter(document: Document, dialect_name: str, model: str) -> str | None:
    """Return the first parameter of a chat or Responses request that `model` is known to refuse."""
    if dialect_name not in ("chat", "responses"):
        return None
    if is_openai_reasoning(model) and is_reasoning_model(model):
        return _refused_by_reasoning(document, dialect_name)
    if model.rsplit("/", 1)[-1].startswith(_PLAIN_OPENAI):
        return _refused_without_reasoning(document, dialect_name)
    return None


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
