"""What the simulated provider remembers of earlier answers, for `previous_response_id`.

It holds the tokens of a conversation per caller and response, bounded in number; the oldest are forgotten.
"""

from __future__ import annotations

from collections import OrderedDict

_MAX_CONVERSATIONS = 1_000


class Memory:
    """Stored conversations. One caller never sees another's."""

    def __init__(self) -> None:
        self._tokens: OrderedDict[tuple[str, str], tuple[str, ...]] = OrderedDict()

    def keep(self, caller: str, response_id: str, tokens: tuple[str, ...]) -> None:
        """Remember the conversation up to and including `response_id`."""
        self._tokens[caller, response_id] = tokens
        if len(self._tokens) > _MAX_CONVERSATIONS:
            self._tokens.popitem(last=False)

    def recall(self, caller: str, response_id: str) -> tuple[str, ...] | None:
        """Return that conversation, or None if this caller has none by that id."""
        return self._tokens.get((caller, response_id))
