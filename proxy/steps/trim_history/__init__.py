"""Fit a conversation into a token budget: the oldest exchanges go, and oversized tool results get shorter.

System, developer and summary messages stay, the person's last words always do, and what belongs together
goes together (`proxy.dialects.conversation`). What is kept keeps its bytes. No note is left for the model.

    config    the options                    plan      what goes when it is too long
    results   edits in what stays            economy   whether a cut pays
    shorten   texts and JSON made shorter    choice    what goes this time
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from proxy.core.decision import StepStatus
from proxy.core.document import Document
from proxy.core.json_edits import Change, removals, splice
from proxy.core.json_spans import array_spans
from proxy.core.prefixes import SentPrefix
from proxy.dialects.conversation import Conversation, conversation_fields, read_conversation
from proxy.steps.step import Outcome, Step, StepContext, refuse_lookalikes, skipped, unchanged
from proxy.steps.trim_history.choice import Choice, Situation, Weighed, choose
from proxy.steps.trim_history.config import Config
from proxy.steps.trim_history.economy import Cached, Economy, ranges_of, read_economy
from proxy.steps.trim_history.json_mode import asks_for_json, without_last_loss
from proxy.steps.trim_history.results import shortened_results, summaries_as_system
from proxy.tokens.bounds import upper_bound_bytes

__all__ = ["STEP", "Config", "apply"]

_TYPE = b'"type"'
# What an empty message costs although it has hardly any bytes.
_LEAST_FRAMING_TOKENS = 32

Detail = tuple[tuple[str, str | int], ...]


class _Edits(msgspec.Struct, frozen=True):
    """New bytes of elements, by index, whether or not they stay."""

    shortened: Mapping[int, bytes]
    summaries: Mapping[int, bytes]

    def all(self) -> dict[int, bytes]:
        return {**self.shortened, **self.summaries}


def apply(document: Document, config: Config, context: StepContext) -> Outcome:
    """Shorten oversized tool results, then drop what exceeds the budget, oldest first.

    Raises `Rejected` when what must stay exceeds the budget and the policy says so.
    """
    fields = conversation_fields(context.dialect)
    if not fields:
        return skipped(document, "this API has no conversation")
    if config.on_overflow == "reject":
        for name in fields:
            refuse_lookalikes(document, (name,))
    if _is_surely_short(document, fields, config):
        return unchanged(document)
    conversation = read_conversation(document, context.dialect)
    if conversation is None:
        return skipped(document, f"{fields[0]} is no list of turns")
    # Anthropic has no role for system text among the messages.
    renames = config.summary == "system" and context.dialect.name != "messages"
    shortened: Mapping[int, bytes] = shortened_results(conversation, config, context)
    if shortened and asks_for_json(document):
        shortened = without_last_loss(conversation, shortened)
    edits = _Edits(
        shortened,
        summaries_as_system(conversation) if renames else {},
    )
    if config.budget is None:
        return _only_edited(document, conversation, edits, context)
    economy = Economy(None)
    if config.cache == "respect":
        economy = read_economy(document, conversation, context)
    weighed = _weighed(conversation, edits, context)
    situation = Situation(document, conversation, edits.all(), weighed, economy)
    choice = choose(situation, config, config.budget)
    return _outcome(situation, edits, choice, config.budget)


def _is_surely_short(document: Document, fields: Sequence[str], config: Config) -> bool:
    """Tell from lengths alone that there is nothing to do; false means that one has to look."""
    raws = [raw for name in fields if (raw := document.get(name)) is not None]
    if not raws or (config.summary != "keep" and b'"summary"' in raws[0]):
        return False
    length = sum(map(len, raws))
    if config.per_message is not None and length > config.per_message:
        return False
    budget = config.budget
    if budget is None or length > budget:
        return budget is None
    # Media, of which a few bytes may cost thousands of tokens, always name their type.
    if all(_TYPE not in raw for raw in raws):
        return length + _LEAST_FRAMING_TOKENS <= budget
    return sum(map(upper_bound_bytes, raws)) <= budget


def _weighed(conversation: Conversation, edits: _Edits, context: StepContext) -> Weighed:
    count, model = context.tokens.count_message, context.model
    elements = [count(raw, model).tokens for raw in conversation.raws]
    edited = list(elements)
    for index, raw in edits.all().items():
        edited[index] = min(elements[index], count(raw, model).tokens)
    groups = conversation.groups
    return Weighed(
        [sum(elements[group.start : group.end]) for group in groups],
        [sum(edited[group.start : group.end]) for group in groups],
        sum(count(raw, model).tokens for raw in conversation.fixed),
    )


def _only_edited(
    document: Document, conversation: Conversation, edits: _Edits, context: StepContext
) -> Outcome:
    """Return the outcome without a budget: nothing but what was shortened needs to be counted."""
    if not edits.all():
        return unchanged(document)
    count, model = context.tokens.count_message, context.model
    saved = sum(
        count(conversation.raws[index], model).tokens - count(raw, model).tokens
        for index, raw in edits.shortened.items()
    )
    detail = _detail(saved, shortened=len(edits.shortened), summaries=len(edits.summaries))
    edited = _composed(document, conversation, edits.all(), ())
    return Outcome(edited, StepStatus.APPLIED, detail=detail)


def _outcome(situation: Situation, edits: _Edits, choice: Choice, budget: int) -> Outcome:
    document, conversation, weighed = situation.document, situation.conversation, situation.weighed
    economy, dropped = situation.economy, choice.dropped
    before, after = weighed.fixed + sum(weighed.before), weighed.total(dropped)
    sent = SentPrefix(economy.keys[-1], ranges_of(conversation, dropped)) if economy.keys else None
    if not dropped and not edits.all():
        status = StepStatus.SKIPPED if choice.reason else StepStatus.UNCHANGED
        return Outcome(document, status, choice.reason, tokens=(before, before), sent=sent)
    gone = [
        element
        for index in dropped
        for element in range(conversation.groups[index].start, conversation.groups[index].end)
    ]
    detail = _detail(
        before - after,
        dropped=len(gone),
        shortened=len(edits.shortened),
        summaries=len(edits.summaries),
        over=max(0, after - budget),
    )
    saved_usd = _saved_usd(situation, dropped)
    if saved_usd is not None:
        detail += (("saved_usd", saved_usd),)
    return Outcome(
        _composed(document, conversation, edits.all(), gone),
        StepStatus.APPLIED,
        choice.reason,
        detail,
        tokens=(before, after),
        sent=sent,
    )


def _detail(saved: int, **counts: int) -> Detail:
    return (("saved", saved), *((name, count) for name, count in counts.items() if count))


def _saved_usd(situation: Situation, dropped: frozenset[int]) -> str | None:
    """Return what the request costs less than the caller's own would, whose prefix would be cached too."""
    conversation, weighed, economy = situation.conversation, situation.weighed, situation.economy
    untrimmed = economy
    if economy.cached is not None:
        whole = Cached(economy.cached.elements, frozenset())
        untrimmed = msgspec.structs.replace(economy, cached=whole)
    before = untrimmed.cost_usd(conversation, weighed.before, weighed.fixed, frozenset())
    after = economy.cost_usd(conversation, weighed.groups, weighed.fixed, dropped)
    return None if before is None or after is None else f"{before - after:.6f}"


def _composed(
    document: Document, conversation: Conversation, edits: Mapping[int, bytes], gone: Iterable[int]
) -> Document:
    """Return the document with elements replaced and gone; every other byte stays."""
    raw = document.get(conversation.key)
    spans = None if raw is None else array_spans(raw)
    if raw is None or spans is None:
        return document
    gone = frozenset(gone)
    changes: list[Change] = removals(spans, gone)
    changes += [(*spans[index], new) for index, new in edits.items() if index not in gone]
    changes.sort(key=lambda change: change[:2])
    return document.set(conversation.key, splice(raw, changes))


STEP = Step(
    "trim_history",
    Config,
    apply,
    shorthand="budget",
    enforces=lambda config: config.on_overflow == "reject",
    counts_tokens=True,
)
