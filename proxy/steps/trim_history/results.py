"""Edits inside elements that stay: oversized tool results get shorter, the role `summary` becomes `system`.

Both are the same whenever an element is sent, so that a prefix which a provider has cached stays one.
"""

from __future__ import annotations

from itertools import groupby

from proxy.core.json_edits import splice_object
from proxy.core.json_spans import parse_object
from proxy.dialects.conversation import Conversation, Role
from proxy.dialects.text_parts import TextPart, quoted_text, text_parts, with_texts
from proxy.steps.step import StepContext
from proxy.steps.trim_history.config import Config
from proxy.steps.trim_history.shorten import Shortening

_UNLIMITED_DEPTH = 1 << 30


def shortened_results(conversation: Conversation, config: Config, context: StepContext) -> dict[int, bytes]:
    """Return the elements whose tool results exceed `per_message`, shortened, by index."""
    limit_tokens = config.per_message
    if limit_tokens is None:
        return {}
    tokens, model = context.tokens, context.model

    def count(text: str) -> int:
        # As a message, because those counts are remembered: a long result comes again with every request.
        return tokens.count_message(quoted_text(text), model).tokens

    shortening = Shortening(config.cut, config.json, config.marker, count)
    edits: dict[int, bytes] = {}
    for index, element in enumerate(conversation.elements):
        raw = conversation.raws[index]
        # No text has more tokens than bytes.
        if element.role is not Role.TOOL or len(raw) <= limit_tokens:
            continue
        before = tokens.count_message(raw, model).tokens
        if before <= limit_tokens:
            continue
        shorter = with_texts(raw, _shorter_texts(raw, shortening, limit_tokens))
        if shorter != raw and tokens.count_message(shorter, model).tokens < before:
            edits[index] = shorter
    return edits


def _shorter_texts(raw: bytes, shortening: Shortening, limit_tokens: int) -> dict[TextPart, str]:
    """Return the texts to replace; of several parts of one result the longest lose first."""
    edits: dict[TextPart, str] = {}
    parts = [part for part in text_parts(raw) if part.result is not None]
    for _, result in groupby(parts, key=lambda part: part.result):
        texts = [(part, text, shortening.count(text)) for part in result if (text := part.text(raw))]
        level_tokens = _level([counted for _, _, counted in texts], limit_tokens)
        for part, text, counted in texts:
            shorter = text if counted <= level_tokens else shortening.shortened(text, level_tokens)
            if shorter is not text:
                edits[part] = shorter
    return edits


def _level(counts: list[int], limit_tokens: int) -> int:
    """Return the length to which the longest must be cut so that all together fit."""
    left = limit_tokens
    for place, counted in enumerate(sorted(counts)):
        share = left // (len(counts) - place)
        if counted > share:
            return share
        left -= counted
    return limit_tokens


def summaries_as_system(conversation: Conversation) -> dict[int, bytes]:
    """Return the elements with the role `summary`, with the role `system`, by index."""
    return {
        index: splice_object(parse_object(conversation.raws[index], _UNLIMITED_DEPTH), {"role": b'"system"'})
        for index, element in enumerate(conversation.elements)
        if element.is_summary
    }
