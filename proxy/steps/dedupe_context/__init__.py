"""Remove repeated passages of retrieved context: the first of them stays, in its place, as it was written.

What an element becomes depends on itself and what stands before it alone, so a conversation begins with the
same bytes in every later request, and what a provider has cached of it stays cached. What the caller marked
as a cached prefix, or what went out unedited a moment ago, is left alone. No note is left for the model.

    config      the options                       likeness    which passages say the same
    holders     where texts are in a request      passages    where passages are in a text
    edits       what a request loses              json_lists  and where they are elements of JSON
    sift        what a text loses
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from proxy.core.decision import StepStatus
from proxy.core.document import Document
from proxy.core.prefixes import SentPrefix
from proxy.dialects.conversation import (
    Conversation,
    conversation_fields,
    has_cache_mark,
    read_conversation,
)
from proxy.dialects.prefix_keys import prefix_keys
from proxy.dialects.text_holders import Holder, with_holders
from proxy.steps.dedupe_context.config import Config
from proxy.steps.dedupe_context.edits import Edits, edited
from proxy.steps.dedupe_context.holders import PLAIN_FIELDS, holders_of, plain_holders
from proxy.steps.step import Outcome, Step, StepContext, skipped, unchanged

__all__ = ["STEP", "Config", "apply"]


def apply(document: Document, config: Config, context: StepContext) -> Outcome:
    """Remove passages that repeat earlier ones, and those whose scores the policy does not want."""
    dialect = context.dialect
    plain = PLAIN_FIELDS.get(dialect.name)
    fields = conversation_fields(dialect) or (() if plain is None else (plain,))
    if not fields:
        return skipped(document, "this API reads no passages")
    if _is_surely_without(document, fields, config):
        return unchanged(document)
    conversation = read_conversation(document, dialect)
    if conversation is not None:
        return _in_conversation(document, conversation, config, context)
    holders = None if plain is None else plain_holders(document, plain)
    if holders is None:
        return skipped(document, f"{fields[0]} is no {'text' if plain else 'list of turns'}")
    edits = edited(holders, config, 0, is_shared=False)
    return _outcome(document, holders, edits, [holder.raw for holder in holders], context)


def _is_surely_without(document: Document, fields: Sequence[str], config: Config) -> bool:
    """Tell from lengths alone that nothing can occur twice."""
    if config.top_k is not None or config.min_score is not None:
        return False
    return sum(len(document.get(name) or b"") for name in fields) < 2 * config.min_chars


def _in_conversation(
    document: Document, conversation: Conversation, config: Config, context: StepContext
) -> Outcome:
    is_everything = config.scope == "all"
    holders = holders_of(conversation, document, context.dialect, is_everything=is_everything)
    marked = _marked(document, holders, conversation)
    if holders and marked == len(holders):
        return skipped(document, "all of it is in a prefix that the caller marked as cached")
    edits = edited(holders, config, marked, is_shared=is_everything)
    if not edits.raws:
        return unchanged(document)
    as_written = _sent_as_written(document, conversation, holders, edits, context)
    if as_written > marked:
        edits = edited(holders, config, as_written, is_shared=is_everything)
    outcome = _outcome(document, holders, edits, [*conversation.fixed, *conversation.raws], context)
    return _remembered(outcome, context)


def _marked(document: Document, holders: Sequence[Holder], conversation: Conversation) -> int:
    """Return how many leading holders are in a prefix that the caller marked as cached."""
    if document.get("cache_control") not in (None, b"null"):
        return len(holders)
    until = conversation.marked_until()
    if until:
        return _leading(holders, until)
    marked = 0
    for number, holder in enumerate(holders):
        if holder.is_value and has_cache_mark(holder.raw):
            marked = number + 1
    return marked


def _leading(holders: Sequence[Holder], elements: int) -> int:
    return sum(holder.index is None or holder.index < elements for holder in holders)


def _sent_as_written(
    document: Document,
    conversation: Conversation,
    holders: Sequence[Holder],
    edits: Edits,
    context: StepContext,
) -> int:
    """Return how many leading holders a provider has likely cached as the caller wrote them.

    That is so where the conversation began before this step was switched on, or on another route.
    """
    lifetime_seconds = _cache_lifetime_seconds(context)
    if context.prefixes is None or lifetime_seconds is None:
        return 0
    seen = context.prefixes.seen(prefix_keys(document, conversation), lifetime_seconds)
    if seen is None:
        return 0
    as_written = seen.dropped[0][0] if seen.dropped else seen.elements
    if _leading(holders, as_written) <= min(edits.raws):
        return 0
    after = _replaced(document, holders, edits.raws)
    conversation_after = read_conversation(after, context.dialect)
    if conversation_after is not None:
        keys = prefix_keys(after, conversation_after)
        seen_after = context.prefixes.seen(keys, lifetime_seconds)
        if seen_after is not None and seen_after.elements >= seen.elements:
            return 0
    return _leading(holders, as_written)


def _cache_lifetime_seconds(context: StepContext) -> float | None:
    """Return how long a provider keeps prefixes unasked; `None` where it does not, or nobody knows."""
    price = None if context.prices is None else context.prices.price(context.provider, context.model)
    cache = None if price is None else price.cache
    return cache.lifetime_seconds if cache is not None and cache.is_automatic else None


def _outcome(
    document: Document,
    holders: Sequence[Holder],
    edits: Edits,
    counted: Sequence[bytes],
    context: StepContext,
) -> Outcome:
    """Return what was done, less what would save no token. `counted` is all that the model reads."""
    if not edits.raws:
        return unchanged(document)

    def count(raw: bytes) -> int:
        return context.tokens.count_message(raw, context.model).tokens

    savings = {number: count(holders[number].raw) - count(raw) for number, raw in edits.raws.items()}
    saving = {number: raw for number, raw in edits.raws.items() if savings[number] > 0}
    if not saving:
        return unchanged(document)
    saved = sum(savings[number] for number in saving)
    before = sum(map(count, counted))
    tallies = [edits.tallies[number] for number in saving]
    figures = (
        ("duplicates", sum(tally.duplicates for tally in tallies)),
        ("low_scores", sum(tally.low_scores for tally in tallies)),
        ("beyond_top_k", sum(tally.beyond_top_k for tally in tallies)),
    )
    detail: tuple[tuple[str, str | int], ...] = (("saved", saved), *(each for each in figures if each[1]))
    after = _replaced(document, holders, saving)
    return Outcome(after, StepStatus.APPLIED, detail=detail, tokens=(before, before - saved))


def _replaced(document: Document, holders: Sequence[Holder], raws: Mapping[int, bytes]) -> Document:
    return with_holders(
        document, {(holders[number].field, holders[number].index): raw for number, raw in raws.items()}
    )


def _remembered(outcome: Outcome, context: StepContext) -> Outcome:
    """Add what the provider has cached from now on, where it caches unasked."""
    if context.prefixes is None or _cache_lifetime_seconds(context) is None:
        return outcome
    conversation = read_conversation(outcome.document, context.dialect)
    keys = () if conversation is None else prefix_keys(outcome.document, conversation)
    return msgspec.structs.replace(outcome, sent=SentPrefix(keys[-1])) if keys else outcome


STEP = Step("dedupe_context", Config, apply, counts_tokens=True)
