"""Where the ends of stable prefixes are marked, and whether that is worth anything.

Owns the two places: the stable end of the system text (with the tools before it), and the end of a
conversation that goes on. Where a prefix is too short to be cached a mark says nothing, so none is set.
Counting is done only where lengths do not decide.
"""

from __future__ import annotations

from collections.abc import Iterable

from proxy.core.document import Document
from proxy.dialects.conversation import Conversation, Role
from proxy.dialects.prompt_caching import (
    LEAST_CACHED_TOKENS,
    Mark,
    with_last_block_marked,
    with_last_tool_marked,
)
from proxy.steps.step import StepContext

TOOL_FIELDS = ("tools", "functions")


def is_long_enough(raws: Iterable[bytes], context: StepContext) -> bool:
    """Tell whether a prefix of these values is long enough to be cached."""
    least_tokens = least_cached_tokens(context)
    # No text has more tokens than bytes; media do, but nobody sends one in a system text.
    values = list(raws)
    if sum(map(len, values)) < least_tokens:
        return False
    tokens = 0
    for raw in values:
        tokens += context.tokens.count_message(raw, context.model).tokens
        if tokens >= least_tokens:
            return True
    return False


def least_cached_tokens(context: StepContext) -> int:
    """Return the shortest prefix that the model caches, as far as anybody knows."""
    price = None if context.prices is None else context.prices.price(context.provider, context.model)
    cache = None if price is None else price.cache
    return LEAST_CACHED_TOKENS if cache is None else cache.minimum_tokens


def tool_values(document: Document) -> list[bytes]:
    """Return what stands before the system text in a prompt."""
    values = (document.get(name) for name in TOOL_FIELDS)
    return [raw for raw in values if raw is not None and raw not in (b"null", b"[]")]


def with_tools_marked(document: Document, mark: Mark) -> Document:
    """Return the document whose last tool is marked; the same object where there is none."""
    raw = document.get("tools")
    marked = None if raw is None else with_last_tool_marked(raw, mark)
    return document if marked is None else document.set("tools", marked)


def with_end_marked(
    document: Document, conversation: Conversation, mark: Mark, context: StepContext
) -> Document:
    """Return the document whose last message is marked, if the conversation goes on for certain.

    One that has no answer yet may be over with it; then the mark would have cost more than it saves.
    """
    elements = conversation.elements
    if not elements or elements[-1].role not in (Role.USER, Role.TOOL):
        return document
    if not any(element.role is Role.ASSISTANT for element in elements):
        return document
    index = len(elements) - 1
    raw = document.get_path((conversation.key, index))
    if raw is None or not is_long_enough(
        [*tool_values(document), *conversation.fixed, *conversation.raws], context
    ):
        return document
    marked = with_last_block_marked(raw, mark)
    return document if marked is None else document.set_path((conversation.key, index), marked)
