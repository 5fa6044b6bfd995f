"""Make the beginnings of prompts alike, so that the provider's cache knows them, and tell it where they end.

Declared lines of the system text move behind the rest of it. Requests with the same beginning get the same
`prompt_cache_key`; the end of a stable prefix is marked for models that take marks; requests that are not
continued are not written to a cache that charges for it. The caller's own keys, options and marks win: where it
marks a prefix itself, nothing in that prefix is moved or marked.

    config       the options                    arrangement  which lines go behind which
    volatile     which lines change             marking      where prefixes are marked
    key          which requests belong together
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from proxy.core.decision import StepStatus
from proxy.core.document import Document
from proxy.dialects.conversation import (
    Conversation,
    Role,
    conversation_fields,
    has_cache_mark,
    read_conversation,
)
from proxy.dialects.prompt_caching import (
    EXPLICIT_ONLY,
    KEY_FIELD,
    LEAST_CACHED_TOKENS,
    OPTIONS_FIELD,
    Mark,
    mark_for,
    takes_cache_key,
    with_text_marked,
)
from proxy.dialects.system_text import has_system_text
from proxy.dialects.text_holders import Holder, can_go, with_holders
from proxy.dialects.text_parts import TextPart, quoted_text
from proxy.steps.align_prefix.arrangement import Arrangement, SystemText, arrange
from proxy.steps.align_prefix.config import Config
from proxy.steps.align_prefix.key import cache_key
from proxy.steps.align_prefix.marking import (
    TOOL_FIELDS,
    is_long_enough,
    tool_values,
    with_end_marked,
    with_tools_marked,
)
from proxy.steps.align_prefix.volatile import Change
from proxy.steps.step import Outcome, Step, StepContext, skipped, unchanged

__all__ = ["STEP", "Config", "apply"]

_OWN_MARKS = "the caller marks its cached prefixes itself"


class _Place(msgspec.Struct, frozen=True):
    """One text of the system text: whose it is."""

    holder: int
    part: TextPart


class _System(msgspec.Struct, frozen=True):
    """The system text before the conversation, in the order in which it is read."""

    holders: tuple[Holder, ...]
    places: tuple[_Place, ...]
    texts: tuple[SystemText, ...]


def apply(document: Document, config: Config, context: StepContext) -> Outcome:
    """Arrange the system text, mark its end, and name the cache; whatever the caller left open."""
    name = context.dialect.name
    if not has_system_text(name):
        return skipped(document, "this API has no system text")
    conversation = read_conversation(document, context.dialect)
    if conversation is None and name != "responses":
        return skipped(document, "messages is no list of turns")
    system = _read_system(document, conversation, context)
    mark = mark_for(context.provider, name, context.model)
    is_own = _is_marked(document, conversation, name)
    arrangement = arrange(system.texts, config.volatile)
    edited = document
    detail: list[tuple[str, str | int]] = []
    if is_own:
        arrangement = arrange(system.texts, ())
    ...
