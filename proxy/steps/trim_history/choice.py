"""Which groups a request goes without: what the plan says, unless something speaks against it.

Owns the order of those objections and their reasons. Edits nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from proxy.core.document import Document
from proxy.dialects.conversation import Conversation
from proxy.steps.step import Rejected
from proxy.steps.trim_history.config import Config
from proxy.steps.trim_history.economy import Economy
from proxy.steps.trim_history.json_mode import asks_for_json, with_mention
from proxy.steps.trim_history.plan import Limits, plan_drops

# A cut in blocks takes a quarter more than it must: the prefix then stays for as long as that fills again.
_BLOCK_SHARE = 4
# Shorter prefixes are cached nowhere that a price is known for; elsewhere they are read in no time.
_LEAST_CACHED_TOKENS = 1_024
_SERVER_SIDE = frozenset({"truncation", "context_management"})
_OVER = "what must stay exceeds the budget"


class Weighed(msgspec.Struct, frozen=True):
    """Tokens of a conversation: of its groups as the caller wrote them, as edited, and of system text."""

    before: Sequence[int]
    groups: Sequence[int]
    fixed: int

    def total(self, dropped: frozenset[int] = frozenset()) -> int:
        """Return what is left without some groups, edits made."""
        return self.fixed + sum(self.groups) - sum(self.groups[index] for index in dropped)


class Situation(msgspec.Struct, frozen=True):
    """A request whose conversation has been read, weighed and looked up; `edits` by index of element."""

    document: Document
    conversation: Conversation
    edits: Mapping[int, bytes]
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
    choice = _best(situation, config, budget)
    dropped = choice.dropped
    if dropped and asks_for_json(situation.document):
        dropped = with_mention(conversation, situation.edits, dropped)
    after = weighed.total(dropped)
    if config.on_overflow == "reject":
        if after > budget:
            message = f"The conversation needs at least {after} tokens, {budget} are allowed here."
            raise Rejected(message, conversation.key)
        return Choice(dropped)
    if dropped and total - after < config.min_saving:
        return Choice(reason=f"trimming would save less than {config.min_saving} tokens")
    reason = choice.reason or (_OVER if after > budget else "")
    return Choice(dropped, reason)


def _best(situation: Situation, config: Config, budget: int) -> Choice:
    """Return what goes by the plan and by what it costs; a limit is kept whatever that costs."""
    weighed, conversation = situation.weighed, situation.conversation
    is_limit = config.on_overflow == "reject"
    if conversation.is_partial:
        return Choice(reason="earlier turns live at the server")
    if not is_limit and _is_left_to_server(situation.document, conversation):
        return Choice(reason="the caller lets the server shorten the context")
    limits = _limits(situation.economy, config, budget)
    plan = plan_drops(conversation, weighed.groups, weighed.fixed, limits)
    return _paying(situation, plan.dropped, budget, is_limit=is_limit)


def _limits(economy: Economy, config: Config, budget: int) -> Limits:
    price = economy.price
    least_tokens: int | None = _LEAST_CACHED_TOKENS
    if price is not None:
        least_tokens = None if price.cache is None else price.cache.minimum_tokens
    target = budget - budget // _BLOCK_SHARE
    if config.cache == "ignore" or least_tokens is None or target < least_tokens:
        return Limits(budget, budget, 0, False, config.keep_first, config.keep_last)
    return Limits(budget, target, least_tokens, True, config.keep_first, config.keep_last)


def _paying(situation: Situation, planned: frozenset[int], budget: int, *, is_limit: bool) -> Choice:
    """Return the plan, or what was sent last time where that is likely cached and costs no more."""
    economy, weighed = situation.economy, situation.weighed
    if economy.cached is None:
        return Choice(planned)
    as_before = economy.cached.dropped
    if as_before == planned or weighed.total(as_before) <= budget:
        return Choice(as_before)
    if is_limit:
        return Choice(planned)
    cost, cost_as_before = (
        economy.cost_usd(situation.conversation, weighed.groups, weighed.fixed, dropped)
        for dropped in (planned, as_before)
    )
    if cost is None or cost_as_before is None or cost < cost_as_before:
        return Choice(planned)
    return Choice(as_before, "the prefix is likely cached: trimming would cost more")


def _is_left_to_server(document: Document, conversation: Conversation) -> bool:
    """Tell whether a field that this API has lets the server shorten the context."""
    if not document.has_any(_SERVER_SIDE) or conversation.dialect == "chat":
        return False
    managed = document.get("context_management") not in (None, b"null", b"[]", b"{}")
    return managed or (conversation.dialect == "responses" and document.value("truncation") == "auto")
