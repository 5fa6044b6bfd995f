"""Many identical sampling requests as one with `n`: who may be asked so, and whose choice is whose. Pure.

Owns which providers give several choices, and dealing an answer's choices out: each caller gets one, numbered
0, and its part of the bill. The prompt was paid once: its tokens are divided evenly, those of the answers in
proportion to the length of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from proxy.core.document import Document, DocumentError
from proxy.core.json_values import decode
from proxy.core.upstream import Provider
from proxy.dialects.openai_events import compact_json
from proxy.lanes.coalesce.merge_answers import in_order, with_index, with_own_id
from proxy.lanes.coalesce.merge_usage import divide_usage
from proxy.lanes.lane import Pooling

MOST_CHOICES: Mapping[Provider, int] = MappingProxyType(
    {
        Provider.OPENAI: 128,
        Provider.AZURE: 128,
        Provider.VLLM: 128,
        Provider.GEMINI: 8,
        Provider.MISTRAL: 8,
        Provider.TOGETHER: 8,
    }
)
"""The most choices of one chat request, by who takes `n` there. Groq and Anthropic do not, llama.cpp only in
some versions; the first two figures are OpenAI's, the others stay well below what is documented."""

_NOT_WITH = (
    "audio",
    "functions",
    "logprobs",
    "modalities",
    "prediction",
    "seed",
    "tools",
    "top_logprobs",
    "web_search_options",
)
_IS_ABSENT = (None, b"null", b"false", b"[]")


def may_sample(pooling: Pooling, provider: Provider) -> bool:
    """Tell whether a request may become one choice of a larger one.

    Chat without a stream, one choice asked for, and nothing that would make the choices depend on each other
    or on the place in the answer. Reasoning models are left out: some refuse `n`.
    """
    document = pooling.document
    if pooling.dialect.name != "chat" or pooling.is_stream or document.duplicates:
        return False
    if MOST_CHOICES.get(provider, 1) < 2 or document.get("n") not in (None, b"null", b"1"):
        return False
    if document.get("store") == b"true" or any(document.get(name) not in _IS_ABSENT for name in _NOT_WITH):
        return False
    return not pooling.dialect.is_reasoning(document, pooling.model)


def sampled_body(document: Document, choices: int) -> bytes:
    """Return the body that asks for so many choices."""
    return document.set("n", b"%d" % choices).to_bytes()


def deal_choices(body: bytes, callers: int) -> list[bytes] | None:
    """Return each caller's own answer; `None` unless there is exactly one choice for each."""
    try:
        answer = Document.parse(body)
    except DocumentError:
        return None
    choices = answer.array("choices")
    ordered = None if choices is None or len(choices) != callers else in_order(choices)
    if ordered is None or answer.duplicates:
        return None
    usage = answer.get("usage")
    usages: Sequence[bytes | None] = [None] * callers
    if usage is not None and usage.startswith(b"{"):
        usages = divide_usage(usage, [1] * callers, [_length(choice) for choice in ordered])
    answers: list[bytes] = []
    for number, (choice, own_usage) in enumerate(zip(ordered, usages, strict=True)):
        mine = with_own_id(answer, number).set("choices", b"[" + with_index(choice, 0) + b"]")
        answers.append((mine if own_usage is None else mine.set("usage", own_usage)).to_bytes())
    return answers


def _length(choice: bytes) -> int:
    """Return the length of what one choice says, reasoning included."""
    value = decode(choice)
    message = value.get("message") if isinstance(value, dict) else None
    if not isinstance(message, dict):
        return 0
    said = [message.get(name) for name in ("content", "refusal", "reasoning_content", "reasoning")]
    return sum(len(compact_json(text)) - 2 for text in said if isinstance(text, str))
