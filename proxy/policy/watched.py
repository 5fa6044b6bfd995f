"""Token counting that stops when nobody waits for the decision any more.

Counting is what takes long in deciding, message by message; so between two messages is where to look.
"""

from __future__ import annotations

from collections.abc import Callable

from proxy.core.decision import Abandoned
from proxy.core.document import Document
from proxy.steps.step import TokenCounting, TokenFigure

IsWanted = Callable[[], bool]
"""Whether anybody still waits for a decision; called from the thread that decides."""


class WatchedCounting:
    """Counts as `tokens` does; raises Abandoned instead once `is_wanted` says no."""

    __slots__ = ("_is_wanted", "_tokens")

    def __init__(self, tokens: TokenCounting, is_wanted: IsWanted) -> None:
        self._tokens = tokens
        self._is_wanted = is_wanted

    def count_text(self, text: str, model: str) -> TokenFigure:
        """Count one text."""
        check_wanted(self._is_wanted)
        return self._tokens.count_text(text, model)

    def count_message(self, raw: bytes, model: str) -> TokenFigure:
        """Count one message given as its raw JSON."""
        check_wanted(self._is_wanted)
        return self._tokens.count_message(raw, model)


def watched(tokens: TokenCounting, is_wanted: IsWanted | None) -> TokenCounting:
    """Return what counts for a decision: `tokens` itself where somebody always waits."""
    return tokens if is_wanted is None else WatchedCounting(tokens, is_wanted)


def check_wanted(is_wanted: IsWanted | None) -> None:
    """Raise Abandoned where nobody waits any more; `None` is somebody who always does."""
    if is_wanted is not None and not is_wanted():
        raise Abandoned


def count_prompt(tokens: TokenCounting, document: Document, model: str) -> int:
    """Return the tokens of a prompt: its turns, inputs or texts. Watched counting raises Abandoned."""
    for key in ("messages", "input", "prompt"):
        messages = document.elements(key)
        if messages is not None:
            return sum(tokens.count_message(raw, model).tokens for raw in messages)
        text = document.value(key)
        if isinstance(text, str):
            return tokens.count_text(text, model).tokens
    return 0
