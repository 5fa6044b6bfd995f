"""Which groups a request goes without: what the plan says, unless something speaks against it.

Owns the order of those objections and their reasons. Edits nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from proxy.core.document import Document
from proxy.dialects.conversation import Conversation
from proxy.steps.step import Rejected
from proxy.steps.trim_history.config import Config
from proxy.steps.trim_history.economy import Economy
from proxy.steps.trim_history.plan import Limits, plan_drops

# A cut in blocks takes a quarter more than it must: the prefix then stays for as long as that fills again.
_BLOCK_SHARE = 4
# Shorter prefixes are cached nowhere that a price is known for; elsewhere they are read in no time.
_LEAST_CACHED_TOKENS = 1_024
_SERVER_SIDE = frozenset({"truncation", "context_management"})
_JSON_WORD = b"json"


class Weighed(msgspec.Struct, frozen=True):
    """Tokens of a conversation: of its groups as the caller wrote them, as edited, and of system text."""

    before: Sequence[int]
    groups: Sequence[int]
    fixed: int

    def total(self, dropped: frozenset[int] = frozenset()) -> int:
        """Return what is left without some groups, edits made."""
        return self.fixed + sum(self.groups) - sum(self.groups[index] for index in dropped)


class Situation(msgspec.Struct, frozen=True):
    """A request whose conversation has been read, weighed and looked up."""

    document: Document
    conversation: Conversation
    weighed: Weighed
    economy: Economy


class Choice(msgspec.Struct, frozen=True):
    """Which groups go, and why not more of them do."""

    dropped: frozenset[int] = frozenset()
    reason: str = ""


def choose(situation: Situation, config: Config, budget: int) -> Choice:
    """Return what goes. Raises `Rejected` where what must stay exceeds the budget and the policy says so."""
    weighed, conversation = situation.weighed, situation.conversation
    total = weighed.total()
    if total <= budget:
        return Choice()
    if conversation.is_partial:
        return Choice(reason="earlier turns live at the server")
    if _is_left_to_server(situation.document):
        return Choice(reason="the caller lets the server shorten the context")
    limits = _limits(situation.economy, config, budget)
    plan = plan_drops(conversation, weighed.groups, weighed.fixed, limits)
    choice = _paying(situation, plan.dropped, budget)
    if plan.tokens > budget and choice.dropped == plan.dropped:
        if config.on_overflow == "reject":
            message = f"The conversation needs at least {plan.tokens} tokens, {budget} are allowed here."
            raise Rejected(message, conversation.key)
        choice = Choice(choice.dropped, "what must stay exceeds the budget")
    dropped = _with_json_mentioned(situation, choice.dropped)
    if dropped and total - weighed.total(dropped) < config.min_saving:
        return Choice(reason=f"trimming would save less than {config.min_saving} tokens")
    return Choice(dropped, choice.reason)


def _limits(economy: Economy, config: Config, budget: int) -> Limits:
    price = economy.price
    least_tokens: int | None = _LEAST_CACHED_TOKENS
    if price is not None:
        least_tokens = None if price.cache is None else price.cache.minimum_tokens
    target = budget - budget // _BLOCK_SHARE
    if config.cache == "ignore" or least_tokens is None or target < least_tokens:
        return Limits(budget, budget, 0, False, config.keep_first, config.keep_last)
    return Limits(budget, target, least_tokens, True, config.keep_first, config.keep_last)


def _paying(situation: Situation, planned: frozenset[int], budget: int) -> Choice:
    """Return the plan, or what was sent last time where that is likely cached and costs no more."""
    economy, weighed = situation.economy, situation.weighed
    if economy.cached is None:
        return Choice(planned)
    as_before = economy.cached.dropped
    if as_before == planned or weighed.total(as_before) <= budget:
        return Choice(as_before)
    cost, cost_as_before = (
        economy.cost_usd(situation.conversation, weighed.groups, weighed.fixed, dropped)
        for dropped in (planned, as_before)
    )
    if cost is None or cost_as_before is None or cost < cost_as_before:
        return Choice(planned)
    return Choice(as_before, "the prefix is likely cached: trimming would cost more")


def _is_left_to_server(document: Document) -> bool:
    if not document.has_any(_SERVER_SIDE):
        return False
    managed = document.get("context_management") not in (None, b"null", b"[]", b"{}")
    return managed or document.value("truncation") == "auto"


def _with_json_mentioned(situation: Situation, dropped: frozenset[int]) -> frozenset[int]:
    """Keep the newest exchange that says "json" where the API refuses JSON mode without that word."""
    conversation = situation.conversation
    if not dropped or not _asks_for_json(situation.document):
        return dropped

    def mentions(index: int) -> bool:
        group = conversation.groups[index]
        return any(_JSON_WORD in raw.lower() for raw in conversation.raws[group.start : group.end])

    if any(_JSON_WORD in raw.lower() for raw in conversation.fixed):
        return dropped
    if any(mentions(index) for index in range(len(conversation.groups)) if index not in dropped):
        return dropped
    for turn in reversed(conversation.turns):
        if any(index in dropped and mentions(index) for index in turn.groups):
            return dropped.difference(turn.groups)
    return dropped


def _asks_for_json(document: Document) -> bool:
    paths = (("response_format", "type"), ("text", "format", "type"))
    return any(document.get_path(path) == b'"json_object"' for path in paths)
