"""Which models spend output tokens on reasoning, as data.

Names are compared after a vendor prefix (`openai/`, `ft:`) and without regard to case. A request that says
itself whether to reason overrules its model's name. New families are added here and nowhere else.
"""

from __future__ import annotations

from functools import lru_cache

from proxy.core.document import Document

# They answer 400 to `max_tokens` and to `stop` on the chat endpoint (errors quoted in OpenAI's community
# reports; the SDK's docstring of `stop` names o3 and o4-mini).
OPENAI_REASONING = ("o1", "o3", "o4", "gpt-5", "codex-")

# Members of those families that do not reason.
_NOT_REASONING = ("gpt-5-chat",)

OTHER_REASONING = (
    "deepseek-r1",
    "deepseek-reasoner",
    "gemini-2.5",
    "gemini-3",
    "glm-4.5",
    "glm-4.6",
    "gpt-oss",
    "grok-3-mini",
    "grok-4",
    "kimi-k2-thinking",
    "magistral",
    "minimax-m1",
    "minimax-m2",
    "qwq",
)
_SAYS_SO = ("-thinking", "-reasoning", "-reasoner")

REASONING_SWITCHES = frozenset(
    {"reasoning_effort", "reasoning", "thinking", "enable_thinking", "chat_template_kwargs"}
)
_EFFORTS_WITHOUT = frozenset({"none", "minimal"})
_EFFORTS_WITH = frozenset({"low", "medium", "high", "xhigh", "max"})
_THINKING = {"enabled": True, "adaptive": True, "auto": True, "disabled": False}

# They answer 400 to every word about reasoning, so that none of them makes them reason.
_PLAIN_OPENAI = ("gpt-3.5", "gpt-35", "gpt-4", "chatgpt-", *_NOT_REASONING)


@lru_cache(maxsize=512)
def is_openai_reasoning(model: str) -> bool:
    """Tell whether a model belongs to OpenAI's reasoning families, with their refusals on chat."""
    return _bare(model).startswith(OPENAI_REASONING)


@lru_cache(maxsize=512)
def is_reasoning_model(model: str) -> bool:
    """Tell whether a model reasons unless it is told not to."""
    name = _bare(model)
    if name.startswith(_NOT_REASONING):
        return False
    return name.startswith(OPENAI_REASONING + OTHER_REASONING) or any(word in name for word in _SAYS_SO)


@lru_cache(maxsize=512)
def is_plain_openai(model: str) -> bool:
    """Tell whether a model is one of OpenAI's that never reason, whatever a request says."""
    return _bare(model).startswith(_PLAIN_OPENAI)


def will_reason(document: Document, model: str) -> bool:
    """Tell whether output tokens will be spent on reasoning: what the request says, else its model."""
    if is_plain_openai(model):
        return False
    asked = asks_for_reasoning(document)
    return is_reasoning_model(model) if asked is None else asked


def asks_for_reasoning(document: Document) -> bool | None:
    """Return whether a request itself switches reasoning on or off; `None` when it says nothing.

    Values that no API knows say nothing.

    Read are `reasoning_effort` (OpenAI), `reasoning` (Responses, OpenRouter), `thinking` (Anthropic, GLM,
    DeepSeek), `enable_thinking` (Qwen) and `chat_template_kwargs.enable_thinking` (vLLM).
    """
    if not document.has_any(REASONING_SWITCHES):
        return None
    asked = _effort(document.value("reasoning_effort"))
    if asked is not None:
        return asked
    reasoning = document.value("reasoning")
    if isinstance(reasoning, dict):
        asked, enabled, tokens = (
            _effort(reasoning.get("effort")),
            reasoning.get("enabled"),
            reasoning.get("max_tokens"),
        )
        if asked is not None:
            return asked
        if isinstance(enabled, bool):
            return enabled
        if isinstance(tokens, int) and tokens > 0 and not isinstance(tokens, bool):
            return True
    thinking = document.value("thinking")
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    if isinstance(kind, str) and kind in _THINKING:
        return _THINKING[kind]
    for switch in (document.value("enable_thinking"), _template_switch(document)):
        if isinstance(switch, bool):
            return switch
    return None


def _effort(word: object) -> bool | None:
    if not isinstance(word, str) or word not in _EFFORTS_WITH | _EFFORTS_WITHOUT:
        return None
    return word in _EFFORTS_WITH


def _template_switch(document: Document) -> object:
    arguments = document.value("chat_template_kwargs")
    return arguments.get("enable_thinking") if isinstance(arguments, dict) else None


def _bare(model: str) -> str:
    return model.rsplit("/", 1)[-1].lower().removeprefix("ft:")
