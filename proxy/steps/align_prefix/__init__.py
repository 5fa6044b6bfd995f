"""Make the beginnings of prompts alike, so that the provider's cache knows them, and tell it where they end.

Declared lines of the system text move behind the rest of it. Requests with the same beginning get the same
`prompt_cache_key`; the end of a stable prefix is marked for models that take marks; requests that are not
continued are not written to a cache that charges for it. The caller's own keys, options and marks win: where
it marks prefixes itself, nothing is moved and no mark is added.

    config       the options                    system       the system text and its bytes
    volatile     which lines change             marking      where prefixes are marked
    arrangement  which lines go behind which    key          which requests belong together
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from proxy.core.decision import StepStatus
from proxy.core.document import Document
from proxy.dialects.conversation import (
    Conversation,
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
)
from proxy.dialects.system_text import has_system_text
from proxy.dialects.text_parts import quoted_text
from proxy.steps.align_prefix.arrangement import Arrangement, arrange
from proxy.steps.align_prefix.config import Config
from proxy.steps.align_prefix.key import cache_key
from proxy.steps.align_prefix.marking import is_long_enough, tool_values, with_end_marked, with_tools_marked
from proxy.steps.align_prefix.system import System, read_system
from proxy.steps.align_prefix.volatile import Change
from proxy.steps.step import Outcome, Step, StepContext, skipped, unchanged

__all__ = ["STEP", "Config", "apply"]

_OWN_MARKS = "the caller marks its cached prefixes itself"

Detail = tuple[str, str | int]


class _Request(msgspec.Struct, frozen=True):
    """A request as the parts of this step see it; `mark` is `None` where none may be set."""

    document: Document
    conversation: Conversation | None
    system: System
    arrangement: Arrangement
    mark: Mark | None
    is_marked: bool


def apply(document: Document, config: Config, context: StepContext) -> Outcome:
    """Arrange the system text, mark its end and name the cache, as far as the caller left that open."""
    name = context.dialect.name
    if not has_system_text(name):
        return skipped(document, "this API has no system text")
    is_known = takes_cache_key(context.provider, name) or mark_for(context.provider, name, context.model)
    if not config.volatile and not is_known:
        return skipped(document, "the provider takes neither keys nor marks")
    conversation = read_conversation(document, context.dialect)
    if conversation is None and name != "responses":
        return skipped(document, "messages is no list of turns")
    request = _read(document, conversation, config, context)
    detail: list[Detail] = []
    edited, count = _arranged(request, config, context)
    if request.arrangement.moved:
        detail.append(("moved", request.arrangement.moved))
    if count:
        detail.append(("breakpoints", count))
    added: list[str] = []
    if _wants_key(request, config, context):
        before = [*tool_values(document), *map(quoted_text, request.arrangement.stable_texts)]
        key = cache_key(document, conversation, before, config.requests_per_minute)
        edited = edited.set(KEY_FIELD, quoted_text(key))
        detail.append(("key", key))
        added.append(KEY_FIELD)
    if _wants_explicit(request, config, context):
        edited = edited.set(OPTIONS_FIELD, EXPLICIT_ONLY)
        detail.append(("mode", "explicit"))
        added.append(OPTIONS_FIELD)
    if edited is not document:
        inner = (request.mark.name,) if count and request.mark is not None else ()
        return Outcome(edited, StepStatus.APPLIED, detail=tuple(detail), added=tuple(added), inner=inner)
    return skipped(document, _OWN_MARKS) if request.is_marked else unchanged(document)


def _read(
    document: Document, conversation: Conversation | None, config: Config, context: StepContext
) -> _Request:
    name = context.dialect.name
    system = read_system(document, conversation, context.dialect)
    is_marked = _is_marked(document, conversation, conversation_fields(context.dialect)[1:])
    mark = mark_for(context.provider, name, context.model) if config.breakpoints and not is_marked else None
    if mark is not None and mark.name in context.refused:
        mark = None
    arrangement = arrange(system.texts, () if is_marked else config.volatile)
    return _Request(document, conversation, system, arrangement, mark, is_marked)


def _is_marked(document: Document, conversation: Conversation | None, fields: Sequence[str]) -> bool:
    """Tell whether the caller says itself what is to be cached."""
    given = (document.get(name) for name in ("cache_control", OPTIONS_FIELD))
    if any(raw is not None and raw != b"null" for raw in given):
        return True
    values = (document.get(name) for name in ("tools", *fields))
    if any(raw is not None and has_cache_mark(raw) for raw in values):
        return True
    return conversation is not None and conversation.marked_until() > 0


def _arranged(request: _Request, config: Config, context: StepContext) -> tuple[Document, int]:
    """Return the document with its system text arranged, and with how many marks."""
    document, arrangement, mark = request.document, request.arrangement, request.mark
    stable = [*tool_values(document), *map(quoted_text, arrangement.stable_texts)]
    is_worth = mark is not None and is_long_enough(stable, context)
    is_behind_system = is_worth and request.system.is_markable(arrangement)
    edited = request.system.arranged(document, arrangement, mark if is_behind_system else None)
    count = int(is_behind_system)
    if mark is None or context.dialect.name != "messages":
        return edited, count
    if is_worth and arrangement.last < 0:
        marked = with_tools_marked(edited, mark)
        count += marked is not edited
        edited = marked
    # Behind a line that is never the same nothing is found again.
    is_lasting = arrangement.change is not Change.ALWAYS
    if request.conversation is not None and is_lasting and not config.one_shot:
        marked = with_end_marked(edited, request.conversation, mark, context)
        count += marked is not edited
        edited = marked
    return edited, count


def _wants_key(request: _Request, config: Config, context: StepContext) -> bool:
    return (
        config.cache_key
        and takes_cache_key(context.provider, context.dialect.name)
        and KEY_FIELD not in context.refused
        and request.document.get(KEY_FIELD) is None
        and _may_be_cached(request)
    )


def _wants_explicit(request: _Request, config: Config, context: StepContext) -> bool:
    """Tell whether this request would be written to a cache that charges for it, and never read from it."""
    if not config.one_shot or request.is_marked or OPTIONS_FIELD in context.refused:
        return False
    taken = mark_for(context.provider, context.dialect.name, context.model)
    if taken is None or context.provider != "openai" or request.document.get(OPTIONS_FIELD) is not None:
        return False
    price = None if context.prices is None else context.prices.price(context.provider, context.model)
    is_free = price is not None and price.standard.cache_write <= price.standard.input
    return not is_free and _may_be_cached(request)


def _may_be_cached(request: _Request) -> bool:
    """Tell whether a prompt may be long enough for any cache: no token has less than a byte."""
    document, conversation = request.document, request.conversation
    values = [*tool_values(document), *(holder.raw for holder in request.system.holders)]
    values += [document.get("input") or b""] if conversation is None else conversation.raws
    return sum(map(len, values)) >= LEAST_CACHED_TOKENS


STEP = Step("align_prefix", Config, apply, counts_tokens=True)
